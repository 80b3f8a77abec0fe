//! A node with a holder of each kind, and its history of four hundred seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use podmeter::domain::attribution::{DeviceProcesses, OwnedProcess};
use podmeter::domain::holders::{self, Slots};
use podmeter::domain::model::{
    Allocatable, Allocations, CpuSet, DeviceId, DeviceReadings, DeviceTotals, Fast, Gpu, GpuUuid, HardwareSource,
    HardwareState, KubeletState, Moment, Monotonic, Overview, Owner, ReadingGaps, Snapshot, Stamped, UnixSeconds,
};
use podmeter::hardware::simulated::{SimulatedDriver, SimulatedProfile};
use podmeter::journal::{AllocationRecord, AllocationTracker};

use crate::support::device_health::health_from;
use crate::support::test_data::{self, LedgerNode};

const SECONDS: u64 = 400;
/// Of the whole GPU that nobody reads for a while.
const UNREAD: std::ops::Range<u64> = 200..260;
pub const WHOLE: &str = "nvidia.com/gpu";
pub const SHARED: &str = "nvidia.com/gpu.shared";
pub const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// The node begins a second after the agent.
fn monotonic(second: u64) -> Monotonic {
    Monotonic::from_secs(1 + second)
}

/// A node with four whole GPUs and four partitioned ones, a holder of each kind, and its history from second to second.
pub struct Scene {
    born: f64,
    /// By index.
    pub gpus: Vec<Gpu>,
    node: LedgerNode,
    tracker: AllocationTracker,
    pub records: BTreeMap<u64, AllocationRecord>,
}

/// Busy seconds of each GPU in each second, of the driver.
const BUSY: [f64; 8] = [0.0, 0.0, 0.0, 0.0, 0.75, 0.9, 0.0, 0.5];
pub const SLICE_BUSY: f64 = 0.5;

impl Scene {
    pub fn new() -> Self {
        let inventory = SimulatedDriver::new(SimulatedProfile::H100_MIG, 1).inventory();
        let mut gpus: Vec<Gpu> = inventory.gpus.values().cloned().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        assert!(gpus[0].mig_devices.len() == 7 && gpus[4..].iter().all(|gpu| gpu.mig_devices.is_empty()));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let mut tracker = AllocationTracker::default();
        tracker.load(vec![], 0, Moment::default());
        Self {
            born: now - SECONDS as f64,
            gpus,
            node: LedgerNode::new(inventory, Duration::from_secs(5)),
            tracker,
            records: BTreeMap::new(),
        }
    }

    fn uuid(&self, gpu: usize) -> &str {
        self.gpus[gpu].uuid.as_str()
    }

    fn slot(&self, number: usize) -> String {
        format!("{}::{number}", self.uuid(5))
    }

    /// Pod, resource, device ID.
    fn held(&self, second: u64) -> Vec<(&'static str, &'static str, String)> {
        let mut held = vec![
            ("train", WHOLE, self.uuid(4).to_owned()),
            ("borrower", SHARED, self.slot(0)),
            ("lender", SHARED, self.slot(1)),
            ("slice", SLICE, self.gpus[0].mig_devices[1].uuid.to_string()),
            ("notebook", WHOLE, self.uuid(6).to_owned()),
        ];
        match second {
            ..100 => held.push(("done", WHOLE, self.uuid(7).to_owned())),
            200..380 => held.push(("late", WHOLE, self.uuid(7).to_owned())),
            _ => {}
        }
        held
    }

    fn allocations(&self, second: u64) -> Allocations {
        let pod = |(pod, resource, id): (&str, &str, String)| test_data::holder(pod, &[(resource, &id)]);
        test_data::allocations(self.held(second).into_iter().map(pod))
    }

    fn allocatable(&self) -> Allocatable {
        let ids = |ids: Vec<String>| ids.iter().map(|id| DeviceId::new(id.as_str())).collect();
        let slices = self.gpus[0].mig_devices.iter().map(|mig| mig.uuid.to_string());
        let devices = BTreeMap::from([
            (WHOLE.into(), ids([4, 6, 7].map(|gpu| self.uuid(gpu).to_owned()).into())),
            (SHARED.into(), ids((0..4).map(|number| self.slot(number)).collect())),
            (SLICE.into(), ids(slices.collect())),
        ]);
        Allocatable { devices, cpus: CpuSet::default(), memory: vec![] }
    }

