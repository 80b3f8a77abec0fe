//! The whole machine: every reason, every way back, both fan-outs, both sources, and random worlds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::{
    DeviceReadings, EccLocation, FabricState, Fast, Gpu, MigDevice, Released, RowRemap, Slow, Stamped, UnixSeconds,
    XidClass, XidInstance, XidProcess, XidSource,
};

const GPU: &str = "GPU-0";
const OTHER: &str = "GPU-1";
const SLICE: &str = "MIG-7";
const OTHER_SLICE: &str = "MIG-8";

fn moment(seconds: u64) -> Moment {
    Moment { monotonic: Monotonic::from_secs(seconds), unix: UnixSeconds(1e9 + seconds as f64) }
}

fn gpu(uuid: &str, index: u32) -> Gpu {
    Gpu {
        uuid: uuid.into(),
        index,
        minor: Some(index),
        pci_bus_id: None,
        model: None,
        architecture: None,
        compute_capability: None,
        vbios_version: None,
        serial: None,
        numa_node: None,
        nvlink_peers: None,
        memory_bytes: None,
        mig_enabled: None,
        mig_devices: vec![],
        present: true,
    }
}

fn mig(uuid: &str, gpu_instance: u32) -> MigDevice {
    MigDevice {
        uuid: uuid.into(),
        index: gpu_instance - 1,
        gpu_instance,
        compute_instance: 0,
        profile: "1g.10gb".into(),
        profile_id: None,
        placement_start: None,
        slices: 1,
        memory_bytes: None,
    }
}

/// A node of two GPUs over time. Both answer every pass, and say that all is well, until told otherwise.
struct World {
    health: Health,
    hardware: HardwareState,
    slow: BTreeMap<GpuUuid, Slow>,
    silent: BTreeSet<GpuUuid>,
    now: u64,
}

impl World {
    fn new(config: Config) -> Self {
        let gpus = [gpu(GPU, 0), gpu(OTHER, 1)].map(|gpu| (gpu.uuid.clone(), gpu)).into();
        let mut hardware = HardwareState { source: "nvml", sessions: 1, ..HardwareState::default() };
        Arc::make_mut(&mut hardware.inventory).gpus = gpus;
        let well = Slow { recovery_action: Some(0), ..Slow::default() };
        let slow = [GPU, OTHER].map(|uuid| (uuid.into(), well.clone())).into();
        let health = Health::new(config);
        Self { health, hardware, slow, silent: BTreeSet::new(), now: 0 }
    }

    /// With the driver of a GPU that has no recovery action.
    fn old(config: Config) -> Self {
        let mut world = Self::new(config);
        world.slow.values_mut().for_each(|slow| slow.recovery_action = None);
        world
    }

    fn partitioned(config: Config) -> Self {
        let mut world = Self::new(config);
        world.gpu(|gpu| gpu.mig_devices = vec![mig(SLICE, 7), mig(OTHER_SLICE, 8)]);
        world
    }

    fn gpu(&mut self, change: impl FnOnce(&mut Gpu)) {
        change(Arc::make_mut(&mut self.hardware.inventory).gpus.get_mut(&GPU.into()).unwrap());
    }

    fn slow(&mut self, change: impl FnOnce(&mut Slow)) {
        change(self.slow.get_mut(&GPU.into()).unwrap());
    }

    fn silence(&mut self, change: impl FnOnce(&mut DeviceReadings)) {
        let mut readings = DeviceReadings::default();
        change(&mut readings);
        self.silent.insert(GPU.into());
        self.hardware.readings.insert(GPU.into(), Arc::new(readings));
    }

    fn answer(&mut self) {
        self.silent.clear();
        self.gpu(|gpu| gpu.present = true);
    }

    /// Advances to this second, with a pass of every GPU that answers.
    fn release(&mut self) {
        let (since, until) = (moment(self.now), moment(self.now + 3_600));
        self.hardware.released = Some(Released { since, until });
    }

    fn at(&mut self, seconds: u64) -> Arc<HealthState> {
        self.with(seconds, &[])
    }

    fn with(&mut self, seconds: u64, events: &[XidEvent]) -> Arc<HealthState> {
        self.now = seconds;
        let at = Monotonic::from_secs(seconds);
        for (uuid, slow) in self.slow.iter().filter(|(uuid, _)| !self.silent.contains(*uuid)) {
            let fast = Some(Stamped { at, value: Fast::default() });
            let slow = Some(Stamped { at, value: slow.clone() });
            let readings = DeviceReadings { fast, slow, ..DeviceReadings::default() };
            self.hardware.readings.insert(uuid.clone(), Arc::new(readings));
        }
        let evidence = Evidence { hardware: &self.hardware, events };
        self.health.advance(moment(seconds), &evidence)
    }

