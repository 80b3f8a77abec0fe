//! A node in virtual time: simulated GPUs, pods that run for seconds, and the path from readings to accounts as the
//! agent has it (integrals, owners of processes, join, ledger), compared with the pods' real use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podmeter::domain::attribution::{Ledger, LedgerOutput, Observation, Retention, process_ids, processes_by_device};
use podmeter::domain::holders::{Holdings, Slots, join};
use podmeter::domain::model::{
    Account, Allocatable, Allocations, ContainerRef, DeviceId, GpuUuid, HardwareState, Inventory, Moment, Monotonic,
    PodDirectory, ProcessState, UnattributedReason, UnixSeconds,
};
use podmeter::hardware::simulated::{Load, SimulatedDriver, SimulatedProfile};
use podmeter::hardware::{Demand, Driver, GpuReader, GpuState, HardwareSettings, Schedule, Staleness, Tier};
use podmeter::kubelet::pod_logs;
use podmeter::processes::Resolver;
use podmeter::simulation::node::{Replicas, SimulatedDevice, resources};
use podmeter::simulation::proc_tree::{ContainerIdentity, ProcTree};
use podmeter::simulation::{Random, Truth, Workload, WorkloadKind};

use super::test_data::{self, LedgerNode, at_millisecond as moment};

/// A container is granted its device this long before it does something with it.
const STARTUP: u64 = 800;
/// From a grant to the kubelet's List that shows it.
const SEEN: u64 = 50;

/// How often it is checked what is due.
const TICK: u64 = 50;

#[derive(Clone, Copy)]
pub struct AccuracyCase {
    pub name: &'static str,
    pub profile: SimulatedProfile,
    /// What a GPU draws idle, and what full load adds.
    pub watts: (f64, f64),
    pub replicas: Replicas,
    /// How often the kubelet is called.
    pub refresh: Duration,
    /// The shortest and longest run of a pod.
    pub life: (Duration, Duration),
    pub length: Duration,
}

/// Of one quantity, as parts of what the containers truly had.
#[derive(Clone, Debug, Default)]
pub struct Score {
    pub truth: f64,
    pub right: f64,
    /// More than it had, on any container.
    pub wrong: f64,
    /// By reason, beyond the expected unattributed part.
    pub unattributed: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub pods: usize,
    pub allocated: Score,
    pub busy: Score,
    pub energy: Score,
    pub violations: u64,
}

/// One device of the kubelet's, and who has it.
struct Place {
    device: SimulatedDevice,
    resource: String,
    tenant: Option<Tenant>,
}

#[derive(Clone)]
struct Tenant {
    container: ContainerRef,
    uid: String,
    pid: u32,
    workload: Workload,
    since: u64,
    utilization: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Advances the workload of the holder with this pid by a second.
    Level(usize, u32),
    End(usize),
    Start(usize),
    Pass,
    List,
    Timer,
}

/// One GPU as the hardware threads read it.
struct Reader {
    reader: Box<dyn GpuReader>,
    state: GpuState,
    schedule: Schedule,
    is_fresh: bool,
}

pub struct VirtualNode {
    case: AccuracyCase,
    random: Random,
    events: BTreeSet<(u64, Event)>,
    driver: SimulatedDriver,
    node: LedgerNode,
    places: Vec<Place>,
    truth: Truth,
    /// How each container held its device.
    grips: BTreeMap<ContainerRef, Grip>,
    tree: ProcTree,
    resolver: Resolver,
    _directory: tempfile::TempDir,
    readers: BTreeMap<GpuUuid, Reader>,
    hardware: HardwareState,
    slots: Slots,
    allocatable: Allocatable,
    last: Option<LedgerOutput>,
    accounts: BTreeMap<ContainerRef, Account>,
}

/// Runs one case, and returns how much was attributed correctly.
pub fn run(case: AccuracyCase) -> Outcome {
    let mut node = VirtualNode::new(case);
    let end = case.length.as_millis() as u64;
    while let Some((now, event)) = node.events.pop_first() {
        if now > end {
            break;
        }
        node.happen(now, event);
    }
    node.outcome(end)
}

