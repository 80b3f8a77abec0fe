//! Use of devices that is attributed to no container, by reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{EnumIter, IntoStaticStr};

use super::{GpuUuid, PodRef, UnixSeconds};

/// Use of one GPU that is attributed to no container. With the containers' accounts it adds up to the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unattributed {
    pub gpu: GpuUuid,
    /// When counting began.
    pub created: UnixSeconds,
    /// The busy time by reason, a counter as the next; empty while the device has no value of the quantity.
    pub busy_seconds: BTreeMap<UnattributedReason, f64>,
    pub energy_joules: BTreeMap<UnattributedReason, f64>,
    /// The memory in use now, by reason; empty where unknown.
    pub memory_bytes: BTreeMap<UnattributedReason, u64>,
    /// The number of processes now, by reason; empty where processes are unknown.
    pub processes: BTreeMap<UnattributedReason, u64>,
    /// The sums of the shares and the counters above. Busy seconds lag behind the readings by samples of time that has
    /// not been divided yet.
    pub divided: Divided,
}

/// The divided totals of one GPU, since the agent first read it. `None`: unknown. Busy seconds of a partitioned GPU are
/// those of its MIG devices, by their slices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divided {
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
}

/// Why a part of a device's use is unattributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum UnattributedReason {
    /// Memory of the driver: that of no process, and that of the MPS server.
    Driver,
    /// Use of unknown or other owners, read just after an allocation on the GPU ended: it may belong to that one. Energy of a gap in
    /// which a container held the GPU whose account is removed.
    Ended,
    /// Use by processes of no pod.
    Host,
    /// Energy at the board's idle power, and all energy of time without work.
    Idle,
    /// Use by processes of a pod to which the device is not allocated.
    NotAllocated,
    /// Use by processes whose pod has ended.
    TerminatedPod,
    /// Use of an unknown owner.
    Unknown,
}

impl UnattributedReason {
    /// The reasons of processes whose owner is known.
    pub const OF_PROCESSES: [Self; 3] = [Self::Host, Self::NotAllocated, Self::TerminatedPod];
}

/// A pod with a process on a GPU that is not allocated to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnallocatedUse {
    pub pod: PodRef,
    /// The container; `None` where only the pod is known.
    pub container: Option<Arc<str>>,
    pub gpu: GpuUuid,
}

/// A divided quantity, which must add up to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, EnumIter, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DividedQuantity {
    Busy,
    Energy,
    Memory,
}