    fn reasons(&self) -> Vec<&'static str> {
        reasons(&self.health.state(), None)
    }

    fn order(&mut self, order: &Order) {
        self.health.order(moment(self.now), order).unwrap();
    }
}

fn reasons(state: &HealthState, mig: Option<&str>) -> Vec<&'static str> {
    let mig = mig.map(Into::into);
    let device = state.of(&GPU.into(), mig.as_ref()).expect("it has a verdict");
    assert_eq!(device.healthy, device.causes.is_empty());
    assert!(state.of(&OTHER.into(), None).unwrap().healthy, "the other GPU is none of this one's business");
    device.causes.iter().map(|cause| cause.reason.as_str()).collect()
}

fn xid(code: u32, seconds: u64) -> XidEvent {
    XidEvent {
        at: moment(seconds),
        gpu: GPU.into(),
        instance: None,
        code,
        source: XidSource::Nvml,
        process: None,
        count: 1,
    }
}

fn in_instance(code: u32, seconds: u64, gpu_instance: u32, compute_instance: Option<u32>) -> XidEvent {
    XidEvent { instance: Some(XidInstance { gpu_instance, compute_instance }), ..xid(code, seconds) }
}

fn unmark(device: &str) -> Order {
    Order::Unmark { device: device.to_owned() }
}

fn nobody_knows() -> Vec<&'static str> {
    vec!["unknown"]
}

const WELL: Vec<&str> = vec![];

#[test]
fn a_device_is_unknown_until_checked_and_then_healthy() {
    let mut world = World::new(Config::default());
    world.silent = [GPU.into()].into();
    world.at(1);
    assert_eq!(world.reasons(), nobody_knows());
    assert_eq!(world.health.next_deadline(), Some(Monotonic::from_secs(6)));
    world.silent.clear();
    let state = world.at(2);
    assert_eq!(world.reasons(), WELL);
    let turn = state.transitions.last().unwrap();
    assert_eq!((turn.to_healthy, turn.reason.as_str(), turn.number), (true, "unknown", 1));
    assert_eq!(state.transition_counts["healthy"][&UnhealthyReason::Unknown], 1);
    assert!(Arc::ptr_eq(&state, &world.at(3)), "nothing has changed");
}

#[test]
fn unknown_lasts_for_five_seconds_at_most() {
    let mut world = World::new(Config::default());
    world.silent = [GPU.into()].into();
    for seconds in 1..6 {
        world.at(seconds);
        assert_eq!(world.reasons(), nobody_knows(), "at {seconds}");
    }
    world.at(6);
    assert_eq!(world.reasons(), WELL, "absence of data is not unhealthy by itself");
}

#[test]
fn a_device_found_sick_at_the_start_is_never_healthy_for_a_moment() {
    let failed = RowRemap { failed: true, ..RowRemap::default() };
    for (reason, slow) in [
        ("recovery_action", Slow { recovery_action: Some(1), ..Slow::default() }),
        ("row_remap_failed", Slow { row_remap: Some(failed), ..Slow::default() }),
    ] {
        let mut world = World::new(Config::default());
        world.silent = [GPU.into()].into();
        world.at(1);
        world.slow.insert(GPU.into(), slow);
        world.silent.clear();
        let state = world.at(2);
        assert_eq!(world.reasons(), [reason]);
        assert!(state.transitions.iter().all(|turn| turn.gpu != GPU.into()), "{:?}", state.transitions);
    }
}

