//! The examples of docs/attribution.md, and regression cases.

use super::super::*;
use super::{GPU, OneDeviceLedger, monotonic};
use crate::domain::attribution::OwnedProcess;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    Attribution, ContainerRef, Fast, GpmRatios, Gpu, InstanceReading, Medium, MemoryUse, MigUuid, Owner, PodRef,
    SharingForm, Stamped, UnattributedReason,
};

use crate::test_data;

#[test]
fn a_host_process_beside_an_exclusive_holder_has_its_part() {
    let mut case = OneDeviceLedger::new(3600);
    case.idle_at_100_watts();
    case.hold("train", None, SharingForm::Exclusive, 1.0);
    case.at(10);
    case.run(&[(owner("train"), 3.0, 6), (Owner::Host, 1.0, 1)]);
    let medium = Medium { memory: memory(10), ..Medium::default() };
    let published = case.reading(20, Some(8.0), 4000.0, Some(medium));
    assert_eq!(rows(&published), [row("train", [10.0, 6.0, 4.0, 2500.0])]);
    let unattributed = &published.unattributed[0];
    assert_eq!(
        (unattributed.busy_seconds[&UnattributedReason::Host], unattributed.energy_joules[&UnattributedReason::Host]),
        (2.0, 500.0)
    );
    assert_eq!(unattributed.memory_bytes[&UnattributedReason::Host], 1);
    assert_eq!(published.accounts[0].memory_used_bytes, Some(9), "the rest is the holder's");
}

#[test]
fn work_of_the_host_is_not_what_an_exclusive_holder_does_now() {
    let mut case = OneDeviceLedger::enumerated(3600);
    case.hold("train", None, SharingForm::Exclusive, 1.0);
    let active = GpmRatios { sm_active: Some(0.5), dram_active: Some(0.25), ..GpmRatios::default() };
    let medium = || Some(Medium { memory: memory(80), gpm: active.clone(), ..Medium::default() });
    case.at(0);
    let mut now = |second: u64, busy, processes: Option<&[(Owner, f64, u64)]>| {
        case.processes.clear();
        processes.into_iter().for_each(|processes| case.run(processes));
        case.set_reading(second * 1000, Some(busy), None, medium());
        let value = Fast { utilization_ratio: Some(0.8), ..Fast::default() };
        let fast = Some(Stamped { at: monotonic(second * 1000), value });
        Arc::make_mut(case.readings.get_mut(&GPU.into()).unwrap()).fast = fast;
        let published = case.observe(second * 1000 + 5);
        assert_eq!(published.violations.values().sum::<u64>(), 0);
        let account = &published.accounts[0];
        let parts = [account.utilization_ratio, account.sm_active_ratio, account.dram_active_ratio].map(rounded);
        (parts, account.memory_used_bytes, account.holding.as_ref().unwrap().attribution)
    };
    let (host, train) = (|seconds| (Owner::Host, seconds, 70), |seconds| (owner("train"), seconds, 6));
    let all = [Some(0.8), Some(0.5), Some(0.25)];
    let exclusive = Some(Attribution::Exclusive);
    let unread = [None; 3];
    assert_eq!(now(0, 0.0, None), (unread, Some(80), exclusive), "nothing is read yet");
    assert_eq!(now(10, 8.0, None), (all, Some(80), exclusive));
    let process = Some(Attribution::Process);
    assert_eq!(now(20, 16.0, Some(&[host(4.0)])), ([Some(0.0), None, None], Some(0), process));
    assert_eq!(now(30, 24.0, Some(&[host(8.0)])), ([Some(0.0), None, None], Some(0), process));
    assert_eq!(now(40, 32.0, Some(&[host(11.0), train(1.0)])), ([Some(0.2), None, None], Some(10), process));
    assert_eq!(now(50, 40.0, Some(&[train(5.0)])), (all, Some(80), process));
    let idle = [Some(0.72), Some(0.5), Some(0.25)];
    assert_eq!(now(51, 40.0, Some(&[train(5.0)])), (idle, Some(80), process), "a second of ten was idle");
    assert_eq!(now(60, 48.0, Some(&[])), (all, Some(0), process), "without SM time it is the holder's; no process");
}