impl VirtualNode {
    fn new(case: AccuracyCase) -> Self {
        let mut driver = SimulatedDriver::new(case.profile, 7);
        let session = driver.open().unwrap();
        let (inventory, _) = session.inventory().unwrap();
        let reader = |gpu: &GpuUuid| {
            let mut schedule = Schedule::default();
            schedule.restart();
            let reader = session.reader(gpu).unwrap();
            (gpu.clone(), Reader { reader, state: GpuState::default(), schedule, is_fresh: true })
        };
        let readers: BTreeMap<_, _> = inventory.gpus.keys().map(reader).collect();
        let offered = resources(&inventory, case.replicas);
        let ids = |devices: &[SimulatedDevice]| devices.iter().map(|device| DeviceId::new(device.id.clone())).collect();
        let devices = offered.iter().map(|one| (one.name.as_str().into(), ids(&one.devices))).collect();
        let allocatable = Allocatable { devices, ..Allocatable::default() };
        let mut slots = Slots::default();
        slots.update_counts(&Allocations::default(), &allocatable, &inventory, true);
        let place =
            |(resource, device): (&String, SimulatedDevice)| Place { device, resource: resource.clone(), tenant: None };
        let places: Vec<Place> = offered
            .iter()
            .flat_map(|one| one.devices.iter().map(|device| place((&one.name, device.clone()))))
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let tree = ProcTree::create(directory.path()).unwrap();
        let mut random = Random::seeded(11);
        let starts = (0..places.len()).map(|place| (3_000 + random.below(5_000) as u64, Event::Start(place)));
        let mut events: BTreeSet<(u64, Event)> = starts.collect();
        events.insert((TICK, Event::Pass));
        // The kubelet is not called in step with the devices.
        events.insert((370, Event::Timer));
        let retention = Retention { time: Duration::from_secs(60), scrapes: 0 };
        Self {
            resolver: Resolver::new(&tree.proc_root()),
            hardware: HardwareState { inventory: Arc::new(inventory.clone()), ..HardwareState::default() },
            node: LedgerNode { retention, ..LedgerNode::new(inventory, Duration::from_secs(30)) },
            case,
            random,
            events,
            driver,
            places,
            truth: Truth::default(),
            grips: BTreeMap::new(),
            tree,
            _directory: directory,
            readers,
            slots,
            allocatable,
            last: None,
            accounts: BTreeMap::new(),
        }
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Start(place) => self.start(now, place),
            Event::End(place) => self.end(now, place),
            Event::Level(place, pid) => {
                let working = self.places[place].tenant.as_mut().filter(|tenant| tenant.pid == pid);
                let Some(tenant) = working else { return };
                let age = (now - tenant.since) / 1000;
                tenant.utilization = tenant.workload.level(age).utilization;
                self.events.insert((now + 1000, event));
                self.settle(now, place);
            }
            Event::Pass => {
                if self.read(now) {
                    self.account(now);
                }
                self.events.insert((now + TICK, event));
            }
            Event::List => self.list(now),
            Event::Timer => {
                self.list(now);
                self.events.insert((now + self.case.refresh.as_millis() as u64, event));
            }
        }
    }

    fn start(&mut self, now: u64, place: usize) {
        let pid = 1_000 + self.grips.len() as u32;
        let kind = [WorkloadKind::Training, WorkloadKind::Inference, WorkloadKind::Batch, WorkloadKind::Notebook]
            [self.random.below(4)];
        let container = ContainerRef::new("team", &format!("pod-{pid}"), "main");
        let device = &self.places[place].device;
        self.grips.insert(container.clone(), Grip::of(device, &self.node.inventory, self.case.replicas));
        let uid = format!("00000000-0000-4000-8000-{pid:012}");
        let identity = ContainerIdentity { namespace: "team", pod: &container.pod, uid: &uid, container: "main" };
        self.tree.add_container(identity).unwrap();
        self.tree.start(pid, now / 10, identity).unwrap();
        let workload = Workload { kind, seed: self.random.below(usize::MAX) as u64 };
        let tenant = Tenant { container, uid, pid, workload, since: now + STARTUP, utilization: 0.0 };
        self.places[place].tenant = Some(tenant);
        self.settle(now, place);
        let (least, most) = (self.case.life.0.as_millis() as u64, self.case.life.1.as_millis() as u64);
        let life = least + self.random.below((most - least) as usize) as u64;
        self.events.insert((now + SEEN, Event::List));
        self.events.insert((now + STARTUP, Event::Level(place, pid)));
        self.events.insert((now + life, Event::End(place)));
    }

    fn end(&mut self, now: u64, place: usize) {
        let Some(tenant) = self.places[place].tenant.take() else { return };
        let device = self.places[place].device.clone();
        self.truth.release(at(now), &tenant.container, &device.id);
        self.tree.end(tenant.pid).unwrap();
        let pod = &tenant.container.pod;
        let identity = ContainerIdentity { namespace: "team", pod, uid: &tenant.uid, container: "main" };
        self.tree.remove_pod_logs(identity).unwrap();
        self.driver.end_process(&device.gpu, tenant.pid, at(now));
        self.settle(now, place);
        self.events.insert((now + 1000 + self.random.below(4_000) as u64, Event::Start(place)));
    }

    /// Sets the hardware behind one place, and the truth, to what its holders do together.
    fn settle(&mut self, now: u64, place: usize) {
        let (gpu, instance) = (self.places[place].device.gpu.clone(), self.places[place].device.gpu_instance);
        let here = |place: &&Place| place.device.gpu == gpu && place.device.gpu_instance == instance;
        let tenants = || self.places.iter().filter(here).filter_map(|place| Some((place, place.tenant.as_ref()?)));
        let sum: f64 = tenants().map(|(_, tenant)| tenant.utilization).sum();
        for (place, tenant) in tenants() {
            let utilization = tenant.utilization / sum.max(1.0);
            self.truth.set(at(now), &tenant.container, &place.device.id, utilization);
            let load = Load::new(utilization, 1 << 30);
            self.driver.set_process_load(&gpu, instance, tenant.pid, at(now), load);
        }
        let load = Load::new(sum.min(1.0), 1 << 30);
        self.driver.set_load(&gpu, instance, at(now), load);
    }

    /// As the hardware threads do, with their schedule. Whether anything was read.
    fn read(&mut self, now: u64) -> bool {
        let (settings, long) = (HardwareSettings::default(), Duration::from_secs(180));
        let staleness = Staleness { fast: long, medium: long, slow: long };
        let held: BTreeSet<&GpuUuid> = self.node.holdings.by_key.keys().map(|key| &key.gpu).collect();
        let mut has_read = false;
        for (gpu, Reader { reader, state, schedule, is_fresh }) in &mut self.readers {
            let due = schedule.due(at(now));
            if due.is_empty() {
                continue;
            }
            has_read = true;
            let pass = reader.read(&due, moment(now));
            schedule.begin(&due, at(now), &settings, Demand { held: held.contains(gpu), watched: false });
            state.add_pass(at(now), std::mem::take(is_fresh), pass);
            self.hardware.readings.insert(gpu.clone(), Arc::new(state.readings(at(now), staleness)));
        }
        has_read
    }

    fn list(&mut self, now: u64) {
        let pod = |place: &Place| {
            let tenant = place.tenant.as_ref()?;
            let device = (place.resource.as_str(), place.device.id.as_str());
            Some(test_data::pod(test_data::container(tenant.container.clone(), &[device])))
        };
        let allocations = test_data::allocations(self.places.iter().filter_map(pod));
        let holdings = join(&allocations, &self.allocatable, &self.node.inventory, &self.slots);
        let before = std::mem::replace(&mut self.node.holdings, holdings);
        self.account(now);
        for (gpu, Reader { schedule, .. }) in &mut self.readers {
            let of =
                |holdings: &Holdings| holdings.by_key.keys().filter(|key| key.gpu == *gpu).cloned().collect::<Vec<_>>();
            let (before, held) = (of(&before), of(&self.node.holdings));
            if before != held {
                schedule.request([Tier::Fast]);
                let demand = Demand { held: !held.is_empty(), watched: false };
                schedule.change_demand(at(now), &HardwareSettings::default(), demand);
            }
        }
    }

    /// As the publisher does.
    fn account(&mut self, now: u64) {
        let pids = process_ids(&self.hardware);
        let logs = pod_logs::read(&self.tree.pod_logs_root(), at(now));
        let processes = self.resolver.resolve(at(now), &pids, &PodDirectory::default(), &logs);
        let state = ProcessState { enabled: true, processes, ..ProcessState::default() };
        self.node.processes = processes_by_device(&self.hardware, &state, None);
        self.node.readings.clone_from(&self.hardware.readings);
        self.node.retention.scrapes = now / 15_000;
        let output = self.node.advance(moment(now));
        for account in &output.accounts {
            self.accounts.insert(account.container.clone(), account.clone());
        }
        self.last = Some(output);
    }

    fn outcome(&self, end: u64) -> Outcome {
        let output = self.last.as_ref().unwrap();
        let (mut allocated, mut busy, mut energy) = (Score::default(), Score::default(), Score::default());
        let (idle_watts, load_watts) = self.case.watts;
        let (mut pods, mut idle) = (0, idle_watts * self.node.inventory.gpus.len() as f64 * end as f64 / 1e3);
        for row in self.truth.at(at(end)) {
            let Grip { fraction, exclusive, of_gpu } = self.grips[&row.container];
            let account = self.accounts.get(&row.container);
            let own_idle = if exclusive { idle_watts * row.held_seconds } else { 0.0 };
            idle -= own_idle;
            let has = |read: fn(&Account) -> Option<f64>| account.and_then(read).unwrap_or(0.0);
            allocated.add(row.held_seconds * fraction, has(|account| account.counters.allocated_seconds));
            busy.add(row.busy_seconds * of_gpu, has(|account| account.counters.busy_seconds));
            energy
                .add(row.busy_seconds * of_gpu * load_watts + own_idle, has(|account| account.counters.energy_joules));
            pods += 1;
        }
        for unattributed in &output.unattributed {
            for (reason, seconds) in &unattributed.busy_seconds {
                *busy.unattributed.entry(reason.into_str()).or_default() += seconds;
            }
            for (reason, joules) in &unattributed.energy_joules {
                *energy.unattributed.entry(reason.into_str()).or_default() += joules;
            }
        }
        // Idle power is unattributed, except with exclusive holders.
        *energy.unattributed.entry(UnattributedReason::Idle.into_str()).or_default() -= idle;
        Outcome { pods, allocated, busy, energy, violations: output.violations.values().sum() }
    }
}

