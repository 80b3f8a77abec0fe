//! The table of names: `names.json`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prometheus_client::metrics::MetricType;
use serde::Deserialize;

use super::Generation;
use super::values::ValueSource;
use crate::serve::metrics::family::Descriptor;

/// One metric of dcgm-exporter in both generations.
pub struct DcgmName {
    pub(super) row: DcgmRow,
    /// The descriptors of 4.8 and of 4.9.
    pub(super) descriptors: [Descriptor; 2],
    /// The unit of 4.8, where 4.9 has the base unit instead.
    unit: Option<Unit>,
}

/// What the page needs of a row.
#[derive(Deserialize)]
pub(super) struct DcgmRow {
    #[serde(rename = "4.8")]
    old: &'static str,
    #[serde(rename = "4.9")]
    new: &'static str,
    /// The unit of the old name; empty for a plain number.
    #[serde(default)]
    unit: &'static str,
    /// `counter`; empty for a gauge.
    #[serde(rename = "type", default)]
    kind: &'static str,
    help: &'static str,
    /// The HELP text of 4.9, where its unit differs.
    #[serde(rename = "help_4.9", default)]
    help_new: &'static str,
    pub(super) source: Option<ValueSource>,
    /// podmeter's query of the quantity, in base units.
    pub(super) podmeter: Option<String>,
}

/// The base unit of 4.9 in place of a unit of 4.8, and how many of the old unit one base unit is: numerator, denominator.
type Unit = (&'static str, u32, u32);

#[derive(Deserialize)]
struct Table {
    #[serde(borrow)]
    units: BTreeMap<&'static str, Unit>,
    metrics: Vec<DcgmRow>,
}

/// The JSON of the table. `not_served`: why the page lacks a metric; `difference`: how podmeter's query differs.
/// `labels`: fields that dcgm-exporter writes as labels on every series; podmeter does not write those that would
/// change the identity of every series for what hardly ever changes.
pub const TABLE: &str = include_str!("names.json");

static NAMES: LazyLock<Vec<DcgmName>> = LazyLock::new(|| {
    let Table { units, metrics } = serde_json::from_str(TABLE).expect("a test reads the table");
    metrics.into_iter().map(|row| DcgmName::new(row, &units)).collect()
});

/// Every row, by subject.
pub fn names() -> impl Iterator<Item = &'static DcgmName> {
    NAMES.iter()
}

impl DcgmName {
    fn new(row: DcgmRow, units: &BTreeMap<&'static str, Unit>) -> Self {
        let kind = if row.kind == "counter" { MetricType::Counter } else { MetricType::Gauge };
        let unit = units.get(row.unit).copied();
        let help = if unit.is_some() { row.help_new } else { row.help };
        let descriptor = |name, help| Descriptor { name, kind, help };
        Self { descriptors: [descriptor(row.old, row.help), descriptor(row.new, help)], row, unit }
    }

    /// The name up to 4.8.
    pub const fn old_name(&self) -> &'static str {
        self.row.old
    }

    /// The name from 4.9 on.
    pub const fn new_name(&self) -> &'static str {
        self.row.new
    }

    /// Whether the name is the same in both.
    pub fn is_unchanged(&self) -> bool {
        self.row.old == self.row.new
    }

    /// The descriptor in a generation, and the factor for values in base units.
    pub(super) fn in_generation(&'static self, generation: Generation) -> (&'static Descriptor, f64) {
        match generation {
            Generation::New => (&self.descriptors[1], 1.0),
            Generation::Old | Generation::Both => (&self.descriptors[0], self.per_base()),
        }
    }

    /// How many of the old name's unit one base unit is: base units times this are the value under the old name.
    pub(super) fn per_base(&self) -> f64 {
        self.unit.map_or(1.0, |(_, numerator, denominator)| f64::from(numerator) / f64::from(denominator))
    }
}