#[test]
fn a_new_exclusive_holder_does_not_show_values_of_the_last_one() {
    let mut case = OneDeviceLedger::enumerated(3600);
    case.hold("a", None, SharingForm::Exclusive, 1.0);
    case.at(0);
    let now = |case: &mut OneDeviceLedger, second: u64, memory_used, sm_active| {
        let gpm = GpmRatios { sm_active, dram_active: sm_active, ..GpmRatios::default() };
        let medium = Medium { memory: memory(memory_used), gpm, ..Medium::default() };
        case.set_reading(second / 10 * 10_000, None, None, Some(medium));
        let published = case.observe(second * 1000 + 5);
        let mut held = published.accounts.iter().filter(|account| account.holding.is_some());
        held.next().map(|one| (one.memory_used_bytes, one.sm_active_ratio, one.dram_active_ratio))
    };
    assert_eq!(now(&mut case, 0, 80, None), Some((Some(80), None, None)));
    assert_eq!(now(&mut case, 10, 80, Some(0.9)), Some((Some(80), Some(0.9), Some(0.9))));
    case.holdings.by_key.clear();
    assert_eq!(now(&mut case, 11, 80, Some(0.9)), None);
    for pod in ["b", "a"] {
        case.hold(pod, None, SharingForm::Exclusive, 1.0);
        let start = if pod == "b" { 12 } else { 42 };
        assert_eq!(now(&mut case, start, 80, Some(0.9)), Some((None, None, None)), "of the pass before it");
        assert_eq!(now(&mut case, start + 8, 5, Some(0.2)), Some((Some(5), None, None)), "the mean of both");
        assert_eq!(now(&mut case, start + 18, 5, Some(0.1)), Some((Some(5), Some(0.1), Some(0.1))));
        case.holdings.by_key.clear();
        now(&mut case, start + 19, 5, Some(0.1));
    }
}

#[test]
fn slots_with_process_data_follow_sm_time_and_idle_power_is_unattributed() {
    let mut case = OneDeviceLedger::new(3600);
    case.idle_at_100_watts();
    case.hold("a", None, SharingForm::TimeSlicing, 0.25);
    case.hold("b", None, SharingForm::TimeSlicing, 0.25);
    case.at(10);
    case.run(&[(owner("a"), 3.0, 5), (owner("b"), 1.0, 2)]);
    // A GPU on a superchip: the module has drawn 9 kJ, of which its GPU 4 kJ.
    case.totals.module_energy_joules = Some(9000.0);
    let medium = Medium { memory: memory(10), ..Medium::default() };
    let published = case.reading(20, Some(8.0), 4000.0, Some(medium));
    assert_eq!(rows(&published), [row("a", [2.5, 6.0, 0.0, 1500.0]), row("b", [2.5, 2.0, 0.5, 500.0])]);
    assert_eq!(rounded(published.accounts[0].counters.borrowed_seconds), Some(3.5));
    let unattributed = &published.unattributed[0];
    assert_eq!(
        rounded(unattributed.energy_joules.get(&UnattributedReason::Idle).copied()),
        Some(2000.0),
        "and the 1000 J of before"
    );
    assert_eq!(unattributed.divided.energy_joules, Some(4000.0), "the GPU's, not its module's");
    assert_eq!(published.violations.values().sum::<u64>(), 0);
    assert_eq!(unattributed.memory_bytes[&UnattributedReason::Driver], 3);
    let method = |account: &Account| account.holding.as_ref().unwrap().attribution;
    assert_eq!(method(&published.accounts[0]), Some(Attribution::Process));
    assert_eq!(published.accounts.iter().map(|account| account.processes).collect::<Vec<_>>(), [Some(1), Some(1)]);
}

