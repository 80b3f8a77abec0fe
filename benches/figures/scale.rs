//! Cost by node size: 1, 8 and 16 GPUs under 38 to 5,000 pods, and the slopes.
//!
//! A fifth of the pods hold a GPU, or a slot where there are more such pods than GPUs, at most 32 per GPU. 38 pods on 8
//! GPUs are the node of the other parts.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::line::{FittedLine, LinePoint};
use crate::measure::{Cpu, GZIP, Resident, ScrapeConnection, at, row, series};
use crate::support::kubelet::{ContainerSpec, ListedDevice, PodSpec};
use crate::{Bench, driver, exporter, plain_pod, uuid};

const GPUS: [usize; 3] = [1, 8, 16];
const PODS: [usize; 4] = [38, 250, 1000, 5000];
const SLOTS: usize = 32;
const SCRAPES: usize = 1000;
const IDLE: Duration = Duration::from_secs(8);
const CHANGES: u32 = 8;
const FIRST_SCRAPES: u32 = 5;

/// One node's figures: milliseconds, MiB, percent of a core.
struct ScaleCase {
    gpus: usize,
    pods: usize,
    holders: usize,
    series: usize,
    bytes: usize,
    median: f64,
    p99: f64,
    warm: f64,
    first: f64,
    change: f64,
    idle: f64,
    resident: f64,
}

