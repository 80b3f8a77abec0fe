//! One situation, one value: JSON, metrics, `top`, `usage` and the page show the same for the same thing and time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use podmeter::clock::Clock;
use podmeter::domain::attribution::{DeviceProcesses, Ledger, Observation, OwnedProcess, Retention};
use podmeter::domain::holders::{self, Slots};
use podmeter::domain::model::{
    Allocatable, Allocations, ContainerRef, CpuSet, DeviceHealth, DeviceId, DeviceReadings, DeviceTotals, Fast, Gpu,
    GpuHealth, GpuUuid, HardwareSource, HardwareState, HealthState, Inventory, KubeletState, Moment, Monotonic,
    Overview, Owner, ReadingGaps, Snapshot, Stamped, UnixSeconds, XidCounts,
};
use podmeter::hardware::simulated::{SimulatedDriver, SimulatedProfile};
use podmeter::journal::{AllocationRecord, AllocationTracker, AllocationsResponse};
use podmeter::serve::metrics::dcgm::Generation;
use podmeter::serve::web::{
    Admin, CachedBodies, EventStreams, ListenAddress, Listener, Purpose, Scrapes, ServerSettings, WebState, start,
};
use podmeter::tasks::Tasks;
use serde_json::Value;
use tokio::sync::watch;

use crate::support::agent::{Page, ended, get};
use crate::support::test_data::{self, LedgerNode};

const SECONDS: u64 = 400;
/// Of the whole GPU that nobody reads for a while.
const UNREAD: std::ops::Range<u64> = 200..260;
const WHOLE: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// The node begins a second after the agent.
fn monotonic(second: u64) -> Monotonic {
    Monotonic::from_secs(1 + second)
}

/// A node with four whole GPUs and four partitioned ones, a holder of each kind, and its history from second to second.
struct Scene {
    born: f64,
    /// By index.
    gpus: Vec<Gpu>,
    node: LedgerNode,
    tracker: AllocationTracker,
    records: BTreeMap<u64, AllocationRecord>,
}

/// Busy seconds of each GPU in each second, of the driver.
const BUSY: [f64; 8] = [0.0, 0.0, 0.0, 0.0, 0.75, 0.9, 0.0, 0.5];
const SLICE_BUSY: f64 = 0.5;