#[test]
fn sm_time_of_the_mps_server_is_its_clients_by_their_memory() {
    let mut case = OneDeviceLedger::new(3600);
    case.idle_at_100_watts();
    case.hold("a", None, SharingForm::Mps, 0.25);
    case.hold("b", None, SharingForm::Mps, 0.25);
    case.at(10);
    let holding = |account: &Account| account.holding.as_ref().unwrap().attribution;
    case.run(&[(owner("a"), 0.0, 6), (owner("b"), 0.0, 2), (Owner::MpsServer, 0.0, 1)]);
    let medium = || Some(Medium { memory: memory(10), ..Medium::default() });
    let idle = case.reading(20, Some(0.0), 2000.0, medium());
    assert_eq!(idle.accounts.iter().map(holding).collect::<Vec<_>>(), [Some(Attribution::Process); 2]);
    case.run(&[(owner("a"), 0.0, 6), (owner("b"), 0.0, 2), (Owner::MpsServer, 9.0, 1)]);
    let published = case.reading(30, Some(8.0), 5000.0, medium());
    assert_eq!(rows(&published), [row("a", [5.0, 6.0, 2.5, 1500.0]), row("b", [5.0, 2.0, 3.0, 500.0])]);
    assert_eq!(published.accounts.iter().map(holding).collect::<Vec<_>>(), [Some(Attribution::Estimated); 2]);
    let unattributed = &published.unattributed[0];
    assert_eq!(unattributed.memory_bytes[&UnattributedReason::Driver], 2, "the server's, and the rest");
    assert_eq!(unattributed.processes[&UnattributedReason::NotAllocated], 0);
    assert_eq!((unattributed.processes[&UnattributedReason::Driver], &published.unallocated_uses[..]), (1, &[][..]));
    // Where the memory is unknown, their parts are equal.
    case.run(&[(Owner::MpsServer, 13.0, 1)]);
    let published = case.reading(40, Some(12.0), 8000.0, None);
    assert_eq!(rows(&published).iter().map(|(_, columns)| columns[1]).collect::<Vec<_>>(), [Some(8.0), Some(4.0)]);
}

#[test]
fn sm_time_during_a_hung_process_scan_weighs_nothing_after_it() {
    let mut case = OneDeviceLedger::new(3600);
    case.hold("a", None, SharingForm::TimeSlicing, 0.25);
    case.hold("b", None, SharingForm::TimeSlicing, 0.25);
    let mut read = |second, busy, sm_seconds: [f64; 2], has_owners: bool| {
        case.run(&[(owner("a"), sm_seconds[0], 5), (owner("b"), sm_seconds[1], 2)]);
        case.processes.retain(|_, _| has_owners);
        case.totals.process_sm_seconds = Some((0..).zip(sm_seconds).collect());
        case.set_reading(second * 1000, Some(busy), None, None);
        case.at(second).accounts.iter().map(|one| one.counters.busy_seconds).collect::<Vec<_>>()
    };
    read(0, 0.0, [0.0, 0.0], true);
    assert_eq!(read(10, 8.0, [8.0, 0.0], false), [Some(4.0), Some(4.0)]);
    assert_eq!(read(20, 10.0, [8.0, 2.0], true), [Some(4.0), Some(6.0)]);
}

#[test]
fn a_pod_on_a_gpu_that_it_does_not_hold_is_named() {
    let mut case = OneDeviceLedger::new(3600);
    case.idle_at_100_watts();
    case.hold("a", None, SharingForm::Exclusive, 1.0);
    case.at(10);
    // An init container of the holder's own pod uses what the pod holds.
    let init = Owner::Container(ContainerRef::new("team", "a", "init"));
    case.run(&[(init, 1.0, 1), (owner("guest"), 1.0, 1), (Owner::EndedPod { uid: "ended".into(), pod: None }, 2.0, 1)]);
    let published = case.reading(20, Some(8.0), 1000.0, None);
    assert_eq!(rounded(published.accounts[0].counters.busy_seconds), Some(2.0));
    let unattributed = &published.unattributed[0];
    assert_eq!(
        (
            unattributed.busy_seconds[&UnattributedReason::NotAllocated],
            unattributed.busy_seconds[&UnattributedReason::TerminatedPod]
        ),
        (2.0, 4.0)
    );
    assert_eq!(published.unallocated_uses, [], "not at once");
    let published = case.reading(50, Some(8.0), 1000.0, None);
    let pods: Vec<PodRef> = published.unallocated_uses.iter().map(|one| one.pod.clone()).collect();
    assert_eq!(pods, [PodRef::new("team", "guest")]);
    assert_eq!(published.unattributed[0].processes[&UnattributedReason::NotAllocated], 1);
}