/// A reason that the hardware states comes with it, stays for the hold-down, and is then gone.
#[test]
fn each_reason_comes_and_goes_with_its_evidence() {
    type Change = fn(&mut World);
    let cases: [(&str, Change, Change); 8] = [
        (
            "recovery_action",
            |world| world.slow(|slow| slow.recovery_action = Some(4)),
            |world| {
                world.slow(|slow| slow.recovery_action = Some(0));
            },
        ),
        ("lost", |world| world.silence(|readings| readings.lost = true), World::answer),
        (
            "lost",
            |world| {
                world.silence(|_| {});
                world.gpu(|gpu| gpu.present = false);
            },
            World::answer,
        ),
        (
            "row_remap_failed",
            |world| world.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() })),
            |world| world.slow(|slow| slow.row_remap = Some(RowRemap::default())),
        ),
        (
            "fabric",
            |world| {
                let fabric = FabricState { state: "in_progress", conditions: BTreeMap::new() };
                world.slow(|slow| slow.fabric = Some(fabric));
            },
            |world| {
                let fabric = FabricState { state: "completed", conditions: BTreeMap::new() };
                world.slow(|slow| slow.fabric = Some(fabric));
            },
        ),
        ("stuck", |world| world.silence(|readings| readings.stuck = true), World::answer),
        (
            "xid",
            |world| drop(world.with(10, &[xid(48, 10)])),
            |world| {
                world.slow(|slow| slow.recovery_action = Some(1));
                world.at(21);
                world.slow(|slow| slow.recovery_action = Some(0));
            },
        ),
        ("xid", |world| drop(world.with(10, &[xid(79, 10)])), |world| world.hardware.sessions += 1),
    ];
    for (reason, down, up) in cases {
        let mut world = World::new(Config::default());
        world.at(1);
        world.at(2);
        assert_eq!(world.reasons(), WELL, "{reason}");
        down(&mut world);
        world.at(10);
        // Stuck has a limit of its own.
        world.at(20);
        assert_eq!(world.reasons(), [reason]);
        world.at(5000);
        assert_eq!(world.reasons(), [reason], "time alone heals nothing");
        up(&mut world);
        world.at(6000);
        world.at(6001);
        assert!(world.reasons().contains(&reason), "{reason} is held down");
        world.at(6059);
        assert!(world.reasons().contains(&reason), "{reason} is held down");
        assert!(world.health.next_deadline().is_some_and(|deadline| deadline <= Monotonic::from_secs(6061)));
        let state = world.at(6061);
        assert_eq!(world.reasons(), WELL, "{reason}");
        assert_eq!(state.transitions.last().map(|turn| turn.reason.as_str()), Some(reason));
    }
}

#[test]
fn the_hold_down_begins_anew_with_every_relapse() {
    let mut world = World::new(Config::default());
    world.at(1);
    world.slow(|slow| slow.recovery_action = Some(1));
    world.at(10);
    world.slow(|slow| slow.recovery_action = Some(0));
    world.at(20);
    world.slow(|slow| slow.recovery_action = Some(2));
    world.at(70);
    world.slow(|slow| slow.recovery_action = Some(0));
    world.at(100);
    world.at(159);
    assert_eq!(world.reasons(), ["recovery_action"]);
    let state = world.at(160);
    assert_eq!(world.reasons(), WELL);
    assert_eq!(state.transition_counts["unhealthy"][&UnhealthyReason::RecoveryAction], 1, "one spell, not two");
}

#[test]
fn what_is_no_longer_said_stays_said() {
    let mut world = World::new(Config::default());
    world.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() }));
    world.at(1);
    world.slow(|slow| slow.row_remap = None);
    world.at(1000);
    assert_eq!(world.reasons(), ["row_remap_failed"]);
    world.silence(|_| {});
    world.at(2000);
    assert_eq!(world.reasons(), ["row_remap_failed"]);
}

#[test]
fn a_recovery_action_that_nobody_knows_is_no_verdict_and_said_once() {
    let mut world = World::new(Config::default());
    world.at(1);
    world.slow(|slow| slow.recovery_action = Some(99));
    world.at(2);
    world.at(3);
    assert_eq!(world.reasons(), WELL);
    let notes = world.health.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    world.slow(|slow| slow.recovery_action = Some(1));
    world.at(4);
    world.slow(|slow| slow.recovery_action = Some(99));
    world.at(1000);
    assert_eq!(world.reasons(), ["recovery_action"], "no evidence for it either");
}

#[test]
fn uncorrectable_memory_errors_count_by_policy_and_until_the_driver_is_reloaded() {
    let errors = |uncorrected| vec![EccLocation { location: "dram", corrected: None, uncorrected: Some(uncorrected) }];
    let mut world = World::new(Config::default());
    world.slow(|slow| slow.ecc = errors(3));
    world.at(1);
    assert_eq!(world.reasons(), WELL);
    let mut world = World::new(Config { uncorrectable_ecc: EccPolicy::Unhealthy, ..Config::default() });
    world.slow(|slow| slow.ecc = errors(3));
    world.at(1);
    world.at(1000);
    assert_eq!(world.reasons(), ["ecc"], "the level counts, also when it was there before");
    world.hardware.sessions += 1;
    world.at(1001);
    world.at(1061);
    assert_eq!(world.reasons(), WELL);
    world.slow(|slow| slow.ecc = errors(4));
    world.at(1062);
    assert_eq!(world.reasons(), ["ecc"]);
}