type ScaleValue = fn(&ScaleCase) -> f64;
/// A factor that a cost may grow with.
type Factor = (&'static str, ScaleValue);

pub fn measure(bench: &Bench) {
    let mut cases = vec![];
    for gpus in GPUS {
        for pods in PODS {
            cases.push(case(bench, gpus, pods));
        }
    }
    slopes(&cases);
    bench.later.borrow_mut().push_str(&table(&cases));
}

fn pods(gpus: usize, count: usize) -> Vec<PodSpec> {
    let holders = holders(gpus, count);
    let holder = |number: usize| {
        let gpu = number % gpus;
        let id = if holders > gpus { format!("{}::{}", uuid(gpu), number / gpus) } else { uuid(gpu) };
        let container = ContainerSpec::new("main").holds("nvidia.com/gpu", &id, &[i64::from(gpu > 3)]);
        PodSpec::new("team-a", &format!("trainer-{number}")).container(container)
    };
    (0..holders).map(holder).chain((holders..count).map(plain_pod)).collect()
}

fn holders(gpus: usize, pods: usize) -> usize {
    pods.div_ceil(5).min(gpus * SLOTS)
}

fn case(bench: &Bench, gpus: usize, count: usize) -> ScaleCase {
    let driver = driver(gpus);
    let node = bench.empty_node();
    let shared = holders(gpus, count) > gpus;
    let ids = (0..gpus).flat_map(|gpu| {
        let slots = if shared { SLOTS } else { 1 };
        (0..slots).map(move |slot| if shared { format!("{}::{slot}", uuid(gpu)) } else { uuid(gpu) })
    });
    let offered = |id| ListedDevice { id, healthy: true, numa_nodes: None };
    node.set_devices("nvidia.com/gpu", ids.map(offered).collect());
    node.set_pods(pods(gpus, count));
    let running = exporter(&node, &driver);
    let pid = running.pid();
    let last = format!("trainer-{}\"", holders(gpus, count) - 1);
    let page = running.until("every holder", |page| page.0.contains(&last)).0;

    let mut connection = ScrapeConnection::open(&running.address);
    let (cpu, mut seconds) = (Cpu::of(pid), vec![]);
    for _ in 0..SCRAPES {
        let began = Instant::now();
        connection.bytes();
        seconds.push(began.elapsed().as_secs_f64());
    }
    let warm = cpu.since() / SCRAPES as f64 * 1e3;
    seconds.sort_by(f64::total_cmp);
    // Exclude the cost of the start.
    std::thread::sleep(Duration::from_secs(2));

    // Subtract the idle cost over the same time.
    let idle = over(pid, || std::thread::sleep(IDLE)).1;
    let beyond = |events: u32, (seconds, rate): (f64, f64)| (rate - idle) * seconds / f64::from(events) * 1e3;
    let mut packed = ScrapeConnection::open_with(&running.address, GZIP);
    let first = beyond(
        FIRST_SCRAPES,
        over(pid, || {
            for _ in 0..FIRST_SCRAPES {
                // A new snapshot every second.
                std::thread::sleep(Duration::from_millis(1010));
                packed.bytes();
            }
        }),
    );
    let change = beyond(
        CHANGES,
        over(pid, || {
            for change in 0..CHANGES {
                let mut all = pods(gpus, count);
                all[0].name = format!("changed-{change}");
                node.set_pods(all);
                std::thread::sleep(Duration::from_secs(1));
            }
        }),
    );
    ScaleCase {
        gpus,
        pods: count,
        holders: holders(gpus, count),
        series: series(&page),
        bytes: page.len(),
        median: at(&seconds, 0.5) * 1e3,
        p99: at(&seconds, 0.99) * 1e3,
        warm,
        first,
        change,
        idle: idle * 100.0,
        resident: Resident::of(pid).all,
    }
}

/// Duration of `act` in seconds, and processor seconds per second during it.
fn over(pid: u32, act: impl FnOnce()) -> (f64, f64) {
    let (cpu, began) = (Cpu::of(pid), Instant::now());
    act();
    let seconds = began.elapsed().as_secs_f64();
    (seconds, cpu.since() / seconds)
}

fn slopes(cases: &[ScaleCase]) {
    const SERIES: &[Factor] = &[("series", |case| case.series as f64)];
    const PODS: &[Factor] = &[("pod", |case| case.pods as f64)];
    const BOTH: &[Factor] = &[PODS[0], SERIES[0]];
    let figures: [(&str, &str, &[Factor], ScaleValue); 7] = [
        ("page", "bytes", SERIES, |case| case.bytes as f64),
        ("scrape, median", "µs", SERIES, |case| case.median * 1e3),
        ("processor time of a scrape, warm", "µs", SERIES, |case| case.warm * 1e3),
        ("processor time of the first scrape of a snapshot, gzip", "µs", SERIES, |case| case.first * 1e3),
        ("processor time of a change of pods (List, join, publication)", "µs", PODS, |case| case.change * 1e3),
        ("idle processor time in a second", "µs", BOTH, |case| case.idle * 1e4),
        ("resident memory", "KiB", BOTH, |case| case.resident * 1024.0),
    ];
    for (figure, unit, factors, value) in figures {
        let point = |case: &ScaleCase| (factors.iter().map(|(_, factor)| factor(case)).collect(), value(case));
        let points: Vec<LinePoint> = cases.iter().map(point).collect();
        let line = FittedLine::through(&points);
        let slopes: Vec<String> = factors
            .iter()
            .zip(line.slopes())
            .map(|((name, _), slope)| format!("{slope:.3} {unit} per {name}"))
            .collect();
        let (largest, others) = points.split_last().expect("measured");
        let beyond = largest.1 / FittedLine::through(others).at(&largest.0);
        let fit = format!("R² {:.3}; largest node: {beyond:.2} × the fit of the others", line.determination(&points));
        row(&format!("{figure}: slope over {} nodes", cases.len()), &format!("{}; {fit}", slopes.join(", ")), "linear");
    }
    let thousand = cases.iter().find(|case| case.gpus == 8 && case.pods == 1000).expect("measured");
    row("a change of pods with 1,000 pods on 8 GPUs, processor time", &format!("{:.1} ms", thousand.change), "≤ 10 ms");
}

fn table(cases: &[ScaleCase]) -> String {
    let mut table = format!(
        "\nBy node size: {SCRAPES} scrapes on one connection; the idle column is without scrapes.\n\n\
         | GPUs | pods | holders | series | bytes | scrape median / p99 | scrape, warm | first scrape of a snapshot, gzip | \
         change of pods | idle | resident |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
    );
    for case in cases {
        let ScaleCase { gpus, pods, holders, series, bytes, median, p99, warm, first, change, idle, resident } = case;
        let _ = writeln!(
            table,
            "| {gpus} | {pods} | {holders} | {series} | {bytes} | {median:.3} / {p99:.3} ms | {warm:.3} ms | \
             {first:.2} ms | {change:.2} ms | {idle:.2} % | {resident:.1} MiB |"
        );
    }
    table
}
