//! A usual node: eight busy simulated GPUs, a pod on each, and pods without a GPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podmeter::attribution::{Join, Ledger, LedgerOutput, Observation, Slots, join, processes_by_device};
use podmeter::hardware::simulated::{Load, Profile, SimulatedDriver};
use podmeter::hardware::{Driver as _, Due, GpuState, Pass, Reader, Staleness};
use podmeter::health::{self, Health, HealthInputs};
use podmeter::kubelet::convert;
use podmeter::model::{
    Allocatable, Allocations, Collector, ContainerRef, DurationHistogram, GpuUuid, HardwareState, Inventory,
    KubeletState, Moment, Monotonic, NodeDevices, Owner, PluginResource, PluginState, PodIdentity, PodRef,
    PodResourcesApi, Process, ProcessKey, ProcessState, Quantity, SelfUse, Snapshot, UnixSeconds,
};
use podmeter::wire::v1;

pub const GPUS: usize = 8;
pub const PODS: usize = 38;
const STARTED: f64 = 1.7e9;
const FIRST_PID: u32 = 4_000;
/// Before the first round, so that every tier has been read and every counter exists.
const WARM_UP_SECONDS: u64 = 20;
const STALENESS: Staleness =
    Staleness { fast: Duration::from_secs(5), medium: Duration::from_secs(30), slow: Duration::from_secs(180) };

pub fn moment(second: u64) -> Moment {
    Moment { monotonic: Monotonic::from_secs(second), unix: UnixSeconds(STARTED + second as f64) }
}

/// The GPUs and their readings.
pub struct Devices {
    pub inventory: Arc<Inventory>,
    gpus: Vec<(GpuUuid, Box<dyn Reader>, GpuState)>,
}

impl Devices {
    /// Every GPU half busy with one process.
    pub fn working() -> Self {
        let mut driver = SimulatedDriver::new(Profile::H100, 1);
        let controls = driver.controls();
        controls.take_over(Monotonic::default());
        let session = driver.open().unwrap();
        let (inventory, _) = session.inventory().unwrap();
        for (number, gpu) in inventory.gpus.keys().enumerate() {
            let load = Load::new(0.5 + number as f64 / 100.0, 40 << 30);
            controls.set_load(gpu, Monotonic::default(), load);
            controls.set_process_load(gpu, None, pid(number), Monotonic::default(), load);
        }
        let reader = |gpu: &GpuUuid| (gpu.clone(), session.reader(gpu).unwrap(), GpuState::default());
        Self { gpus: inventory.gpus.keys().map(reader).collect(), inventory: Arc::new(inventory) }
    }

    /// The readings of this second, all tiers.
    pub fn read(&mut self, second: u64) -> Vec<Pass> {
        let all = Due { medium: true, slow: true };
        self.gpus.iter_mut().map(|(_, reader, _)| reader.read(all, moment(second))).collect()
    }

    pub fn take(&mut self, second: u64, passes: Vec<Pass>) -> HardwareState {
        let at = Monotonic::from_secs(second);
        let mut readings = BTreeMap::new();
        for ((gpu, _, record), pass) in self.gpus.iter_mut().zip(passes) {
            record.take(at, second == 0, pass);
            readings.insert(gpu.clone(), Arc::new(record.readings(at, STALENESS)));
        }
        let collector = Collector {
            success: true,
            stuck: false,
            last_success: Some(moment(second)),
            duration: Some(Duration::from_millis(2)),
        };
        HardwareState {
            source: "nvml",
            inventory: Arc::clone(&self.inventory),
            sessions: 1,
            driver_loads: 1,
            readings,
            node_devices: Some(NodeDevices { expected: GPUS, ..NodeDevices::default() }),
            collectors: ["fast", "medium", "slow"].map(|tier| (tier, collector.clone())).into(),
            ..HardwareState::default()
        }
    }
}

fn pid(gpu: usize) -> u32 {
    FIRST_PID + gpu as u32
}

/// The kubelet's List response: a pod on each GPU, and others.
pub fn list(inventory: &Inventory, pods: usize) -> v1::ListPodResourcesResponse {
    let pod = |number: usize| {
        let device = inventory.gpus.keys().nth(number).map(|gpu| v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".to_owned(),
            device_ids: vec![gpu.to_string()],
            topology: Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id: i64::from(number > 3) }] }),
        });
        let container = v1::ContainerResources {
            name: "main".to_owned(),
            devices: device.into_iter().collect(),
            ..v1::ContainerResources::default()
        };
        v1::PodResources {
            name: pod_name(number),
            namespace: namespace(number).to_owned(),
            containers: vec![container],
            ..v1::PodResources::default()
        }
    };
    v1::ListPodResourcesResponse { pod_resources: (0..pods).map(pod).collect() }
}

fn pod_name(number: usize) -> String {
    if number < GPUS { format!("trainer-{number}") } else { format!("frontend-7c9d8b6f5-{number:05}") }
}

fn namespace(number: usize) -> &'static str {
    if number < GPUS { "research" } else { "web" }
}

pub fn allocatable(inventory: &Inventory) -> Allocatable {
    let ids = inventory.gpus.keys().map(|gpu| gpu.as_str().into()).collect();
    Allocatable { devices: [("nvidia.com/gpu".into(), ids)].into(), ..Allocatable::default() }
}

