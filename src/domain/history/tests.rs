use std::sync::Arc;

use super::*;
use crate::domain::model::{
    Account, ContainerRef, HardwareState, HealthState, HealthTransition, HoldingCounters, KubeletState, PluginState,
    RecentCount, UnattributedReason, UnhealthyReason, UnixSeconds, XidClass, XidCount,
};
use crate::serve::metrics::tests::fixture;

/// The fixture, this many seconds later.
fn later(seconds: u64) -> Snapshot {
    let mut snapshot = fixture::snapshot();
    let monotonic = snapshot.at.monotonic + std::time::Duration::from_secs(seconds);
    snapshot.at = Moment { monotonic, unix: UnixSeconds(snapshot.at.unix.0 + seconds as f64) };
    snapshot
}

fn change<T: Clone>(shared: &mut Arc<T>, change: impl FnOnce(&mut T)) {
    change(Arc::make_mut(shared));
}

fn texts(history: &NodeHistory) -> Vec<String> {
    history
        .events()
        .map(|event| {
            let containers: Vec<String> = event.containers.iter().map(ToString::to_string).collect();
            format!("{} {:?} {} [{}]", event.kind.into_str(), event.severity, event.text, containers.join(" "))
        })
        .collect()
}

#[test]
fn the_first_snapshot_has_no_events() {
    let mut history = NodeHistory::default();
    history.add(&later(0));
    history.add(&later(1));
    assert_eq!(texts(&history), Vec::<String>::new());

    let mut history = NodeHistory::default();
    history.add(&Snapshot::default());
    history.add(&later(0));
    let texts = texts(&history);
    assert!(texts.iter().all(|event| !event.starts_with("allocation")), "they held before the start: {texts:?}");
}

#[test]
fn an_allocation_and_its_end_are_events_with_all_devices() {
    let mut history = NodeHistory::default();
    history.add(&later(0));
    let mut without = later(1);
    let holder = ContainerRef::new("research", "training-0", "main");
    let accounts: Vec<Account> = without.accounts.clone();
    without.accounts.retain(|account| account.container != holder);
    assert_ne!(without.accounts.len(), accounts.len());
    history.add(&without);
    history.add(&later(2));
    let both = ["allocation Plain allocated", "allocation Plain released"]
        .map(|text| format!("{text} [research/training-0/main]"));
    assert_eq!(texts(&history), both);
    assert_eq!(history.events().next().unwrap().devices.first().unwrap().gpu.as_str(), fixture::WHOLE);
}

#[test]
fn a_health_transition_is_one_event_with_its_holders() {
    let mut history = NodeHistory::default();
    let mut first = later(0);
    change(&mut first.health, |health: &mut HealthState| health.transitions.clear());
    history.add(&first);
    let transition = |number, to_healthy| HealthTransition {
        number,
        gpu: fixture::WHOLE.into(),
        mig: None,
        to_healthy,
        reason: UnhealthyReason::Xid,
        detail: "XID 79 (the GPU has fallen off the bus)".into(),
        at: first.at,
        holders: vec![ContainerRef::new("research", "training-0", "main")],
    };
    let mut sick = later(1);
    change(&mut sick.health, |health| health.transitions = vec![transition(7, false), transition(8, true)]);
    history.add(&sick);
    history.add(&sick);
    assert_eq!(
        texts(&history),
        [
            "health Good healthy again; it was: XID 79 (the GPU has fallen off the bus) [research/training-0/main]",
            "health Bad unhealthy: XID 79 (the GPU has fallen off the bus) [research/training-0/main]",
        ]
    );
}

#[test]
fn new_xids_are_an_event_with_their_number() {
    let mut history = NodeHistory::default();
    history.add(&later(0));
    let mut more = later(1);
    let (recent, last_of) = (RecentCount::default(), BTreeMap::new());
    let last = XidCount { class: XidClass::GpuReset, at: more.at, count: 2, recent, last_of };
    change(&mut more.health, |health| {
        let gpu = health.gpus.get_mut(&fixture::WHOLE.into()).unwrap();
        gpu.xids.by_code.insert(79, last);
    });
    history.add(&more);
    history.add(&more);
    assert_eq!(texts(&history), ["xid Bad XID 79 (gpu reset), 2 times []"]);
}

#[test]
fn changes_of_kubelet_plugin_and_driver_are_events() {
    let mut history = NodeHistory::default();
    history.add(&later(0));
    let mut gone = later(1);
    change(&mut gone.kubelet, |kubelet: &mut KubeletState| kubelet.problem = Some("no socket".into()));
    change(gone.plugin.as_mut().unwrap(), |plugin: &mut PluginState| {
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().registered = false;
    });
    change(&mut gone.hardware, |hardware: &mut HardwareState| hardware.problem = Some("no library".into()));
    history.add(&gone);
    let mut back = later(2);
    change(back.plugin.as_mut().unwrap(), |plugin| {
        plugin.kubelet_restarts += 1;
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().registrations += 1;
    });
    change(&mut back.hardware, |hardware| hardware.driver_loads += 1);
    history.add(&back);
    let problem = |snapshot: &Snapshot| snapshot.hardware.problem.clone();
    assert_eq!(problem(&later(0)), None, "the fixture's driver responds");
    assert_eq!(
        texts(&history),
        [
            "plugin Good nvidia.com/gpu: registered with the kubelet []",
            "kubelet Good the kubelet responds []",
            "kubelet Plain the kubelet was restarted []",
            "driver Good the driver responds []",
            "driver Plain the driver was loaded again []",
            "plugin Plain nvidia.com/gpu: the registration with the kubelet ended []",
            "kubelet Bad no response from the kubelet: no socket []",
            "driver Bad no response from the driver: no library []",
        ]
    );
}

