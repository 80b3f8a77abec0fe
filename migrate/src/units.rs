//! The unit, limits and thresholds of a panel, and their conversion for queries that return base units.

use crate::files::Place;
use crate::files::tree::{Node, Style};

/// A unit of Grafana, the factor from its base unit, and the base unit: a value in it is the one in the base unit times the factor.
///
/// People show mebibytes as either kind of megabytes; the base unit then shows the same digits.
const UNITS: [(&str, f64, &str); 10] = [
    ("percent", 100.0, "percentunit"),
    ("mbytes", 1.0 / 1_048_576.0, "bytes"),
    ("decmbytes", 1.0 / 1_048_576.0, "bytes"),
    ("rotmhz", 1e-6, "rothz"),
    ("MHz", 1e-6, "hertz"),
    ("suffix:MHz", 1e-6, "hertz"),
    ("suffix: MHz", 1e-6, "hertz"),
    ("mJ", 1e3, "joule"),
    ("suffix:mJ", 1e3, "joule"),
    ("ns", 1e9, "s"),
];

/// Panels whose units, limits and thresholds stand in `fieldConfig` alone.
const PANELS: [&str; 5] = ["timeseries", "stat", "gauge", "bargauge", "table"];

/// Keys of a panel that depend on its values in ways that are not converted.
const UNCONVERTED: [&str; 7] = ["transformations", "alert", "yaxes", "thresholds", "format", "gauge", "valueMaps"];

/// Reductions of a series to a number that scale with the values.
const LINEAR: [&str; 13] = [
    "last",
    "lastNotNull",
    "first",
    "firstNotNull",
    "min",
    "max",
    "mean",
    "median",
    "sum",
    "range",
    "delta",
    "diff",
    "stdDev",
];

/// Limits of a field.
const LIMITS: [&str; 4] = ["min", "max", "custom.axisSoftMin", "custom.axisSoftMax"];

/// A scalar that changes: its place, the text before and after.
pub type Converted = (Place, String, String);

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-12 * other.abs()
}

/// The number divided by the factor, where its decimal form is exact.
pub fn divided(number: &str, factor: f64) -> Option<String> {
    let value: f64 = number.trim().parse().ok()?;
    let exact = value / factor;
    // What the division adds in the last digits.
    let rounded: f64 = format!("{exact:.14e}").parse().ok()?;
    let short: f64 = format!("{exact:.9e}").parse().ok()?;
    let whole = rounded.fract() == 0.0 && rounded.abs() < 1e15;
    (value.is_finite() && (whole || rounded == short) && near(rounded * factor, value)).then(|| format!("{rounded}"))
}

/// The changes of a panel for queries whose results are divided by the factor; `None` where something stands against it.
pub fn of_panel(document: usize, panel: &Node, factor: f64) -> Option<Vec<Converted>> {
    let filled = |key: &&str| {
        panel.get(key).is_some_and(|node| match node.scalar() {
            Some(scalar) => !matches!(scalar.text.as_str(), "" | "null" | "~"),
            None => !node.items().is_empty() || !node.entries().is_empty(),
        })
    };
    if !PANELS.contains(&panel.text_of("type")?) || UNCONVERTED.iter().any(filled) {
        return None;
    }
    // Expressions of Grafana, which have no query of their own, and links that carry values.
    let mut values_read = panel.items_of("targets").iter().any(|target| target.text_of("expr").is_none());
    panel.scalars(&mut |_, scalar| values_read |= scalar.text.contains("${__value"));
    let calculations = panel.at(&["options", "reduceOptions", "calcs"]).map_or(&[][..], Node::items);
    if values_read || !calculations.iter().filter_map(Node::text).all(|name| LINEAR.contains(&name)) {
        return None;
    }
    let mut conversion = Conversion { document, factor, changes: vec![] };
    let defaults = panel.at(&["fieldConfig", "defaults"])?;
    conversion.unit(defaults.get("unit")?)?;
    conversion.thresholds(defaults.get("thresholds"))?;
    let logarithmic = defaults.at(&["custom", "scaleDistribution", "linearThreshold"]).is_some();
    if logarithmic || !defaults.items_of("mappings").is_empty() {
        return None;
    }
    for limit in LIMITS {
        let path: Vec<&str> = limit.split('.').collect();
        conversion.number(defaults.at(&path))?;
    }
    let overrides = panel.at(&["fieldConfig", "overrides"]).map_or(&[][..], Node::items);
    for property in overrides.iter().flat_map(|one| one.items_of("properties")) {
        let value = property.get("value");
        match property.text_of("id")? {
            "unit" => conversion.unit(value?)?,
            "thresholds" => conversion.thresholds(value)?,
            "mappings" => return None,
            limit if LIMITS.contains(&limit) => conversion.number(value)?,
            _ => {}
        }
    }
    Some(conversion.changes)
}

struct Conversion {
    document: usize,
    factor: f64,
    changes: Vec<Converted>,
}

impl Conversion {
    fn unit(&mut self, node: &Node) -> Option<()> {
        let unit = node.text()?;
        let (.., base) = UNITS.iter().find(|(name, factor, _)| *name == unit && near(*factor, self.factor))?;
        self.change(node, (*base).to_owned())
    }

    fn thresholds(&mut self, thresholds: Option<&Node>) -> Option<()> {
        let Some(thresholds) = thresholds else { return Some(()) };
        // Of the range from min to max.
        if thresholds.text_of("mode") == Some("percentage") {
            return Some(());
        }
        thresholds.items_of("steps").iter().try_for_each(|step| self.number(step.get("value")))
    }

    fn number(&mut self, node: Option<&Node>) -> Option<()> {
        let Some(node) = node else { return Some(()) };
        match node.scalar()? {
            scalar if matches!(scalar.text.as_str(), "null" | "~" | "") && scalar.style != Style::JsonString => {
                Some(())
            }
            scalar => self.change(node, divided(&scalar.text, self.factor)?),
        }
    }

    fn change(&mut self, node: &Node, after: String) -> Option<()> {
        let before = node.text().filter(|_| !node.shared)?.to_owned();
        if before != after {
            self.changes.push(((self.document, node.span.start), before, after));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_divided_exactly_or_not_at_all() {
        for (number, factor, expected) in [
            ("80", 100.0, Some("0.8")),
            ("12.3", 100.0, Some("0.123")),
            ("0", 100.0, Some("0")),
            ("-5", 100.0, Some("-0.05")),
            ("1500", 1e-6, Some("1500000000")),
            ("81559", 1.0 / 1_048_576.0, Some("85520809984")),
            ("1e3", 1000.0, Some("1")),
            ("1", 3.0, None),
            ("1", 1_048_576.0, None),
            ("x", 100.0, None),
            ("NaN", 100.0, None),
            ("inf", 100.0, None),
        ] {
            assert_eq!(divided(number, factor).as_deref(), expected, "{number} / {factor}");
        }
    }
}
