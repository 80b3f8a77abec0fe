//! The table of names for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::names::{Name, Shipped};

/// A row of `podmeter metrics -o json`.
#[derive(Debug, Serialize)]
pub struct MappingRow {
    /// By generation: `4.8`, `4.9`.
    pub names: BTreeMap<&'static str, &'static str>,
    /// By generation; empty for a plain number.
    pub units: BTreeMap<&'static str, &'static str>,
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub help: &'static str,
    pub shipped: Shipped,
    /// Why `/metrics/dcgm` does not have it.
    pub not_served: Option<&'static str>,
    pub podmeter: Option<EquivalentRow>,
    /// How podmeter's metric differs, or why there is none.
    pub difference: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct EquivalentRow {
    pub query: &'static str,
    /// The value of the 4.8 name is that of the query times this.
    pub scale: f64,
    /// By container.
    pub container: Option<&'static str>,
}

impl MappingRow {
    #[must_use]
    pub fn of(name: &'static Name) -> Self {
        let row = &name.row;
        let [old_unit, new_unit] = name.units();
        let podmeter = row.podmeter.as_deref();
        Self {
            names: [("4.8", name.old_name()), ("4.9", name.new_name())].into(),
            units: [("4.8", old_unit), ("4.9", new_unit)].into(),
            kind: name.descriptors[0].kind.as_str(),
            help: row.help,
            shipped: row.shipped,
            not_served: row.not_served,
            podmeter: podmeter.map(|query| EquivalentRow { query, scale: name.per_base(), container: row.container }),
            difference: row.difference,
        }
    }
}

/// The table of `docs/dcgm.md`.
#[must_use]
pub fn markdown() -> String {
    let mut table = String::from("up to 4.8|from 4.9 on|podmeter|difference\n---|---|---|---\n");
    for name in super::names() {
        let row = MappingRow::of(name);
        let column = |generation| {
            let (name, unit) = (row.names[generation], row.units[generation]);
            if unit.is_empty() { format!("`{name}`") } else { format!("`{name}`<br>{}", unit.replace(' ', "\u{a0}")) }
        };
        let unchanged = name.is_unchanged();
        let query = row.podmeter.as_ref().map(|podmeter| format!("`{}`", podmeter.query));
        let notes = [row.not_served.map(|reason| format!("not served: {reason}")), row.difference.map(str::to_owned)];
        let _ = writeln!(
            table,
            "{}|{}|{}|{}",
            column("4.8"),
            if unchanged { "=".to_owned() } else { column("4.9") },
            query.unwrap_or_else(|| "–".to_owned()),
            notes.into_iter().flatten().collect::<Vec<_>>().join("; "),
        );
    }
    for label in super::labels() {
        let new = if label.new == label.old { "=".to_owned() } else { format!("`{}`", label.new) };
        let podmeter =
            label.podmeter.map_or_else(|| "–".to_owned(), |(metric, label)| format!("`{label}` of `{metric}`"));
        let served = if label.served { "" } else { "not served" };
        let _ = writeln!(table, "`{}` (label)|{new}|{podmeter}|{served}", label.old);
    }
    table
}
