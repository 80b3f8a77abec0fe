//! Cost of finding the owners of 512 processes on a node with 110 pods: `cargo bench --bench processes`.
#![allow(clippy::unwrap_used, reason = "a benchmark")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::collections::BTreeSet;
use std::time::Instant;

use podmeter::domain::model::{Monotonic, Owner, PodDirectory};
use podmeter::kubelet::pod_logs;
use podmeter::processes::Resolver;
use podmeter::simulation::proc_tree::{ContainerIdentity, ProcTree};

const PODS: u32 = 110;
const PROCESSES: u32 = 512;
const FIRST_PID: u32 = 1000;
const ROUNDS: usize = 50;

fn main() {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not and measures nothing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let tree = ProcTree::create(directory.path()).unwrap();
    for number in 0..PROCESSES {
        let pod = number % PODS;
        let uid = format!("00000000-0000-4000-8000-{pod:012}");
        let name = format!("worker-{pod}");
        let identity = ContainerIdentity { namespace: "research", pod: &name, uid: &uid, container: "main" };
        tree.add_container(identity).unwrap();
        tree.start(FIRST_PID + number, 100, identity).unwrap();
    }
    let wanted: BTreeSet<u32> = (FIRST_PID..FIRST_PID + PROCESSES).collect();
    let pods = PodDirectory::default();
    let logs = pod_logs::read(&tree.pod_logs_root(), Monotonic::default());

    let cold = median(|| {
        let mut resolver = Resolver::new(&tree.proc_root());
        let started = Instant::now();
        let processes = resolver.resolve(Monotonic::default(), &wanted, &pods, &logs);
        let took = started.elapsed().as_secs_f64();
        assert!(processes.values().all(|process| matches!(process.owner, Owner::Container(_))));
        took
    });
    let mut resolver = Resolver::new(&tree.proc_root());
    resolver.resolve(Monotonic::default(), &wanted, &pods, &logs);
    let mut seconds = 0;
    let warm = median(|| {
        seconds += 1;
        let started = Instant::now();
        resolver.resolve(Monotonic::from_secs(seconds), &wanted, &pods, &logs);
        started.elapsed().as_secs_f64()
    });
    println!("{PROCESSES} processes in {PODS} pods, cold: {:.2} ms", cold * 1e3);
    println!("{PROCESSES} processes in {PODS} pods, warm: {:.2} ms", warm * 1e3);
}

fn median(mut measure: impl FnMut() -> f64) -> f64 {
    let mut times: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
