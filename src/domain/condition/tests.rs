use std::sync::Arc;
use std::time::Duration;

use super::message::BYTES;
use super::*;
use crate::domain::model::{HealthState, Monotonic};
use crate::serve::metrics::tests::fixture::{self, LOST, PARTITIONED, WHOLE};

const LAST_PASS: Monotonic = Monotonic::from_secs(7);

/// All devices healthy and read now.
fn healthy() -> Snapshot {
    let mut snapshot = fixture::snapshot();
    let at = snapshot.at;
    for health in Arc::make_mut(&mut snapshot.health).gpus.values_mut() {
        for device in std::iter::once(&mut health.whole).chain(health.mig_devices.values_mut()) {
            (device.healthy, device.causes) = (true, vec![]);
        }
    }
    let hardware = Arc::make_mut(&mut snapshot.hardware);
    let whole = Arc::clone(&hardware.readings[&WHOLE.into()]);
    hardware.readings.insert(LOST.into(), whole);
    for readings in hardware.readings.values_mut() {
        let readings = Arc::make_mut(readings);
        (readings.lost, readings.stuck) = (false, false);
        readings.fast.as_mut().expect("in the fixture").at = at.monotonic;
        readings.totals.complete_until = LAST_PASS;
    }
    hardware.problem = None;
    hardware.released = None;
    snapshot
}

fn condition(snapshot: &Snapshot) -> NodeCondition {
    NodeCondition::assess(snapshot, snapshot.at)
}

fn fail(snapshot: &mut Snapshot, gpu: &str, reason: UnhealthyReason, detail: &str) {
    let at = snapshot.at;
    let whole = &mut Arc::make_mut(&mut snapshot.health).gpus.get_mut(&gpu.into()).expect("known").whole;
    let cause = HealthCause { reason, detail: detail.into(), clears: "recovers after an unmark".into() };
    (whole.healthy, whole.since, whole.causes) = (false, at, vec![cause]);
}

#[test]
fn a_healthy_node_is_healthy_with_current_readings_only() {
    let mut snapshot = healthy();
    let now = condition(&snapshot);
    assert_eq!(
        (now.status, &*now.message, now.healthy_gpus),
        (ConditionStatus::Healthy, "3 GPUs are healthy", 3),
        "{now:?}"
    );
    assert_eq!(now.until - now.written, 60);
    let mut single = snapshot.clone();
    Arc::make_mut(&mut single.health).gpus.retain(|gpu, _| *gpu == WHOLE.into());
    assert_eq!(condition(&single).message, "1 GPU is healthy");

    let later = |seconds| Moment { monotonic: snapshot.at.monotonic + Duration::from_secs(seconds), ..snapshot.at };
    assert_eq!(NodeCondition::assess(&snapshot, later(15)).status, ConditionStatus::Healthy);
    let old = NodeCondition::assess(&snapshot, later(16));
    assert_eq!((old.status, &*old.message), (ConditionStatus::Unknown, "podmeter no longer publishes its state"));

    // Readings that have ended, and snapshots that have not.
    snapshot.at.monotonic = snapshot.at.monotonic + Duration::from_secs(91);
    let unread = condition(&snapshot);
    assert_eq!((unread.status, unread.devices.len(), unread.healthy_gpus), (ConditionStatus::Unknown, 3, 0));
    assert_eq!(unread.devices[0].reasons[0].reason, "no_readings");
    let last_read = Timestamp(snapshot.health.gpus[&WHOLE.into()].whole.since.unix_at(LAST_PASS));
    let device = unread.devices.iter().find(|device| device.gpu_uuid == WHOLE.into()).expect("in the fixture");
    assert_eq!(device.since, last_read.to_string(), "not since the GPU is healthy");
}

#[test]
fn what_is_not_known_is_never_healthy() {
    type Change = fn(&mut Snapshot);
    let changes: [(&str, Change); 7] = [
        ("cannot be loaded", |snapshot| {
            Arc::make_mut(&mut snapshot.hardware).problem = Some("the library cannot be loaded".into());
        }),
        ("without a driver", |snapshot| Arc::make_mut(&mut snapshot.hardware).source = HardwareSource::None),
        ("released", |snapshot| {
            let released = crate::domain::model::Released { since: snapshot.at, until: snapshot.at };
            Arc::make_mut(&mut snapshot.hardware).released = Some(released);
        }),
        ("not been read yet", |snapshot| {
            let hardware = Arc::make_mut(&mut snapshot.hardware);
            Arc::make_mut(&mut hardware.inventory).generation = 0;
        }),
        ("lists no GPU", |snapshot| snapshot.health = Arc::new(HealthState::default())),
        ("no_readings", |snapshot| Arc::make_mut(&mut snapshot.hardware).readings.clear()),
        ("unknown since", |snapshot| fail(snapshot, WHOLE, UnhealthyReason::Unknown, "not checked yet")),
    ];
    for (part, change) in changes {
        let mut snapshot = healthy();
        change(&mut snapshot);
        let condition = condition(&snapshot);
        assert_eq!(condition.status, ConditionStatus::Unknown, "{part}");
        assert!(condition.message.contains(part), "{part}: {}", condition.message);
    }
    assert_eq!(
        NodeCondition::assess(&Snapshot::default(), Moment::default()).status,
        ConditionStatus::Unknown,
        "before the start"
    );
}