#[test]
fn a_driver_that_cannot_be_opened_for_longer_than_the_limit_is_no_driver() {
    let mut world = World::new(Config::default());
    world.at(1);
    world.silent = [GPU.into(), OTHER.into()].into();
    world.hardware.readings.clear();
    world.hardware.problem = Some("the driver is away".into());
    let healthy = |world: &World| world.health.state().gpus.values().filter(|gpu| gpu.is_healthy()).count();
    world.at(2);
    world.at(11);
    assert_eq!(healthy(&world), 2);
    world.at(12);
    assert_eq!(healthy(&world), 0);
    world.silent.clear();
    world.hardware.problem = None;
    world.hardware.sessions += 1;
    world.at(13);
    assert_eq!(healthy(&world), 2, "a reload is no fault");
}

#[test]
fn released_devices_keep_their_verdict_for_a_while() {
    let mut world = World::new(Config::default());
    world.at(1);
    world.release();
    world.gpu(|gpu| gpu.present = false);
    world.at(2);
    world.at(601);
    assert_eq!(world.health.next_deadline(), Some(Monotonic::from_secs(602)));
    assert_eq!(world.reasons(), WELL);
    world.at(602);
    let whole = &world.health.state().gpus[&GPU.into()].whole.clone();
    assert_eq!(whole.reason(), Some(UnhealthyReason::Unknown));
    world.hardware.released = None;
    world.gpu(|gpu| gpu.present = true);
    world.at(603);
    assert_eq!(world.reasons(), WELL);
}

#[test]
fn nothing_comes_up_while_it_is_released() {
    let mut world = World::new(Config::default());
    world.at(1);
    world.slow(|slow| slow.recovery_action = Some(1));
    world.at(2);
    world.slow(|slow| slow.recovery_action = Some(0));
    world.at(3);
    world.release();
    world.at(100);
    assert_eq!(world.reasons(), ["recovery_action"]);
    world.hardware.released = None;
    world.at(101);
    assert_eq!(world.reasons(), WELL);
}

#[test]
fn what_xids_do_by_class_with_and_without_a_recovery_action() {
    for (code, known, unknown) in [
        (31, false, false),
        (94, false, false),
        (48, true, true),
        (79, true, true),
        (74, false, true),
        (145, false, false),
        (54, true, true),
        (43, false, false),
        (45, false, false),
        (154, false, false),
        (151, false, false),
        (999, false, false),
    ] {
        for (mut world, down) in [(World::new(Config::default()), known), (World::old(Config::default()), unknown)] {
            world.at(1);
            let state = world.with(2, &[xid(code, 2)]);
            assert_eq!(world.reasons(), if down { vec!["xid"] } else { vec![] }, "XID {code}");
            assert_eq!(state.gpus[&GPU.into()].xids.by_class[&classes::class(code)], 1, "XID {code}");
        }
    }
}

#[test]
fn a_storm_of_xid_45_is_counted_and_no_more() {
    let mut world = World::new(Config::default());
    world.at(1);
    for seconds in 2..102 {
        world.with(seconds, &[XidEvent { count: 1000, ..xid(45, seconds) }]);
    }
    assert_eq!(world.reasons(), WELL);
    let state = world.health.state();
    assert_eq!(state.gpus[&GPU.into()].xids.by_class[&XidClass::Corroborating], 100_000);
    let many: Vec<XidEvent> = (0..100_000).map(|_| xid(45, 200)).collect();
    let state = world.with(200, &many);
    assert_eq!(state.gpus[&GPU.into()].xids.by_class[&XidClass::Corroborating], 200_000);
}

#[test]
fn configured_xids_go_before_their_class() {
    let xids = [(48, XidRule::Count), (31, XidRule::Unhealthy), (45, XidRule::Ignore)].into();
    let mut world = World::new(Config { xids, ..Config::default() });
    world.at(1);
    let state = world.with(2, &[xid(48, 2), xid(45, 2)]);
    assert_eq!(world.reasons(), WELL);
    let counts = &state.gpus[&GPU.into()].xids.by_class;
    assert_eq!((counts[&XidClass::GpuReset], counts[&XidClass::Corroborating]), (1, 0));
    world.with(3, &[xid(31, 3)]);
    assert_eq!(world.reasons(), ["xid"]);
}

