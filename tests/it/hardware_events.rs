//! Events through a driver library that is loaded like the real one: which events arrive, and the effect of a broken
//! wait.

use std::time::Duration;

use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::{gpu, impatient, machine, open, quick, run, run_with_xids};
use crate::support::polling::{PATIENCE, until};
use crate::support::watching::{block_on, stop, wait};
use podmeter::domain::model::{GpuUuid, HardwareState, Monotonic, XidEvent, XidInstance};
use podmeter::hardware::{HardwareHandle, HardwareSettings, XidBatches};
use serde_json::{Value, json};
use tokio::time::Instant;

#[test]
fn an_xid_arrives_with_its_gpu_and_instance_and_old_ones_do_not() {
    let mut machine = machine(8);
    machine["gpus"][3]["events"] = json!([{"sequence": 1, "xid": 48}]);
    let mut node = EventNode::start(machine);
    node.inject(3, json!([{"sequence": 1, "xid": 48}, {"sequence": 2, "xid": 79}]));
    assert_eq!(node.next(), (gpu(3), None, 79, 1));
    node.inject(5, json!([{"sequence": 1, "xid": 94, "gpu_instance": 2, "compute_instance": 0}]));
    assert_eq!(node.next(), (gpu(5), Some(XidInstance { gpu_instance: 2, compute_instance: Some(0) }), 94, 1));
    node.inject(6, json!([{"sequence": 1, "xid": 13, "gpu_instance": 2}]));
    assert_eq!(node.next(), (gpu(6), Some(XidInstance { gpu_instance: 2, compute_instance: None }), 13, 1));
    node.inject(7, json!([{"sequence": 1, "xid": 999}]));
    assert_eq!(node.next(), (gpu(7), None, 999, 1));
}

#[test]
fn other_events_cause_reads_and_are_not_xids() {
    let mut node = EventNode::start(machine(2));
    wait(&node.hardware, "a slow pass of both", |state| (0..2).all(|index| slow(state, index).is_some()));
    node.fake.update(|state| {
        state["gpus"][0]["recovery_action"] = json!(1);
        state["gpus"][0]["events"] = json!([{"sequence": 1, "kind": 0x8000, "xid": 79}, {"sequence": 2, "xid": 154}]);
    });
    // The slow tier is due once a minute: the event caused it earlier, for this GPU alone.
    let state = wait(&node.hardware, "the recovery action", |state| slow(state, 0) == Some(Some(1)));
    assert_eq!(slow(&state, 1), Some(Some(0)));
    assert_eq!(node.next(), (gpu(0), None, 154, 1));
}

/// Read or not, and the recovery action that was read.
fn slow(state: &HardwareState, index: usize) -> Option<Option<u32>> {
    Some(state.readings.get(&gpu(index))?.slow.as_ref()?.value.recovery_action)
}

#[test]
fn a_mig_change_is_read_at_once() {
    let fake = FakeNvml::start(machine(1));
    let settings = HardwareSettings { medium_interval: Duration::from_secs(600), ..rarely_slow() };
    let hardware = run(&fake, settings);
    wait(&hardware, "a wait for events", |state| event_wait(state) == Some((true, false)));
    fake.update(|state| {
        let instances = json!([{"gpu_instance": 1, "profile": "1g.10gb"}]);
        state["gpus"][0]["mig"] = json!({"enabled": true, "instances": instances});
        state["gpus"][0]["events"] = json!([{"sequence": 1, "kind": 0x100}]);
    });
    wait(&hardware, "the instance", |state| state.inventory.gpus[&gpu(0)].mig_devices.len() == 1);
}

