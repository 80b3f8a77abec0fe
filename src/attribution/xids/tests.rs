use super::*;
use crate::attribution::HoldingKey;
use crate::model::{Gpu, Holding, MigDevice, PodRef, Process, ProcessKey, Sharing, XidInstance, XidProcess};

const GPU: &str = "GPU-1";
const RETENTION: Duration = Duration::from_secs(300);

/// The holders, the owners of processes, and the state under test.
struct Node {
    xids: ContainerXids,
    join: Join,
    inventory: Inventory,
    accounts: Vec<Account>,
    processes: ProcessState,
    scrapes: u64,
}

impl Node {
    fn new(two_sources: bool) -> Self {
        Self {
            xids: ContainerXids::new(two_sources),
            join: Join::default(),
            inventory: Inventory::default(),
            accounts: vec![],
            processes: ProcessState { enabled: true, ..ProcessState::default() },
            scrapes: 0,
        }
    }

    fn held_by(mut self, pods: &[&str]) -> Self {
        pods.iter().for_each(|pod| self.hold(pod, None));
        self
    }

    /// A GPU of three MIG devices: two compute instances in GPU instance 7, one in 8.
    fn partitioned(mut self) -> Self {
        let mig = |name: &str, gpu_instance, compute_instance| MigDevice {
            uuid: name.into(),
            index: 0,
            gpu_instance,
            compute_instance,
            profile: "1g.10gb".into(),
            profile_id: None,
            placement_start: None,
            slices: 1,
            memory_bytes: None,
        };
        let gpu = Gpu {
            mig_slices: Some(7),
            mig_enabled: Some(true),
            mig_devices: vec![mig("MIG-70", 7, 0), mig("MIG-71", 7, 1), mig("MIG-80", 8, 0)],
            ..Gpu::listed(GPU.into(), 0)
        };
        self.inventory.gpus.insert(GPU.into(), gpu);
        self
    }

    fn hold(&mut self, pod: &str, mig: Option<&str>) {
        let holding = Holding {
            resource: None,
            device_ids: vec![],
            sharing: Sharing::Exclusive,
            attribution: None,
            share: None,
            weight: 1.0,
        };
        let account = Account {
            holding: Some(holding.clone()),
            ..Account::new(main(pod), GPU.into(), mig.map(Into::into), UnixSeconds(7.0))
        };
        let key = HoldingKey { container: main(pod), gpu: GPU.into(), mig: mig.map(Into::into) };
        self.join.holdings.insert(key, holding);
        self.accounts.push(account);
    }

    fn owned(mut self, pid: u32, owner: Owner) -> Self {
        self.know(pid, owner);
        self
    }

    fn know(&mut self, pid: u32, owner: Owner) {
        self.processes.processes.insert(pid, Process { key: Some(ProcessKey { pid, start_ticks: 1 }), owner });
    }

    /// (pod, MIG device, code, count), `at` milliseconds.
    fn at(&mut self, at: u64, events: &[XidEvent]) -> Vec<(String, Option<String>, u32, u64)> {
        let class = XidClass::Application;
        let xids = self.xids.advance(XidObservation {
            now: moment(at),
            events: events.iter().map(|event| ClassedXid { event: event.clone(), class }).collect(),
            join: &self.join,
            inventory: &self.inventory,
            accounts: &self.accounts,
            processes: &self.processes,
            retention: RETENTION,
            scrapes: self.scrapes,
        });
        let row = |xid: ContainerXid| {
            (xid.container.pod.to_string(), xid.mig.map(|mig| mig.as_str().to_owned()), xid.code, xid.count)
        };
        xids.into_iter().map(row).collect()
    }
}

fn main(pod: &str) -> ContainerRef {
    ContainerRef::new("team", pod, "main")
}

fn moment(milliseconds: u64) -> Moment {
    let unix = UnixSeconds(1e6 + milliseconds as f64 / 1000.0);
    Moment { monotonic: Monotonic::from_millis(milliseconds), unix }
}

fn event(source: XidSource, at: u64, count: u64) -> XidEvent {
    XidEvent { at: moment(at), gpu: GPU.into(), instance: None, code: 31, source, process: None, count }
}

fn driver(at: u64, count: u64) -> XidEvent {
    event(XidSource::Nvml, at, count)
}

fn log(at: u64, pid: u32, count: u64) -> XidEvent {
    XidEvent { process: Some(XidProcess { pid, name: None }), ..event(XidSource::Kmsg, at, count) }
}

fn on(instance: (u32, Option<u32>), event: XidEvent) -> XidEvent {
    XidEvent { instance: Some(XidInstance { gpu_instance: instance.0, compute_instance: instance.1 }), ..event }
}

fn counted(pod: &str, count: u64) -> Vec<(String, Option<String>, u32, u64)> {
    vec![(pod.to_owned(), None, 31, count)]
}

