//! The catalogue of every metric that podmeter can show, as Markdown and JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::family::{Group, Metric};
use super::{GROUPS, dcgm};

/// The text of `docs/metrics.md`. What all metrics of a section share is above its table.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Written by `podmeter metrics -o markdown`. Units are base units, ratios run from 0 to 1. A metric `_info` is \
         always 1; one that says whether, or has a series per state, is 0 or 1. A value that the hardware or the kubelet \
         does not report is absent, never 0, as is a label that does not apply. *container* stands for the labels \
         `namespace`, `pod`, `container`. `podmeter metrics -o json` has the source of each value.\n",
    );
    for group in GROUPS {
        let rows: Vec<CatalogueRow> = group.metrics.iter().map(|metric| CatalogueRow::new(group, metric)).collect();
        let labels = shared_labels(&rows);
        let _ = write!(page, "\n## {}\n\n", group.section);
        if !labels.is_empty() {
            let _ = writeln!(page, "Labels of all: {}.\n", quoted(&labels));
        }
        page.push_str("metric | labels | meaning\n---|---|---\n");
        for CatalogueRow { name, kind, labels: own, help, .. } in &rows {
            let more: Vec<&str> = own.iter().filter(|label| !labels.contains(label)).copied().collect();
            let _ = writeln!(page, "`{name}`<br>{kind} | {} | {help}", quoted(&more));
        }
    }
    page
}

/// The labels that every row has, where there are several rows.
fn shared_labels(rows: &[CatalogueRow]) -> Vec<&'static str> {
    let [first, rest @ ..] = rows else { return Vec::new() };
    let of_all = |label: &&&str| !rest.is_empty() && rest.iter().all(|other| other.labels.contains(label));
    first.labels.iter().filter(of_all).copied().collect()
}

fn quoted(labels: &[&str]) -> String {
    let quoted = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
    quoted.replace("`namespace`, `pod`, `container`", "*container*")
}

/// `metrics` (name, type, labels, unit, help, source, section), and `dcgm`, the names and labels of dcgm-exporter with
/// their units and equivalents.
pub fn json() -> String {
    let rows: Vec<CatalogueRow> = all().collect();
    let dcgm: serde_json::Value = serde_json::from_str(dcgm::TABLE).expect("a test reads the table");
    let document = serde_json::json!({ "metrics": rows, "dcgm": dcgm });
    let mut text = serde_json::to_string_pretty(&document).expect("names and strings always serialize");
    text.push('\n');
    text
}

/// Each metric, in the order of the page.
pub fn all() -> impl Iterator<Item = CatalogueRow> {
    GROUPS.iter().flat_map(|group| group.metrics.iter().map(|metric| CatalogueRow::new(group, metric)))
}

/// The description of a metric with what its group has for all.
#[derive(Clone, Debug, Serialize)]
pub struct CatalogueRow {
    pub name: &'static str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub labels: Vec<&'static str>,
    pub unit: &'static str,
    pub help: &'static str,
    pub source: &'static str,
    pub section: &'static str,
}

impl CatalogueRow {
    fn new(group: &Group, metric: &'static Metric) -> Self {
        let descriptor = &metric.descriptor;
        Self {
            name: descriptor.name,
            kind: descriptor.kind.as_str(),
            labels: metric.labels.unwrap_or(group.labels).split_whitespace().chain(metric.by).collect(),
            unit: descriptor.unit(),
            help: descriptor.help,
            source: metric.source.unwrap_or(group.source),
            section: group.section,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The contract, written by hand: name, type, labels.
    const TABLE: &str = include_str!("../../../tests/data/metric_catalogue.tsv");

    /// Name → (kind, labels).
    fn table() -> BTreeMap<&'static str, (&'static str, Vec<&'static str>)> {
        let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let metric = |line: &'static str| {
            let columns: Vec<&str> = line.split('\t').collect();
            let [name, kind, labels] = columns[..] else { panic!("three columns, not {line:?}") };
            (name, (kind, labels.split(',').filter(|label| !label.is_empty()).collect()))
        };
        lines.map(metric).collect()
    }

    #[test]
    fn code_and_table_are_equal() {
        let code: BTreeMap<&str, (&str, Vec<&str>)> =
            all().map(|entry| (entry.name, (entry.kind, entry.labels))).collect();
        assert_eq!(code, table());
    }

    #[test]
    fn names_follow_the_rules() {
        let mut names = BTreeSet::new();
        for entry in all() {
            let name = entry.name;
            assert!(names.insert(name), "{name} twice");
            assert_eq!(name.ends_with("_total"), entry.kind == "counter", "{name}");
            assert!(entry.help.ends_with('.') && !entry.help.contains(['\\', '\n', '|']), "help of {name}");
            assert!(!entry.labels.iter().any(|label| ["node", "cluster", "job", "pid"].contains(label)), "{name}");
        }
    }
}