#[test]
fn without_a_recovery_action_a_reload_or_a_return_from_loss_clears_an_xid() {
    for (code, back_from_loss) in [(48, true), (79, false)] {
        let mut world = World::old(Config::default());
        world.at(1);
        world.with(2, &[xid(code, 2)]);
        world.silence(|readings| readings.lost = true);
        world.at(3);
        world.answer();
        world.at(4);
        world.at(1000);
        let cleared = world.reasons().is_empty();
        assert_eq!(cleared, back_from_loss, "XID {code}: a lost bus takes a new session");
        world.hardware.sessions += 1;
        world.at(1001);
        world.at(1061);
        assert_eq!(world.reasons(), WELL, "XID {code}");
    }
}

#[test]
fn a_reload_heals_nothing_while_the_driver_wants_more_or_the_device_does_not_answer() {
    let mut world = World::new(Config::default());
    world.at(1);
    world.slow(|slow| slow.recovery_action = Some(1));
    world.with(2, &[xid(48, 2)]);
    world.hardware.sessions += 1;
    world.at(3);
    world.at(1000);
    assert_eq!(world.reasons(), ["xid", "recovery_action"]);
    world.silence(|_| {});
    world.at(2000);
    world.slow(|slow| slow.recovery_action = Some(0));
    world.at(3000);
    assert_eq!(world.reasons(), ["xid", "recovery_action"], "it has not said so yet");
}

#[test]
fn an_event_told_after_the_reload_that_followed_it_does_not_weigh() {
    let mut world = World::old(Config::default());
    world.at(1);
    world.hardware.sessions += 1;
    world.at(10);
    let state = world.with(11, &[xid(48, 5)]);
    assert_eq!(world.reasons(), WELL);
    assert_eq!(state.gpus[&GPU.into()].xids.by_class[&XidClass::GpuReset], 1);
    world.with(12, &[xid(48, 11)]);
    assert_eq!(world.reasons(), ["xid"]);
}

#[test]
fn an_nvlink_xid_before_the_first_check_is_left_to_the_recovery_action() {
    let mut world = World::new(Config::default());
    world.silent = [GPU.into()].into();
    world.with(1, &[xid(74, 1)]);
    assert_eq!(world.reasons(), ["xid", "unknown"]);
    world.silent.clear();
    world.at(2);
    assert_eq!(world.reasons(), WELL);
}

#[test]
fn what_concerns_the_whole_gpu_reaches_every_mig_device() {
    let mut world = World::partitioned(Config::default());
    world.at(1);
    let state = world.with(2, &[xid(48, 2)]);
    for mig in [None, Some(SLICE), Some(OTHER_SLICE)] {
        assert_eq!(reasons(&state, mig), ["xid"]);
    }
    assert_eq!(state.transitions.iter().filter(|turn| !turn.to_healthy).count(), 3);
    let mut world = World::partitioned(Config::default());
    world.slow(|slow| slow.recovery_action = Some(1));
    assert_eq!(reasons(&world.at(1), Some(SLICE)), ["recovery_action"]);
}

#[test]
fn what_concerns_an_instance_reaches_only_its_mig_devices() {
    for (event, whole, slice, other) in [
        (in_instance(95, 2, 7, Some(0)), false, true, false),
        (in_instance(95, 2, 7, None), false, true, false),
        // Somewhere in the GPU instance.
        (in_instance(95, 2, 7, Some(5)), false, true, false),
        // Somewhere in the GPU.
        (in_instance(95, 2, 3, Some(0)), true, true, true),
        (xid(95, 2), true, true, true),
    ] {
        for early in [false, true] {
            let mut world = World::partitioned(Config::default());
            if early {
                // Before the inventory has named the GPU.
                let known = std::mem::take(&mut world.hardware.inventory);
                world.with(1, &[XidEvent { at: moment(1), ..event.clone() }]);
                world.hardware.inventory = known;
            } else {
                world.at(1);
                world.with(2, std::slice::from_ref(&event));
            }
            let state = world.at(3);
            let down = |mig| !reasons(&state, mig).is_empty();
            assert_eq!([down(None), down(Some(SLICE)), down(Some(OTHER_SLICE))], [whole, slice, other], "{event:?}");
            assert!(!state.gpus[&GPU.into()].is_healthy());
        }
    }
}

