use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::{
    Allocatable, Allocations, ContainerRef, ContainerXid, DeviceId, DeviceReadings, DurationHistogram, GpuUuid,
    HealthState, Inventory, JournalState, MigUuid, Moment, Monotonic, NodeDevices, PluginState, ProcessState, Quantity,
    ResourceName, UnallocatedUse, Unattributed, UnixSeconds,
};

/// Everything that the page, the API and the plugin show, at one moment. Published by the agent alone, never changed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// Rises with each publication.
    pub sequence: u64,
    pub at: Moment,
    pub started: UnixSeconds,
    pub node_name: Arc<str>,
    pub hardware: Arc<HardwareState>,
    pub kubelet: Arc<KubeletState>,
    pub health: Arc<HealthState>,
    /// `None` while the bundled device plugin is off.
    pub plugin: Option<Arc<PluginState>>,
    /// Whose the processes on the devices are. `None` where nobody looks.
    pub processes: Option<Arc<ProcessState>>,
    /// What each container holds or held, after the join.
    pub accounts: Vec<Account>,
    /// What is no container's, by GPU.
    #[serde(rename = "remainders")]
    pub unattributed: Vec<Unattributed>,
    pub unallocated_uses: Vec<UnallocatedUse>,
    /// XIDs by container, of those that can be told whose they are.
    pub container_xids: Vec<ContainerXid>,
    /// How often shares did not add up to their device. Every quantity is there once the agent runs.
    pub violations: BTreeMap<Quantity, u64>,
    /// Series left off the page by reason: ended, held. Every reason is there once the agent runs.
    pub series_dropped: BTreeMap<&'static str, u64>,
    pub unresolved: Vec<UnresolvedDevices>,
    /// The devices of DRA claims that were joined to hardware.
    pub claim_gpus: Vec<ClaimGpu>,
    /// Hardware against the kubelet, one per resource whose ids name whole GPUs or MIG devices.
    pub drift: Vec<InventoryDrift>,
    /// How long the page took to serve, as the web room saw it.
    pub scrape_durations: DurationHistogram,
    /// How long calls of the driver took, by call. Empty unless that was asked for.
    pub nvml_call_durations: BTreeMap<&'static str, DurationHistogram>,
    pub process: SelfUse,
    /// Standard error did not take them in time.
    pub log_lines_dropped: u64,
    /// `None` without a journal of allocations.
    pub journal: Option<JournalState>,
    pub config_reload: Option<ConfigReload>,
}

/// What the hardware room publishes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HardwareState {
    /// Where readings come from: `nvml`, `simulated` or `none`.
    pub source: &'static str,
    pub inventory: Arc<Inventory>,
    /// How often the driver has been opened.
    pub sessions: u64,
    /// How often it is known to have been loaded since podmeter came: 1 from the first opening on. That it was closed and
    /// opened is no loading.
    pub driver_loads: u64,
    pub readings: BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    /// From sysfs; `None` where it cannot be read.
    pub node_devices: Option<NodeDevices>,
    /// Why there is no data, in words with a remedy; `None` while the driver answers.
    pub problem: Option<Arc<str>>,
    /// By tier: fast, medium, slow; and events, where the driver tells of them.
    pub collectors: BTreeMap<&'static str, Collector>,
    /// By call, by code.
    pub errors: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Readings that were left out because they were outside the range of their quantity. Every quantity is there.
    pub implausible_readings: BTreeMap<&'static str, u64>,
    /// The driver was let go of on request.
    pub released: Option<Released>,
}

/// The driver is closed, and is not opened before `until` unless somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Released {
    pub since: Moment,
    pub until: Moment,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Collector {
    pub success: bool,
    pub stuck: bool,
    pub last_success: Option<Moment>,
    pub duration: Option<Duration>,
}

