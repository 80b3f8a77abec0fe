//! The same snapshot under dcgm-exporter's names, labels and units, in both of its generations.
//!
//! Each row of `names.json` has both names, the unit, podmeter's query, and the source of its values. The page
//! `/metrics/dcgm`, the documentation and `podmeter metrics -o json` read the same rows. A value that the
//! snapshot lacks is absent. Rates are gauges here; dcgm-exporter called some of them counters up to 4.8.2.

mod names;
mod page;
mod values;

pub use names::{DcgmName, TABLE, names};

use std::collections::BTreeSet;
use std::io;

use prometheus_client::metrics::MetricType;

use super::budget::over_limit;
use super::family::{Descriptor, Family};
use super::labels::Labels;
use crate::domain::model::Snapshot;
use page::DcgmPage;

/// Which names and labels a page has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Generation {
    /// dcgm-exporter up to 4.8.
    #[default]
    #[strum(serialize = "4.8")]
    Old,
    /// dcgm-exporter from 4.9 on.
    #[strum(serialize = "4.9")]
    New,
    /// A name that both have is one series, with the labels of both.
    Both,
}

/// Shown only while accounts are dropped.
static DROPPED: Descriptor = Descriptor {
    name: "podmeter_dcgm_allocations_dropped",
    kind: MetricType::Gauge,
    help: "Allocations without series on this page: over the series limit, the youngest.",
};

/// Makes each family of `/metrics/dcgm`, for text 0.0.4 alone: their counters do not end in `_total`. Returns how many
/// accounts are left off because the series of their slots would be over the limit.
pub(super) fn each_family(
    snapshot: &Snapshot,
    generation: Generation,
    visit: &mut dyn FnMut(Family) -> io::Result<()>,
) -> io::Result<usize> {
    let generations = match generation {
        Generation::Both => vec![Generation::Both, Generation::Old, Generation::New],
        one => vec![one],
    };
    let mut pages: Vec<_> = generations.iter().map(|one| DcgmPage::new(snapshot, *one)).collect();
    let mut rows = vec![];
    // A page for `Both` has the names that did not change; the others are on the page of their generation.
    for (index, one) in generations.iter().enumerate() {
        let is_both = *one == Generation::Both;
        let is_wanted = |name: &&DcgmName| generation != Generation::Both || name.is_unchanged() == is_both;
        rows.extend(names().filter(is_wanted).map(|name| (index, name, pages[index].values(name))));
    }
    rows.sort_by_key(|(index, name, _)| name.in_generation(generations[*index]).0.name);
    let mut series = vec![0; snapshot.accounts.len()];
    rows.iter().for_each(|(index, _, values)| pages[*index].count(values, &mut series));
    let over = over_limit(&snapshot.accounts, &series, snapshot.series_limit.unwrap_or(usize::MAX));
    let dropped: BTreeSet<usize> = over.into_iter().map(|(account, _)| account).collect();
    pages.iter_mut().for_each(|page| page.add_holders(&dropped));
    for (index, name, values) in rows {
        pages[index].family(name, &values).map_or(Ok(()), &mut *visit)?;
    }
    if !dropped.is_empty() {
        let mut family = Family::new(&DROPPED);
        family.push(Labels::default(), dropped.len());
        visit(family)?;
    }
    Ok(dropped.len())
}

#[cfg(test)]
pub(super) mod tests;