#[test]
fn use_after_the_end_of_a_holding_is_another_ones_only_once_two_passes_have_shown_it() {
    let mut case = OneDeviceLedger::new(3600);
    case.idle_at_100_watts();
    case.hold("a", None, SharingForm::Exclusive, 1.0);
    case.at(10);
    let full = |used| Some(Medium { memory: memory(used), ..Medium::default() });
    case.run(&[(owner("a"), 5.0, 40)]);
    case.reading(20, Some(5.0), 2500.0, full(40));
    // The kubelet no longer lists it; its process is on the list that was read before, and has worked since.
    case.holdings = Holdings::default();
    let published = case.at(21);
    let unattributed = |published: &LedgerOutput| published.unattributed[0].clone();
    let of_ended = |bytes: u64| BTreeMap::from([(UnattributedReason::Ended, bytes)]);
    let memory_of = |published: &LedgerOutput| {
        let mut memory = unattributed(published).memory_bytes;
        memory.retain(|_, bytes| *bytes > 0);
        memory
    };
    assert_eq!(memory_of(&published), of_ended(40));
    case.run(&[(owner("a"), 6.0, 30)]);
    let published = case.reading(21, Some(6.0), 3000.0, full(30));
    assert_eq!(memory_of(&published), of_ended(30), "the first pass after it");
    case.run(&[(owner("a"), 7.0, 30)]);
    let published = case.reading(22, Some(7.0), 3500.0, full(30));
    assert_eq!(memory_of(&published), of_ended(30));
    let busy = |published: &LedgerOutput| {
        let of = |reason| rounded(unattributed(published).busy_seconds.get(&reason).copied()).unwrap_or(0.0);
        (of(UnattributedReason::Ended), of(UnattributedReason::NotAllocated))
    };
    assert_eq!(busy(&published), (1.0, 0.0));
    // It is still there.
    case.run(&[(owner("a"), 8.0, 30)]);
    let published = case.reading(32, Some(8.0), 4000.0, full(30));
    assert_eq!(memory_of(&published), BTreeMap::from([(UnattributedReason::NotAllocated, 30)]));
    assert_eq!(busy(&published), (1.0, 1.0));
    assert_eq!(published.violations.values().sum::<u64>(), 0);
}

fn partitioned(case: &mut OneDeviceLedger, gpm: Option<[f64; 2]>) -> Medium {
    let mig = |uuid, gpu_instance, slices: u32| test_data::mig(uuid, gpu_instance, &format!("{slices}g.10gb"), slices);
    let gpu = Gpu {
        mig_slices: Some(7),
        mig_enabled: Some(true),
        mig_devices: vec![mig("MIG-a", 1, 3), mig("MIG-b", 2, 1)],
        ..Gpu::listed(GPU.into(), 0)
    };
    case.inventory.gpus.insert(GPU.into(), gpu);
    case.hold("a", Some("MIG-a"), SharingForm::Mig, 3.0 / 7.0);
    case.hold("b", Some("MIG-b"), SharingForm::Mig, 1.0 / 7.0);
    let instance = |number: u32, uuid: &str| InstanceReading {
        gpu_instance: number,
        members: vec![uuid.into()],
        memory: memory(u64::from(number) * 10),
        gpm: GpmRatios { graphics_engine_active: gpm.map(|gpm| gpm[number as usize - 1]), ..GpmRatios::default() },
    };
    let instances = vec![instance(1, "MIG-a"), instance(2, "MIG-b")];
    Medium { memory: memory(35), instances, ..Medium::default() }
}