/// What the kubelet room publishes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KubeletState {
    /// The allocations believed; `None` until the kubelet has answered once.
    #[serde(rename = "relation")]
    pub allocations: Option<Arc<Allocations>>,
    /// When the believed allocations was last confirmed by an answer; its age is what grows while the kubelet is away.
    #[serde(rename = "relation_at")]
    pub allocations_at: Option<Moment>,
    /// False after a (re)connect until two equal answers stood a second apart.
    pub settled: bool,
    pub allocatable: Option<Arc<Allocatable>>,
    pub allocatable_at: Option<Moment>,
    /// The device ids of the kubelet's checkpoint, as it was when podmeter or the kubelet started.
    #[serde(skip)]
    pub checkpoint: Option<Arc<BTreeMap<ResourceName, BTreeSet<DeviceId>>>>,
    pub api: Option<PodResourcesApi>,
    /// The last answer was over the size limit.
    pub truncated: bool,
    /// Why the last call failed, with a remedy; `None` after a success.
    pub problem: Option<Arc<str>>,
    pub collector: Collector,
    pub counters: KubeletCounters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodResourcesApi {
    V1,
    V1alpha1,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KubeletCounters {
    /// By method: List, GetAllocatableResources.
    pub durations: BTreeMap<&'static str, DurationHistogram>,
    /// By method, by code.
    pub errors: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// By trigger: allocate, checkpoint, timer, reconnect.
    pub triggers: BTreeMap<&'static str, u64>,
}

/// One device that a container holds, or held until less than the retention ago.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// `None` once the container has let go.
    pub holding: Option<Holding>,
    /// When this account began.
    pub created: UnixSeconds,
    /// `None` while it is not known what part of the device it holds.
    pub allocated_seconds: Option<f64>,
    /// `None` where busy time is not known or not attributable.
    pub busy_seconds: Option<f64>,
    /// Held and not busy, of the time in which busy seconds are known.
    pub idle_seconds: Option<f64>,
    /// Allocated seconds in which it is not known whether the device was busy: nothing read it then, or it does not tell.
    pub uncovered_seconds: Option<f64>,
    /// Busy beyond the slot held, while others left theirs: busy + idle + uncovered = allocated + borrowed.
    pub borrowed_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    /// `None` while it is not known whether it is active.
    pub last_active: Option<UnixSeconds>,
    /// Of what it holds, 0 to 1.
    pub utilization_ratio: Option<f64>,
    /// Of the whole GPU, 0 to 1.
    pub device_utilization_ratio: Option<f64>,
    pub sm_active_ratio: Option<f64>,
    pub dram_active_ratio: Option<f64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    /// On the device now; `None` where processes are not known.
    pub processes: Option<u64>,
    /// Kept off the page of metrics: by the series limit, or because another pod of the same name has the series now.
    pub over_limit: bool,
    #[serde(skip)]
    pub ended: Option<Monotonic>,
}

impl Account {
    /// Of which nothing is known but whose it is.
    #[must_use]
    pub const fn new(container: ContainerRef, gpu: GpuUuid, mig: Option<MigUuid>, created: UnixSeconds) -> Self {
        Self {
            container,
            gpu,
            mig,
            holding: None,
            created,
            allocated_seconds: None,
            busy_seconds: None,
            idle_seconds: None,
            uncovered_seconds: None,
            borrowed_seconds: None,
            energy_joules: None,
            last_active: None,
            utilization_ratio: None,
            device_utilization_ratio: None,
            sm_active_ratio: None,
            dram_active_ratio: None,
            memory_used_bytes: None,
            memory_limit_bytes: None,
            processes: None,
            over_limit: false,
            ended: None,
        }
    }
}

/// How a container holds a device now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Holding {
    /// `None` for a DRA claim.
    pub resource: Option<ResourceName>,
    pub device_ids: Vec<DeviceId>,
    pub sharing: Sharing,
    /// By which method busy time and energy are given to the holder; `None`: they are not.
    pub attribution: Option<Attribution>,
    /// GPU-seconds that one second of holding counts; `None` while it is not known how many slots the device has.
    pub share: Option<f64>,
    /// Its weight where holders get equal parts: 1, or less for one of several containers of a claim.
    pub weight: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    Exclusive,
    TimeSlicing,
    Mps,
    Mig,
}

impl Sharing {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::TimeSlicing => "time_slicing",
            Self::Mps => "mps",
            Self::Mig => "mig",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    Exclusive,
    Process,
    EqualShare,
    Estimated,
}

impl Attribution {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Process => "process",
            Self::EqualShare => "equal_share",
            Self::Estimated => "estimated",
        }
    }
}

/// Devices whose id could not be joined to hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnresolvedDevices {
    pub resource: ResourceName,
    pub form: &'static str,
    pub devices: usize,
}

/// A device of a DRA claim, and the GPU that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimGpu {
    pub driver: Arc<str>,
    pub pool: Arc<str>,
    pub device: DeviceId,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
}

/// Where the hardware and the kubelet's list of one resource differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InventoryDrift {
    pub resource: ResourceName,
    /// Hardware of this resource's form that the kubelet does not call allocatable.
    pub advertised_not_allocatable: usize,
    /// Allocatable ids that name no hardware.
    pub allocatable_not_advertised: usize,
}

/// The agent's own process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SelfUse {
    pub cpu_seconds: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_files: Option<u64>,
    pub max_files: Option<u64>,
    pub start: Option<UnixSeconds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ConfigReload {
    pub successful: bool,
    pub last_success: UnixSeconds,
}
