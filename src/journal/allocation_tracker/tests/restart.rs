//! Holdings across a restart of the agent.

use super::*;

/// The disk after a first agent has observed pod `a` for 40 s and was killed.
fn first_life(uid: Option<&str>) -> BTreeMap<u64, AllocationRecord> {
    let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
    node.uids.extend(uid.map(|uid| ("a".to_owned(), uid.to_owned())));
    node.hold("a");
    tracker.observe(&node.snapshot());
    node.pass(40);
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    disk
}

/// The node of the next agent, 100 s after the start of the first.
fn second_agent() -> TrackedNode {
    TrackedNode::new(BIRTH + 100.0)
}

#[test]
fn a_holding_continues_across_a_restart_with_its_unseen_time() {
    for late in [false, true] {
        let (mut node, mut tracker, mut disk) = (second_agent(), AllocationTracker::default(), first_life(Some("u1")));
        node.uids.insert("a".into(), "u1".into());
        let load = |tracker: &mut AllocationTracker| tracker.load(open(&disk), 0, Moment::default());
        if !late {
            load(&mut tracker);
        }
        node.hold("a");
        tracker.observe(&node.snapshot());
        if late {
            tracker.load(open(&disk), 0, node.now());
        }
        node.pass(20);
        tracker.observe(&node.snapshot());
        node.release("a");
        tracker.observe(&node.snapshot());
        write(&mut disk, &mut tracker);
        let [record] = &disk.values().cloned().collect::<Vec<_>>()[..] else { panic!("one holding: {disk:?}") };
        assert_eq!((record.began, record.ended), (BIRTH, Some(BIRTH + 120.0)));
        assert_eq!(record.counters.allocated_seconds, Some(60.0), "late: {late}");
        assert_eq!((record.counters.held_seconds, record.unseen_seconds, record.agent_restarts), (Some(60.0), 60.0, 1));
    }
}

#[test]
fn another_pod_of_the_name_is_another_holding_also_with_a_late_uid() {
    for learnt_late in [false, true] {
        let (mut node, mut tracker, mut disk) = (second_agent(), AllocationTracker::default(), first_life(Some("u1")));
        tracker.load(open(&disk), 0, node.now());
        if !learnt_late {
            node.uids.insert("a".into(), "u2".into());
        }
        node.hold("a");
        tracker.observe(&node.snapshot());
        node.pass(20);
        tracker.observe(&node.snapshot());
        node.uids.insert("a".into(), "u2".into());
        node.pass(1);
        tracker.observe(&node.snapshot());
        tracker.requeue_all();
        write(&mut disk, &mut tracker);
        let records: Vec<_> = disk.values().collect();
        let ends: Vec<_> = records.iter().map(|record| (record.ended, record.ending)).collect();
        assert_eq!(ends, [(Some(BIRTH + 40.0), Some(Ending::Unseen)), (None, None)], "late: {learnt_late}");
        let allocated: Vec<_> = records.iter().map(|record| record.counters.allocated_seconds).collect();
        assert_eq!(allocated, [Some(40.0), Some(21.0)], "late: {learnt_late}");
        assert_eq!((records[1].began, records[1].unseen_seconds), (BIRTH + 100.0, 0.0));
    }
}

#[test]
fn a_holding_whose_pod_uid_comes_after_it_was_written_is_not_recorded_twice() {
    let (mut node, mut tracker, mut disk) = (second_agent(), AllocationTracker::default(), first_life(Some("u1")));
    tracker.load(open(&disk), 0, node.now());
    node.hold("a");
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    assert_eq!(disk.len(), 2, "it may be another pod");
    node.uids.insert("a".into(), "u1".into());
    node.pass(20);
    tracker.observe(&node.snapshot());
    let unwritten = open(&disk);
    tracker.load(unwritten, 0, node.now());
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    let held: Vec<_> = disk.values().map(|record| record.counters.held_seconds).collect();
    assert_eq!(held, [Some(60.0)]);
}

#[test]
fn a_pod_that_is_replaced_under_its_name_ends() {
    let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
    let of = |uid: &str| test_data::main_of("a").with_uid(Some(uid.into()));
    node.hold("a");
    node.accounts.get_mut("a").expect("held").container = of("u1");
    tracker.observe(&node.snapshot());
    node.pass(5);
    tracker.observe(&node.snapshot());
    // The new pod holds the device from now on; the last second of the old one is read after that.
    let now = node.now();
    let old = node.accounts.remove("a").expect("held");
    node.accounts.insert("old".into(), Account { holding: None, ended: Some(now), ..old });
    node.hold("a");
    node.accounts.get_mut("a").expect("held").container = of("u2");
    tracker.observe(&node.snapshot());
    gain(node.accounts.get_mut("old").expect("ended"), 1.0);
    node.pass(6);
    tracker.observe(&node.snapshot());
    tracker.requeue_all();
    write(&mut disk, &mut tracker);
    let records: Vec<_> = disk.values().collect();
    let ends: Vec<_> = records.iter().map(|record| (record.ended, record.ending)).collect();
    assert_eq!(ends, [(Some(BIRTH + 5.0), Some(Ending::Replaced)), (None, None)]);
    let allocated: Vec<_> = records.iter().map(|record| record.counters.allocated_seconds).collect();
    assert_eq!(allocated, [Some(6.0), Some(6.0)], "each has its own");
    let uids: Vec<_> = records.iter().map(|record| record.pod_uid.as_deref()).collect();
    assert_eq!(uids, [Some("u1"), Some("u2")]);
    assert_eq!(records[1].began, BIRTH + 5.0);
}

