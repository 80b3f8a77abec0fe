//! Faults that readings alone do not show: what an agent keeps for the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::Health;
use crate::domain::model::{GpuUuid, MigUuid, Moment, UnhealthyReason, UnixSeconds};

/// The faults of a node. Empty when every device is healthy, or unhealthy only because it is not checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeFaults {
    pub driver_version: Option<Arc<str>>,
    pub gpus: BTreeMap<GpuUuid, GpuFaults>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFaults {
    /// By code: those that make the GPU unhealthy.
    pub xids: BTreeMap<u32, XidFault>,
    /// The unhealthy ones of the GPU and its MIG devices.
    pub devices: Vec<DeviceFaults>,
    /// The last one that the driver reported, by its number.
    pub recovery_action: Option<u32>,
    pub lost: bool,
    /// The driver's, in millijoules.
    pub energy_counter: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct XidFault {
    /// Of the last one.
    pub at: UnixSeconds,
    /// The whole GPU, not only these MIG devices.
    pub whole: bool,
    pub mig_devices: BTreeSet<MigUuid>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFaults {
    /// `None`: the whole GPU.
    pub mig: Option<MigUuid>,
    /// Unhealthy since; `None` if it was never evaluated.
    pub since: Option<UnixSeconds>,
    pub mark: Option<MarkFault>,
    /// Reasons whose end was not observed, or not long enough ago. XIDs are in `xids`, until they end.
    pub reasons: Vec<ReasonFault>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MarkFault {
    pub reason: Arc<str>,
    pub until: Option<UnixSeconds>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReasonFault {
    #[serde(deserialize_with = "reason")]
    pub reason: UnhealthyReason,
    /// Of an XID, else 0.
    pub code: u32,
}

impl Health {
    /// Continues with the faults of an earlier agent, before the first advance.
    pub fn restore(&mut self, now: Moment, faults: &NodeFaults) {
        self.driver_version.clone_from(&faults.driver_version);
        for (uuid, of_gpu) in &faults.gpus {
            let device = self.devices.entry(uuid.clone()).or_insert_with(|| super::TrackedGpu::new(now));
            for (mig, what) in device.restore(of_gpu, &self.config, now) {
                let subject = mig.as_ref().map_or(uuid.as_str(), MigUuid::as_str);
                self.notes.push(format!("{subject}: {what} is restored from before podmeter started"));
            }
        }
    }

    /// What the next agent restores. The energy counters change at most once a minute.
    pub fn faults(&self) -> NodeFaults {
        // A GPU that is known by its PCI address is found by the first check.
        let kept = self.devices.iter().filter(|(uuid, _)| !uuid.is_of_address());
        let gpus: BTreeMap<_, _> = kept.filter_map(|(uuid, device)| Some((uuid.clone(), device.faults()?))).collect();
        let driver_version = self.driver_version.clone().filter(|_| !gpus.is_empty());
        NodeFaults { driver_version, gpus }
    }
}

fn reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnhealthyReason, D::Error> {
    let text = String::deserialize(deserializer)?;
    let named = UnhealthyReason::ALL.into_iter().find(|reason| reason.as_str() == text);
    named.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no reason")))
}
