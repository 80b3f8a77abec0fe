//! What the ledger costs: `cargo bench --bench attribution`. One refresh of a full node must stay within 2 ms, and a week
//! of pods must not make it grow. Prints one table; judges nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podmeter::attribution::{
    DeviceProcess, DeviceProcesses, HoldingKey, Join, Ledger, Observation, ProcessOwner, Statement,
};
use podmeter::model::{
    Attribution, ContainerRef, DeviceReadings, Fast, GpuUuid, Holding, Inventory, Medium, MemoryUse, Moment, Monotonic,
    Sharing, Stamped, Totals, UnixSeconds,
};

const GPUS: usize = 8;
const SLOTS: usize = 32;
const PROCESSES_EACH: usize = 2;
const REFRESHES: u64 = 2000;
/// One pod ends and one begins every six seconds, for a week: 100,800 pods.
const WEEK_SECONDS: u64 = 7 * 86_400;
const POD_SECONDS: u64 = 6;

fn main() {
    // cargo passes `--bench`; `cargo test --benches` would not, and measuring there would only cost time.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| figure | measured | must reach |\n|---|---|---|");
    refresh();
    week();
}

struct Node {
    ledger: Ledger,
    join: Join,
    readings: BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    processes: BTreeMap<GpuUuid, DeviceProcesses>,
    inventory: Inventory,
}

impl Node {
    fn new() -> Self {
        Self {
            ledger: Ledger::new(Duration::from_secs(300), Duration::from_secs(5)),
            join: Join::default(),
            readings: BTreeMap::new(),
            processes: BTreeMap::new(),
            inventory: Inventory::default(),
        }
    }

    fn hold(&mut self, gpu: usize, slot: usize, pod: &str) -> HoldingKey {
        let key = HoldingKey { container: ContainerRef::new("team", pod, "main"), gpu: uuid(gpu), mig: None };
        let holding = Holding {
            resource: Some("nvidia.com/gpu".into()),
            device_ids: vec![format!("{}::{slot}", uuid(gpu)).as_str().into()],
            sharing: Sharing::TimeSlicing,
            attribution: Some(Attribution::EqualShare),
            share: Some(1.0 / SLOTS as f64),
            weight: 1.0,
        };
        self.join.holdings.insert(key.clone(), holding);
        key
    }

    fn read(&mut self, second: u64) {
        let at = Monotonic::from_secs(second);
        for gpu in 0..GPUS {
            let memory = MemoryUse { used: 64 << 30, free: 0, reserved: None, total: 80 << 30 };
            let readings = DeviceReadings {
                totals: Totals {
                    through: at,
                    busy_seconds: Some(second as f64 * 0.9),
                    energy_joules: Some(second as f64 * 500.0),
                    ..Totals::default()
                },
                fast: Some(Stamped { at, value: Fast { utilization_ratio: Some(0.9), power_watts: Some(500.0) } }),
                medium: Some(Stamped { at, value: Medium { memory: Some(memory), ..Medium::default() } }),
                ..DeviceReadings::default()
            };
            self.readings.insert(uuid(gpu), Arc::new(readings));
        }
    }

    fn run(&mut self, second: u64) {
        let mut by_gpu: BTreeMap<GpuUuid, Vec<DeviceProcess>> = BTreeMap::new();
        for (number, key) in self.join.holdings.keys().enumerate() {
            let processes = by_gpu.entry(key.gpu.clone()).or_default();
            processes.extend((0..PROCESSES_EACH).map(|one| DeviceProcess {
                pid: (number * PROCESSES_EACH + one) as u32,
                start_ticks: 1,
                owner: ProcessOwner::Container(key.container.clone()),
                running: true,
                memory_bytes: Some(1 << 28),
                gpu_instance: None,
                compute_instance: None,
                sm_seconds: second as f64 * 0.01 * (1 + one) as f64,
            }));
        }
        let with = |processes| DeviceProcesses { has_sm_seconds: true, processes };
        self.processes = by_gpu.into_iter().map(|(gpu, processes)| (gpu, with(processes))).collect();
    }

    fn advance(&mut self, second: u64, scrapes: u64) -> Statement {
        let unix = UnixSeconds(1.7e9 + second as f64);
        self.ledger.advance(&Observation {
            now: Moment { monotonic: Monotonic::from_secs(second), unix },
            join: &self.join,
            inventory: &self.inventory,
            readings: &self.readings,
            processes: &self.processes,
            scrapes,
        })
    }
}

fn uuid(gpu: usize) -> GpuUuid {
    GpuUuid::new(format!("GPU-{gpu:08x}-0000-0000-0000-000000000000"))
}

fn refresh() {
    let mut node = Node::new();
    for gpu in 0..GPUS {
        for slot in 0..SLOTS {
            node.hold(gpu, slot, &format!("pod-{gpu}-{slot}"));
        }
    }
    let mut times: Vec<Duration> = (0..REFRESHES)
        .map(|second| {
            node.read(second);
            node.run(second);
            let began = Instant::now();
            black_box(node.advance(second, second));
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    let milliseconds = |place: usize| times[place].as_secs_f64() * 1e3;
    println!(
        "| refresh: {GPUS} GPUs × {SLOTS} slots, {} containers, {} processes, median / p99 of {REFRESHES} | {:.3} / {:.3} ms | ≤ 2 ms |",
        GPUS * SLOTS,
        GPUS * SLOTS * PROCESSES_EACH,
        milliseconds(times.len() / 2),
        milliseconds(times.len() * 99 / 100)
    );
}

fn week() {
    let mut node = Node::new();
    let mut holders: Vec<HoldingKey> = vec![];
    let (mut pods, mut most, mut after_a_day) = (0_u64, 0, 0.0);
    for second in (0..WEEK_SECONDS).step_by(POD_SECONDS as usize) {
        let place = (pods as usize) % (GPUS * SLOTS);
        let key = node.hold(place / SLOTS, place % SLOTS, &format!("pod-{pods}"));
        if place < holders.len() {
            let before = std::mem::replace(&mut holders[place], key);
            node.join.holdings.remove(&before);
        } else {
            holders.push(key);
        }
        pods += 1;
        node.read(second);
        let statement = node.advance(second, second / 15);
        most = most.max(statement.accounts.len());
        if second == 86_400 {
            after_a_day = resident_mib();
        }
    }
    println!("| accounts at once, most, over a week with {pods} pods | {most} | bounded |");
    println!(
        "| resident memory after that, grown since the first day | {:.1} MiB | ≤ 2 MiB |",
        resident_mib() - after_a_day
    );
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