impl Scene {
    fn new() -> Self {
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

    fn health(&self) -> HealthState {
        let healthy = || DeviceHealth { healthy: true, known: true, since: Moment::default(), causes: vec![] };
        let of = |gpu: &Gpu| {
            let mig_devices = gpu.mig_devices.iter().map(|mig| (mig.uuid.clone(), healthy())).collect();
            (gpu.uuid.clone(), GpuHealth { whole: healthy(), mig_devices, xids: XidCounts::default() })
        };
        HealthState { gpus: self.gpus.iter().map(of).collect(), ..HealthState::default() }
    }

    fn step(&mut self, second: u64) -> Snapshot {
        let now = Moment { monotonic: monotonic(second), unix: UnixSeconds(self.born + second as f64) };
        let (allocations, allocatable) = (self.allocations(second), self.allocatable());
        let mut slots = Slots::default();
        slots.update_counts(&allocations, &allocatable, &self.node.inventory, true);
        self.node.holdings = holders::join(&allocations, &allocatable, &self.node.inventory, &slots);
        (self.node.readings, self.node.processes) = (self.readings(second), self.processes(second));
        let output = self.node.advance(now);
        let snapshot = Snapshot {
            sequence: second,
            at: now,
            node_name: "node-a".into(),
            hardware: Arc::new(HardwareState {
                source: HardwareSource::Simulated,
                inventory: Arc::new(self.node.inventory.clone()),
                readings: self.node.readings.clone(),
                ..HardwareState::default()
            }),
            kubelet: Arc::new(KubeletState {
                allocations: Some(Arc::new(allocations)),
                allocatable: Some(Arc::new(allocatable)),
                settled: true,
                ..KubeletState::default()
            }),
            health: Arc::new(self.health()),
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

    fn run(&mut self) -> Snapshot {
        (0..SECONDS).for_each(|second| drop(self.step(second)));
        let last = self.step(SECONDS);
        self.records.extend(self.tracker.live());
        last
    }
}

/// All that an agent with this state would show.
struct NodeDisplays {
    json: Value,
    metrics: Page,
    top: String,
    usage: Value,
    page: String,
}

async fn shown(scene: Scene, snapshot: Snapshot) -> NodeDisplays {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Purpose::Public).await.unwrap();
    let ListenAddress::Tcp(address) = listener.address else { panic!("tcp") };
    let response = AllocationsResponse {
        node: "node-a".to_owned(),
        at: snapshot.at.unix.0,
        until: snapshot.at.unix.0,
        journal: true,
        allocations: scene.records.into_values().collect(),
        ..AllocationsResponse::default()
    };
    let response = serde_json::to_vec(&response).unwrap();
    let (snapshots, latest) = watch::channel(Arc::new(snapshot));
    let state = WebState {
        watch: Arc::new(|_| true),
        dcgm_generation: Generation::default(),
        grafana_url: None,
        snapshots: latest,
        scrapes: Scrapes::default(),
        clock: Clock::start(),
        healthy: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        governance: Arc::new(|_, _| Err("none".to_owned())),
        allocations: Arc::new(move |_| Ok(response.clone())),
        admin: Admin { driver: None, order: Arc::new(|_| Box::pin(async { Err("none".to_owned()) })) },
        streams: EventStreams::default(),
        cached_bodies: CachedBodies::default(),
    };
    let (mut tasks, mut servers) = (Tasks::default(), Tasks::default());
    start(vec![listener], state, ServerSettings::default(), &mut tasks, &mut servers);
    let shown = tokio::task::spawn_blocking(move || ask(address)).await.unwrap();
    drop(snapshots);
    shown
}

fn ask(address: SocketAddr) -> NodeDisplays {
    let (url, address) = (format!("http://{address}"), address.to_string());
    let (code, top) = ended(&["top", "--once", "--url", &url]);
    assert_eq!(code, 0, "{top}");
    let (code, usage) = ended(&["usage", "--url", &url, "--since", "1h", "--by", "pod", "-o", "json"]);
    assert_eq!(code, 0, "{usage}");
    NodeDisplays {
        json: serde_json::from_str(&get(&address, "/api/v1/node").body).unwrap(),
        metrics: Page(get(&address, "/metrics").body),
        top,
        usage: serde_json::from_str(&usage).unwrap(),
        page: get(&address, "/").body,
    }
}

impl NodeDisplays {
    fn account(&self, pod: &str) -> &Value {
        let accounts = self.json["accounts"].as_array().unwrap();
        accounts.iter().find(|account| account["container"]["pod"] == pod).unwrap()
    }

    fn device(&self, uuid: &str) -> &Value {
        let is_it = |device: &&Value| *device["mig"].as_str().map_or(&device["gpu"], |_| &device["mig"]) == uuid;
        self.json["overview"]["devices"].as_array().unwrap().iter().find(is_it).unwrap()
    }

    fn usage(&self, pod: &str) -> &Value {
        self.usage["rows"].as_array().unwrap().iter().find(|row| row["pod"] == pod).unwrap()
    }

    fn of_pod(&self, metric: &str, pod: &str) -> Option<f64> {
        self.metrics.value(metric, &[&format!("pod=\"{pod}\"")])
    }

    /// The figure of this name on the page, in the row whose key is or begins with this.
    fn on_page(&self, key: &str, figure: &str) -> Option<f64> {
        let is_its = |row: &&str| row.strip_prefix(key).is_some_and(|rest| rest.starts_with(['"', ' ']));
        let row = self.page.split("data-key=\"").find(is_its).unwrap_or_else(|| panic!("no row {key}"));
        let element = row.split(&format!("data-figure=\"{figure}\"")).nth(1)?.split('>').next()?;
        element.split("data-value=\"").nth(1)?.split('"').next()?.parse().ok()
    }

    /// The cell of a container by its pod, or of a device by its UUID.
    fn cell(&self, key: &str, title: &str) -> Option<&str> {
        let header = self.top.lines().find(|line| line.starts_with("GPU "))?;
        let start = header.find(&format!(" {title} "))? + 1;
        let next = header[start..]
            .find(' ')
            .map(|end| start + end + header[start + end..].len() - header[start + end..].trim_start().len())?;
        let is_its = |line: &&str| line.ends_with(key) || line.split('/').nth(1) == Some(key);
        self.top.lines().find(is_its).map(|line| line[start..next].trim())
    }

    /// The containers below a device.
    fn holders(&self, uuid: &str) -> Vec<&str> {
        let below = self.top.lines().skip_while(|line| !line.ends_with(uuid)).skip(1);
        below.map_while(|line| line.split_whitespace().next().filter(|name| name.contains('/'))).collect()
    }
}

/// `1m01s` in seconds.
fn seconds(text: &str) -> f64 {
    let number = |text: &str| text.parse::<f64>().unwrap();
    let text = text.strip_suffix('s').unwrap_or_else(|| panic!("{text} is no span"));
    text.split_once('m').map_or_else(|| number(text), |(minutes, rest)| 60.0 * number(minutes) + number(rest))
}

/// In JSON and `usage`, in `top`, on the page, in the metrics.
const COUNTERS: [(&str, &str, &str, Option<&str>); 6] = [
    ("held_seconds", "HELD", "held", None),
    ("allocated_seconds", "GPU_TIME", "gpu-time", Some("podmeter_container_allocated_seconds_total")),
    ("busy_seconds", "BUSY", "busy", Some("podmeter_container_busy_seconds_total")),
    ("borrowed_seconds", "BORROWED", "borrowed", Some("podmeter_container_borrowed_seconds_total")),
    ("idle_seconds", "IDLE", "idle", Some("podmeter_container_idle_seconds_total")),
    ("uncovered_seconds", "UNKNOWN", "unknown", Some("podmeter_container_uncovered_seconds_total")),
];
/// The page shows borrowed time from here on.
const BORROWED_SHOWN: f64 = 0.5;

/// The simulated situation is the one that is meant.
fn check_situation(shown: &NodeDisplays) {
    let is_about = |pod: &str, name: &str, expected: f64| {
        let value = shown.account(pod)[name].as_f64().unwrap();
        assert!((value - expected).abs() <= 2.0, "{pod} {name}: {value}, expected {expected}");
    };
    is_about("train", "busy_seconds", 300.0);
    is_about("borrower", "held_seconds", 400.0);
    is_about("borrower", "allocated_seconds", 100.0);
    is_about("borrower", "busy_seconds", 360.0);
    is_about("borrower", "borrowed_seconds", 260.0);
    is_about("lender", "idle_seconds", 100.0);
    is_about("slice", "held_seconds", 400.0);
    is_about("slice", "allocated_seconds", 400.0 / 7.0);
    is_about("slice", "busy_seconds", 200.0 / 7.0);
    is_about("notebook", "uncovered_seconds", 61.0);
    is_about("notebook", "idle_seconds", 339.0);
    is_about("done", "held_seconds", 100.0);
    is_about("late", "busy_seconds", 90.0);
}

/// The counters of one holding: their sum, and each in every place.
fn check_counters(shown: &NodeDisplays, pod: &str, uuid: &str) {
    let rounded = |one: Option<f64>, other: f64| one.is_some_and(|one| (one - other).abs() < 6e-4);
    let key = format!("team/{pod}/main {uuid}");
    let of = |name| shown.account(pod)[name].as_f64().unwrap_or(0.0);
    let (left, right) = (
        of("allocated_seconds") + of("borrowed_seconds"),
        of("busy_seconds") + of("idle_seconds") + of("uncovered_seconds"),
    );
    assert!(near(left, right), "{pod}: {left} and {right}");
    for (name, title, on_page, metric) in COUNTERS {
        let value = of(name);
        // It ended over a minute ago.
        if pod != "done" && (on_page != "borrowed" || value >= BORROWED_SHOWN) {
            let page = shown.on_page(&key, on_page);
            assert!(rounded(page, value), "page: {pod} {on_page}: {page:?}, JSON {value}");
        }
        let in_usage = shown.usage(pod)[name].as_f64().unwrap_or(0.0);
        assert!(near(in_usage, value), "usage: {pod} {name}: {in_usage}, JSON {value}");
        if let Some(metric) = metric {
            let in_metrics = shown.of_pod(metric, pod).unwrap_or(0.0);
            assert!(near(in_metrics, value), "metrics: {pod} {name}: {in_metrics}, JSON {value}");
        }
        match shown.cell(pod, title) {
            // It ended over a minute ago.
            None => assert_eq!(pod, "done", "top has no line of {pod}:\n{}", shown.top),
            Some("-") => assert_eq!(value, 0.0, "{pod} {name}\n{}", shown.top),
            Some(cell) => assert_eq!(seconds(cell), value.trunc(), "top: {pod} {name}\n{}", shown.top),
        }
    }
    let joules = of("energy_joules");
    let in_usage = shown.usage(pod)["energy_joules"].as_f64().unwrap();
    let in_metrics = shown.of_pod("podmeter_container_energy_joules_total", pod).unwrap();
    assert!(near(in_usage, joules) && near(in_metrics, joules), "{pod}: {joules} {in_usage} {in_metrics}");
}

fn check_busy_now(shown: &NodeDisplays, uuid: &str, pod: &str, busy: f64, metric: &str, label: &str) {
    let values = [
        shown.device(uuid)["busy_ratio"].as_f64(),
        shown.account(pod)["utilization_ratio"].as_f64(),
        shown.of_pod("podmeter_container_utilization_ratio", pod),
    ];
    assert!(values.iter().all(|value| value.is_some_and(|value| near(value, busy))), "{pod}: {values:?}, not {busy}");
    let of_gpu = [&*format!("gpu_uuid=\"{label}\"")];
    let most = shown.metrics.samples(metric, &of_gpu).map(|(_, value)| value).fold(0.0, f64::max);
    assert_eq!(most, busy, "{metric} of {pod}");
    let percent = format!("{:.0}%", busy * 100.0);
    assert_eq!(shown.cell(uuid, "BUSY%"), Some(&*percent), "{}", shown.top);
    assert_eq!(shown.cell(pod, "BUSY%"), Some(&*percent), "{}", shown.top);
    assert_eq!(shown.on_page(uuid, "busy-now"), Some(busy), "{pod}");
    assert_eq!(shown.on_page(&format!("team/{pod}/main {uuid}"), "busy-now"), Some(busy));
}

fn check_free(shown: &NodeDisplays, resource: &str, free: i32, of: i32) {
    assert_eq!(shown.json["overview"]["resources"][resource]["free"], free);
    let labels = [&*format!("resource=\"{resource}\""), "state=\"unallocated\""];
    assert_eq!(shown.metrics.value("podmeter_resource_devices", &labels), Some(f64::from(free)));
    assert!(shown.top.contains(&format!("{resource} {free} of {of}")), "{}", shown.top);
    assert_eq!(shown.on_page(resource, "free"), Some(f64::from(free)));
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6
}

/// What every place shows of the scene, and UUIDs: `shared` has four slots, `partitioned` seven slices.
struct ShownNode {
    shown: NodeDisplays,
    train: String,
    notebook: String,
    last: String,
    shared: String,
    partitioned: String,
    free_slice: String,
    slice: String,
}

impl ShownNode {
    async fn run() -> Self {
        let mut scene = Scene::new();
        let snapshot = scene.run();
        let uuid = |gpu: usize| scene.gpus[gpu].uuid.to_string();
        let [train, shared, notebook, last] = [4, 5, 6, 7].map(uuid);
        let [free_slice, slice] = [0, 1].map(|slice| scene.gpus[0].mig_devices[slice].uuid.to_string());
        let partitioned = uuid(0);
        let shown = shown(scene, snapshot).await;
        check_situation(&shown);
        Self { shown, train, notebook, last, shared, partitioned, free_slice, slice }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_place_shows_the_same_counters_of_a_holder() {
    let node = ShownNode::run().await;
    for (pod, uuid) in [
        ("train", &node.train),
        ("borrower", &node.shared),
        ("lender", &node.shared),
        ("slice", &node.slice),
        ("notebook", &node.notebook),
        ("done", &node.last),
        ("late", &node.last),
    ] {
        check_counters(&node.shown, pod, uuid);
    }
    let shown = &node.shown;
    assert!(shown.top.contains("1 ended over a minute ago"), "{}", shown.top);
    assert_eq!(shown.cell("late", "STATE"), Some("ended"), "{}", shown.top);
    let ratio = shown.usage("borrower")["utilization_ratio"].as_f64().unwrap();
    assert!(near(ratio, 0.9), "of the GPU, of which it holds a quarter: {ratio}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_place_shows_the_same_utilization_of_a_device_and_of_its_only_holder() {
    let ShownNode { shown, train, notebook, partitioned, slice, .. } = &ShownNode::run().await;
    for (uuid, pod, busy, metric, label) in [
        (train, "train", 0.75, "podmeter_device_utilization_ratio", train),
        (slice, "slice", SLICE_BUSY, "podmeter_mig_utilization_ratio", partitioned),
        (notebook, "notebook", 0.0, "podmeter_device_utilization_ratio", notebook),
    ] {
        check_busy_now(shown, uuid, pod, busy, metric, label);
    }
    let sum = shown.device(partitioned)["busy_ratio"].as_f64().unwrap();
    assert!(near(sum, SLICE_BUSY / 7.0), "a partitioned GPU by slices: {sum}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_place_shows_the_same_free_devices_slots_and_slices() {
    let ShownNode { shown, train, notebook, last, shared, partitioned, free_slice, slice } = &ShownNode::run().await;
    for (uuid, state, text, holders) in [
        (train, "held", "healthy", &["team/train/main"][..]),
        (last, "free", "healthy free", &["team/late/main"]),
        (free_slice, "free", "healthy free", &[]),
        (slice, "held", "healthy", &["team/slice/main"]),
        (partitioned, "partitioned", "healthy free:6/7", &[]),
        (shared, "held", "healthy free:2/4", &["team/borrower/main", "team/lender/main"]),
        (notebook, "held", "healthy", &["team/notebook/main"]),
    ] {
        assert_eq!(shown.device(uuid)["state"], state);
        assert_eq!((shown.cell(uuid, "STATE"), &*shown.holders(uuid)), (Some(text), holders), "{}", shown.top);
    }
    assert_eq!((&shown.device(shared)["slots"], &shown.device(shared)["free_slots"]), (&4.into(), &2.into()));
    for (resource, free, of) in [(WHOLE, 1, 3), (SHARED, 2, 4), (SLICE, 6, 7)] {
        check_free(shown, resource, free, of);
    }
}