#[test]
fn a_lost_gpu_silences_no_other_and_causes_no_busy_loop() {
    let mut node = EventNode::start(machine(8));
    node.fake.update(|state| state["gpus"][2]["lost"] = json!(true));
    wait(&node.hardware, "the loss", |state| !state.inventory.gpus[&gpu(2)].present);
    let waits = node.waits_in_two_seconds();
    assert!(waits < 60, "{waits} waits");
    node.inject(4, json!([{"sequence": 1, "xid": 31}]));
    assert_eq!(node.next(), (gpu(4), None, 31, 1));
    node.fake.update(|state| {
        state["gpus"][2]["lost"] = json!(false);
    });
    wait(&node.hardware, "the return", |state| state.inventory.gpus[&gpu(2)].present);
    // It is registered again after a while; earlier events are lost.
    let mut sequence = 0;
    let returned = until("events of the GPU that came back", || {
        sequence += 1;
        node.inject(2, json!([{"sequence": sequence, "xid": 94}]));
        node.xids.try_recv().ok()
    });
    assert_eq!((&returned[0].gpu, returned[0].code), (&gpu(2), 94));
}

#[test]
fn a_wait_that_always_fails_is_paused_for() {
    let node = EventNode::begin(json!({"gpus": [{}, {}], "fail": {"nvmlEventSetWait_v2": 15}}));
    let failed = |state: &HardwareState| {
        state.errors.get("nvmlEventSetWait_v2").is_some_and(|codes| codes.contains_key("gpu_is_lost"))
    };
    let state = wait(&node.hardware, "the failure", failed);
    assert_eq!(state.problem, None, "the readings are not the events' affair");
    let waits = node.waits_in_two_seconds();
    assert!(waits < 100, "{waits} waits");
    assert_eq!(event_wait(&node.hardware.states.borrow()).map(|(success, _)| success), Some(false));
    node.fake.update(|state| state["fail"] = json!({}));
    node.wait_until_events_are_awaited();
}

#[test]
fn without_a_count_of_gpus_the_registration_is_tried_again() {
    let mut machine = machine(1);
    machine["gpus"][0]["events"] = json!([{"sequence": 1, "xid": 48}]);
    let fake = FakeNvml::start(machine);
    let session = open(&fake);
    session.inventory().unwrap();
    fake.update(|state| state["fail"] = json!({"nvmlDeviceGetCount_v2": 999}));
    let mut events = session.events().unwrap();
    let now = Monotonic::from_secs;
    assert!(events.wait(Duration::ZERO, now(1)).is_err(), "no GPU is registered");
    fake.update(|state| state["fail"] = json!({}));
    assert!(events.wait(Duration::ZERO, now(100)).unwrap().is_none());
    fake.update(|state| state["gpus"][0]["events"] = json!([{"sequence": 2, "xid": 79}]));
    assert_eq!(events.wait(Duration::from_secs(5), now(101)).unwrap().unwrap().gpu, gpu(0));
}

#[test]
fn a_rejected_registration_leaves_the_others() {
    let mut machine = machine(3);
    machine["gpus"][1]["fail"] = json!({"nvmlDeviceRegisterEvents": 4});
    machine["gpus"][2]["supported_events"] = json!(8);
    let mut node = EventNode::start(machine);
    for refused in 0..3 {
        node.inject(refused, json!([{"sequence": 1, "xid": 31}]));
    }
    let received = node.received("both", |all| all.len() >= 2);
    let received: Vec<_> = received.iter().map(|event| &event.gpu).collect();
    assert!(received.contains(&&gpu(0)) && received.contains(&&gpu(2)), "{received:?}");
    let state = wait(&node.hardware, "the refusal", |state| state.errors.contains_key("nvmlDeviceRegisterEvents"));
    assert!(state.errors["nvmlDeviceRegisterEvents"].contains_key("no_permission"));
    assert_eq!(state.problem, None);
}

#[test]
fn events_of_a_reloaded_driver_arrive_again() {
    let mut node = EventNode::start(machine(2));
    node.fake.update(|state| state["generation"] = json!(2));
    wait(&node.hardware, "the end", |state| event_wait(state) == Some((false, false)));
    node.wait_until_events_are_awaited();
    node.inject(1, json!([{"sequence": 1, "xid": 63}]));
    assert_eq!(node.next(), (gpu(1), None, 63, 1));
    let EventNode { fake, hardware, .. } = node;
    stop(hardware);
    // Each of the two sessions frees what it created.
    let calls = fake.calls();
    assert_eq!((calls["nvmlEventSetCreate"], calls["nvmlEventSetFree"]), (2, 2));
    assert_eq!((calls["nvmlInit_v2"], calls["nvmlShutdown"]), (2, 2));
}