#[test]
fn a_new_instance_does_not_inherit_the_xid_of_the_number_that_it_got() {
    let mut world = World::partitioned(Config::default());
    world.at(1);
    world.with(2, &[in_instance(95, 2, 7, Some(0))]);
    world.gpu(|gpu| gpu.mig_devices = vec![mig("MIG-new", 7), mig(OTHER_SLICE, 8)]);
    let state = world.at(3);
    assert_eq!(reasons(&state, Some("MIG-new")), WELL);
    assert_eq!(reasons(&state, None), WELL);
    assert!(state.of(&GPU.into(), Some(&SLICE.into())).is_none(), "what is gone has no verdict");
    world.gpu(|gpu| gpu.mig_devices = vec![mig(SLICE, 7), mig(OTHER_SLICE, 8)]);
    assert_eq!(reasons(&world.at(4), Some(SLICE)), ["xid"], "what comes back brings it along");
}

#[test]
fn two_sources_that_tell_of_one_xid_count_once_and_the_process_is_kept() {
    let process = Some(XidProcess { pid: 4711, name: Some("python".into()) });
    let kmsg =
        |seconds, count| XidEvent { source: XidSource::Kmsg, process: process.clone(), count, ..xid(31, seconds) };
    let nvml = |seconds, count| XidEvent { count, ..xid(31, seconds) };
    let total = |state: &HealthState| state.gpus[&GPU.into()].xids.by_class[&XidClass::Application];
    for batches in [
        vec![vec![nvml(2, 3), kmsg(3, 3)]],
        vec![vec![kmsg(3, 3), nvml(2, 3)]],
        vec![vec![nvml(2, 3)], vec![kmsg(3, 3)]],
        vec![vec![kmsg(3, 3)], vec![nvml(2, 3)]],
        vec![vec![kmsg(3, 1)], vec![nvml(2, 2)], vec![kmsg(4, 2)], vec![nvml(3, 1)]],
    ] {
        let mut world = World::new(Config::default());
        world.at(1);
        for batch in &batches {
            world.with(5, batch);
        }
        let state = world.health.state();
        assert_eq!(total(&state), 3, "{batches:?}");
        let last = &state.gpus[&GPU.into()].xids.last[&31];
        assert_eq!((last["kmsg"].process.clone(), last["kmsg"].count, last["nvml"].count), (process.clone(), 3, 3));
        assert_eq!(total(&world.with(100, &[kmsg(100, 1)])), 4, "a new one");
        assert_eq!(total(&world.with(120, &[nvml(120, 1)])), 5, "and another");
    }
}

#[test]
fn a_kernel_line_without_an_instance_does_not_widen_the_event_that_names_one() {
    let kmsg = XidEvent { source: XidSource::Kmsg, ..xid(95, 3) };
    for events in [[in_instance(95, 2, 7, Some(0)), kmsg.clone()], [kmsg.clone(), in_instance(95, 4, 7, Some(0))]] {
        let mut world = World::partitioned(Config::default());
        world.at(1);
        let state = world.with(5, &events);
        assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (WELL, vec!["xid"]));
        let state = world.with(100, &[XidEvent { at: moment(100), ..kmsg.clone() }]);
        assert_eq!(reasons(&state, Some(OTHER_SLICE)), ["xid"], "one alone is the whole GPU's");
    }
}

#[test]
fn memory_is_bounded_whatever_arrives() {
    let mut world = World::new(Config { xids: BTreeMap::new(), ..Config::default() });
    world.at(1);
    let strangers = (0..10_000).map(|number| XidEvent { gpu: format!("GPU-x{number}").as_str().into(), ..xid(48, 2) });
    let codes = (0..10_000).map(|code| xid(code, 2));
    let instances = (0..10_000).map(|number| in_instance(95, 2, number, Some(number)));
    let events: Vec<XidEvent> = strangers.chain(codes).chain(instances).collect();
    let state = world.with(2, &events);
    assert!(world.health.devices.len() <= STRANGERS + 2);
    let xids = &state.gpus[&GPU.into()].xids;
    assert_eq!(xids.by_class.values().sum::<u64>(), 20_000, "none is lost for that");
    assert!(xids.last.len() <= 257 && world.health.take_notes().len() <= NOTES);
    for seconds in 3..700 {
        world.slow(|slow| slow.recovery_action = Some((seconds % 2) as u32));
        world.hardware.sessions += 1;
        world.at(seconds * 100);
        world.slow(|slow| slow.recovery_action = Some(0));
        world.at(seconds * 100 + 10);
        world.at(seconds * 100 + 90);
    }
    let state = world.health.state();
    assert_eq!(state.transitions.len(), TRANSITIONS_KEPT);
    assert!(world.health.turns > 500);
}

