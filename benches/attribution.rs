//! Cost of attribution: `cargo bench --bench attribution`. The target for one refresh of a full node is 2 ms, and no
//! growth in a week of pods. Prints one table; checks no limit.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::{BTreeSet, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::full_node::{FullNode, GPUS, PROCESSES_EACH, SLOTS};
use crate::support::test_data;
use podmeter::domain::holders::{Slots, join};
use podmeter::domain::model::{Allocations, HardwareState, Monotonic, PodDirectory, Snapshot};
use podmeter::kubelet::pod_logs;
use podmeter::processes::Resolver;
use podmeter::serve::metrics::{self, Format};
use podmeter::simulation::node::resources;
use podmeter::simulation::proc_tree::{ContainerIdentity, ProcTree};

const REFRESHES: u64 = 2000;
/// One pod ends and one starts every six seconds, for a week: 100,800 pods.
const WEEK_SECONDS: u64 = 7 * 86_400;
const POD_SECONDS: u64 = 6;
/// Processes at a time in the week.
const WEEK_PROCESSES: usize = 16;
/// Pods between two pages of metrics.
const PAGE_EVERY: usize = 50;

fn main() {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not and measures nothing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| figure | measured | target |\n|---|---|---|");
    refresh();
    week();
}

fn refresh() {
    let mut node = FullNode::full();
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

/// The join, the owners of processes, the ledger and the pages, for a week.
fn week() {
    let directory = tempfile::tempdir().unwrap();
    let tree = ProcTree::create(directory.path()).unwrap();
    let mut resolver = Resolver::new(&tree.proc_root());
    let mut node = FullNode::new();
    let offered = resources(&node.inventory, Some(SLOTS)).remove(0);
    let ids: Vec<&str> = offered.devices.iter().map(|device| device.id.as_str()).collect();
    let allocatable = test_data::allocatable(&offered.name, &ids);
    let mut slots = Slots::default();
    let mut running: VecDeque<(u32, String)> = VecDeque::new();
    let mut allocations = Allocations::default();
    let (mut pods, mut most, mut after_a_day) = (0_usize, 0, 0.0);
    let (mut violations, mut violations_in_a_day) = (0, 0);
    for second in (0..WEEK_SECONDS).step_by(POD_SECONDS as usize) {
        let name = format!("pod-{pods}");
        let place = pods % ids.len();
        let pod = test_data::holder(&name, &[("nvidia.com/gpu", ids[place])]);
        match allocations.pods.get_mut(place) {
            Some(before) => *before = pod,
            None => allocations.pods.push(pod),
        }
        slots.update_counts(&allocations, &allocatable, &node.inventory, true);
        node.holdings = join(&allocations, &allocatable, &node.inventory, &slots);
        let pid = 1_000 + pods as u32;
        let uid = |pid: u32| format!("00000000-0000-4000-8000-{pid:012}");
        tree.add_container(identity(&name, &uid(pid))).unwrap();
        tree.start(pid, second, identity(&name, &uid(pid))).unwrap();
        running.push_back((pid, name));
        if running.len() > WEEK_PROCESSES {
            let (pid, name) = running.pop_front().unwrap();
            tree.end(pid).unwrap();
            tree.remove_pod_logs(identity(&name, &uid(pid))).unwrap();
        }
        let wanted: BTreeSet<u32> = running.iter().map(|(pid, _)| *pid).collect();
        let now = Monotonic::from_secs(second);
        let logs = pod_logs::read(&tree.pod_logs_root(), now);
        let owners = resolver.resolve(now, &wanted, &PodDirectory::default(), &logs);
        node.work(&owners, second);
        pods += 1;
        node.read(second);
        let statement = node.advance(second, second / 15);
        most = most.max(statement.accounts.len());
        violations = statement.violations.values().sum::<u64>();
        if pods.is_multiple_of(PAGE_EVERY) {
            let hardware = HardwareState {
                inventory: Arc::new(node.inventory.clone()),
                readings: node.readings.clone(),
                ..HardwareState::default()
            };
            let snapshot = Snapshot {
                accounts: statement.accounts,
                unattributed: statement.unattributed,
                hardware: Arc::new(hardware),
                ..Snapshot::default()
            };
            metrics::write(&snapshot, Format::Text, &mut std::io::sink()).unwrap();
        }
        if second == 86_400 {
            (after_a_day, violations_in_a_day) = (resident_mib(), violations);
        }
    }
    println!(
        "| sums that do not add up, in the audit of every pass, after a day / a week of churn | {violations_in_a_day} / {violations} | 0 |"
    );
    println!("| maximum number of accounts, over a week with {pods} pods | {most} | bounded |");
    println!(
        "| growth of resident memory after the first day: join, owners, ledger, pages | {:.1} MiB | ≤ 2 MiB |",
        resident_mib() - after_a_day
    );
}

fn identity<'a>(pod: &'a str, uid: &'a str) -> ContainerIdentity<'a> {
    ContainerIdentity { namespace: "team", pod, uid, container: "main" }
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}
