use super::*;

#[test]
fn a_gpu_that_needs_no_fabric_or_is_in_no_domain_is_healthy() {
    let direct = Platform { peer_type: Some("direct"), ..Platform::default() };
    let switch = Platform { peer_type: Some("switch"), ..Platform::default() };
    for (state, platform, mig_enabled, policy, expected) in [
        // No NVLink switches: a superchip alone, a PCIe board.
        ("not_supported", None, Some(false), FabricPolicy::Unhealthy, WELL),
        // Registered: an HGX board without a domain, and an idle rack without IMEX.
        ("completed", Some(switch.clone()), Some(false), FabricPolicy::Unhealthy, WELL),
        ("in_progress", Some(direct), None, FabricPolicy::Unhealthy, WELL),
        ("in_progress", None, Some(true), FabricPolicy::Unhealthy, WELL),
        ("failed", None, Some(true), FabricPolicy::Unhealthy, WELL),
        ("in_progress", Some(switch.clone()), Some(false), FabricPolicy::Ignore, WELL),
        ("in_progress", Some(switch), Some(false), FabricPolicy::Unhealthy, vec!["fabric"]),
        ("not_started", None, None, FabricPolicy::Unhealthy, vec!["fabric"]),
    ] {
        let mut world = World::new(HealthConfig { fabric: policy, ..HealthConfig::default() });
        world.gpu(|gpu| (gpu.platform, gpu.mig_enabled) = (platform.clone(), mig_enabled));
        world.slow(|slow| slow.fabric = Some(fabric(state)));
        assert_eq!(reasons(&world.at(1), None), expected, "{state} {platform:?} {mig_enabled:?}");
    }
}

#[test]
fn a_device_is_unknown_until_checked_and_then_healthy() {
    let mut world = World::new(HealthConfig::default());
    world.unresponsive = [GPU.into()].into();
    world.at(1);
    assert_eq!(world.reasons(), unknown());
    assert_eq!(world.health.next_deadline(), Some(Monotonic::from_secs(6)));
    world.unresponsive.clear();
    let state = world.at(2);
    assert_eq!((world.reasons(), &state.transitions), (WELL, &vec![]), "a first check is no recovery");
    assert_eq!(state.device(&GPU.into(), None).unwrap().since, moment(2));
    assert!(Arc::ptr_eq(&state, &world.at(3)), "nothing has changed");
    world.release();
    world.at(4);
    world.at(100);
    world.hardware.released = None;
    let state = world.at(101);
    let of_gpu = state.transitions.iter().filter(|transition| transition.gpu == GPU.into());
    let changes: Vec<_> = of_gpu.map(|transition| (transition.to_healthy, transition.reason)).collect();
    assert_eq!(changes, [(false, UnhealthyReason::Unknown), (true, UnhealthyReason::Unknown)], "later ones are");
}

#[test]
fn unknown_lasts_for_five_seconds_where_no_read_was_requested() {
    let mut world = World::new(HealthConfig::default());
    world.unresponsive = [GPU.into()].into();
    for seconds in 1..6 {
        world.at(seconds);
        assert_eq!(world.reasons(), unknown(), "at {seconds}");
    }
    world.at(6);
    assert_eq!(world.reasons(), WELL, "absence of data is not unhealthy by itself");
}

fn fabric(state: &'static str) -> FabricState {
    FabricState { state, ..FabricState::default() }
}

type Change = fn(&mut World);

/// A reason, what causes it, and what ends it.
fn causes() -> [(&'static str, Change, Change); 9] {
    [
        (
            "recovery_action",
            |world| world.slow(|slow| slow.recovery_action = Some(4)),
            |world| world.slow(|slow| slow.recovery_action = Some(0)),
        ),
        ("lost", |world| world.stop_responding(|readings| readings.lost = true), World::respond),
        (
            "lost",
            |world| {
                world.stop_responding(|_| {});
                world.gpu(|gpu| gpu.present = false);
            },
            World::respond,
        ),
        (
            "row_remap_failed",
            |world| world.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() })),
            |world| world.slow(|slow| slow.row_remap = Some(RowRemap::default())),
        ),
        (
            "fabric",
            |world| world.slow(|slow| slow.fabric = Some(fabric("in_progress"))),
            |world| world.slow(|slow| slow.fabric = Some(fabric("completed"))),
        ),
        (
            "fabric",
            |world| world.slow(|slow| slow.fabric = Some(fabric("failed"))),
            |world| world.slow(|slow| slow.fabric = Some(fabric("completed"))),
        ),
        ("stuck", |world| world.stop_responding(|readings| readings.stuck = true), World::respond),
        (
            "xid",
            |world| drop(world.with(10, &[xid(48, 10)])),
            |world| {
                world.slow(|slow| slow.recovery_action = Some(1));
                world.at(21);
                world.slow(|slow| slow.recovery_action = Some(0));
            },
        ),
        ("xid", |world| drop(world.with(10, &[xid(79, 10)])), |world| world.hardware.driver_loads += 1),
    ]
}

