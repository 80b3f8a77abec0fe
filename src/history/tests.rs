use std::sync::Arc;

use super::*;
use crate::metrics::tests::fixture;
use crate::model::{
    Account, ContainerRef, DeviceReadings, HardwareState, HealthState, HealthTransition, KubeletState, LastXid,
    Monotonic, PluginState, Reason, UnhealthyReason, UnixSeconds, XidClass,
};

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

fn texts(history: &History) -> Vec<String> {
    history
        .events()
        .map(|event| {
            let containers: Vec<String> = event.containers.iter().map(ToString::to_string).collect();
            format!("{} {:?} {} [{}]", event.kind.as_str(), event.severity, event.text, containers.join(" "))
        })
        .collect()
}

#[test]
fn the_first_snapshot_has_no_events() {
    let mut history = History::default();
    history.note(&later(0));
    history.note(&later(1));
    assert_eq!(texts(&history), Vec::<String>::new());

    let mut history = History::default();
    history.note(&Snapshot::default());
    history.note(&later(0));
    let texts = texts(&history);
    assert!(texts.iter().all(|event| !event.starts_with("allocation")), "they held before the start: {texts:?}");
}

#[test]
fn an_allocation_and_its_end_are_events_with_all_devices() {
    let mut history = History::default();
    history.note(&later(0));
    let mut without = later(1);
    let holder = ContainerRef::new("research", "training-0", "main");
    let accounts: Vec<Account> = without.accounts.clone();
    without.accounts.retain(|account| account.container != holder);
    assert_ne!(without.accounts.len(), accounts.len());
    history.note(&without);
    history.note(&later(2));
    let both = ["allocation Plain allocated", "allocation Plain released"]
        .map(|text| format!("{text} [research/training-0/main]"));
    assert_eq!(texts(&history), both);
    assert_eq!(history.events().next().unwrap().devices.first().unwrap().gpu.as_str(), fixture::WHOLE);
}

#[test]
fn a_health_transition_is_one_event_with_its_holders() {
    let mut history = History::default();
    let mut first = later(0);
    change(&mut first.health, |health: &mut HealthState| health.transitions.clear());
    history.note(&first);
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
    history.note(&sick);
    history.note(&sick);
    assert_eq!(
        texts(&history),
        [
            "health Good healthy again; it was: XID 79 (the GPU has fallen off the bus) [research/training-0/main]",
            "health Bad unhealthy: XID 79 (the GPU has fallen off the bus) [research/training-0/main]",
        ]
    );
}

#[test]
fn xids_are_counted_over_their_sources() {
    let mut history = History::default();
    history.note(&later(0));
    let mut more = later(1);
    let last = LastXid { class: XidClass::GpuReset, at: more.at, process: None, count: 2 };
    change(&mut more.health, |health| {
        let gpu = health.gpus.get_mut(&fixture::WHOLE.into()).unwrap();
        gpu.xids.last.insert(79, [("nvml", last.clone()), ("kmsg", last)].into());
    });
    history.note(&more);
    history.note(&more);
    assert_eq!(texts(&history), ["xid Bad XID 79 (gpu reset), 4 times []"]);
}

#[test]
fn changes_of_kubelet_plugin_and_driver_are_events() {
    let mut history = History::default();
    history.note(&later(0));
    let mut gone = later(1);
    change(&mut gone.kubelet, |kubelet: &mut KubeletState| kubelet.problem = Some("no socket".into()));
    change(gone.plugin.as_mut().unwrap(), |plugin: &mut PluginState| {
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().registered = false;
    });
    change(&mut gone.hardware, |hardware: &mut HardwareState| hardware.problem = Some("no library".into()));
    history.note(&gone);
    let mut back = later(2);
    change(back.plugin.as_mut().unwrap(), |plugin| {
        plugin.kubelet_restarts += 1;
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().registrations += 1;
    });
    change(&mut back.hardware, |hardware| hardware.driver_loads += 1);
    history.note(&back);
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
    let mut history = History::default();
    for second in 0..1_000 {
        let mut snapshot = later(second);
        if second % 2 == 1 {
            change(&mut snapshot.kubelet, |kubelet| kubelet.problem = Some("no socket".into()));
        }
        history.note(&snapshot);
    }
    assert_eq!(history.events().len(), EVENTS);
    assert_eq!(history.events().next().unwrap().number, 999);
}

