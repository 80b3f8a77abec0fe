//! The snapshot: the state from which metrics, page and API are made, and the states of its sources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use super::{
    Account, Allocatable, Allocations, ClaimDevice, ClaimGpu, Container, ContainerRef, ContainerXid, DeviceId,
    DeviceReadings, DividedQuantity, DurationHistogram, GpuUuid, HealthState, Inventory, MigUuid, Moment, Monotonic,
    NodeDevices, Overview, PciBusId, PluginState, Pod, PodUid, ProcessState, ResourceName, UnallocatedUse,
    Unattributed, UnixSeconds,
};

/// The immutable state from which metrics, page and API are made. Only the agent publishes it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The number of the publication, which rises with each.
    pub sequence: u64,
    pub at: Moment,
    pub started: UnixSeconds,
    pub node_name: Arc<str>,
    pub hardware: Arc<HardwareState>,
    pub kubelet: Arc<KubeletState>,
    pub health: Arc<HealthState>,
    /// The state of the bundled device plugin; `None` while it is off.
    pub plugin: Option<Arc<PluginState>>,
    /// The owners of the processes on the devices. `None` without process attribution.
    pub processes: Option<Arc<ProcessState>>,
    /// The use of devices by current and former holders.
    pub accounts: Vec<Account>,
    /// The unattributed use, by GPU.
    pub unattributed: Vec<Unattributed>,
    pub unallocated_uses: Vec<UnallocatedUse>,
    /// The XIDs attributed to containers.
    pub container_xids: Vec<ContainerXid>,
    /// How often shares did not add up to their device. It has every quantity once the agent runs.
    pub violations: BTreeMap<DividedQuantity, u64>,
    /// The limit on the containers' series of a page.
    pub series_limit: Option<usize>,
    /// The number of series left off the page by reason: ended, held. It has every reason once the agent runs.
    pub series_dropped: BTreeMap<&'static str, u64>,
    pub unresolved: Vec<UnresolvedDevices>,
    /// The devices of DRA claims that were joined to hardware, by `ClaimDevice::key`.
    pub claim_gpus: Vec<ClaimGpu>,
    /// The differences between hardware and kubelet, one per resource whose IDs name whole GPUs or MIG devices.
    pub drift: Vec<InventoryDrift>,
    /// The number of each resource's allocatable devices whose hardware is held under another name.
    pub unavailable: BTreeMap<ResourceName, usize>,
    /// The durations of scrapes.
    pub scrape_durations: DurationHistogram,
    /// The durations of NVML calls, by call. Empty unless configured.
    pub nvml_call_durations: BTreeMap<&'static str, DurationHistogram>,
    pub process: SelfUse,
    /// The number of log lines dropped because standard error was blocked.
    pub log_lines_dropped: u64,
    /// The state of the journal of allocations; `None` without one.
    pub journal: Option<JournalState>,
    pub config_reload: Option<ConfigReload>,
    pub overview: Overview,
}

impl Snapshot {
    /// The containers that hold the device, or a part of it, now; without `mig` the whole GPU. One that holds several
    /// parts appears several times.
    pub fn holders<'a>(&'a self, gpu: &'a GpuUuid, mig: Option<&'a MigUuid>) -> impl Iterator<Item = &'a ContainerRef> {
        let holds = move |account: &&Account| {
            account.holding.is_some() && account.gpu == *gpu && (mig.is_none() || account.mig.as_ref() == mig)
        };
        self.accounts.iter().filter(holds).map(|account| &account.container)
    }

    /// The UID of a container's pod in cgroups: that of its allocation, else that of the pod that is listed now.
    pub fn pod_uid<'a>(&'a self, container: &'a ContainerRef) -> Option<&'a PodUid> {
        let listed = || self.kubelet.allocations.as_ref()?.pod(&container.pod_ref())?.uid.as_ref();
        container.pod_uid.as_ref().or_else(listed)
    }

    /// The GPU that a claim's device is.
    pub fn joined_claim(&self, claim: &ClaimDevice) -> Option<&ClaimGpu> {
        let position = self.claim_gpus.binary_search_by(|joined| joined.claim.key().cmp(&claim.key())).ok()?;
        self.claim_gpus.get(position)
    }

    /// The DRA claim by which a container holds a device; `None` where a device plugin allocated it.
    pub fn claim_of(&self, account: &Account) -> Option<(&ClaimDevice, &ClaimGpu)> {
        let own = self.kubelet.allocations.as_ref()?.container(&account.container)?;
        if own.reference != account.container {
            return None;
        }
        own.claims.iter().filter(|claim| !claim.is_observer()).find_map(|claim| {
            let joined = self.joined_claim(claim)?;
            (joined.gpu == account.gpu && joined.mig == account.mig).then_some((claim, joined))
        })
    }
}

/// Where device readings come from.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum HardwareSource {
    Nvml,
    Simulated,
    #[default]
    None,
}

/// The state of the hardware.
#[derive(Clone, Debug, Default)]
pub struct HardwareState {
    pub source: HardwareSource,
    pub inventory: Arc<Inventory>,
    /// How often the driver has been opened.
    pub sessions: u64,
    /// The certain loads of the driver since podmeter started, 1 from the first opening on; opening it again is no
    /// load.
    pub driver_loads: u64,
    pub readings: BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    /// The energy of each module, by its name, since the agent first read a GPU of it. It never falls.
    pub module_energy_joules: BTreeMap<PciBusId, f64>,
    /// The GPUs on the PCI bus, from sysfs; `None` where it cannot be read.
    pub node_devices: Option<NodeDevices>,
    /// Why there is no data, with a remedy; `None` while the driver answers.
    pub problem: Option<Arc<str>>,
    /// The status of each tier (fast, medium, slow), and of events, where the driver has them.
    pub collectors: BTreeMap<&'static str, SourceStatus>,
    /// The number of failed calls by call, then by code.
    pub errors: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// The number of readings removed because they were outside the range of their quantity. It has every quantity.
    pub implausible_readings: BTreeMap<&'static str, u64>,
    /// The release, while the driver is released on request.
    pub released: Option<Released>,
}

