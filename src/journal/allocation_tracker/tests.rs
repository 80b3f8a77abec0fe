mod restart;
mod tracked_node;

use proptest::prelude::*;

use super::*;
use crate::domain::model::{ContainerXid, HealthTransition, UnhealthyReason, XidClass};
use crate::test_data;
use tracked_node::*;

#[test]
fn a_holding_ends_with_its_last_counters() {
    let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
    node.hold("a");
    assert!(tracker.observe(&node.snapshot()), "a beginning is urgent");
    write(&mut disk, &mut tracker);
    node.pass(10);
    assert!(!tracker.observe(&node.snapshot()), "larger counters are not");
    assert_eq!(tracker.to_write(), []);
    node.pass(25);
    assert!(tracker.observe(&node.snapshot()), "they are written from time to time");
    write(&mut disk, &mut tracker);
    node.release("a");
    assert!(tracker.observe(&node.snapshot()), "an end is urgent");
    write(&mut disk, &mut tracker);
    let [record] = &disk.values().cloned().collect::<Vec<_>>()[..] else { panic!("one holding: {disk:?}") };
    assert_eq!((record.began, record.ended, record.ending), (BIRTH, Some(BIRTH + 35.0), Some(Ending::Released)));
    assert_eq!((record.counters.allocated_seconds, record.counters.energy_joules), (Some(35.0), Some(10_500.0)));
    // The last reading of the device comes after the end.
    gain(node.accounts.get_mut("a").expect("there"), 1.0);
    node.pass(60);
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    assert_eq!(disk[&record.id].counters.allocated_seconds, Some(36.0));
    assert_eq!(disk[&record.id].ended, Some(BIRTH + 35.0));
    node.pass(60);
    tracker.observe(&node.snapshot());
    assert_eq!(tracker.to_write(), [], "final counters are written once");
    tracker.load(vec![], 0, node.now());
    assert_eq!(tracker.to_write(), [], "also where the file is opened again");
    node.accounts.get_mut("a").expect("there").counters.energy_joules = Some(12_345.0);
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    assert_eq!(disk[&record.id].counters.energy_joules, Some(12_345.0), "with the end of a gap");
    node.forget("a");
    tracker.observe(&node.snapshot());
    assert!(tracker.to_write().is_empty() && tracker.live().is_empty());
}

#[test]
fn a_holding_begins_before_it_ends_though_the_clock_was_set_back() {
    let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
    node.hold("a");
    tracker.observe(&node.snapshot());
    node.pass(10);
    node.born -= 86_400.0;
    tracker.observe(&node.snapshot());
    node.pass(5);
    node.release("a");
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    let record = disk.values().next().unwrap();
    assert_eq!((record.began, record.ended), (node.born, Some(node.born + 15.0)));
    node.hold("b");
    tracker.observe(&node.snapshot());
    node.born -= 86_400.0;
    node.release("b");
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    let record = disk.values().next_back().unwrap();
    assert_eq!((record.began, record.ended), (node.born + 15.0, Some(node.born + 15.0)), "without a snapshot between");
}

#[test]
fn a_holding_between_two_snapshots_is_recorded() {
    let (mut node, mut tracker) = (TrackedNode::new(BIRTH), loaded());
    tracker.observe(&node.snapshot());
    node.hold("a");
    node.pass(1);
    node.release("a");
    assert!(tracker.observe(&node.snapshot()));
    let records = tracker.to_write();
    tracker.written(&records);
    assert_eq!((records.len(), records[0].ended), (1, Some(BIRTH + 1.0)));
    assert_eq!(records[0].counters.allocated_seconds, Some(1.0));
    node.pass(60);
    tracker.observe(&node.snapshot());
    assert!(tracker.to_write().len() <= 1 && !tracker.observe(&node.snapshot()), "once");
}

