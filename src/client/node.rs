//! The response of `/api/v1/node`, as far as clients use it. Fields that an older agent lacks are absent or empty;
//! unknown words of a newer one are shown unchanged. `tests.rs` compares every name here with the agent's own types.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::model::Figures;

/// A response. Without `sequence` and `at` it is not a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Node {
    /// Increases with each publication.
    pub sequence: u64,
    /// Of the agent's own clock.
    pub at: Moment,
    #[serde(default)]
    pub started: f64,
    #[serde(default)]
    pub node_name: String,
    #[serde(default)]
    pub hardware: Hardware,
    #[serde(default)]
    pub kubelet: Kubelet,
    #[serde(default)]
    pub health: Health,
    #[serde(default)]
    pub processes: Option<Processes>,
    #[serde(default)]
    pub accounts: Vec<Account>,
    #[serde(default)]
    pub unattributed: Vec<Unattributed>,
    #[serde(default)]
    pub unallocated_uses: Vec<UnallocatedUse>,
    #[serde(default)]
    pub overview: Overview,
}

macro_rules! response_types {
    ($($(#[$meta:meta])* $name:ident { $($(#[$inner:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
            #[cfg_attr(test, derive(serde::Serialize))]
            #[serde(default)]
            pub struct $name { $($(#[$inner])* pub $field: $kind,)* }
        )*
    };
}

response_types! {
    Moment {
        /// Since the agent started.
        monotonic: Duration,
        /// Seconds since 1970-01-01 UTC.
        unix: f64,
    }
    Hardware {
        /// `nvml`, `simulated` or `none`.
        source: String,
        inventory: Inventory,
        /// By UUID.
        readings: BTreeMap<String, Readings>,
        /// Why there is no data, with a remedy.
        problem: Option<String>,
        /// By tier: fast, medium, slow, events.
        collectors: BTreeMap<String, Collector>,
    }
    Inventory {
        driver: Option<Driver>,
        /// By UUID.
        gpus: BTreeMap<String, Gpu>,
        /// By UUID, those that are passed through to virtual machines.
        passthrough: BTreeMap<String, Passthrough>,
    }
    Passthrough {
        kernel_driver: String,
    }
    Driver {
        driver_version: String,
    }
    Gpu {
        uuid: String,
        /// `None`: the driver has not listed it.
        index: Option<u32>,
        pci_bus_id: Option<String>,
        model: Option<String>,
        /// Its place in a chassis or rack.
        platform: Option<Platform>,
        numa_node: Option<u32>,
        memory_bytes: Option<u64>,
        mig_enabled: Option<bool>,
        mig_devices: Vec<Mig>,
        present: bool,
    }
    Platform {
        slot: Option<u8>,
        tray: Option<u8>,
        host: Option<u8>,
        module_id: Option<u8>,
    }
    Mig {
        uuid: String,
        index: u32,
        gpu_instance: u32,
        /// `1g.10gb`
        profile: String,
        memory_bytes: Option<u64>,
    }
    Readings {
        fast: Option<Stamped<Fast>>,
        medium: Option<Stamped<Medium>>,
        slow: Option<Stamped<Slow>>,
        stuck: bool,
        lost: bool,
    }
    Fast {
        power_watts: Option<f64>,
        /// Of the superchip that the GPU is on.
        module_power_watts: Option<f64>,
    }
    Medium {
        memory: Option<MemoryUse>,
        gpu_temperature_celsius: Option<f64>,
        power_limit_watts: Option<f64>,
        gpm: Gpm,
        instances: Vec<Instance>,
    }
    Slow {
        fabric: Option<Fabric>,
    }
    Fabric {
        /// `None`: the GPU is in no NVLink domain.
        domain: Option<FabricDomain>,
        /// True where it is a fault or a limit.
        conditions: BTreeMap<String, bool>,
        incorrect_configuration: Option<String>,
    }
    FabricDomain {
        cluster_uuid: String,
        clique_id: u32,
    }
    Gpm {
        sm_active: Option<f64>,
    }
    MemoryUse {
        used: u64,
        total: u64,
    }
    /// A GPU instance of a partitioned GPU.
    Instance {
        gpu_instance: u32,
        memory: Option<MemoryUse>,
        gpm: Gpm,
    }
    Collector {
        success: bool,
        stuck: bool,
        last_success: Option<Moment>,
    }
    Kubelet {
        /// When the allocations shown were last confirmed.
        allocations_at: Option<Moment>,
        settled: bool,
        problem: Option<String>,
        collector: Collector,
    }
    Health {
        /// By UUID.
        gpus: BTreeMap<String, GpuHealth>,
        /// Oldest first.
        transitions: Vec<Transition>,
    }
    GpuHealth {
        whole: DeviceHealth,
        /// MIG devices by UUID.
        instances: BTreeMap<String, DeviceHealth>,
        xids: Xids,
    }
    DeviceHealth {
        healthy: bool,
        since: Moment,
        causes: Vec<Cause>,
    }
    Cause {
        /// `xid`, `lost`, …
        reason: String,
        detail: String,
        clears: String,
    }
    Transition {
        gpu: String,
        mig: Option<String>,
        to_healthy: bool,
        reason: String,
        detail: String,
        at: Moment,
        holders: Vec<Name>,
    }
    Xids {
        /// By code.
        last: BTreeMap<u32, Xid>,
    }
    Xid {
        class: String,
        at: Moment,
        count: u64,
    }
    Processes {
        enabled: bool,
        problem: Option<String>,
    }
    /// One device that a container holds, or held until recently.
    Account {
        container: Name,
        gpu: String,
        mig: Option<String>,
        /// Absent once the holding has ended.
        holding: Option<Holding>,
        #[serde(flatten)]
        figures: Figures,
        ended: Option<Moment>,
        last_active: Option<f64>,
        utilization_ratio: Option<f64>,
        device_utilization_ratio: Option<f64>,
        memory_used_bytes: Option<u64>,
        memory_limit_bytes: Option<u64>,
        processes: Option<u64>,
    }
    Holding {
        resource: Option<String>,
        sharing: String,
        attribution: Option<String>,
        share: Option<f64>,
    }
    /// Use of one GPU that is not attributed to a container, by reason.
    Unattributed {
        gpu: String,
        busy_seconds: BTreeMap<String, f64>,
        energy_joules: BTreeMap<String, f64>,
        memory_bytes: BTreeMap<String, u64>,
        processes: BTreeMap<String, u64>,
    }
    /// Of one device, oldest first; `None`: no reading.
    Past {
        gpu: String,
        mig: Option<String>,
        /// How long before `at` the last point is.
        seconds_ago: f64,
        busy_ratio: Vec<Option<f64>>,
        memory_used_bytes: Vec<Option<f64>>,
        power_watts: Vec<Option<f64>>,
    }
    UnallocatedUse {
        pod: PodName,
        container: Option<String>,
        gpu: String,
    }
    Overview {
        /// Each GPU and MIG device.
        devices: Vec<DeviceOverview>,
        /// By resource.
        resources: BTreeMap<String, ResourceCount>,
        node: NodeOverview,
    }
    DeviceOverview {
        gpu: String,
        mig: Option<String>,
        /// `free`, `held`, `partitioned` or `unavailable`.
        state: Option<String>,
        /// In the last second, 0 to 1.
        busy_ratio: Option<f64>,
        slots: Option<usize>,
        free_slots: Option<usize>,
    }
    ResourceCount {
        allocatable: usize,
        free: Option<usize>,
    }
    NodeOverview {
        gpus: usize,
        allocated_gpus: Option<f64>,
        busy_ratio: Option<f64>,
        busy_known: usize,
    }
    PodName {
        namespace: String,
        pod: String,
    }
    /// A container by name.
    Name {
        namespace: String,
        pod: String,
        container: String,
    }
}

/// The response of `/api/v1/history`: one point per device and interval. Without `at` it is not a history.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct History {
    pub at: Moment,
    pub interval_seconds: f64,
    pub devices: Vec<Past>,
}

/// A value and when it was read, by the agent's clock.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Stamped<T> {
    pub at: Duration,
    pub value: T,
}

impl Gpu {
    /// A MIG device of it by UUID.
    #[must_use]
    pub fn mig(&self, uuid: &str) -> Option<&Mig> {
        self.mig_devices.iter().find(|mig| mig.uuid == uuid)
    }
}