#[test]
fn the_feed_is_bounded() {
    let mut history = NodeHistory::default();
    for second in 0..1_000 {
        let mut snapshot = later(second);
        if second % 2 == 1 {
            change(&mut snapshot.kubelet, |kubelet| kubelet.problem = Some("no socket".into()));
        }
        history.add(&snapshot);
    }
    assert_eq!(history.events().len(), EVENTS);
    assert_eq!(history.events().next().unwrap().number, 999);
}

#[test]
fn points_are_the_readings_and_are_dropped_with_the_device() {
    let mut history = NodeHistory::default();
    let snapshot = later(0);
    history.add(&snapshot);
    let readings = &snapshot.hardware.readings[&fixture::WHOLE.into()];
    let fast = &readings.fast.as_ref().unwrap().value;
    let point = history.points(&fixture::WHOLE.into(), None).unwrap().iter().last().unwrap();
    assert_eq!(point.busy.map(|busy| busy as f32), fast.utilization_ratio.map(|busy| busy as f32));
    assert_eq!(point.power.map(|power| power as f32), fast.power_watts.map(|power| power as f32));
    assert!(history.points(&fixture::PARTITIONED.into(), Some(&fixture::SLICE.into())).is_some());
    let lost = history.points(&fixture::LOST.into(), None).unwrap().iter().last().unwrap();
    assert_eq!(lost, Point::default(), "absent, not zero");

    let mut empty = later(1_900);
    change(&mut empty.hardware, |hardware| hardware.inventory = Arc::default());
    history.add(&empty);
    assert_eq!(history.devices().count(), 0);
}

#[test]
fn a_division_is_counter_differences_of_the_window() {
    let mut history = NodeHistory::default();
    let gpu = GpuUuid::from(fixture::WHOLE);
    // The arguments are the counters of the holder and of processes outside of pods, and the seconds without samples.
    let at = |seconds: u64, holder: f64, host: f64, uncovered: f64| {
        let mut snapshot = later(seconds);
        snapshot.accounts.retain(|account| account.gpu == gpu);
        snapshot.accounts.truncate(1);
        snapshot.accounts[0].counters.busy_seconds = Some(holder);
        snapshot.accounts[0].counters.idle_seconds = Some(seconds as f64 - holder);
        snapshot.accounts[0].counters.allocated_seconds = Some(seconds as f64);
        snapshot.accounts[0].counters.uncovered_seconds = Some(0.0);
        snapshot.unattributed.retain(|unattributed| unattributed.gpu == gpu);
        snapshot.unattributed[0].busy_seconds = [(UnattributedReason::Host, host)].into();
        let complete_until = snapshot.at.monotonic;
        change(&mut snapshot.hardware, |hardware| {
            let totals = &mut Arc::make_mut(hardware.readings.get_mut(&gpu).unwrap()).totals;
            (totals.complete_until, totals.uncovered_seconds) = (complete_until, uncovered);
        });
        snapshot
    };
    history.add(&at(0, 0.0, 0.0, 0.0));
    assert_eq!(history.division(&gpu, Window::Minute), None);
    for second in 1..=600_u64 {
        // The holder is busy for the first 300 s, the host for the last 6 s; 3 s of the last 60 are unknown.
        let (busy, host) = (second.min(300) as f64, second.saturating_sub(594) as f64);
        history.add(&at(second, busy, host, second.saturating_sub(590).min(3) as f64));
    }
    let now = at(600, 300.0, 6.0, 3.0);
    let container = ShareOwner::Container(now.accounts[0].container.clone());
    let of = |window, part: &ShareOwner| (history.division(&gpu, window).unwrap().busy[part] * 100.0).round();
    // A window is nine to ten steps long: here the last minute is 54 s.
    assert_eq!(
        (of(Window::Minute, &container), of(Window::Minute, &ShareOwner::Unattributed(UnattributedReason::Host))),
        (0.0, 11.0)
    );
    assert_eq!(of(Window::HalfHour, &container), 50.0);
    assert_eq!((history.division(&gpu, Window::Minute).unwrap().uncovered * 100.0).round(), 5.0);
    let idle = |window| history.idle_ratio(&now.accounts[0], window).map(|idle| (idle * 100.0).round());
    assert_eq!((idle(Window::Minute), idle(Window::HalfHour)), (Some(100.0), Some(50.0)));
    assert_eq!(history.division(&fixture::LOST.into(), Window::Minute).unwrap().uncovered, 1.0, "no readings");
    assert_eq!(history.division(&fixture::PARTITIONED.into(), Window::Minute).unwrap().uncovered, 1.0, "no busy time");
    // More busy time than has passed counts as the whole.
    let mut history = NodeHistory::default();
    history.add(&at(0, 0.0, 0.0, 0.0));
    history.add(&at(5, 8.0, 2.0, 0.0));
    let whole: Vec<f64> = history.division(&gpu, Window::Minute).unwrap().busy.into_values().collect();
    assert_eq!(whole, [0.8, 0.2]);
    // A holder that has left the snapshot is forgotten.
    let mut without = at(6, 8.0, 2.0, 0.0);
    let left = without.accounts.pop().unwrap();
    history.add(&without);
    assert_eq!(history.idle_ratio(&left, Window::Minute), None);
}

