//! XIDs, the error codes of the driver: as received, counted, and attributed to containers. The health of devices:
//! causes and transitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoStaticStr};

use super::{ContainerRef, GpuUuid, MigDevice, MigUuid, Moment, Monotonic, RecentCount, UnixSeconds};

/// The health of every GPU that was ever listed, and of its present MIG devices. A GPU that is not served has none; one
/// identified by its PCI address is removed once its UUID is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthState {
    pub gpus: BTreeMap<GpuUuid, GpuHealth>,
    /// The latest transitions, oldest first; bounded.
    pub transitions: Vec<HealthTransition>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GpuHealth {
    /// The health of the whole GPU.
    pub whole: DeviceHealth,
    /// The health of each MIG device, including causes of the whole GPU.
    pub mig_devices: BTreeMap<MigUuid, DeviceHealth>,
    pub xids: XidCounts,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DeviceHealth {
    pub healthy: bool,
    /// Whether it was ever healthy, or unhealthy by more than `unknown`. Until then a change to healthy is no transition.
    pub known: bool,
    /// When `healthy` last changed, or it was first listed. A fault of an earlier agent keeps its time.
    pub since: Moment,
    /// Sorted by reason; empty if and only if it is healthy.
    pub causes: Vec<HealthCause>,
}

/// One cause for which a device is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCause {
    pub reason: UnhealthyReason,
    /// The cause in words: `XID 79 (the GPU has fallen off the bus)`.
    pub detail: Arc<str>,
    /// When the device recovers, in words: `recovers after podmeter unmark, or when the mark ends`.
    pub clears: Arc<str>,
}

/// The reason of a cause. Of several, the first in this order names a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum UnhealthyReason {
    Xid,
    RecoveryAction,
    Lost,
    RowRemapFailed,
    Fabric,
    Ecc,
    Stuck,
    Admin,
    Unknown,
}

/// A change of a device's health.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthTransition {
    /// The number of the transition since the start, from 1.
    pub number: u64,
    pub gpu: GpuUuid,
    /// The MIG device; `None`: the whole GPU.
    pub mig: Option<MigUuid>,
    pub to_healthy: bool,
    /// Why the device became unhealthy; for a transition to healthy, the reason that has ended.
    pub reason: UnhealthyReason,
    pub detail: Arc<str>,
    pub at: Moment,
    /// The holders of the device or a part of it at that time, sorted.
    pub holders: Vec<ContainerRef>,
}

/// The XIDs of one batch that differ only in their time.
#[derive(Clone, Debug, PartialEq)]
pub struct XidEvent {
    /// The time of the last of them.
    pub at: Moment,
    pub gpu: GpuUuid,
    /// The instance; `None`: the whole GPU.
    pub instance: Option<XidInstance>,
    /// The code; 999 where the driver gives none.
    pub code: u32,
    /// The number of XIDs, at least 1.
    pub count: u64,
}

/// XIDs of one code attributed to one container on one device. The count never falls.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerXid {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    /// The MIG device; `None` outside MIG, and where it is unknown.
    pub mig: Option<MigUuid>,
    pub code: u32,
    pub class: XidClass,
    pub count: u64,
    /// When counting began: at the start of the holding, or at the first XID.
    pub created: UnixSeconds,
}

/// The part of a partitioned GPU that an XID concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct XidInstance {
    pub gpu_instance: u32,
    /// The compute instance; `None`: all in the GPU instance.
    pub compute_instance: Option<u32>,
}

/// The XIDs of one GPU. No count falls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct XidCounts {
    /// When counting began.
    pub created: UnixSeconds,
    /// The count of every class, from 0.
    pub by_class: BTreeMap<XidClass, u64>,
    pub by_code: BTreeMap<u32, XidCount>,
}

/// The XIDs of one code.
#[derive(Clone, Debug, PartialEq)]
pub struct XidCount {
    pub class: XidClass,
    /// The time of the last of them.
    pub at: Moment,
    pub count: u64,
    pub recent: RecentCount,
    /// When the last of them concerned a GPU instance, by its number; `None`: the whole GPU.
    pub last_of: BTreeMap<Option<u32>, Monotonic>,
}

/// The class of an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum XidClass {
    /// A fault of the application, or its end.
    Application,
    /// A memory error that cost one application.
    ContainedMemory,
    GpuReset,
    NodeReboot,
    Nvlink,
    /// A fault of power supply or board.
    Hardware,
    Informational,
    /// An XID that is significant only together with another one.
    Corroborating,
    /// A change of the recovery action.
    RecoveryAction,
    Software,
    Unknown,
}

/// Recovery actions by the driver's number (NVML field 230).
pub const RECOVERY_ACTIONS: [&str; 8] = [
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "pcie_bus_reset",
    "system_reboot",
];

/// The name of a recovery action; `None` for an unknown number.
pub fn recovery_action(number: u32) -> Option<&'static str> {
    RECOVERY_ACTIONS.get(usize::try_from(number).ok()?).copied()
}

impl XidCounts {
    /// The codes of a GPU instance, with those of the whole GPU, each with the time of the last XID; without an
    /// instance all codes.
    pub fn concerning(&self, instance: Option<u32>) -> impl Iterator<Item = (u32, &XidCount, Monotonic)> {
        self.by_code.iter().filter_map(move |(code, xid)| {
            let of_instance = || xid.last_of.get(&instance).max(xid.last_of.get(&None)).copied();
            let at = if instance.is_some() { of_instance()? } else { xid.at.monotonic };
            Some((*code, xid, at))
        })
    }
}

impl XidInstance {
    /// The MIG device of the compute instance, or else those of the GPU instance. `of_gpu`: all MIG devices of the GPU.
    /// Empty if the GPU has neither.
    pub fn mig_devices(self, of_gpu: &[MigDevice]) -> Vec<&MigDevice> {
        let in_gpu_instance = || of_gpu.iter().filter(|mig| mig.gpu_instance == self.gpu_instance);
        let exact: Vec<_> =
            in_gpu_instance().filter(|mig| Some(mig.compute_instance) == self.compute_instance).collect();
        if exact.is_empty() { in_gpu_instance().collect() } else { exact }
    }
}

impl GpuHealth {
    /// The GPU and every MIG device on it.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceHealth> {
        std::iter::once(&self.whole).chain(self.mig_devices.values())
    }

    /// Whether the GPU and all its parts are healthy.
    pub fn is_healthy(&self) -> bool {
        self.devices().all(|device| device.healthy)
    }
}

impl DeviceHealth {
    /// Whether it is unhealthy only by an operator's mark, which is no fault.
    pub fn is_only_marked(&self) -> bool {
        !self.healthy && self.causes.iter().all(|cause| cause.reason == UnhealthyReason::Admin)
    }

    /// An error with the details of all causes, unless the device is healthy.
    pub fn ensure_healthy(&self) -> Result<(), String> {
        if self.healthy {
            return Ok(());
        }
        let details: Vec<&str> = self.causes.iter().map(|cause| &*cause.detail).collect();
        Err(details.join("; "))
    }

    /// The first reason; `None` for a healthy device.
    pub fn reason(&self) -> Option<UnhealthyReason> {
        self.causes.first().map(|cause| cause.reason)
    }
}

impl HealthState {
    /// The health of a MIG device, or of the whole GPU. `None` for one that was never listed, no longer exists or is
    /// not served.
    pub fn device(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Option<&DeviceHealth> {
        let known = self.gpus.get(gpu)?;
        mig.map_or(Some(&known.whole), |mig| known.mig_devices.get(mig))
    }
}
