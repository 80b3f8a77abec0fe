use std::collections::BTreeMap;

use serde::Serialize;

use super::allocation_record::AllocationRecord;
use crate::model::Figures;

/// How rows are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Namespace,
    Pod,
    Device,
}

/// Sums over holdings. A figure that is unknown for all of them is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    pub holdings: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// `Figures::busy_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilization_ratio: Option<f64>,
    pub xids: u64,
    /// Transitions to unhealthy while held.
    pub unhealthy: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(flatten)]
    pub totals: Totals,
}

/// Use in a window: rows by name, and the total.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    pub since: f64,
    pub until: f64,
    pub rows: Vec<Row>,
    pub total: Totals,
}

impl Usage {
    /// A holding that crosses a bound of the window counts in proportion to its time inside; its figures have no finer
    /// resolution.
    #[must_use]
    pub fn of<'a>(records: impl IntoIterator<Item = &'a AllocationRecord>, by: By, since: f64, until: f64) -> Self {
        let mut rows: BTreeMap<Vec<String>, Row> = BTreeMap::new();
        let mut total = Totals::default();
        for record in records {
            let part = record.part_within(since, until);
            // A holding that has just begun has no length and is still listed.
            let touches = record.began <= until && record.until() >= since;
            if part <= 0.0 && !touches {
                continue;
            }
            let row = rows.entry(by.key(record)).or_insert_with(|| by.row(record));
            row.totals.add(record, part, (since, until));
            total.add(record, part, (since, until));
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        for totals in rows.iter_mut().map(|row| &mut row.totals).chain([&mut total]) {
            totals.utilization_ratio = totals.figures.busy_ratio();
        }
        Self { since, until, rows, total }
    }
}

impl By {
    fn key(self, record: &AllocationRecord) -> Vec<String> {
        let device = &record.device;
        match self {
            Self::Namespace => vec![record.namespace.to_string()],
            Self::Pod => vec![record.namespace.to_string(), record.pod.to_string()],
            Self::Device => vec![device.gpu_uuid.to_string(), device.mig_uuid.as_deref().unwrap_or("").to_owned()],
        }
    }

    fn row(self, record: &AllocationRecord) -> Row {
        let device = &record.device;
        let when = |wanted: bool, text: &str| wanted.then(|| text.to_owned());
        let is_device = self == Self::Device;
        Row {
            namespace: when(!is_device, &record.namespace),
            pod: when(self == Self::Pod, &record.pod),
            gpu_uuid: when(is_device, &device.gpu_uuid),
            mig_uuid: device.mig_uuid.as_deref().filter(|_| is_device).map(str::to_owned),
            model: device.model.as_deref().filter(|_| is_device).map(str::to_owned),
            totals: Totals::default(),
        }
    }
}

impl Totals {
    fn add(&mut self, record: &AllocationRecord, part: f64, (since, until): (f64, f64)) {
        self.holdings += 1;
        self.figures = self.figures.plus(record.figures.times(part));
        // Their times are not recorded.
        self.xids = record.xids.iter().fold(self.xids, |sum, xid| sum.saturating_add(xid.count));
        let within = |at: f64| (since..=until).contains(&at);
        self.unhealthy += record.health.iter().filter(|event| !event.healthy && within(event.at)).count() as u64;
    }
}

#[cfg(test)]
mod tests;
