//! The table of names: `names.json`, which podmeter-migrate reads too.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::values::Source;
use crate::metrics::family::{Descriptor, Kind};

/// One metric of dcgm-exporter in both generations.
pub struct Name {
    pub(super) row: Row,
    /// Of 4.8 and of 4.9.
    pub(super) descriptors: [Descriptor; 2],
    /// Where 4.9 has the base unit.
    unit: Option<Unit>,
}

/// A row as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    #[serde(rename = "4.8")]
    old: &'static str,
    #[serde(rename = "4.9")]
    new: &'static str,
    /// Of the old name; none for a plain number.
    #[serde(default)]
    unit: &'static str,
    /// `counter`, where it is no gauge.
    #[serde(rename = "type", default)]
    kind: &'static str,
    #[serde(default)]
    pub(super) shipped: Shipped,
    pub(super) help: &'static str,
    /// Where the unit is another.
    #[serde(rename = "help_4.9", default)]
    help_new: &'static str,
    pub(super) source: Option<Source>,
    /// Why `/metrics/dcgm` does not have it.
    #[serde(borrow)]
    pub(super) not_served: Option<&'static str>,
    /// podmeter's query of the quantity, in base units.
    pub(super) podmeter: Option<String>,
    /// podmeter's metric by container.
    #[serde(borrow)]
    pub(super) container: Option<&'static str>,
    /// How podmeter's query differs, or why there is none.
    #[serde(borrow)]
    pub(super) difference: Option<&'static str>,
}

/// A unit of 4.8 for which 4.9 has the base unit: the base unit, and how many of these it is, as a fraction.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Unit(&'static str, u32, u32);

/// Where dcgm-exporter has the metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shipped {
    /// Active in its counter file.
    #[default]
    Active,
    /// In its counter file, as a comment.
    Commented,
    /// Active from 4.9 on, not in the file before.
    New,
    /// In no counter file; people add it to theirs.
    Custom,
}

/// A field that dcgm-exporter writes as a label on every series.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct LabelName {
    #[serde(rename = "4.8")]
    pub old: &'static str,
    #[serde(rename = "4.9")]
    pub new: &'static str,
    pub shipped: Shipped,
    /// On the series of `/metrics/dcgm`. The others change the identity of every series for what hardly ever changes.
    pub served: bool,
    /// podmeter's metric with it, and its label there.
    #[serde(borrow)]
    pub podmeter: Option<(&'static str, &'static str)>,
}

#[derive(Deserialize)]
struct Table {
    #[serde(borrow)]
    units: BTreeMap<&'static str, Unit>,
    metrics: Vec<Row>,
    labels: Vec<LabelName>,
}

static TABLE: LazyLock<(Vec<Name>, Vec<LabelName>)> = LazyLock::new(|| {
    let Table { units, metrics, labels } =
        serde_json::from_str(include_str!("names.json")).expect("a test reads the table");
    (metrics.into_iter().map(|row| Name::of(row, &units)).collect(), labels)
});

/// Every row, by subject.
pub fn names() -> impl Iterator<Item = &'static Name> {
    TABLE.0.iter()
}

/// What dcgm-exporter writes as a label on every series.
#[must_use]
pub fn labels() -> &'static [LabelName] {
    &TABLE.1
}

impl Unit {
    /// The base unit's value times this is the old name's value.
    pub(super) fn per_base(self) -> f64 {
        f64::from(self.1) / f64::from(self.2)
    }
}

impl Name {
    fn of(row: Row, units: &BTreeMap<&'static str, Unit>) -> Self {
        let kind = if row.kind == "counter" { Kind::Counter } else { Kind::Gauge };
        let unit = units.get(row.unit).copied();
        let help = if unit.is_some() { row.help_new } else { row.help };
        let descriptor = |name, help| Descriptor { name, kind, labels: None, source: None, help };
        Self { descriptors: [descriptor(row.old, row.help), descriptor(row.new, help)], row, unit }
    }

    /// Up to 4.8.
    #[must_use]
    pub const fn old_name(&self) -> &'static str {
        self.row.old
    }

    /// From 4.9 on.
    #[must_use]
    pub const fn new_name(&self) -> &'static str {
        self.row.new
    }

    /// Both names have the same series.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.row.old == self.row.new
    }

    /// podmeter's value, or that under the new name where its unit differs, times this is that under the old name.
    pub(super) fn per_base(&self) -> f64 {
        self.unit.map_or(1.0, Unit::per_base)
    }

    /// As in tables; empty for a plain number.
    pub(super) fn units(&self) -> [&'static str; 2] {
        [self.row.unit, self.unit.map_or(self.row.unit, |unit| unit.0)]
    }
}