#[test]
fn a_gap_changes_no_idle_ratio_and_leaves_none_in_a_window_without_readings() {
    let mut history = NodeHistory::default();
    let mut counters = HoldingCounters { idle_seconds: Some(0.0), ..HoldingCounters::default() };
    let (mut allocated, mut uncovered) = (0.0, 0.0);
    let mut idle_at = |second: u64, is_read: bool| {
        let mut snapshot = later(second);
        allocated += 1.0 / 3.0;
        if is_read {
            counters.idle_seconds = Some(allocated);
        } else {
            uncovered += 1.0 / 3.0;
        }
        counters =
            HoldingCounters { allocated_seconds: Some(allocated), uncovered_seconds: Some(uncovered), ..counters };
        snapshot.accounts.truncate(1);
        snapshot.accounts[0].counters = counters;
        history.add(&snapshot);
        history.idle_ratio(&snapshot.accounts[0], Window::Minute)
    };
    assert_eq!(idle_at(0, true), None);
    for second in 1..250 {
        let idle = idle_at(second, second < 200);
        assert!(idle.is_some_and(|idle| (idle - 1.0).abs() < 1e-3), "{second}: {idle:?}");
    }
    assert_eq!((260..600).find_map(|second| idle_at(second, false)), None);
}

#[test]
fn a_gap_is_uncovered_also_where_the_first_readings_came_late() {
    let mut history = NodeHistory::default();
    let gpu = GpuUuid::from(fixture::WHOLE);
    let mut note = |second: u64, uncovered: Option<f64>| {
        let mut snapshot = later(second);
        let complete_until = snapshot.at.monotonic;
        change(&mut snapshot.hardware, |hardware| match uncovered {
            Some(seconds) => {
                let totals = &mut Arc::make_mut(hardware.readings.get_mut(&gpu).unwrap()).totals;
                (totals.complete_until, totals.uncovered_seconds) = (complete_until, seconds);
            }
            None => drop(hardware.readings.remove(&gpu)),
        });
        history.add(&snapshot);
        history.division(&gpu, Window::HalfHour).map(|division| (division.uncovered * second as f64).round())
    };
    note(0, None);
    assert_eq!(note(100, None), Some(100.0));
    // The driver's total begins with the first readings.
    assert_eq!(note(101, Some(0.0)), Some(100.0));
    assert_eq!(note(151, Some(50.0)), Some(150.0), "a gap that only the total has");
    assert_eq!(note(171, None), Some(170.0));
    assert_eq!(note(172, Some(70.0)), Some(170.0), "a gap is not counted twice");
    assert_eq!(note(182, Some(70.0)), Some(170.0));
}

#[test]
fn in_json_each_quantity_is_a_list_with_null_for_absent() {
    let mut history = NodeHistory::default();
    history.add(&later(0));
    history.add(&later(1));
    let json = serde_json::to_value(crate::serve::api::HistoryResponse::from(&history)).unwrap();
    assert_eq!(json["interval_seconds"], 1);
    let lost = json["devices"].as_array().unwrap().iter().find(|device| device["gpu"] == fixture::LOST).unwrap();
    let absent = serde_json::json!([null, null]);
    assert_eq!((&lost["mig"], &lost["busy_ratio"], &lost["power_watts"]), (&serde_json::Value::Null, &absent, &absent));
    assert_eq!(lost["seconds_ago"], 0);
    assert!(json["events"].as_array().unwrap().is_empty());
}

#[test]
fn a_young_history_has_only_the_columns_since_it_began_and_ratios_of_the_known_time() {
    let mut history = NodeHistory::default();
    (0..=12).for_each(|second| history.add(&later(second)));
    let columns = |window| history.columns(&fixture::WHOLE.into(), None, window);
    assert_eq!([Window::Minute, Window::FiveMinutes].map(|window| columns(window).len()), [13, 3]);
    assert!(columns(Window::FiveMinutes).last().unwrap().busy.is_some());
    let division = WindowShares { uncovered: 0.5, ..WindowShares::default() };
    assert_eq!(division.known_ratio(0.25), Some(0.5));
    assert_eq!(WindowShares { uncovered: 1.0, ..division }.known_ratio(0.0), None);
}