impl HardwareState {
    /// The driver in words.
    pub fn driver_words(&self) -> String {
        match (&self.inventory.driver, self.source) {
            (Some(driver), HardwareSource::Simulated) => format!("simulated driver {}", driver.driver_version),
            (Some(driver), _) => format!("driver {}", driver.driver_version),
            (None, HardwareSource::None) => "reading no hardware".to_owned(),
            (None, _) => "no driver".to_owned(),
        }
    }

    /// The oldest current readings of use and power, and of memory and temperature.
    pub fn oldest_readings(&self) -> [Option<Monotonic>; 2] {
        let oldest = |at: fn(&DeviceReadings) -> Option<Monotonic>| {
            self.readings.values().filter_map(|readings| at(readings)).min()
        };
        [oldest(|readings| Some(readings.fast.as_ref()?.at)), oldest(|readings| Some(readings.medium.as_ref()?.at))]
    }
}

/// A release: the driver is closed until `until`, or until a resume is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Released {
    pub since: Moment,
    pub until: Moment,
}

/// The state of the kubelet client.
#[derive(Clone, Debug, Default)]
pub struct KubeletState {
    /// The accepted allocations; `None` until the kubelet has answered once.
    pub allocations: Option<Arc<Allocations>>,
    /// The pods that the kubelet may still reject: they are no holders yet, but their devices are not given to others.
    pub unconfirmed: Vec<Pod>,
    /// The end of the last successful `List`, however long ago.
    pub allocations_at: Option<Moment>,
    /// Whether an answer has settled since the last connection: what it lacks is removed.
    pub settled: bool,
    pub allocatable: Option<Arc<Allocatable>>,
    /// The start of the call for it.
    pub allocatable_at: Option<Moment>,
    /// The device IDs in the kubelet's checkpoint when podmeter or the kubelet started.
    pub checkpoint: Option<Arc<BTreeMap<ResourceName, BTreeSet<DeviceId>>>>,
    /// The IDs of the checkpoint that containers held.
    pub held_in_checkpoint: Arc<BTreeSet<(ResourceName, DeviceId)>>,
    /// Whether the last answer was over the size limit.
    pub truncated: bool,
    /// Why the last call failed, with a remedy; `None` after a success.
    pub problem: Option<Arc<str>>,
    pub collector: SourceStatus,
    pub counters: KubeletCounters,
    /// The number of files of DRA drivers that cannot be read or parsed, by source. `None` where no claim is listed.
    pub unreadable_claim_files: Option<Arc<BTreeMap<&'static str, u64>>>,
}

impl KubeletState {
    /// The containers that hold devices, or will unless the kubelet rejects their pod.
    pub fn holding_containers(&self) -> impl Iterator<Item = &Container> {
        let accepted = self.allocations.iter().flat_map(|allocations| &allocations.pods);
        accepted.chain(&self.unconfirmed).flat_map(|pod| &pod.containers)
    }

    /// Whether a settled answer has no pod at all.
    pub fn lists_none(&self) -> bool {
        self.settled && self.allocations.as_ref().is_some_and(|allocations| allocations.pods.is_empty())
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KubeletCounters {
    /// The durations of calls, by method of the PodResources API.
    pub durations: BTreeMap<&'static str, DurationHistogram>,
    /// The number of failed calls, by method, then by code.
    pub errors: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// How often each `Trigger` of `kubelet` occurred; one call may serve several.
    pub triggers: BTreeMap<&'static str, u64>,
}

/// The devices whose ID could not be joined to hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnresolvedDevices {
    pub resource: ResourceName,
    pub form: &'static str,
    pub devices: usize,
}

/// The differences between the hardware and the kubelet's list of one resource. The names are the metric's label
/// values, in which the hardware counts as what the plugin of the resource advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryDrift {
    pub resource: ResourceName,
    /// The number of devices of this resource that the kubelet does not list as allocatable.
    pub advertised_not_allocatable: usize,
    /// The number of allocatable IDs without hardware.
    pub allocatable_not_advertised: usize,
}

/// The resource use of the agent's process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SelfUse {
    pub cpu_seconds: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_files: Option<u64>,
    pub max_files: Option<u64>,
    pub start: Option<UnixSeconds>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfigReload {
    pub successful: bool,
    pub last_success: UnixSeconds,
}

/// The state of the journal of allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// The number of holdings written to disk; each update counts.
    pub written: u64,
    /// The number of failed writes, openings and checks.
    pub errors: u64,
    /// The number of holdings dropped because too many waited for the disk.
    pub dropped: u64,
    /// The size of the file; `None` while it is not open.
    pub size_bytes: Option<u64>,
    /// Why nothing is written, with a remedy.
    pub problem: Option<Arc<str>>,
}

/// The status of one source: a tier of the hardware or its events, the kubelet, the processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceStatus {
    pub success: bool,
    pub stuck: bool,
    pub last_success: Option<Moment>,
    pub duration: Option<Duration>,
}