#[test]
fn a_wait_that_never_returns_is_left_behind() {
    let node = EventNode::begin_with(impatient(), machine(2));
    node.wait_until_events_are_awaited();
    node.fake.update(|state| state["hang"] = json!(["nvmlEventSetWait_v2"]));
    let goes_on = |state: &HardwareState| state.readings[&gpu(0)].fast.is_some();
    wait(&node.hardware, "a stuck wait beside readings", |state| {
        event_wait(state) == Some((false, true)) && goes_on(state)
    });
    // A new session is opened beside the old wait.
    node.fake.update(|state| state["generation"] = json!(2));
    wait(&node.hardware, "the end", |state| !goes_on(state));
    node.fake.update(|state| state["hang"] = json!([]));
    wait(&node.hardware, "readings", goes_on);
    node.wait_until_events_are_awaited();
}

/// The slow tier is read at the start, and for an event.
fn rarely_slow() -> HardwareSettings {
    HardwareSettings { slow_interval: Duration::from_secs(60), ..quick() }
}

struct EventNode {
    fake: FakeNvml,
    hardware: HardwareHandle,
    xids: XidBatches,
}

impl EventNode {
    /// Started, with its events registered.
    fn start(state: Value) -> Self {
        let node = Self::begin(state);
        node.wait_until_events_are_awaited();
        node
    }

    fn begin(state: Value) -> Self {
        Self::begin_with(rarely_slow(), state)
    }

    fn begin_with(settings: HardwareSettings, state: Value) -> Self {
        let fake = FakeNvml::start(state);
        let (hardware, xids) = run_with_xids(&fake, settings);
        Self { fake, hardware, xids }
    }

    fn wait_until_events_are_awaited(&self) {
        wait(&self.hardware, "a wait for events", |state| event_wait(state) == Some((true, false)));
    }

    fn inject(&self, gpu: usize, events: Value) {
        self.fake.update(|state| state["gpus"][gpu]["events"] = events);
    }

    /// Batches until `enough` of all that came.
    fn received(&mut self, what: &str, enough: impl Fn(&[XidEvent]) -> bool) -> Vec<XidEvent> {
        let mut all = Vec::new();
        block_on(async {
            let until = Instant::now() + PATIENCE;
            while !enough(&all) {
                let batch = tokio::time::timeout_at(until, self.xids.recv()).await;
                let Ok(batch) = batch else { panic!("not received in time: {what}; received {all:?}") };
                all.extend(batch.expect("the driver thread runs"));
            }
        });
        all
    }

    /// The next XID: GPU, instance, code and count.
    fn next(&mut self) -> (GpuUuid, Option<XidInstance>, u32, u64) {
        let mut received = self.received("an XID", |all| !all.is_empty());
        assert_eq!(received.len(), 1, "{received:?}");
        let XidEvent { gpu, instance, code, count, .. } = received.remove(0);
        (gpu, instance, code, count)
    }

    /// The driver's waits for events while the first GPU is read for two seconds.
    fn waits_in_two_seconds(&self) -> u64 {
        let waits = || self.fake.calls().get("nvmlEventSetWait_v2").copied().unwrap_or(0);
        let read_until = |state: &HardwareState| state.readings[&gpu(0)].totals.complete_until;
        let (before, begin) = (waits(), read_until(&self.hardware.states.borrow()));
        wait(&self.hardware, "two seconds", |state| read_until(state).since(begin) > Duration::from_secs(2));
        waits() - before
    }
}

/// Of the wait for events: success and stuck, as published.
fn event_wait(state: &HardwareState) -> Option<(bool, bool)> {
    state.collectors.get("events").map(|collector| (collector.success, collector.stuck))
}
