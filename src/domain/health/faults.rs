//! What an agent keeps for the next one: faults that readings alone do not show, and marks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::model::{GpuUuid, MigUuid, PciBusId, UnhealthyReason, UnixSeconds};

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