#[test]
fn an_operators_mark_stands_until_it_is_taken_away_or_ends() {
    let mut world = World::partitioned(Config::default());
    world.at(1);
    let mark = |device: &str, until| Order::Mark { device: device.into(), reason: "smells".into(), until };
    for name in [GPU, "0"] {
        world.order(&mark(name, None));
        let state = world.at(1000);
        assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (vec!["admin"], vec!["admin"]));
        assert!(state.gpus[&GPU.into()].whole.verdict().unwrap_err().contains("smells"));
        world.order(&unmark(name));
        assert_eq!(world.reasons(), WELL, "an operator need not wait");
    }
    world.order(&mark(SLICE, Some(Monotonic::from_secs(1010))));
    let state = world.health.state();
    assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (WELL, vec!["admin"]));
    assert_eq!(world.health.next_deadline(), Some(Monotonic::from_secs(1010)));
    let state = world.at(1010);
    assert_eq!(reasons(&state, Some(SLICE)), WELL);
    let refused = |order: Order| Health::new(Config::default()).order(moment(1), &order);
    assert_eq!(refused(unmark("GPU-9")), Err(MarkError::UnknownDevice("GPU-9".into())));
    let nothing = Order::Mark { device: GPU.into(), reason: String::new(), until: None };
    assert_eq!(refused(nothing), Err(MarkError::Reason(0)));
}

#[test]
fn in_manual_only_an_unmark_brings_a_device_back_and_only_if_it_has_recovered() {
    let mut world = World::new(Config { recovery: Recovery::Manual, ..Config::default() });
    world.at(1);
    assert_eq!(world.reasons(), WELL, "the first check needs no operator");
    world.slow(|slow| slow.recovery_action = Some(1));
    world.with(2, &[xid(48, 2)]);
    world.order(&unmark(GPU));
    assert_eq!(world.reasons(), ["recovery_action"], "the device itself still says so");
    world.slow(|slow| slow.recovery_action = Some(0));
    world.at(3);
    world.at(100_000);
    assert_eq!(world.reasons(), ["recovery_action"]);
    world.order(&unmark(GPU));
    assert_eq!(world.reasons(), WELL);
}

/// What may happen to the first GPU in one step.
#[derive(Clone, Debug)]
enum Step {
    Xid(u32),
    Action(u32),
    Lost(bool),
    Stuck(bool),
    RowRemapFailed(bool),
    FabricReady(bool),
    Reload,
    Nothing,
}

fn step() -> impl Strategy<Value = (Step, u64)> {
    let step = prop_oneof![
        prop::sample::select(vec![13, 31, 45, 48, 54, 74, 79, 94, 95, 119, 145, 154, 500]).prop_map(Step::Xid),
        (0_u32..9).prop_map(Step::Action),
        any::<bool>().prop_map(Step::Lost),
        any::<bool>().prop_map(Step::Stuck),
        any::<bool>().prop_map(Step::RowRemapFailed),
        any::<bool>().prop_map(Step::FabricReady),
        Just(Step::Reload),
        Just(Step::Nothing),
    ];
    (step, 1_u64..90)
}