/// The snapshot of a node that has been running for `WARM_UP_SECONDS`.
pub fn snapshot() -> Snapshot {
    let mut devices = Devices::working();
    let allocations = convert::allocations(list(&devices.inventory, PODS));
    let allocatable = allocatable(&devices.inventory);
    let mut slots = Slots::default();
    slots.learn(&allocations, &allocatable, &devices.inventory, true);
    let join = join(&allocations, &allocatable, &devices.inventory, &slots);
    let processes = processes();
    let mut ledger = Ledger::new(Duration::from_secs(300), Duration::from_secs(5));
    let mut health = Health::new(health::Config::default());
    let mut advance = |second| {
        let passes = devices.read(second);
        let hardware = devices.take(second, passes);
        health.advance(moment(second), &HealthInputs { hardware: &hardware, events: &[] });
        let output = ledger.advance(&Observation {
            now: moment(second),
            join: &join,
            inventory: &hardware.inventory,
            readings: &hardware.readings,
            processes: &processes_by_device(&hardware, &processes),
            scrapes: second / 15,
        });
        (hardware, output)
    };
    (0..WARM_UP_SECONDS).for_each(|second| drop(advance(second)));
    let (hardware, output) = advance(WARM_UP_SECONDS);
    published(hardware, health, processes, kubelet(allocations, allocatable), join, output)
}

fn published(
    hardware: HardwareState,
    health: Health,
    processes: ProcessState,
    kubelet: KubeletState,
    join: Join,
    output: LedgerOutput,
) -> Snapshot {
    Snapshot {
        sequence: WARM_UP_SECONDS,
        at: moment(WARM_UP_SECONDS),
        started: UnixSeconds(STARTED),
        node_name: "node-a".into(),
        plugin: Some(Arc::new(plugin(&hardware.inventory))),
        hardware: Arc::new(hardware),
        kubelet: Arc::new(kubelet),
        health: health.state(),
        processes: Some(Arc::new(processes)),
        accounts: output.accounts,
        unattributed: output.unattributed,
        unallocated_uses: output.unallocated_uses,
        violations: Quantity::ALL.map(|quantity| (quantity, 0)).into(),
        series_dropped: [("ended", 0), ("held", 0)].into(),
        unresolved: join.unresolved,
        claim_gpus: join.claims,
        drift: join.drift,
        scrape_durations: durations(),
        process: SelfUse {
            cpu_seconds: Some(1.25),
            resident_bytes: Some(14 << 20),
            virtual_bytes: Some(90 << 20),
            open_files: Some(23),
            max_files: Some(1 << 20),
            start: Some(UnixSeconds(STARTED)),
        },
        ..Snapshot::default()
    }
}

fn durations() -> DurationHistogram {
    let mut durations = DurationHistogram::default();
    for microseconds in [200, 300, 3_000] {
        durations.observe(Duration::from_micros(microseconds));
    }
    durations
}

/// One process per pod on a GPU, with the pod's UID and no label.
fn processes() -> ProcessState {
    let process = |number: usize| {
        let key = ProcessKey { pid: pid(number), start_ticks: 100 };
        let owner = Owner::Container(ContainerRef::new(namespace(number), &pod_name(number), "main"));
        (pid(number), Process { key: Some(key), owner })
    };
    let identity = |number: usize| {
        let pod = PodRef::new(namespace(number), &pod_name(number));
        let identity = PodIdentity {
            pod: pod.clone(),
            uid: format!("00000000-0000-4000-8000-{number:012}").as_str().into(),
            runtime_uid: None,
            labels: BTreeMap::new(),
            terminal: false,
            containers: BTreeMap::new(),
        };
        (pod, Arc::new(identity))
    };
    ProcessState {
        enabled: true,
        processes: (0..GPUS).map(process).collect(),
        pods: Arc::new((0..PODS).map(identity).collect()),
        ..ProcessState::default()
    }
}

fn kubelet(allocations: Allocations, allocatable: Allocatable) -> KubeletState {
    let mut state = KubeletState {
        allocations: Some(Arc::new(allocations)),
        allocations_at: Some(moment(WARM_UP_SECONDS)),
        settled: true,
        allocatable: Some(Arc::new(allocatable)),
        allocatable_at: Some(moment(WARM_UP_SECONDS)),
        api: Some(PodResourcesApi::V1),
        ..KubeletState::default()
    };
    state.collector.success = true;
    state.counters.durations = ["List", "GetAllocatableResources"].map(|method| (method, durations())).into();
    state.counters.triggers = ["allocate", "checkpoint", "timer", "reconnect"].map(|trigger| (trigger, 3)).into();
    state
}

fn plugin(inventory: &Inventory) -> PluginState {
    let served = PluginResource {
        registered: true,
        registrations: 1,
        devices: Arc::new(inventory.gpus.keys().map(|gpu| (gpu.as_str().into(), None)).collect()),
        gpus: Arc::new(inventory.gpus.keys().map(|gpu| (gpu.as_str().into(), gpu.clone())).collect()),
        allocations: ["ok", "unknown_device", "unhealthy", "not_allowed"].map(|result| (result, 8)).into(),
        allocate_durations: durations(),
        prefers: true,
        preferred_durations: durations(),
        ..PluginResource::default()
    };
    PluginState { checked: true, resources: [("nvidia.com/gpu".into(), served)].into(), ..PluginState::default() }
}