#[test]
fn without_a_process_it_is_the_one_holders_or_unattributed() {
    for (holders, expected) in [(&["alone"][..], counted("alone", 2)), (&["one", "two"], vec![]), (&[], vec![])] {
        let mut node = Node::new(false).held_by(holders);
        assert_eq!(node.at(0, &[driver(0, 2)]), expected, "{holders:?}");
    }
}

#[test]
fn two_slots_of_one_container_are_one_holder() {
    let mut node = Node::new(false).held_by(&["alone", "alone"]);
    assert_eq!(node.at(0, &[driver(0, 1)]), counted("alone", 1));
}

#[test]
fn a_process_has_an_owner() {
    let pod = || PodRef::new("team", "two");
    for (owner, expected) in [
        (Owner::Container(main("two")), counted("two", 1)),
        // Uses a GPU that it does not hold.
        (Owner::Container(main("stranger")), counted("stranger", 1)),
        (Owner::Pod(pod()), counted("two", 1)),
        (Owner::EndedPod { uid: "u".into(), pod: Some(pod()) }, counted("two", 1)),
        (Owner::EndedPod { uid: "u".into(), pod: None }, vec![]),
        (Owner::Host, vec![]),
        (Owner::Unknown(UnknownOwner::Gone), vec![]),
    ] {
        let mut node = Node::new(true).held_by(&["one", "two"]).owned(5, owner.clone());
        assert_eq!(node.at(0, &[log(0, 5, 1)]), expected, "{owner:?}");
    }
}

#[test]
fn a_process_of_an_earlier_pod_of_the_name_leaves_the_present_one_alone() {
    let of = |uid: &str| main("web-0").with_uid(Some(uid.into()));
    let pod = || PodRef::new("team", "web-0");
    for (owner, expected) in [
        (Owner::Container(of("old")), "old"),
        (Owner::Container(of("new")), "new"),
        (Owner::EndedPod { uid: "old".into(), pod: Some(pod()) }, "old"),
        (Owner::Pod(pod()), "new"),
    ] {
        let mut node = Node::new(false);
        node.hold("web-0", None);
        let account = node.accounts[0].clone();
        let old = Account { container: of("old"), holding: None, ..account.clone() };
        node.accounts = vec![old, Account { container: of("new"), ..account }];
        let (key, holding) = node.join.holdings.pop_first().unwrap();
        node.join.holdings.insert(HoldingKey { container: of("new"), ..key }, holding);
        let mut node = node.owned(5, owner.clone());
        assert_eq!(node.at(0, &[log(0, 5, 1)]), counted("web-0", 1));
        let uids: Vec<_> = node.xids.counts.keys().map(|key| key.container.pod_uid.clone()).collect();
        assert_eq!(uids, [Some(expected.into())], "{owner:?}");
    }
}

#[test]
fn an_xid_of_an_unseen_process_is_the_one_holders() {
    let mut node = Node::new(true).held_by(&["alone"]).owned(5, Owner::Unknown(UnknownOwner::Gone));
    assert_eq!(node.at(0, &[log(0, 5, 1)]), counted("alone", 1));
    node.processes.enabled = false;
    assert_eq!(node.at(10, &[log(10, 6, 1)]), counted("alone", 2), "process ids of another namespace");
}

#[test]
fn an_owner_is_waited_for_and_not_for_long() {
    let mut node = Node::new(true).held_by(&["one", "two"]);
    assert_eq!(node.at(0, &[log(0, 5, 1), log(0, 6, 1)]), vec![]);
    assert_eq!(node.xids.wanted().collect::<Vec<_>>(), [5, 6]);
    node.know(5, Owner::Container(main("two")));
    assert_eq!(node.at(1000, &[]), counted("two", 1));
    assert_eq!(node.xids.waiting.len(), 1);
    assert_eq!(node.at(3000, &[]), counted("two", 1));
    assert_eq!(node.xids.waiting.len(), 0, "nobody's");
}

#[test]
fn a_process_that_has_ended_is_remembered_for_the_xids_that_follow() {
    let mut node = Node::new(true).held_by(&["one", "two"]).owned(5, Owner::Container(main("two")));
    node.at(0, &[log(0, 5, 1)]);
    assert_eq!(node.xids.wanted().collect::<Vec<_>>(), [5], "though it has an owner");
    node.at(60_000, &[log(60_000, 5, 1)]);
    node.at(120_000, &[]);
    assert_eq!(node.xids.wanted().collect::<Vec<_>>(), [5]);
    node.at(120_001, &[]);
    assert_eq!(node.xids.wanted().count(), 0);
}