impl Score {
    fn add(&mut self, truth: f64, has: f64) {
        self.truth += truth;
        self.right += truth.min(has);
        self.wrong += (has - truth).max(0.0);
    }

    pub fn percent(&self, amount: f64) -> f64 {
        amount / self.truth * 100.0
    }
}

/// How a container holds its device.
#[derive(Clone, Copy)]
struct Grip {
    /// Of the GPU: what it is allocated.
    fraction: f64,
    exclusive: bool,
    /// What one busy second of the device is of the GPU's.
    of_gpu: f64,
}

impl Grip {
    fn of(device: &SimulatedDevice, inventory: &Inventory, replicas: Replicas) -> Self {
        let gpu = &inventory.gpus[&device.gpu];
        let mig = gpu.mig_devices.iter().find(|mig| Some(mig.gpu_instance) == device.gpu_instance);
        let (of_gpu, replicas) = (
            mig.map_or(1.0, |mig| gpu.slice_fraction(mig.slices).expect("a simulated GPU has slices")),
            replicas.unwrap_or(1),
        );
        Self { fraction: of_gpu / replicas as f64, exclusive: mig.is_none() && replicas == 1, of_gpu }
    }
}

fn at(milliseconds: u64) -> Monotonic {
    Monotonic::from_millis(milliseconds)
}

/// Exclusive, time-sliced with process data, MIG, a tray of superchips, and a board with whole GPUs and MIG.
pub fn cases(refresh: Duration, length: Duration) -> [AccuracyCase; 5] {
    let case = |name, profile, watts: (f64, f64), replicas| AccuracyCase {
        name,
        profile,
        watts: (watts.0, (watts.1 - watts.0) * 0.95),
        replicas,
        refresh,
        life: (Duration::from_secs(1), Duration::from_secs(60)),
        length,
    };
    const H100: (f64, f64) = (70.0, 700.0);
    [
        case("exclusive", SimulatedProfile::H100, H100, None),
        case("time-sliced, 4 slots", SimulatedProfile::H100_TIME_SLICED, H100, Some(4)),
        case("MIG", SimulatedProfile::H100_MIG, H100, None),
        case("GB200", SimulatedProfile::GB200, (160.0, 1_200.0), None),
        case("B200 with MIG", SimulatedProfile::B200, (140.0, 1_000.0), None),
    ]
}
