//! The table of dcgm-exporter's names, which the agent has too, read for a target.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use clap::ValueEnum;
use serde::Deserialize;

/// The generation of names to which files are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// dcgm-exporter up to 4.8
    #[value(name = "4.8")]
    Old,
    /// dcgm-exporter from 4.9 on
    #[value(name = "4.9")]
    New,
}

/// What `DCGM_FI_DEV_GPU_UTIL_RATIO` holds where the expression is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UtilizationRatio {
    /// 0 to 100: DCGM 4.6
    Percent,
    /// 0 to 1: DCGM 4.7
    Ratio,
}

/// The name that means percent in DCGM 4.6 and 0 to 1 in DCGM 4.7.
const AMBIGUOUS: &str = "DCGM_FI_DEV_GPU_UTIL_RATIO";

/// Two integers whose quotient the value after is multiplied by, to be the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    pub numerator: u32,
    pub denominator: u32,
}

impl Factor {
    pub fn value(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }

    /// As it follows an operand: `* 100`, `/ 1048576`, `/ 1e6`.
    pub fn operation(self) -> String {
        let number = |number: u32| match number {
            1_000_000 | 1_000_000_000 => format!("1e{}", number.ilog10()),
            _ => number.to_string(),
        };
        match self.denominator {
            1 => format!("* {}", number(self.numerator)),
            denominator => format!("/ {}", number(denominator)),
        }
    }
}

/// What becomes of a metric.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// The target has it.
    Keep,
    Rename {
        name: &'static str,
        factor: Option<Factor>,
        reason: String,
    },
    /// Why it is left.
    Left(&'static str),
}

#[derive(Deserialize)]
struct Table {
    #[serde(borrow)]
    units: BTreeMap<&'static str, (&'static str, u32, u32)>,
    metrics: Vec<Row>,
    labels: Vec<Row>,
}

/// The fields that this program reads.
#[derive(Clone, Copy, Deserialize)]
struct Row {
    #[serde(rename = "4.8")]
    old: &'static str,
    #[serde(rename = "4.9")]
    new: &'static str,
    #[serde(default)]
    unit: &'static str,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../src/serve/metrics/dcgm/names.json"))
        .expect("the agent's tests read the table")
});

/// Both names of each row.
static BY_NAME: LazyLock<BTreeMap<&'static str, Row>> =
    LazyLock::new(|| TABLE.metrics.iter().flat_map(|row| [(row.new, *row), (row.old, *row)]).collect());

/// Whether a metric name claims to be dcgm-exporter's. Names of recording rules contain a colon.
pub fn is_dcgm(name: &str) -> bool {
    (name.starts_with("DCGM_") || name.starts_with("dcgm_")) && !name.contains(':')
}

/// Whether a text may name a metric of dcgm-exporter.
pub fn mentions(text: &str) -> bool {
    text.as_bytes().windows(5).any(|window| window.eq_ignore_ascii_case(b"dcgm_"))
}

/// The names to which files are rewritten.
#[derive(Clone, Copy, Debug)]
pub struct Naming<'n> {
    pub target: Target,
    /// What `DCGM_FI_DEV_GPU_UTIL_RATIO` holds; without it, an expression with that name is left.
    pub ratio: Option<UtilizationRatio>,
    /// Labels that the scrape adds to dcgm-exporter's series, and their names on those of the target.
    pub labels: &'n [(String, String)],
}

impl<'n> Naming<'n> {
    /// The target's name of a label that has another name before.
    pub fn label(self, label: &str) -> Option<&'n str> {
        self.labels_renamed().find(|(before, _)| *before == label).map(|(_, after)| after)
    }

    /// Before and after.
    pub fn labels_renamed(self) -> impl Iterator<Item = (&'n str, &'n str)> {
        let pairs = TABLE.labels.iter().map(|row| (row.old, row.new)).chain([("Hostname", "hostname")]);
        let pairs = pairs.map(move |(old, new)| if self.target == Target::New { (old, new) } else { (new, old) });
        let added = self.labels.iter().map(|(before, after)| (before.as_str(), after.as_str()));
        added.chain(pairs).filter(|(before, after)| before != after)
    }

    pub fn plan(self, name: &str) -> Plan {
        plan(name, self.target, self.ratio)
    }
}

fn plan(name: &str, target: Target, ratio: Option<UtilizationRatio>) -> Plan {
    let Some(row) = BY_NAME.get(name) else {
        return Plan::Left("it is not in the table of dcgm-exporter's names");
    };
    let (after, version) = match target {
        Target::Old => (row.old, "4.8"),
        Target::New => (row.new, "4.9"),
    };
    if after == name {
        return match (name, ratio) {
            (AMBIGUOUS, Some(UtilizationRatio::Percent)) => Plan::Left("it is 0 to 1 with dcgm-exporter 4.9"),
            _ => Plan::Keep,
        };
    }
    if name == AMBIGUOUS && ratio.is_none() {
        return Plan::Left("it is percent in DCGM 4.6 and 0 to 1 in DCGM 4.7; state which with --gpu-util-ratio");
    }
    let unit = TABLE.units.get(row.unit).filter(|_| name != AMBIGUOUS || ratio != Some(UtilizationRatio::Percent));
    let mut reason = format!("the name in dcgm-exporter {version}");
    let factor = unit.map(|(base, numerator, denominator)| {
        let (before, after, numerator, denominator) = match target {
            Target::New => (row.unit, *base, *numerator, *denominator),
            Target::Old => (*base, row.unit, *denominator, *numerator),
        };
        reason = format!("{reason}, in {after} instead of {before}");
        Factor { numerator, denominator }
    });
    Plan::Rename { name: after, factor, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_units_and_labels_of_both_generations() {
        let renamed = |name, target| match plan(name, target, Some(UtilizationRatio::Ratio)) {
            Plan::Rename { name, factor, .. } => (name, factor.map(Factor::operation)),
            other => panic!("{name}: {other:?}"),
        };
        let operation = |text: &str| Some(text.to_owned());
        assert_eq!(renamed("DCGM_FI_DEV_GPU_TEMP", Target::New), ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", None));
        let old = renamed("DCGM_FI_DEV_FB_USED_BYTES", Target::Old);
        assert_eq!(old, ("DCGM_FI_DEV_FB_USED", operation("* 1048576")));
        let new = renamed("DCGM_FI_DEV_FB_USED", Target::New);
        assert_eq!(new, ("DCGM_FI_DEV_FB_USED_BYTES", operation("/ 1048576")));
        assert_eq!(renamed(AMBIGUOUS, Target::Old), ("DCGM_FI_DEV_GPU_UTIL", operation("/ 100")));
        assert_eq!(plan("DCGM_FI_DEV_GPU_TEMP", Target::Old, None), Plan::Keep);
        assert!(matches!(plan(AMBIGUOUS, Target::Old, None), Plan::Left(_)));
        assert!(matches!(plan("DCGM_FI_DEV_MADE_UP", Target::New, None), Plan::Left(_)));
        let label = |label, target| Naming { target, ratio: None, labels: &[] }.label(label);
        assert_eq!(label("Hostname", Target::New), Some("hostname"));
        assert_eq!(label("Hostname", Target::Old), None);
        assert_eq!(label("gpu", Target::New), None);
    }
}