#[test]
fn an_unhealthy_gpu_is_named_with_its_pods_and_the_drivers_request() {
    let mut snapshot = healthy();
    fail(&mut snapshot, WHOLE, UnhealthyReason::Xid, "XID 79 (\"fallen off the bus\")");
    let hardware = Arc::make_mut(&mut snapshot.hardware);
    let readings = Arc::make_mut(hardware.readings.get_mut(&WHOLE.into()).unwrap());
    readings.slow.as_mut().unwrap().value.recovery_action = Some(2);
    let condition = condition(&snapshot);
    assert_eq!((condition.status, condition.devices.len()), (ConditionStatus::Unhealthy, 1));
    let device = &condition.devices[0];
    assert_eq!((device.gpu, device.recovery_action.as_deref()), (Some(0), Some("node_reboot")));
    let pods = device.pods.as_ref().expect("the kubelet has answered");
    assert!(!pods.is_empty() && pods.iter().all(|pod| condition.message.contains(pod)), "{}", condition.message);
    let start = format!("GPU 0 ({WHOLE}): xid since {}; action node_reboot; pods ", device.since);
    assert!(condition.message.starts_with(&start), "{}", condition.message);
    assert!(condition.message.ends_with("; XID 79 (fallen off the bus)"), "{}", condition.message);

    // It stays a fault while other data is missing.
    Arc::make_mut(&mut snapshot.hardware).problem = Some("the driver does not answer".into());
    let now = self::condition(&snapshot);
    assert_eq!(now.status, ConditionStatus::Unhealthy);
    assert!(now.message.contains("xid since") && now.message.ends_with("| the driver does not answer"));

    snapshot.kubelet = Arc::default();
    assert_eq!(self::condition(&snapshot).devices[0].pods, None);
    assert!(self::condition(&snapshot).message.contains("pods unknown"));
}

#[test]
fn a_marked_gpu_is_named_and_needs_no_repair() {
    let mut snapshot = healthy();
    fail(&mut snapshot, WHOLE, UnhealthyReason::Admin, "noisy fan");
    let marked = condition(&snapshot);
    assert_eq!(
        (marked.status, marked.healthy_gpus, marked.devices[0].status),
        (ConditionStatus::Healthy, 2, ConditionStatus::Marked)
    );
    assert!(marked.message.starts_with(&format!("2 GPUs are healthy | GPU 0 ({WHOLE}): admin since ")), "{marked:?}");

    // A mark hides nothing else.
    let mut faulty = snapshot.clone();
    let whole = &mut Arc::make_mut(&mut faulty.health).gpus.get_mut(&WHOLE.into()).expect("known").whole;
    whole.causes.push(HealthCause { reason: UnhealthyReason::Lost, ..whole.causes[0].clone() });
    assert_eq!(condition(&faulty).status, ConditionStatus::Unhealthy);
    Arc::make_mut(&mut snapshot.hardware).readings.remove(&WHOLE.into());
    assert_eq!(condition(&snapshot).status, ConditionStatus::Unknown);
}

#[test]
fn a_mig_device_is_named_where_its_gpu_is_healthy() {
    let mut snapshot = healthy();
    let gpus = &mut Arc::make_mut(&mut snapshot.health).gpus;
    let parts = &mut gpus.get_mut(&PARTITIONED.into()).unwrap().mig_devices;
    let (uuid, part) = parts.iter_mut().next().expect("partitioned");
    let (uuid, cause) = (uuid.clone(), UnhealthyReason::Ecc);
    part.healthy = false;
    part.causes = vec![HealthCause { reason: cause, detail: "memory errors".into(), clears: "a reset".into() }];
    let condition = condition(&snapshot);
    assert_eq!(condition.devices.iter().map(|device| device.mig_uuid.as_ref()).collect::<Vec<_>>(), [Some(&uuid)]);
    assert!(condition.message.starts_with(&format!("{uuid} of GPU 2 (")), "{}", condition.message);
}

#[test]
fn a_message_fits_and_is_plain_whatever_the_texts_are() {
    let mut snapshot = healthy();
    let detail = "\u{202e}\n\"\\".repeat(400);
    let gpus: Vec<GpuUuid> = snapshot.health.gpus.keys().cloned().collect();
    for gpu in gpus {
        fail(&mut snapshot, gpu.as_str(), UnhealthyReason::Xid, &detail);
    }
    let condition = condition(&snapshot);
    assert!(condition.message.len() <= BYTES && condition.message.ends_with("more"), "{}", condition.message);
    assert!(condition.message.bytes().all(|byte| (b' '..=b'~').contains(&byte) && !b"\"\\'`".contains(&byte)));
    assert_eq!(condition.json().matches(&format!("\n  \"message\": \"{}\",\n", condition.message)).count(), 1);
    assert!(condition.json().contains("\n  \"status\": \"unhealthy\",\n  \"written\": "));
}

#[test]
fn time_alone_changes_nothing_that_a_reader_acts_on() {
    let snapshot = healthy();
    let later = Moment {
        monotonic: snapshot.at.monotonic + Duration::from_secs(5),
        unix: UnixSeconds(snapshot.at.unix.0 + 5.0),
    };
    assert!(!condition(&snapshot).differs_from(&NodeCondition::assess(&snapshot, later)));
    let mut failed = snapshot.clone();
    fail(&mut failed, WHOLE, UnhealthyReason::Lost, "lost");
    assert!(condition(&snapshot).differs_from(&condition(&failed)));
}
