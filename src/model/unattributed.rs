use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{GpuUuid, PodRef, UnixSeconds};

/// What one GPU did that is no container's. With the containers' accounts it adds up to the device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Unattributed {
    pub gpu: GpuUuid,
    /// When counting began.
    pub created: UnixSeconds,
    /// Counters by reason; empty while the device has not told the quantity.
    pub busy_seconds: BTreeMap<Reason, f64>,
    pub energy_joules: BTreeMap<Reason, f64>,
    /// Now, by reason; empty while the device does not tell it.
    pub memory_bytes: BTreeMap<Reason, u64>,
    /// Now, by reason; empty where processes are not known.
    pub processes: BTreeMap<Reason, u64>,
    /// The device itself, as far as it is divided: what the shares and the counters above add up to. Busy seconds trail
    /// the readings by what the driver has told of time that is not over for podmeter.
    pub divided: Divided,
}

/// Of one GPU, since the agent first saw it. `None`: not told, as busy seconds of a partitioned GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Divided {
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
}

/// Why a part of a device's use is no container's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Memory that no process accounts for.
    Driver,
    /// Processes of no pod.
    Host,
    /// What the board draws with nothing running.
    Idle,
    /// Processes of a pod that does not hold the device.
    NotAllocated,
    /// Processes whose pod is gone.
    TerminatedPod,
    /// Nothing tells whose it was.
    Unknown,
}

impl Reason {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Host => "host",
            Self::Idle => "idle",
            Self::NotAllocated => "not_allocated",
            Self::TerminatedPod => "terminated_pod",
            Self::Unknown => "unknown",
        }
    }
}

/// A pod whose process runs on a GPU that the pod does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnallocatedUse {
    pub pod: PodRef,
    /// `None` where only the pod is known.
    pub container: Option<Arc<str>>,
    pub gpu: GpuUuid,
}

/// What is divided, and must add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    Busy,
    Energy,
    Memory,
}

impl Quantity {
    pub const ALL: [Self; 3] = [Self::Busy, Self::Energy, Self::Memory];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Energy => "energy",
            Self::Memory => "memory",
        }
    }
}
