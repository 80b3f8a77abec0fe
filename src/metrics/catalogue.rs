//! Every metric that podmeter can show, for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;

use super::family::{Descriptor, Metric};
use super::{GROUPS, dcgm};

/// As `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Written by `podmeter metrics -o markdown`. Units are base units, ratios run from 0 to 1, counters end in \
         `_total`. A value that the hardware or the kubelet does not report is absent, never 0; a label is absent where \
         it does not apply.\n",
    );
    for group in GROUPS {
        let _ = write!(page, "\n## {}\n\n", group.section);
        page.push_str("| Metric | Type | Labels | Unit | Source | Meaning |\n|---|---|---|---|---|---|\n");
        for Metric { descriptor, .. } in group.metrics {
            let labels = descriptor.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} | {} |",
                descriptor.name,
                descriptor.kind.as_str(),
                or_dash(&labels),
                or_dash(descriptor.unit()),
                or_dash(descriptor.source),
                descriptor.help,
            );
        }
    }
    page.push_str(
        "\n## `/metrics/dcgm`\n\n\
         The same readings under dcgm-exporter's names, labels and units. `container`, `namespace` and `pod` are set \
         where exactly one container holds the GPU or MIG device, and on the shares of a shared GPU (utilization, \
         engine activity, memory in use, energy); the rest has no pod. `docs/migrate-metrics.md` has the table \
         of names.\n\n\
         | Metric | Type | Meaning |\n|---|---|---|\n",
    );
    for descriptor in dcgm::descriptors() {
        let _ = writeln!(page, "| `{}` | {} | {} |", descriptor.name, descriptor.kind.as_str(), descriptor.help);
    }
    page
}

/// An array of objects: name, type, labels, unit, help, source, section.
#[must_use]
pub fn json() -> String {
    let rows: Vec<CatalogueRow> = all().collect();
    let mut text = serde_json::to_string_pretty(&rows).expect("names and strings always serialize");
    text.push('\n');
    text
}

/// Each descriptor and the section it is in, in the order of the page.
pub fn all() -> impl Iterator<Item = CatalogueRow> {
    GROUPS
        .iter()
        .flat_map(|group| group.metrics.iter().map(|metric| CatalogueRow::new(group.section, &metric.descriptor)))
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct CatalogueRow {
    pub name: &'static str,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub labels: &'static [&'static str],
    pub unit: &'static str,
    pub help: &'static str,
    pub source: &'static str,
    pub section: &'static str,
}

impl CatalogueRow {
    fn new(section: &'static str, descriptor: &'static Descriptor) -> Self {
        Self {
            name: descriptor.name,
            kind: descriptor.kind.as_str(),
            labels: descriptor.labels,
            unit: descriptor.unit(),
            help: descriptor.help,
            source: descriptor.source,
            section,
        }
    }
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "–" } else { text }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// Typed off the contract by hand: name, type, labels, section of the contract.
    const TABLE: &str = include_str!("../../tests/data/metric_catalogue.tsv");

    /// Name → (kind, labels), of the lines that are planned or of those that are not.
    fn table(planned: bool) -> BTreeMap<&'static str, (&'static str, Vec<&'static str>)> {
        let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let of_kind = lines.filter(|line| line.ends_with("\tplanned") == planned);
        of_kind
            .map(|line| {
                let columns: Vec<&str> = line.split('\t').collect();
                let [name, kind, labels, _section, ..] = columns[..] else { panic!("four columns, not {line:?}") };
                (name, (kind, labels.split(',').filter(|label| !label.is_empty()).collect()))
            })
            .collect()
    }

    #[test]
    fn code_and_table_are_equal() {
        let code: BTreeMap<&str, (&str, Vec<&str>)> =
            all().map(|entry| (entry.name, (entry.kind, entry.labels.to_vec()))).collect();
        assert_eq!(code, table(false));
        let early: Vec<_> = table(true).into_keys().filter(|name| code.contains_key(name)).collect();
        assert!(early.is_empty(), "no longer planned: {early:?}");
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

    #[test]
    fn json_is_an_array_of_all() {
        let entries: serde_json::Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(entries.as_array().unwrap().len(), all().count());
    }
}
