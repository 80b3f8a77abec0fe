//! The work of every second, and of a response of the kubelet.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use podmeter::attribution::{self, Slots, are_scanned, join, wanted_processes};
use podmeter::health::{self, Health, HealthInputs};
use podmeter::history::History;
use podmeter::kubelet::convert;
use podmeter::model::{
    DeviceProcess, HardwareState, Inventory, Monotonic, Owner, PodDirectory, ProcessState, Snapshot, Stamped,
};
use podmeter::processes::Resolver;
use podmeter::simulation::proc_tree::{Inside, ProcTree};
use podmeter::wire::v1;
use prost::Message as _;

use crate::full_node;
use crate::node::{self, Devices, moment};
use crate::rounds;

const PROCESSES: u32 = 512;
const PODS: u32 = 110;
const FIRST_PID: u32 = 1_000;

pub fn list_of_38(count: u64) {
    let inventory = Devices::working().inventory;
    lists(count, &inventory, &[node::list(&inventory, node::PODS).encode_to_vec()]);
}

pub fn list_of_1000(count: u64) {
    let inventory = Devices::working().inventory;
    lists(count, &inventory, &[node::list(&inventory, 1000).encode_to_vec()]);
}

/// All recorded responses of a real kubelet.
pub fn recorded_lists(count: u64) {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/captures"));
    let mut files: Vec<PathBuf> = directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(".list.pb"));
    files.sort();
    let answers: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(answers.len() > 40, "{} recorded answers in {}", answers.len(), directory.display());
    lists(count, &Devices::working().inventory, &answers);
}

/// From the response's bytes to allocations.
fn lists(count: u64, inventory: &Inventory, answers: &[Vec<u8>]) {
    let allocatable = node::allocatable(inventory);
    let mut slots = Slots::default();
    let mut apply = |answer: &Vec<u8>| {
        let allocations = convert::allocations(v1::ListPodResourcesResponse::decode(answer.as_slice()).unwrap());
        slots.learn(&allocations, &allocatable, inventory, true);
        let join = join(&allocations, &allocatable, inventory, &slots);
        (allocations, join)
    };
    rounds(count, |_| (), |()| answers.iter().for_each(|answer| drop(black_box(apply(answer)))));
}

/// From the passes of eight GPUs to published readings.
pub fn readings(count: u64) {
    let mut devices = Devices::working();
    let mut next = Devices::working();
    rounds(count, |second| (second, next.read(second)), |(second, passes)| devices.take(second, passes));
}

/// Owners of 512 processes that are all known.
pub fn owners_of_512(count: u64) {
    let directory = tempfile::tempdir().unwrap();
    let tree = ProcTree::create(directory.path()).unwrap();
    for number in 0..PROCESSES {
        let pod = number % PODS;
        let (uid, name) = (format!("00000000-0000-4000-8000-{pod:012}"), format!("worker-{pod}"));
        let inside = Inside { namespace: "research", pod: &name, uid: &uid, container: "main" };
        tree.add_container(inside).unwrap();
        tree.start(FIRST_PID + number, 100, inside).unwrap();
    }
    let wanted: BTreeSet<u32> = (FIRST_PID..FIRST_PID + PROCESSES).collect();
    let pods = PodDirectory::default();
    let mut resolver = Resolver::new(&tree.proc_root(), &tree.pod_logs_root());
    rounds(count, Monotonic::from_secs, |now| {
        let processes = resolver.resolve(now, &wanted, &pods);
        assert!(processes.values().all(|process| matches!(process.owner, Owner::Container(_))));
        processes
    });
}

/// Owners of 512 processes on eight GPUs.
pub fn processes_by_device(count: u64) {
    let snapshot = node::snapshot();
    let known = snapshot.processes.as_ref().unwrap();
    let one = known.processes.values().next().unwrap();
    let mut hardware = HardwareState::clone(&snapshot.hardware);
    let mut processes = known.processes.clone();
    let each = PROCESSES / node::GPUS as u32;
    for (number, readings) in hardware.readings.values_mut().enumerate() {
        let readings = Arc::make_mut(readings);
        let Some(Stamped { value: medium, .. }) = &mut readings.medium else { panic!("no medium tier") };
        let first = FIRST_PID + number as u32 * each;
        let listed =
            |pid| DeviceProcess { pid, gpu_instance: None, compute_instance: None, memory_bytes: Some(1 << 28) };
        medium.processes = Some((first..first + each).map(listed).collect());
        processes.extend((first..first + each).map(|pid| (pid, one.clone())));
    }
    let state = ProcessState { processes, ..ProcessState::clone(known) };
    rounds(
        count,
        |_| (),
        |()| {
            let wanted = wanted_processes(&hardware);
            assert!(are_scanned(&wanted, &state));
            attribution::processes_by_device(&hardware, &state)
        },
    );
}

/// One pass over 8 GPUs with 32 slots each, all allocated, with 512 processes.
pub fn ledger(count: u64) {
    let node = RefCell::new(full_node::Node::full());
    let observe = |second| {
        node.borrow_mut().read(second);
        node.borrow_mut().run(second);
        second
    };
    rounds(count, observe, |second| node.borrow_mut().advance(second, second));
}

/// One evaluation of eight healthy GPUs.
pub fn health(count: u64) {
    let mut devices = Devices::working();
    let mut health = Health::new(health::Config::default());
    let read = |second| {
        let passes = devices.read(second);
        (moment(second), devices.take(second, passes))
    };
    rounds(count, read, |(now, hardware)| {
        let state = health.advance(now, &HealthInputs { hardware: &hardware, events: &[] });
        // Dropped outside the count.
        std::mem::forget(hardware);
        state
    });
}

/// One more snapshot in the history.
pub fn history(count: u64) {
    let mut history = History::default();
    let snapshot = node::snapshot();
    let next = |second| Snapshot { at: moment(100 + second), ..snapshot.clone() };
    rounds(count, next, |snapshot| {
        history.note(&snapshot);
        std::mem::forget(snapshot);
    });
}