    fn readings(&self, second: u64) -> BTreeMap<GpuUuid, Arc<DeviceReadings>> {
        let of = |(number, gpu): (usize, &Gpu)| {
            let is_gap = number == 6 && UNREAD.contains(&second);
            let complete_until = if is_gap { UNREAD.start - 1 } else { second };
            let gap = if number == 6 && second >= UNREAD.end { (UNREAD.end - UNREAD.start + 1) as f64 } else { 0.0 };
            let is_whole = gpu.mig_devices.is_empty();
            let instance = gpu.mig_devices.get(1).filter(|_| number == 0).map(|mig| mig.gpu_instance);
            let of_instances = |busy: f64| {
                let ratio = |mig: &podmeter::domain::model::MigDevice| {
                    (mig.gpu_instance, if Some(mig.gpu_instance) == instance { busy } else { 0.0 })
                };
                gpu.mig_devices.iter().map(ratio).collect::<BTreeMap<_, _>>()
            };
            let at = monotonic(complete_until);
            let readings = DeviceReadings {
                totals: DeviceTotals {
                    complete_until: at,
                    busy_seconds: is_whole.then(|| BUSY[number] * (complete_until as f64 - gap)),
                    energy_joules: Some(complete_until as f64 * (100.0 + 400.0 * BUSY[number])),
                    instance_busy_seconds: of_instances(SLICE_BUSY * complete_until as f64),
                    uncovered_seconds: gap,
                    gaps: ReadingGaps {
                        seconds: gap,
                        energy_joules: 0.0,
                        until: if gap > 0.0 { monotonic(UNREAD.end) } else { Monotonic::default() },
                    },
                    ..DeviceTotals::default()
                },
                fast: (!is_gap).then(|| Stamped {
                    at,
                    value: Fast {
                        utilization_ratio: is_whole.then_some(BUSY[number]),
                        instance_utilization_ratios: of_instances(SLICE_BUSY),
                        power_watts: Some(100.0 + 400.0 * BUSY[number]),
                        ..Fast::default()
                    },
                }),
                ..DeviceReadings::default()
            };
            (gpu.uuid.clone(), Arc::new(readings))
        };
        self.gpus.iter().enumerate().map(of).collect()
    }

    /// The borrower works.
    fn processes(&self, second: u64) -> BTreeMap<GpuUuid, DeviceProcesses> {
        let process = |pid, pod: &str, sm_seconds| {
            let owner = Owner::Container(test_data::main_of(pod));
            OwnedProcess { memory_bytes: Some(1 << 30), ..test_data::process(pid, owner, sm_seconds) }
        };
        let by_gpu = BTreeMap::from([
            (4, vec![process(1, "train", second as f64)]),
            (5, vec![process(2, "borrower", second as f64), process(3, "lender", 0.0)]),
            (6, vec![process(4, "notebook", 0.0)]),
            (7, vec![]),
        ]);
        let with = |(gpu, processes): (usize, _)| (self.gpus[gpu].uuid.clone(), test_data::processes(processes));
        by_gpu.into_iter().map(with).collect()
    }

    fn step(&mut self, second: u64) -> Snapshot {
        let now = Moment { monotonic: monotonic(second), unix: UnixSeconds(self.born + second as f64) };
        let (allocations, allocatable) = (self.allocations(second), self.allocatable());
        let mut slots = Slots::default();
        slots.update_counts(&allocations, &allocatable, &self.node.inventory, true);
        self.node.holdings = holders::join(&allocations, &allocatable, &self.node.inventory, &slots);
        (self.node.readings, self.node.processes) = (self.readings(second), self.processes(second));
        let output = self.node.advance(now);
        let hardware = HardwareState {
            source: HardwareSource::Simulated,
            inventory: Arc::new(self.node.inventory.clone()),
            readings: self.node.readings.clone(),
            ..HardwareState::default()
        };
        let snapshot = Snapshot {
            sequence: second,
            at: now,
            node_name: "node-a".into(),
            kubelet: Arc::new(KubeletState {
                allocations: Some(Arc::new(allocations)),
                allocatable: Some(Arc::new(allocatable)),
                settled: true,
                ..KubeletState::default()
            }),
            health: Arc::new(health_from(&hardware)),
            hardware: Arc::new(hardware),
            accounts: output.accounts,
            unattributed: output.unattributed,
            ..Snapshot::default()
        };
        let snapshot = Snapshot { overview: Overview::summarize(&snapshot, &self.node.holdings.slots), ..snapshot };
        self.tracker.observe(&snapshot);
        let records = self.tracker.to_write();
        self.tracker.written(&records);
        self.records.extend(records.into_iter().map(|record| (record.id, record)));
        snapshot
    }

    pub fn run(&mut self) -> Snapshot {
        (0..SECONDS).for_each(|second| drop(self.step(second)));
        let last = self.step(SECONDS);
        self.records.extend(self.tracker.live());
        last
    }
}