#[test]
fn points_are_the_readings_and_are_dropped_with_the_device() {
    let mut history = History::default();
    let snapshot = later(0);
    history.note(&snapshot);
    let readings = &snapshot.hardware.readings[&fixture::WHOLE.into()];
    let fast = &readings.fast.as_ref().unwrap().value;
    let point = history.points(&fixture::WHOLE.into(), None).unwrap().iter().last().unwrap();
    assert_eq!(point.busy.map(|busy| busy as f32), fast.utilization_ratio.map(|busy| busy as f32));
    assert_eq!(point.power.map(|power| power as f32), fast.power_watts.map(|power| power as f32));
    assert!(history.points(&fixture::PARTITIONED.into(), Some(&fixture::SLICE.into())).is_some());
    let lost = history.points(&fixture::LOST.into(), None).unwrap().iter().last().unwrap();
    assert_eq!(lost, Point::default(), "absent, not zero");

    let mut empty = later(400);
    change(&mut empty.hardware, |hardware| hardware.inventory = Arc::default());
    history.note(&empty);
    assert_eq!(history.devices().count(), 0);
}

#[test]
fn portions_are_counter_differences_of_the_last_seconds() {
    let mut history = History::default();
    let gpu = GpuUuid::from(fixture::WHOLE);
    let at = |seconds: u64, holder: f64, host: f64| {
        let mut snapshot = later(seconds);
        snapshot.accounts.retain(|account| account.gpu == gpu);
        snapshot.accounts.truncate(1);
        snapshot.accounts[0].figures.busy_seconds = Some(holder);
        snapshot.unattributed.retain(|unattributed| unattributed.gpu == gpu);
        snapshot.unattributed[0].busy_seconds = [(Reason::Host, host)].into();
        snapshot
    };
    history.note(&at(0, 100.0, 0.0));
    history.note(&at(4, 102.0, 1.0));
    let now = at(5, 102.5, 1.0);
    history.note(&now);
    let ratios = |portions: Option<Vec<Portion>>| {
        portions.unwrap().into_iter().map(|portion| (portion.part, (portion.ratio * 100.0).round())).collect::<Vec<_>>()
    };
    let container = Part::Container(now.accounts[0].container.clone());
    let parts = |holder, host| vec![(container.clone(), holder), (Part::Unattributed(Reason::Host), host)];
    assert_eq!(ratios(history.busy_portions(&now, &gpu)), parts(50.0, 20.0));
    let ahead = at(5, 105.0, 5.0);
    assert_eq!(ratios(history.busy_portions(&ahead, &gpu)), parts(50.0, 50.0), "never more than the whole");
    // Use before the last two steps of the window does not count.
    history.note(&at(10, 110.0, 1.0));
    history.note(&at(20, 110.0, 1.0));
    let now = at(30, 110.0, 3.0);
    history.note(&now);
    assert_eq!(ratios(history.busy_portions(&now, &gpu)), parts(0.0, 20.0));
    assert_eq!(history.busy_portions(&now, &fixture::LOST.into()), None);
    assert_eq!(now.at.monotonic, Monotonic::from_secs(630));
    // A GPU without readings, and one with eight uncovered seconds.
    let with = |seconds: u64, change_of: fn(&mut DeviceReadings)| {
        let mut snapshot = at(seconds, 111.0, 1.0);
        change(&mut snapshot.hardware, |hardware| {
            change_of(Arc::make_mut(hardware.readings.get_mut(&gpu).unwrap()));
        });
        snapshot
    };
    assert_eq!(history.busy_portions(&with(30, |readings| readings.fast = None), &gpu), None);
    let read_in_part = with(30, |readings| readings.totals.uncovered_seconds += 8.0);
    assert_eq!(ratios(history.busy_portions(&read_in_part, &gpu)), parts(50.0, 0.0));
}

#[test]
fn in_json_each_quantity_is_a_list_with_null_for_absent() {
    let mut history = History::default();
    history.note(&later(0));
    history.note(&later(1));
    let json = serde_json::to_value(&history).unwrap();
    assert_eq!(json["interval_seconds"], 1);
    let lost = json["devices"].as_array().unwrap().iter().find(|device| device["gpu"] == fixture::LOST).unwrap();
    let absent = serde_json::json!([null, null]);
    assert_eq!((&lost["mig"], &lost["busy_ratio"], &lost["power_watts"]), (&serde_json::Value::Null, &absent, &absent));
    assert_eq!(lost["seconds_ago"], 0);
    assert!(json["events"].as_array().unwrap().is_empty());
}