#[test]
fn a_holding_that_ended_during_a_restart_ends_once_the_kubelet_has_responded() {
    let (mut node, mut tracker, mut disk) = (second_agent(), AllocationTracker::default(), first_life(None));
    tracker.load(open(&disk), 0, node.now());
    node.settled = false;
    tracker.observe(&node.snapshot());
    assert_eq!(tracker.to_write(), [], "not before the kubelet has responded");
    node.settled = true;
    node.hold("b");
    assert!(tracker.observe(&node.snapshot()));
    write(&mut disk, &mut tracker);
    let record = disk.values().next().expect("one");
    assert_eq!((record.ended, record.ending), (Some(BIRTH + 40.0), Some(Ending::Unseen)));
    assert_eq!(record.counters.allocated_seconds, Some(40.0));
}

#[test]
fn a_kubelet_that_lists_no_pod_yet_ends_no_holding_of_an_earlier_agent() {
    let (mut node, mut tracker) = (second_agent(), AllocationTracker::default());
    tracker.load(open(&first_life(None)), 0, node.now());
    for _ in 0..3 {
        tracker.observe(&node.snapshot());
        node.pass(10);
    }
    assert_eq!(tracker.to_write(), []);
    // A kubelet that starts again in between does not count.
    node.settled = false;
    tracker.observe(&node.snapshot());
    node.settled = true;
    for _ in 0..3 {
        assert!(!tracker.observe(&node.snapshot()));
        node.pass(10);
    }
    assert!(tracker.observe(&node.snapshot()), "it has started");
    assert_eq!(tracker.to_write().len(), 1);
}

/// The lock of the first agent was replaced, and the second, which had it meanwhile, has ended.
#[test]
fn an_agent_that_gets_the_file_again_continues_what_another_one_began() {
    let (mut node, mut tracker, mut disk) = (TrackedNode::new(BIRTH), loaded(), BTreeMap::new());
    node.hold("a");
    tracker.observe(&node.snapshot());
    write(&mut disk, &mut tracker);
    node.pass(10);
    node.hold("b");
    tracker.observe(&node.snapshot());
    let (mut beside, mut other) = (TrackedNode::new(BIRTH + 11.0), AllocationTracker::default());
    other.load(open(&disk), 0, beside.now());
    beside.hold("a");
    beside.hold("b");
    other.observe(&beside.snapshot());
    beside.pass(20);
    other.observe(&beside.snapshot());
    other.requeue_all();
    write(&mut disk, &mut other);
    node.pass(30);
    tracker.observe(&node.snapshot());
    tracker.load(open(&disk), 0, node.now());
    node.pass(10);
    tracker.observe(&node.snapshot());
    tracker.requeue_all();
    write(&mut disk, &mut tracker);
    let held: Vec<_> = disk
        .values()
        .map(|record| (&*record.pod, record.began, record.counters.held_seconds, record.is_open()))
        .collect();
    assert_eq!(held, [("a", BIRTH, Some(50.0), true), ("b", BIRTH + 10.0, Some(40.0), true)]);
}

#[test]
fn time_observed_by_two_agents_counts_once() {
    // The next agent starts while the first still writes, and gets the file when that one ends.
    let (mut node, mut tracker, mut disk) =
        (TrackedNode::new(BIRTH + 20.0), AllocationTracker::default(), first_life(None));
    node.hold("a");
    tracker.observe(&node.snapshot());
    node.pass(25);
    tracker.observe(&node.snapshot());
    tracker.load(open(&disk), 0, node.now());
    node.pass(15);
    tracker.observe(&node.snapshot());
    tracker.requeue_all();
    write(&mut disk, &mut tracker);
    let [record] = &disk.values().cloned().collect::<Vec<_>>()[..] else { panic!("one holding: {disk:?}") };
    assert_eq!(record.counters.allocated_seconds, Some(60.0), "from 0 to 60, each second once");
    assert_eq!(record.unseen_seconds, 0.0);
}

/// Each start used to add "unhealthy (unknown); healthy (unknown)" to every open holding.
#[test]
fn the_first_check_of_an_agent_is_a_change_only_if_it_differs_from_the_last_state() {
    let (lost, unknown) = (Some(UnhealthyReason::Lost), Some(UnhealthyReason::Unknown));
    let mut disk = first_life(None);
    let mut expected = vec![];
    for restart in 1..=20 {
        let (mut node, mut tracker) =
            (TrackedNode::new(BIRTH + f64::from(restart) * 100.0), AllocationTracker::default());
        tracker.load(open(&disk), 0, node.now());
        // While agent 3 runs, the device is lost; agents 4 and 5 find it lost, and agent 6 healthy.
        let first_check = lost.filter(|_| [4, 5].contains(&restart));
        for (health, known) in [(unknown, false), (first_check, false)] {
            node.turn(health, known);
            node.hold("a");
            tracker.observe(&node.snapshot());
            node.pass(1);
        }
        if restart == 3 {
            node.turn(lost, true);
            tracker.observe(&node.snapshot());
            expected.push((false, BIRTH + 302.0));
        }
        expected.extend((restart == 6).then_some((true, BIRTH + 601.0)));
        tracker.requeue_all();
        write(&mut disk, &mut tracker);
        let record = disk.values().next().expect("one holding");
        let events: Vec<_> = record.health.iter().map(|event| (event.healthy, event.at)).collect();
        assert_eq!((disk.len(), events), (1, expected.clone()), "restart {restart}");
    }
    assert!(disk.values().flat_map(|record| &record.health).all(|event| &*event.reason == "lost"));
}