/// The obvious reading of the rules, for a GPU that has a recovery action: when something last stood against it.
#[derive(Default)]
struct Reference {
    action: u32,
    lost: bool,
    stuck_since: Option<u64>,
    row_remap_failed: bool,
    fabric_away: bool,
    fatal: bool,
    last_against: Option<u64>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn never_healthy_against_evidence_and_up_only_after_the_hold_down(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new(Config::default());
        let mut reference = Reference::default();
        let mut counted: BTreeMap<XidClass, u64> = BTreeMap::new();
        let mut turns = 0;
        world.at(1);
        let mut now = 1;
        for (step, wait) in steps {
            let mut events = vec![];
            now += wait;
            match step {
                Step::Xid(code) => {
                    events.push(xid(code, now));
                    reference.fatal |= matches!(code, 48 | 54 | 79 | 95 | 119);
                }
                Step::Action(action) => world.slow(|slow| slow.recovery_action = Some(action)),
                Step::Lost(lost) => {
                    reference.lost = lost;
                    reference.stuck_since = None;
                    if lost { world.silence(|readings| readings.lost = true) } else { world.answer() }
                }
                Step::Stuck(stuck) => {
                    if stuck && !reference.lost {
                        reference.stuck_since.get_or_insert(now);
                        world.silence(|readings| readings.stuck = true);
                    } else if !stuck && !reference.lost {
                        reference.stuck_since = None;
                        world.answer();
                    }
                }
                Step::RowRemapFailed(failed) => {
                    world.slow(|slow| slow.row_remap = Some(RowRemap { failed, ..RowRemap::default() }));
                }
                Step::FabricReady(ready) => {
                    let state = if ready { "completed" } else { "in_progress" };
                    world.slow(|slow| slow.fabric = Some(FabricState { state, conditions: BTreeMap::new() }));
                }
                Step::Reload => world.hardware.sessions += 1,
                Step::Nothing => {}
            }
            let answers = world.silent.is_empty();
            let state = world.with(now, &events);
            let said = &world.slow[&GPU.into()];
            if answers {
                // An action that nobody knows says nothing.
                reference.action = said.recovery_action.filter(|action| *action < 8).unwrap_or(reference.action);
                reference.row_remap_failed = said.row_remap.is_some_and(|remap| remap.failed);
                reference.fabric_away = said.fabric.as_ref().is_some_and(|fabric| fabric.state != "completed");
            }
            let stuck = reference.stuck_since.is_some_and(|since| now - since >= 10);
            let against = reference.action != 0 || reference.lost || stuck || reference.row_remap_failed
                || reference.fabric_away;
            let healthy = state.of(&GPU.into(), None).unwrap().healthy;
            if against || matches!(step, Step::Xid(48 | 54 | 79 | 95 | 119)) {
                prop_assert!(!healthy, "at {now} in spite of {:?}", reference.action);
                reference.last_against = Some(now);
            }
            let last_against = reference.last_against.filter(|_| healthy);
            prop_assert!(last_against.is_none_or(|last| now - last >= 60), "up at {now}, against it at {last_against:?}");
            prop_assert!(state.of(&OTHER.into(), None).unwrap().healthy, "the other GPU");
            let turned = state.transitions.iter().filter(|turn| turn.gpu == OTHER.into()).count();
            prop_assert_eq!(turned, 0);
            for (class, count) in &state.gpus[&GPU.into()].xids.by_class {
                let before = counted.insert(*class, *count).unwrap_or(0);
                prop_assert!(*count >= before);
            }
            let total: u64 = state.transition_counts.values().flat_map(BTreeMap::values).sum();
            prop_assert!(total >= turns);
            turns = total;
            // Whoever wakes at every deadline misses nothing: the verdict cannot change before it.
            if let Some(deadline) = world.health.next_deadline() {
                prop_assert!(deadline > Monotonic::from_secs(now));
            }
        }
        // All is made well: it comes back, whatever it has been through.
        world.answer();
        let well = Slow {
            recovery_action: Some(0),
            row_remap: Some(RowRemap::default()),
            fabric: Some(FabricState { state: "completed", conditions: BTreeMap::new() }),
            ..Slow::default()
        };
        world.slow.insert(GPU.into(), well);
        world.hardware.sessions += 1;
        world.at(now + 1);
        world.at(now + 2);
        world.at(now + 100);
        prop_assert_eq!(world.reasons(), WELL);
    }

    #[test]
    fn the_order_of_events_does_not_matter(
        codes in prop::collection::vec((prop::sample::select(vec![31, 45, 48, 79, 95]), 2_u64..40, any::<bool>(), 1_u64..5,
            prop::option::of(prop::sample::select(vec![3_u32, 7, 8]))), 1..30),
        seed in any::<u64>(),
    ) {
        let event = |(code, seconds, kmsg, count, instance): &(u32, u64, bool, u64, Option<u32>)| XidEvent {
            source: if *kmsg { XidSource::Kmsg } else { XidSource::Nvml },
            count: *count,
            instance: instance.map(|gpu_instance| XidInstance { gpu_instance, compute_instance: Some(0) }),
            ..xid(*code, *seconds)
        };
        let events: Vec<XidEvent> = codes.iter().map(event).collect();
        let mut shuffled = events.clone();
        let mut state = seed;
        for place in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(place, (state >> 33) as usize % (place + 1));
        }
        let run = |events: &[XidEvent]| {
            let mut world = World::partitioned(Config::default());
            world.at(1);
            world.with(50, events)
        };
        prop_assert_eq!(run(&events), run(&shuffled));
    }
}