/// A reason from a hardware state appears with it, and ends after the hold-down.
#[test]
fn each_reason_appears_with_its_cause_and_ends_after_the_hold_down() {
    for (reason, down, up) in causes() {
        let mut world = World::checked();
        world.at(2);
        assert_eq!(world.reasons(), WELL, "{reason}");
        down(&mut world);
        world.at(10);
        // Stuck has its own limit.
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
        assert_eq!(state.transitions.last().map(|transition| transition.reason.into_str()), Some(reason));
    }
}

#[test]
fn a_reason_without_new_signals_stays() {
    let mut world = World::new(HealthConfig::default());
    world.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() }));
    world.at(1);
    world.slow(|slow| slow.row_remap = None);
    world.at(1000);
    assert_eq!(world.reasons(), ["row_remap_failed"]);
    world.stop_responding(|_| {});
    world.at(2000);
    assert_eq!(world.reasons(), ["row_remap_failed"]);
}

#[test]
fn an_unknown_recovery_action_is_no_reason_and_logged_once() {
    let mut world = World::checked();
    world.slow(|slow| slow.recovery_action = Some(99));
    world.at(2);
    world.at(3);
    assert_eq!(world.reasons(), WELL);
    let notes = world.health.drain_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    world.slow(|slow| slow.recovery_action = Some(1));
    world.at(4);
    world.slow(|slow| slow.recovery_action = Some(99));
    world.at(1000);
    assert_eq!(world.reasons(), ["recovery_action"], "no inputs for it either");
}

#[test]
fn uncorrectable_memory_errors_count_by_policy_and_until_the_driver_is_reloaded() {
    let errors = |uncorrected| vec![EccLocation { location: "dram", corrected: None, uncorrected: Some(uncorrected) }];
    let mut world = World::new(HealthConfig::default());
    world.slow(|slow| slow.ecc = errors(3));
    world.at(1);
    assert_eq!(world.reasons(), WELL);
    let mut world = World::new(HealthConfig { uncorrectable_ecc: EccPolicy::Unhealthy, ..HealthConfig::default() });
    world.slow(|slow| slow.ecc = errors(3));
    world.at(1);
    world.at(1000);
    assert_eq!(world.reasons(), ["ecc"], "the level counts, also when it was there before");
    world.hardware.driver_loads += 1;
    world.at(1001);
    world.at(1061);
    assert_eq!(world.reasons(), WELL);
    world.slow(|slow| slow.ecc = errors(4));
    world.at(1062);
    assert_eq!(world.reasons(), ["ecc"]);
}

#[test]
fn an_observed_reset_clears_the_memory_errors() {
    let errors = |uncorrected| vec![EccLocation { location: "dram", corrected: None, uncorrected: Some(uncorrected) }];
    type Reset = fn(&mut World);
    let resets: [Reset; 2] =
        [|world| world.energy_counter = 0, |world| world.slow(|slow| slow.recovery_action = Some(0))];
    for reset in resets {
        let mut world = World::new(HealthConfig { uncorrectable_ecc: EccPolicy::Unhealthy, ..HealthConfig::default() });
        world.slow(|slow| slow.ecc = errors(3));
        world.at(1);
        world.slow(|slow| slow.recovery_action = Some(1));
        world.at(2);
        assert_eq!(world.reasons(), ["recovery_action", "ecc"]);
        reset(&mut world);
        world.at(3);
        world.slow(|slow| slow.recovery_action = Some(0));
        world.at(4);
        world.at(64);
        assert_eq!(world.reasons(), WELL);
        world.slow(|slow| slow.ecc = errors(4));
        world.at(65);
        assert_eq!(world.reasons(), ["ecc"]);
    }
}

#[test]
fn a_driver_that_cannot_be_opened_for_longer_than_the_limit_is_no_driver() {
    let mut world = World::checked();
    world.unresponsive = [GPU.into(), OTHER.into()].into();
    world.hardware.readings.clear();
    world.hardware.problem = Some("the driver is away".into());
    let healthy = |world: &World| world.health.state().gpus.values().filter(|gpu| gpu.is_healthy()).count();
    world.at(2);
    world.at(11);
    assert_eq!(healthy(&world), 2);
    world.at(12);
    assert_eq!(healthy(&world), 0);
    world.unresponsive.clear();
    world.hardware.problem = None;
    world.hardware.driver_loads += 1;
    world.at(13);
    assert_eq!(healthy(&world), 2, "a reload is no fault");
}

