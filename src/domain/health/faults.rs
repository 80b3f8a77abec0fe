//! What an agent keeps for the next one: faults that readings alone do not show, and marks. In: the causes of a GPU. Out:
//! its faults, and its causes again in the next agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::config::{EccPolicy, FabricPolicy, HealthConfig};
use super::marks::{Mark, restored_mark};
use super::tracked_gpu::{CauseKey, CauseState, Subject, TrackedGpu, is_held_down};
use super::xids;
use crate::domain::model::{GpuUuid, MigUuid, Moment, PciBusId, UnhealthyReason, UnixSeconds};

const EARLIER: &str = "found before podmeter started";
const AFTER_READING: &str = "recovers when the driver reports that it is over, or after podmeter clear-faults";

/// The faults and marks of a node. Empty when every device is healthy, or only `unknown`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeFaults {
    pub driver_version: Option<Arc<str>>,
    pub gpus: BTreeMap<GpuUuid, GpuFaults>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFaults {
    /// The XIDs that make the GPU or some of its MIG devices unhealthy, by code.
    pub xids: BTreeMap<u32, XidFault>,
    /// The GPU and its MIG devices, as far as they are unhealthy or have a mark.
    pub devices: Vec<DeviceFaults>,
    /// The last one that the driver reported, by its number.
    pub recovery_action: Option<u32>,
    pub lost: bool,
    /// Where the driver served it.
    #[serde(default)]
    pub pci_bus_id: Option<PciBusId>,
    /// The driver's, in millijoules.
    pub energy_counter: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct XidFault {
    /// The time of the last one.
    pub at: UnixSeconds,
    /// The whole GPU, not only these MIG devices.
    pub whole: bool,
    pub mig_devices: BTreeSet<MigUuid>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFaults {
    /// `None`: the whole GPU.
    pub mig: Option<MigUuid>,
    /// Unhealthy since; `None` if no agent has evaluated it, or it is a MIG device that was removed meanwhile.
    pub since: Option<UnixSeconds>,
    pub mark: Option<MarkFault>,
    /// Those that are current or held down; of XIDs only those held down.
    #[serde(rename = "reasons")]
    pub causes: Vec<CauseFault>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MarkFault {
    pub reason: Arc<str>,
    pub until: Option<UnixSeconds>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CauseFault {
    pub reason: UnhealthyReason,
    /// The code of an XID, else 0.
    pub code: u32,
}

impl XidFault {
    /// One that names no device may concern all of the GPU.
    pub fn is_of_gpu(&self) -> bool {
        self.whole || self.mig_devices.is_empty()
    }
}

impl GpuFaults {
    /// In place of faults that cannot be read: a mark, so that the GPU does not become healthy by that.
    pub fn unreadable() -> Self {
        let reason =
            "podmeter cannot read the stored faults of this GPU: check the GPU, then run podmeter unmark".into();
        let mark = Some(MarkFault { reason, until: None });
        Self { devices: vec![DeviceFaults { mig: None, since: None, mark, causes: vec![] }], ..Self::default() }
    }
}

impl TrackedGpu {
    /// Continues with the faults of an earlier agent. Returns what was restored, in words.
    pub fn restore(&mut self, faults: &GpuFaults, config: &HealthConfig, now: Moment) -> Vec<(Subject, String)> {
        let mut restored = vec![];
        for (code, fault) in faults.xids.iter().filter(|(code, _)| config.xid_rule(**code).makes_unhealthy()) {
            self.xids.restore(*code, fault);
            let migs = fault.mig_devices.iter().cloned().map(Some);
            let subjects: Vec<Subject> = if fault.is_of_gpu() { vec![None] } else { migs.collect() };
            // As a cause too: an XID that the first evaluation clears is held down.
            for subject in subjects {
                restored.push(self.restore_cause(subject, (UnhealthyReason::Xid, *code)));
            }
        }
        for device in &faults.devices {
            let subject = device.mig.clone();
            if let Some((fault, mark)) =
                device.mark.as_ref().and_then(|fault| Some((fault, restored_mark(fault, now)?)))
            {
                let changed = if mark.reason == fault.reason {
                    ""
                } else {
                    " (its stored reason was too long or had control characters)"
                };
                restored.push((subject.clone(), format!("the mark {:?}{changed}", mark.reason)));
                self.marks.insert(subject.clone(), mark);
            }
            let is_valid = |fault: &&CauseFault| match fault.reason {
                UnhealthyReason::Xid => config.xid_rule(fault.code).makes_unhealthy(),
                UnhealthyReason::Fabric => config.fabric == FabricPolicy::Unhealthy,
                UnhealthyReason::Ecc => config.uncorrectable_ecc == EccPolicy::Unhealthy,
                reason => is_held_down(reason),
            };
            for fault in device.causes.iter().filter(is_valid) {
                restored.push(self.restore_cause(subject.clone(), (fault.reason, fault.code)));
            }
            self.earlier_since.extend(device.since.map(|since| (subject, since)));
        }
        self.pci_bus_id.clone_from(&faults.pci_bus_id);
        self.signals.restore(faults);
        restored
    }

    /// It ends at the first evaluation at which its value was read and is no fault, and is then held down.
    fn restore_cause(&mut self, subject: Subject, key: CauseKey) -> (Subject, String) {
        let (detail, restored) = match key {
            (UnhealthyReason::Xid, code) => (xids::named(code), xids::named(code)),
            (reason, _) => (EARLIER.to_owned(), format!("the reason {}", reason.into_str())),
        };
        let cause = CauseState { detail: detail.into(), clears: AFTER_READING, ended: None };
        self.causes.entry(subject.clone()).or_default().insert(key, cause);
        (subject, restored)
    }

    /// What an agent that starts later restores. `None`: nothing. A device has an entry without a mark or causes for its
    /// `since`, where it is unhealthy by its GPU, by a current XID or as `unknown`.
    pub fn faults(&self) -> Option<GpuFaults> {
        let unhealthy = self.health.iter().filter(|(_, health)| !health.healthy).map(|(subject, _)| subject);
        // Also of MIG devices that are gone, and of a GPU that was not evaluated or is not served.
        let with_state = self.marks.keys().chain(self.causes.keys()).chain(self.earlier_since.keys());
        let subjects: BTreeSet<&Subject> = unhealthy.chain(with_state).collect();
        let devices: Vec<DeviceFaults> = subjects.into_iter().map(|subject| self.device_faults(subject)).collect();
        let has_faults = devices.iter().any(|device| device.mark.is_some() || !device.causes.is_empty());
        (has_faults || !self.xids.active.is_empty()).then(|| GpuFaults {
            xids: self.xids.active.iter().map(|(code, xid)| (*code, xid.fault())).collect(),
            devices,
            pci_bus_id: self.pci_bus_id.clone(),
            ..self.signals.faults()
        })
    }

    fn device_faults(&self, subject: &Subject) -> DeviceFaults {
        let since = self.health.get(subject).map(|health| health.since.unix);
        let mark_fault =
            |mark: &Mark| MarkFault { reason: Arc::clone(&mark.reason), until: mark.until.map(|at| at.unix) };
        // An active XID is restored from `xids`.
        let is_active = |code: &u32| self.xids.active.contains_key(code);
        let is_kept = |((reason, code), cause): &(&CauseKey, &CauseState)| {
            is_held_down(*reason) && (*reason != UnhealthyReason::Xid || cause.ended.is_some() || !is_active(code))
        };
        let causes = self.causes.get(subject).into_iter().flatten();
        DeviceFaults {
            mig: subject.clone(),
            since: since.or_else(|| self.earlier_since.get(subject).copied()),
            mark: self.marks.get(subject).map(mark_fault),
            causes: causes.filter(is_kept).map(|(key, _)| CauseFault { reason: key.0, code: key.1 }).collect(),
        }
    }
}