#[test]
fn one_xid_from_both_sources_counts_once_for_its_process() {
    for (first, second) in [(driver(0, 3), log(200, 5, 3)), (log(0, 5, 3), driver(200, 3))] {
        // The driver's word alone would have made it the holder's.
        let mut node = Node::new(true).held_by(&["holder"]).owned(5, Owner::Container(main("worker")));
        node.at(0, &[first]);
        node.at(200, &[second]);
        assert_eq!(node.at(60_000, &[]), counted("worker", 3));
    }
}

#[test]
fn without_a_log_line_in_time_it_is_the_holders_at_that_time() {
    let mut node = Node::new(true).held_by(&["alone"]);
    assert_eq!(node.at(0, &[driver(0, 2)]), vec![]);
    node.join.holdings.clear();
    assert_eq!(node.at(5000, &[]), vec![]);
    assert_eq!(node.at(5001, &[]), counted("alone", 2));
}

#[test]
fn a_long_storm_counts_each_xid_once_in_little_memory() {
    let mut node = Node::new(true).held_by(&["holder"]).owned(5, Owner::Container(main("worker")));
    for step in 0..2000 {
        let at = step * 100;
        // The driver lags behind the log by a second and reports several at a time.
        let xids = [log(at, 5, 10)].into_iter().chain((step % 10 == 9).then(|| driver(at + 50, 100)));
        node.at(at + 60, &xids.collect::<Vec<_>>());
        let matching = node.xids.matching.values().next();
        assert!(matching.is_none_or(|matching| format!("{matching:?}").len() < 8192));
    }
    assert_eq!(node.at(300_000, &[]), counted("worker", 20_000));
}

#[test]
fn on_mig_it_is_who_holds_the_instance() {
    let mut node = Node::new(false).partitioned();
    node.hold("seventy", Some("MIG-70"));
    node.hold("eighty", Some("MIG-80"));
    let row = |pod: &str, mig: &str, count| (pod.to_owned(), Some(mig.to_owned()), 31, count);
    assert_eq!(node.at(0, &[on((8, Some(0)), driver(0, 1))]), [row("eighty", "MIG-80", 1)]);
    assert_eq!(node.at(1, &[driver(1, 1)]), [row("eighty", "MIG-80", 1)], "the whole GPU has two holders");
    node.at(2, &[on((7, None), driver(2, 1))]);
    let all = [row("eighty", "MIG-80", 1), row("seventy", "MIG-70", 1)];
    assert_eq!(node.at(3, &[]), all, "one of two compute instances is held");
    node.hold("seventy-one", Some("MIG-71"));
    assert_eq!(node.at(4, &[on((7, None), driver(4, 1))]), all, "both are held");
}

#[test]
fn a_process_on_mig_has_the_reported_device_or_its_only_one() {
    let mut node = Node::new(false).partitioned().owned(5, Owner::Container(main("eighty")));
    node.hold("seventy", Some("MIG-70"));
    node.hold("eighty", Some("MIG-80"));
    assert_eq!(node.at(0, &[log(0, 5, 1)]), [("eighty".to_owned(), Some("MIG-80".to_owned()), 31, 1)]);
    let xids = node.at(1, &[on((7, Some(1)), log(1, 5, 1))]);
    assert_eq!(xids.len(), 2, "its own, and another's: {xids:?}");
}

#[test]
fn a_count_stays_with_its_account_and_is_read_twice() {
    let mut node = Node::new(false).held_by(&["alone"]);
    node.at(0, &[driver(0, 1)]);
    assert_eq!(node.at(3_600_000, &[]), counted("alone", 1), "the account lives");
    node.accounts.clear();
    assert_eq!(node.at(3_601_000, &[]), counted("alone", 1), "nobody has read it");
    node.scrapes = 2;
    assert_eq!(node.at(3_602_000, &[]), vec![]);
}

#[test]
fn counting_began_with_the_account_or_the_first_xid() {
    let mut node = Node::new(true).held_by(&["holder"]).owned(5, Owner::Container(main("stranger")));
    node.at(1000, &[log(1000, 5, 1), XidEvent { process: None, ..log(1000, 0, 1) }]);
    let created: Vec<f64> = node.xids.counts.values().map(|count| count.created.0).collect();
    assert_eq!(created, [7.0, 1e6 + 1.0]);
}

#[test]
fn unlimited_kinds_take_limited_memory() {
    let mut node = Node::new(true).held_by(&["alone"]);
    let mut events: Vec<_> = (0..10_000).map(|code| XidEvent { code, ..event(XidSource::Kmsg, 0, 1) }).collect();
    events.extend((0..10_000).map(|pid| log(0, pid, 1)));
    let xids = node.at(0, &events);
    assert!(xids.len() <= SERIES + 1, "{}", xids.len());
    assert_eq!(node.xids.waiting.len(), PROCESSES);
    let xids = node.at(OWNER_WAIT.as_millis() as u64, &[]);
    assert_eq!(xids.iter().map(|row| row.3).sum::<u64>(), 20_000, "and all are counted");
}