/// A reading older than its limit is no input; nor is the fact that the driver can be opened.
#[test]
fn what_is_unknown_stays_so_until_the_device_answers() {
    let unknown = |world: &World| {
        let state = world.health.state();
        let device = state.device(&GPU.into(), None).unwrap();
        assert_ne!(device.healthy, device.reason() == Some(UnhealthyReason::Unknown), "{device:?}");
        !device.healthy
    };
    // Released for too long, and the release ends before the driver is back.
    let mut world = World::checked();
    world.release();
    world.unresponsive = [GPU.into(), OTHER.into()].into();
    world.hardware.readings.clear();
    world.at(2);
    world.at(40);
    assert!(unknown(&world));
    world.hardware.released = None;
    world.hardware.problem = Some("the driver is away".into());
    for seconds in 41..60 {
        world.at(seconds);
        assert!(unknown(&world), "at {seconds}");
    }
    // It is back: one answers at once, the other later.
    world.hardware.problem = None;
    world.hardware.driver_loads += 1;
    world.unresponsive = [GPU.into()].into();
    for seconds in 60..90 {
        world.at(seconds);
        assert!(unknown(&world), "at {seconds}");
    }
    assert!(world.health.state().device(&OTHER.into(), None).unwrap().healthy);
    world.unresponsive.clear();
    world.at(90);
    assert_eq!(world.reasons(), WELL);

    // The driver was away for too long, and is back before the GPU is.
    world.unresponsive = [GPU.into(), OTHER.into()].into();
    world.hardware.readings.clear();
    world.hardware.problem = Some("the driver is away".into());
    world.at(100);
    world.at(110);
    assert!(unknown(&world));
    world.hardware.problem = None;
    world.unresponsive = [GPU.into()].into();
    world.at(111);
    world.at(200);
    assert!(unknown(&world));
    world.unresponsive.clear();
    world.at(201);
    assert_eq!(world.reasons(), WELL);
}

/// Too few threads, for example.
#[test]
fn a_gpu_that_this_process_cannot_read_is_unknown_with_the_reason() {
    let detail = |world: &World| world.health.state().device(&GPU.into(), None).unwrap().causes[0].detail.to_string();
    for was_checked in [false, true] {
        let mut world = if was_checked { World::checked() } else { World::new(HealthConfig::default()) };
        world.stop_responding(|readings| readings.problem = Some("no thread".into()));
        world.at(2);
        for seconds in [100, 1_000] {
            world.at(seconds);
            assert_eq!((world.reasons(), detail(&world)), (unknown(), "no thread".to_owned()), "{was_checked}");
        }
        world.respond();
        world.at(1_001);
        assert_eq!(world.reasons(), WELL);
    }
}

#[test]
fn a_device_whose_first_check_hangs_goes_from_unknown_to_stuck() {
    let mut world = World::new(HealthConfig::default());
    world.stop_responding(|readings| readings.asked = Some(Monotonic::from_secs(1)));
    for seconds in 1..11 {
        world.at(seconds);
        assert_eq!(world.reasons(), unknown(), "at {seconds}");
    }
    world.stop_responding(|readings| (readings.asked, readings.stuck) = (Some(Monotonic::from_secs(1)), true));
    let state = world.at(11);
    assert_eq!(world.reasons(), ["stuck"]);
    assert!(state.transitions.iter().all(|transition| transition.gpu != GPU.into()), "{:?}", state.transitions);
}

#[test]
fn released_devices_keep_their_health_for_a_while() {
    let mut world = World::checked();
    world.stop_responding(|readings| readings.stuck = true);
    world.at(2);
    world.release();
    world.gpu(|gpu| gpu.present = false);
    world.at(2);
    world.at(31);
    assert_eq!(world.health.next_deadline(), Some(Monotonic::from_secs(32)));
    assert_eq!(world.reasons(), WELL);
    world.at(32);
    let whole = &world.health.state().gpus[&GPU.into()].whole.clone();
    assert_eq!(whole.reason(), Some(UnhealthyReason::Unknown));
    world.hardware.released = None;
    world.respond();
    world.at(603);
    assert_eq!(world.reasons(), WELL);
}

#[test]
fn nothing_becomes_healthy_while_it_is_released() {
    let mut world = World::checked();
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
