//! The table of names for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::name::{Agreement, Equivalent, Name, Native, Shipped};

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
    pub query: String,
    /// The value of the 4.8 name is that of the query times this.
    pub scale: f64,
    /// By container.
    pub container: Option<&'static str>,
    /// podmeter-migrate puts it in place of the name.
    pub rewritten: bool,
}

impl MappingRow {
    #[must_use]
    pub fn of(name: &'static Name) -> Self {
        let new_unit = if name.scaled { name.unit.base() } else { name.unit.as_str() };
        let generations = [("4.8", name.old, name.unit.as_str()), ("4.9", name.new, new_unit)];
        let (podmeter, difference) = match &name.native {
            Native::Query(equivalent) => (Some(EquivalentRow::of(equivalent)), equivalent.difference()),
            Native::None(reason) => (None, Some(*reason)),
        };
        Self {
            names: generations.iter().filter_map(|(generation, name, _)| Some((*generation, (*name)?))).collect(),
            units: generations
                .iter()
                .filter_map(|(generation, name, unit)| name.map(|_| (*generation, *unit)))
                .collect(),
            kind: name.kind.as_str(),
            help: name.help(),
            shipped: name.shipped,
            not_served: name.not_served(),
            podmeter,
            difference,
        }
    }
}

impl EquivalentRow {
    fn of(equivalent: &'static Equivalent) -> Self {
        Self {
            query: equivalent.query("5m"),
            scale: equivalent.scale,
            container: equivalent.container.map(|(metric, _)| metric),
            rewritten: !matches!(equivalent.agreement, Agreement::Unproven(_)),
        }
    }
}

impl Equivalent {
    /// podmeter's value, in base units; `range` is that of a rate.
    #[must_use]
    pub fn query(&self, range: &str) -> String {
        let labels: Vec<_> = self.labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let mut query = self.metric.to_owned();
        if !labels.is_empty() {
            query = format!("{query}{{{}}}", labels.join(","));
        }
        if self.is_counter_of_rate {
            query = format!("rate({query}[{range}])");
        }
        if !self.sum_over.is_empty() {
            query = format!("sum without ({}) ({query})", self.sum_over.join(", "));
        }
        query
    }

    #[must_use]
    pub const fn difference(&self) -> Option<&'static str> {
        match self.agreement {
            Agreement::Same => None,
            Agreement::Named(difference) | Agreement::Unproven(difference) => Some(difference),
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
            let Some(name) = row.names.get(generation) else { return "–".to_owned() };
            let unit = row.units[generation];
            if unit.is_empty() { format!("`{name}`") } else { format!("`{name}`<br>{}", unit.replace(' ', "\u{a0}")) }
        };
        let unchanged = name.is_unchanged();
        let query = row.podmeter.as_ref().map(|podmeter| format!("`{}`", podmeter.query));
        let notes = [row.not_served.map(|reason| format!("not served: {reason}")), row.difference.map(str::to_owned)];
        let _ = writeln!(
            table,
            "{}|{}|{}|{}",
            column("4.8"),
            if unchanged { "the same".to_owned() } else { column("4.9") },
            query.unwrap_or_else(|| "–".to_owned()),
            notes.into_iter().flatten().collect::<Vec<_>>().join("; "),
        );
    }
    for label in super::LABELS {
        let new = if label.new == label.old { "the same".to_owned() } else { format!("`{}`", label.new) };
        let podmeter =
            label.podmeter.map_or_else(|| "–".to_owned(), |(metric, label)| format!("`{label}` of `{metric}`"));
        let served = if label.served { "" } else { "not served" };
        let _ = writeln!(table, "`{}` (label)|{new}|{podmeter}|{served}", label.old);
    }
    table
}