#[test]
fn another_account_under_the_name_of_a_holding_takes_nothing_from_its_record() {
    let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
    for seconds in [10, 3] {
        node.forget("a");
        node.hold("a");
        node.pass(seconds);
        tracker.observe(&node.snapshot());
    }
    tracker.requeue_all();
    write(&mut disk, &mut tracker);
    let records: Vec<_> = disk.values().map(|record| (record.counters.allocated_seconds, record.is_open())).collect();
    assert_eq!(records, [(Some(10.0), false), (Some(3.0), true)]);
}

#[test]
fn xids_and_transitions_belong_to_the_holding_at_their_time() {
    let (mut node, mut tracker) = (TrackedNode::new(BIRTH), loaded());
    node.hold("a");
    tracker.observe(&node.snapshot());
    node.pass(2);
    let transition = |number, to_healthy, at: Moment| HealthTransition {
        number,
        gpu: GPU.into(),
        mig: None,
        to_healthy,
        reason: UnhealthyReason::Xid,
        detail: "XID 79".into(),
        at,
        holders: vec![],
    };
    node.health.transitions = vec![transition(1, false, node.now()), transition(2, true, node.now())];
    node.xids.push(ContainerXid {
        container: test_data::main_of("a"),
        gpu: GPU.into(),
        mig: None,
        code: 79,
        class: XidClass::GpuReset,
        count: 2,
        created: UnixSeconds(BIRTH),
    });
    assert!(tracker.observe(&node.snapshot()), "they are urgent");
    let records = tracker.to_write();
    let [record] = &records[..] else { panic!("one holding: {records:?}") };
    assert_eq!((record.xids[0].code, record.xids[0].count), (79, 2));
    assert_eq!(record.health.iter().map(|event| event.healthy).collect::<Vec<_>>(), [false, true]);
    node.release("a");
    tracker.observe(&node.snapshot());
    node.hold("a");
    tracker.observe(&node.snapshot());
    tracker.requeue_all();
    let next = tracker.to_write().into_iter().find(AllocationRecord::is_open).expect("the next one");
    assert_eq!((next.xids, next.health), (vec![], vec![]), "not the next one's");
}

/// An early loss and the last changes were dropped in favour of the marks between.
#[test]
fn of_many_changes_of_health_the_faults_and_the_last_ones_are_kept() {
    let (mut node, mut tracker) = (TrackedNode::new(BIRTH), loaded());
    node.hold("a");
    tracker.observe(&node.snapshot());
    for number in 0..100 {
        for reason in [Some(if number == 3 { UnhealthyReason::Lost } else { UnhealthyReason::Admin }), None] {
            node.pass(1);
            node.turn(reason, true);
            tracker.observe(&node.snapshot());
        }
    }
    let record = tracker.live().into_values().next().expect("one holding");
    let reasons: Vec<_> = record.health.iter().filter(|event| !event.healthy).map(|event| &*event.reason).collect();
    assert_eq!((record.health.len(), record.health_dropped), (32, 168));
    assert_eq!((reasons[0], reasons[1..].iter().all(|reason| *reason == "admin")), ("lost", true));
    assert!(record.health.last().is_some_and(|last| last.healthy && last.at == BIRTH + 200.0));
}

#[test]
fn beyond_the_limit_the_oldest_ended_records_are_dropped_and_counted() {
    let (mut node, mut tracker) = (TrackedNode::new(BIRTH), AllocationTracker::default());
    node.hold("stays");
    for number in 0..WAITING_LIMIT + 10 {
        let pod = format!("p{number}");
        node.hold(&pod);
        node.pass(1);
        node.release(&pod);
        tracker.observe(&node.snapshot());
        node.forget(&pod);
    }
    assert!(tracker.dropped > 0 && tracker.waiting.len() <= WAITING_LIMIT + 1);
    tracker.load(vec![], 0, node.now());
    assert!(tracker.to_write().iter().any(AllocationRecord::is_open), "what is held is not given up");
}

