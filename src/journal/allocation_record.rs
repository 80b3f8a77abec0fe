//! A holding in the journal, in the API and in `podmeter usage`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::model::HoldingCounters;

/// One holding: a container held a device from `began` to `ended`. `docs/cli.md` has the fields. Absent: unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocationRecord {
    /// The ID, which increases with the beginning; the same in all versions of a record.
    pub id: u64,
    /// The ID that it had before it continued an earlier agent's record, and under which it may be on disk until it is written.
    #[serde(skip)]
    pub replaces: Option<u64>,
    pub namespace: Arc<str>,
    pub pod: Arc<str>,
    pub container: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<Arc<str>>,
    #[serde(flatten)]
    pub device: JournalDevice,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_ids: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Arc<str>>,
    /// The last method by which busy time and energy were attributed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attribution: Option<Arc<str>>,
    /// The Unix time at which an agent first observed it.
    pub began: f64,
    /// The Unix time of the last update.
    pub seen: f64,
    /// The Unix time of the end; absent while it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// The seconds between two agents, which are in none of the counters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unseen_seconds: f64,
    /// How often an agent started during it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub agent_restarts: u32,
    /// The counters of the time in which an agent observed it.
    #[serde(flatten)]
    pub counters: HoldingCounters,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<Xid>,
    /// The changes of the device's health meanwhile, oldest first. Beyond a limit, the last ones and faults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthEvent>,
    /// The number of changes that were dropped.
    #[serde(default, skip_serializing_if = "is_default")]
    pub health_dropped: u32,
}

/// The hardware, with the driver's names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JournalDevice {
    pub gpu_uuid: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_uuid: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vbios_version: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_version: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// An agent observed the end of the allocation.
    Released,
    /// It ended while no agent ran: `ended` is the time of the last update.
    Unseen,
    /// Another pod of the same name holds the device.
    Replaced,
}

/// The XIDs of one code on the device that are attributed to the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    pub code: u32,
    pub class: Arc<str>,
    pub count: u64,
}

/// A change of the device's health, or that it was unhealthy when the holding began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthEvent {
    pub at: f64,
    pub healthy: bool,
    pub reason: Arc<str>,
    pub detail: Arc<str>,
}

impl AllocationRecord {
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether these records have a version of it.
    pub fn is_in(&self, records: &BTreeMap<u64, Self>) -> bool {
        records.contains_key(&self.id) || records.values().any(|record| record.replaces == Some(self.id))
    }

    /// The end, or the time of the last update.
    #[must_use]
    pub fn until(&self) -> f64 {
        self.ended.unwrap_or(self.seen)
    }

    /// The part of the holding within the window, 0 to 1. One of no length, after a clock step, counts where it ended.
    #[must_use]
    pub fn part_within(&self, since: f64, until: f64) -> f64 {
        let (from, to) = (self.began, self.until());
        if from < to {
            ((to.min(until) - from.max(since)) / (to - from)).clamp(0.0, 1.0)
        } else if (since..=until).contains(&to) {
            1.0
        } else {
            0.0
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holding_counts_by_its_part_in_the_window() {
        let record = AllocationRecord { began: 100.0, seen: 180.0, ended: Some(200.0), ..AllocationRecord::default() };
        for (since, until, part) in
            [(0.0, 1000.0, 1.0), (150.0, 1000.0, 0.5), (0.0, 125.0, 0.25), (0.0, 100.0, 0.0), (300.0, 400.0, 0.0)]
        {
            assert_eq!(record.part_within(since, until), part, "{since} to {until}");
        }
        let stepped = AllocationRecord { began: 100.0, seen: 50.0, ..AllocationRecord::default() };
        assert_eq!((stepped.part_within(0.0, 60.0), stepped.part_within(60.0, 200.0)), (1.0, 0.0));
    }

    #[test]
    fn unknown_values_stay_absent() {
        let record = AllocationRecord {
            id: 7,
            device: JournalDevice { gpu_uuid: "GPU-1".into(), ..JournalDevice::default() },
            ..AllocationRecord::default()
        };
        let text = serde_json::to_string(&record).unwrap();
        assert!(!text.contains("busy_seconds") && !text.contains("null") && !text.contains("xids"), "{text}");
        assert_eq!(serde_json::from_str::<AllocationRecord>(&text).unwrap(), record);
        let later = text.replacen('{', "{\"from_the_future\":1,", 1);
        assert_eq!(serde_json::from_str::<AllocationRecord>(&later).unwrap(), record);
    }

    #[test]
    fn a_record_of_an_older_podmeter_is_read_and_lacks_what_it_did_not_count() {
        let old = r#"{"id":7,"namespace":"a","pod":"b","container":"c","gpu_uuid":"GPU-1","began":100.0,"seen":160.0,
            "held_seconds":60.0,"allocated_seconds":15.0,"busy_seconds":20.0,"idle_seconds":5.0}"#;
        let counters = serde_json::from_str::<AllocationRecord>(old).unwrap().counters;
        assert_eq!((counters.held_seconds, counters.allocated_seconds), (Some(60.0), Some(15.0)));
        assert_eq!((counters.borrowed_seconds, counters.uncovered_seconds), (None, None));
        assert_eq!(counters.busy_ratio(), None);
    }
}
