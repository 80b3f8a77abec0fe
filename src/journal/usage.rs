//! Sums of holdings over a window.
//!
//! In: records, a grouping, the bounds of the window, prices. Out: a row for each name, and the total. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::allocation_record::AllocationRecord;
use super::prices::Prices;
use crate::domain::model::{Cost, HoldingCounters};

/// How rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Namespace,
    Pod,
    Device,
}

/// Sums over holdings. A value that is unknown for all of them is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UsageTotals {
    pub holdings: u64,
    #[serde(flatten)]
    pub counters: HoldingCounters,
    /// Absent while a holding has no price.
    #[serde(flatten)]
    pub cost: Cost,
    /// The models without a price.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub unpriced: BTreeSet<Arc<str>>,
    /// The counters times the price of each holding.
    #[serde(skip)]
    priced: HoldingCounters,
    /// The utilization of the GPU, whatever part of it is held: `HoldingCounters::busy_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_ratio: Option<f64>,
    /// The number of XIDs; `None` by device: XIDs that are attributed to no container are not in the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xids: Option<u64>,
    /// The number of transitions to unhealthy while held.
    pub unhealthy: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UsageRow {
    /// The names by which the row is grouped, as far as known: `namespace`, `pod`, `gpu_uuid`, `mig_uuid`, `model`.
    #[serde(flatten)]
    pub names: BTreeMap<&'static str, Arc<str>>,
    #[serde(flatten)]
    pub totals: UsageTotals,
}

/// The use in a window: rows by name, and the total.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    pub since: f64,
    pub until: f64,
    /// When the first of the holdings began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_began: Option<f64>,
    #[serde(flatten)]
    pub prices: Prices,
    pub rows: Vec<UsageRow>,
    pub total: UsageTotals,
}

impl Usage {
    /// Sums the holdings in the window. One that crosses a bound counts in proportion to its time inside; its counters
    /// have no finer resolution.
    pub fn sum<'a>(
        records: impl IntoIterator<Item = &'a AllocationRecord>,
        by: By,
        (since, until): (f64, f64),
        prices: &Prices,
    ) -> Self {
        let mut rows: BTreeMap<Vec<Arc<str>>, UsageRow> = BTreeMap::new();
        let (mut total, mut first_began) = (UsageTotals::default(), None);
        for record in records {
            let part = record.part_within(since, until);
            // A holding that has just begun has no length and is still listed.
            let touches = record.began <= until && record.until() >= since;
            if part <= 0.0 && !touches {
                continue;
            }
            let names = by.names(record);
            let row = rows.entry(key(&names)).or_insert_with(|| UsageRow { names, totals: UsageTotals::default() });
            for totals in [&mut row.totals, &mut total] {
                totals.add(record, part, (since, until));
                totals.price(record, part, prices);
            }
            first_began = Some(first_began.map_or(record.began, |first: f64| first.min(record.began)));
        }
        let mut rows: Vec<UsageRow> = rows.into_values().collect();
        for totals in rows.iter_mut().map(|row| &mut row.totals).chain([&mut total]) {
            totals.utilization_ratio = totals.counters.busy_ratio();
            if !prices.is_empty() && totals.unpriced.is_empty() {
                totals.cost = totals.priced.cost(1.0);
            }
            totals.xids = (by != By::Device).then_some(totals.xids.unwrap_or(0));
        }
        Self { since, until, first_began, prices: prices.clone(), rows, total }
    }
}

impl By {
    fn names(self, record: &AllocationRecord) -> BTreeMap<&'static str, Arc<str>> {
        let (namespace, device) = (("namespace", Some(&record.namespace)), &record.device);
        let names = match self {
            Self::Namespace => vec![namespace],
            Self::Pod => vec![namespace, ("pod", Some(&record.pod))],
            Self::Device => vec![
                ("gpu_uuid", Some(&device.gpu_uuid)),
                ("mig_uuid", device.mig_uuid.as_ref()),
                ("model", device.model.as_ref()),
            ],
        };
        names.into_iter().filter_map(|(column, name)| Some((column, Arc::clone(name?)))).collect()
    }
}

/// The key of a row, without the model, which may have become known later.
fn key(names: &BTreeMap<&str, Arc<str>>) -> Vec<Arc<str>> {
    names.iter().filter(|(column, _)| **column != "model").map(|(_, name)| Arc::clone(name)).collect()
}

impl UsageTotals {
    fn add(&mut self, record: &AllocationRecord, part: f64, (since, until): (f64, f64)) {
        self.holdings += 1;
        self.counters = self.counters.plus(record.counters.times(part));
        // XIDs have no times, so `part` does not scale them.
        self.xids = Some(record.xids.iter().fold(self.xids.unwrap_or(0), |sum, xid| sum.saturating_add(xid.count)));
        let within = |at: f64| (since..=until).contains(&at);
        self.unhealthy += record.health.iter().filter(|event| !event.healthy && within(event.at)).count() as u64;
    }

    fn price(&mut self, record: &AllocationRecord, part: f64, prices: &Prices) {
        self.unpriced.extend(prices.unpriced([record]));
        if let Some(price) = prices.of(&record.device) {
            self.priced = self.priced.plus(record.counters.times(part * price));
        }
    }
}

#[cfg(test)]
mod tests;
