//! The use of one device by one container, and how the container holds the device.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::{ContainerRef, DeviceId, GpuUuid, HoldingCounters, MigUuid, Moment, Monotonic, ResourceName, UnixSeconds};

/// The use of one device by one container, kept for the retention after the end of the holding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Account {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// The present holding; `None` after its end.
    pub holding: Option<Holding>,
    /// The start of this account.
    pub created: UnixSeconds,
    pub counters: HoldingCounters,
    /// The time of the last activity; `None` while it is unknown.
    pub last_active: Option<UnixSeconds>,
    /// How busy the fraction held was in the last ten seconds read of the holding, 0 to 1.
    pub utilization_ratio: Option<f64>,
    /// The same as a part of the whole GPU, 0 to 1.
    pub gpu_utilization_ratio: Option<f64>,
    /// A GPM ratio of a device that it has alone, as is the next; `None` while others keep the device busy too.
    pub sm_active_ratio: Option<f64>,
    pub dram_active_ratio: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    /// The number of its processes on the device now; `None` where processes are unknown.
    pub processes: Option<u64>,
    /// Whether the metrics omit it: it is over the series limit, or another pod of the same name has the series.
    pub over_limit: bool,
    /// When the holding ended.
    pub ended: Option<Moment>,
}

/// How long an ended holding is shown; after that it is only counted.
pub const ENDED_SHOWN: Duration = Duration::from_secs(60);

impl Account {
    pub fn has_long_ended(&self, now: Monotonic) -> bool {
        self.ended.is_some_and(|ended| now.since(ended.monotonic) >= ENDED_SHOWN)
    }

    /// An account without any value yet.
    pub fn new(container: ContainerRef, gpu: GpuUuid, mig: Option<MigUuid>, created: UnixSeconds) -> Self {
        Self { container, gpu, mig, created, ..Self::default() }
    }
}

/// How a container holds a device now.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    /// The resource; `None` for a DRA claim.
    pub resource: Option<ResourceName>,
    pub device_ids: Vec<DeviceId>,
    pub sharing: SharingForm,
    /// The method by which busy time and energy are attributed; `None`: they are not.
    pub attribution: Option<Attribution>,
    /// The part of the GPU: GPU-seconds for each second of the holding. `None` while the number of slots, or the size
    /// of the MIG device, is unknown.
    pub fraction: Option<f64>,
    /// The weight where use is divided without process data: 1 for a device plugin's devices; the claims of a device
    /// have weights in proportion to the capacity that each consumes, with mean 1. The containers of a claim divide its
    /// weight.
    pub weight: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SharingForm {
    Exclusive,
    TimeSlicing,
    Mps,
    Mig,
}

/// How use is divided among holders, as in docs/attribution.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Attribution {
    /// One holder has all: use by process is not known.
    Exclusive,
    /// Use is divided by the SM time of processes; without any an exclusive holder has all.
    Process,
    /// Several holders without SM time have equal parts, claims by weight.
    EqualShare,
    /// Use of MIG devices is divided by activity and slices; the energy of a gap as without SM time or activity.
    Estimated,
}