#[test]
fn mig_with_gpm_goes_by_activity_times_slices() {
    let mut case = OneDeviceLedger::new(3600);
    case.idle_at_100_watts();
    let medium = partitioned(&mut case, Some([0.5, 1.0]));
    case.at(10);
    case.totals.instance_busy_seconds = [(1, 5.0), (2, 10.0)].into();
    let published = case.reading(20, None, 4000.0, Some(medium));
    assert_eq!(rows(&published), [row("a", [4.29, 2.14, 2.14, 1200.0]), row("b", [1.43, 1.43, 0.0, 800.0])]);
    assert_eq!(rounded(published.unattributed[0].divided.busy_seconds), Some(3.57));
    // Only one of the instances reports.
    case.totals.instance_busy_seconds = [(1, 10.0)].into();
    assert_eq!(case.reading(30, None, 4000.0, None).unattributed[0].divided.busy_seconds, None);
    // The GPU is whole again.
    case.inventory.gpus.get_mut(&GPU.into()).unwrap().mig_devices = vec![];
    case.totals.instance_busy_seconds = [].into();
    let whole = case.reading(40, Some(0.0), 4000.0, None).unattributed[0].divided.busy_seconds;
    assert_eq!(rounded(whole), Some(5.71), "the counter continues");
    assert_eq!(rounded(published.unattributed[0].energy_joules.get(&UnattributedReason::Idle).copied()), Some(2000.0));
    let used: Vec<Option<u64>> = published.accounts.iter().map(|account| account.memory_used_bytes).collect();
    assert_eq!(used, [Some(10), Some(20)]);
    assert_eq!(published.unattributed[0].memory_bytes[&UnattributedReason::Driver], 5);
}

#[test]
fn memory_of_an_instance_that_was_not_read_is_unknown() {
    let mut case = OneDeviceLedger::new(3600);
    let mut medium = partitioned(&mut case, None);
    medium.instances[1].memory = None;
    let published = case.reading(0, None, 0.0, Some(medium));
    assert_eq!(published.accounts.iter().map(|one| one.memory_used_bytes).collect::<Vec<_>>(), [Some(10), None]);
    assert_eq!(published.unattributed[0].memory_bytes, [(UnattributedReason::Unknown, 25)].into());
}

#[test]
fn a_pod_in_an_instance_that_another_holds_is_named() {
    let mut case = OneDeviceLedger::new(3600);
    partitioned(&mut case, None);
    let process = |number| OwnedProcess { gpu_instance: Some(number), ..test_data::process(number, owner("a"), 0.0) };
    let processes = DeviceProcesses { has_sm_seconds: false, ..test_data::processes([process(1), process(2)]) };
    case.processes.insert(GPU.into(), processes);
    case.reading(0, None, 0.0, None);
    let published = case.at(30);
    assert_eq!(published.unattributed[0].processes[&UnattributedReason::NotAllocated], 1);
    let pods: Vec<PodRef> = published.unallocated_uses.iter().map(|one| one.pod.clone()).collect();
    assert_eq!(pods, [PodRef::new("team", "a")]);
}

#[test]
fn memory_of_a_gpu_without_its_own_is_that_of_its_processes() {
    let mut case = OneDeviceLedger::enumerated(3600);
    case.idle_at_100_watts();
    case.hold("a", None, SharingForm::Exclusive, 1.0);
    case.run(&[(owner("a"), 0.0, 5), (owner("a"), 0.0, 4), (Owner::Host, 0.0, 2)]);
    let published = case.reading(20, Some(0.0), 2000.0, Some(Medium::default()));
    let used = |published: &LedgerOutput| published.accounts[0].memory_used_bytes;
    assert_eq!(used(&published), Some(9));
    assert_eq!(published.unattributed[0].memory_bytes, [(UnattributedReason::Host, 2)].into());
    assert_eq!(published.violations.values().sum::<u64>(), 0);
    case.inventory.gpus.get_mut(&GPU.into()).unwrap().memory_bytes = Some(80 << 30);
    let published = case.reading(30, Some(0.0), 3000.0, Some(Medium::default()));
    assert_eq!((used(&published), published.unattributed[0].memory_bytes.len()), (None, 0), "it could not be read");
}

#[test]
fn an_mps_slot_is_limited_to_its_part_of_the_memory() {
    for (sharing, share, expected) in [
        (SharingForm::Mps, 0.25, 20 << 30),
        (SharingForm::Mps, 1.0 / 3.0, 27_306 << 20),
        (SharingForm::TimeSlicing, 0.25, 80 << 30),
        (SharingForm::Exclusive, 1.0, 80 << 30),
    ] {
        let mut case = OneDeviceLedger::new(3600);
        partitioned(&mut case, None);
        let gpu = case.inventory.gpus.get_mut(&GPU.into()).unwrap();
        (gpu.mig_devices, gpu.memory_bytes) = (vec![], Some(80 << 30));
        case.hold("c", None, sharing, share);
        case.reading(0, None, 0.0, None);
        let published = case.reading(10, None, 1000.0, Some(Medium::default()));
        let account = published.accounts.iter().find(|account| account.container.pod.as_ref() == "c").unwrap();
        assert_eq!(account.memory_limit_bytes, Some(expected), "{sharing:?}");
    }
}