#[test]
fn holdings_over_the_limit_of_waiting_records_are_all_written() {
    let (mut node, mut tracker) = (TrackedNode::new(BIRTH), AllocationTracker::default());
    let count = WAITING_LIMIT + 10;
    (0..count).for_each(|number| node.hold(&format!("p{number}")));
    tracker.load(vec![], 0, node.now());
    tracker.observe(&node.snapshot());
    assert_eq!((tracker.to_write().len(), tracker.dropped), (count, 0));
}

#[derive(Clone, Debug)]
enum TrackerStep {
    Hold(u8),
    Release(u8),
    Pass(u8),
    /// The ledger removes an ended account.
    Forget(u8),
    /// A write succeeds or fails.
    Write(bool),
    /// The agent shuts down, and the next one starts.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<TrackerStep>> {
    let step = prop_oneof![
        3 => (0..3u8).prop_map(TrackerStep::Hold),
        3 => (0..3u8).prop_map(TrackerStep::Release),
        4 => (1..40u8).prop_map(TrackerStep::Pass),
        1 => (0..3u8).prop_map(TrackerStep::Forget),
        3 => any::<bool>().prop_map(TrackerStep::Write),
        1 => Just(TrackerStep::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The journal has every second and joule of the ledger once, for any sequence of holdings and orderly restarts.
    #[test]
    fn no_second_is_lost_or_counted_twice(steps in steps()) {
        let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
        let mut counted = HoldingCounters::default();
        let count = |node: &TrackedNode, name: &str| node.accounts.get(name).map_or(HoldingCounters::default(), |account| account.counters);
        for step in steps {
            let name = |number: u8| format!("p{number}");
            match step {
                TrackerStep::Hold(pod) => node.hold(&name(pod)),
                TrackerStep::Release(pod) => {
                    if node.accounts.get(&name(pod)).is_some_and(|account| account.holding.is_some()) {
                        node.release(&name(pod));
                    }
                }
                TrackerStep::Pass(seconds) => node.pass(seconds.into()),
                TrackerStep::Forget(pod) => {
                    // The ledger does this minutes after the end.
                    tracker.observe(&node.snapshot());
                    if node.accounts.get(&name(pod)).is_some_and(|account| account.holding.is_none()) {
                        counted = counted.plus(count(&node, &name(pod)));
                        node.forget(&name(pod));
                        node.pass(1);
                    }
                }
                TrackerStep::Write(true) => write(&mut disk, &mut tracker),
                TrackerStep::Write(false) => {
                    // The disk refuses the write, while the next snapshot comes.
                    let _ = tracker.to_write();
                    tracker.observe(&node.snapshot());
                }
                TrackerStep::Restart => {
                    tracker.observe(&node.snapshot());
                    tracker.requeue_all();
                    write(&mut disk, &mut tracker);
                    let held: Vec<String> = node.accounts.iter().filter(|(_, one)| one.holding.is_some()).map(|(name, _)| name.clone()).collect();
                    for name in node.accounts.keys() {
                        counted = counted.plus(count(&node, name));
                    }
                    node = TrackedNode::new(node.now().unix.0 + 5.0);
                    tracker = AllocationTracker::default();
                    tracker.load(open(&disk), 0, node.now());
                    for name in held {
                        node.hold(&name);
                    }
                }
            }
            tracker.observe(&node.snapshot());
        }
        for name in node.accounts.keys() {
            counted = counted.plus(count(&node, name));
        }
        let live = tracker.live();
        disk.extend(live);
        let written = disk.values().fold(HoldingCounters::default(), |sum, record| sum.plus(record.counters));
        for (one, other) in [
            (written.allocated_seconds, counted.allocated_seconds),
            (written.busy_seconds, counted.busy_seconds),
            (written.energy_joules, counted.energy_joules),
        ] {
            prop_assert!((one.unwrap_or(0.0) - other.unwrap_or(0.0)).abs() < 1e-6, "{written:?} and {counted:?}");
        }
    }
}