#[test]
fn a_total_that_is_no_amount_is_counted_and_ignored() {
    let mut case = OneDeviceLedger::new(3600);
    case.hold("a", None, SharingForm::Exclusive, 1.0);
    case.reading(0, Some(0.0), 0.0, None);
    case.reading(10, Some(5.0), 100.0, None);
    let published = case.reading(20, Some(f64::NAN), -1.0, None);
    let counts: Vec<u64> = published.violations.values().copied().collect();
    assert_eq!(counts, [1, 1, 0]);
    let published = case.reading(30, Some(9.0), 300.0, None);
    assert_eq!(rows(&published), [row("a", [30.0, 9.0, 11.0, 300.0])]);
}

#[test]
fn losing_the_kubelet_loses_nothing() {
    let mut case = OneDeviceLedger::new(3600);
    case.hold("a", None, SharingForm::Exclusive, 1.0);
    case.reading(0, Some(0.0), 0.0, None);
    // The last allocations remain valid without a time limit.
    let published =
        (1..=600).map(|second| case.reading(second, Some(second as f64), 100.0 * second as f64, None)).last();
    assert_eq!(rows(&published.unwrap()), [row("a", [600.0, 600.0, 0.0, 60_000.0])]);
}

impl OneDeviceLedger {
    fn at(&mut self, second: u64) -> LedgerOutput {
        self.observe(second * 1000)
    }

    fn reading(&mut self, second: u64, busy: Option<f64>, energy: f64, medium: Option<Medium>) -> LedgerOutput {
        self.set_reading(second * 1000, busy, Some(energy), medium);
        self.at(second)
    }

    fn hold(&mut self, pod: &str, mig: Option<&str>, sharing: SharingForm, share: f64) {
        let key = HoldingKey { mig: mig.map(MigUuid::from), ..test_data::key(pod, GPU) };
        self.holdings.by_key.insert(key, test_data::holding(GPU, sharing, share));
    }

    /// Sets the processes: owner, SM-seconds, memory.
    fn run(&mut self, processes: &[(Owner, f64, u64)]) {
        let process = |(pid, (owner, sm_seconds, bytes)): (usize, &(Owner, f64, u64))| OwnedProcess {
            memory_bytes: Some(*bytes),
            ..test_data::process(pid as u32, owner.clone(), *sm_seconds)
        };
        let processes = test_data::processes(processes.iter().enumerate().map(process));
        self.processes.insert(GPU.into(), processes);
    }

    /// Lets the board be idle at 100 W for ten seconds, so that its idle power is known.
    fn idle_at_100_watts(&mut self) {
        self.reading(0, Some(0.0), 0.0, None);
        self.reading(10, Some(0.0), 1000.0, None);
    }
}

fn owner(pod: &str) -> Owner {
    Owner::Container(test_data::main_of(pod))
}

fn memory(used: u64) -> Option<MemoryUse> {
    Some(MemoryUse { used, free: 0, reserved: None, total: used })
}

fn rounded(value: Option<f64>) -> Option<f64> {
    value.map(|value| (value * 100.0).round() / 100.0)
}

/// The accounts by pod: allocated, busy, idle, energy.
fn rows(published: &LedgerOutput) -> Vec<(String, [Option<f64>; 4])> {
    let row = |account: &Account| {
        let columns = [
            account.counters.allocated_seconds,
            account.counters.busy_seconds,
            account.counters.idle_seconds,
            account.counters.energy_joules,
        ]
        .map(rounded);
        (account.container.pod.to_string(), columns)
    };
    published.accounts.iter().map(row).collect()
}

fn row(pod: &str, columns: [f64; 4]) -> (String, [Option<f64>; 4]) {
    (pod.to_owned(), columns.map(Some))
}
