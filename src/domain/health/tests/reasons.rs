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
        let mut node = TwoGpuNode::new(HealthConfig { fabric: policy, ..HealthConfig::default() });
        node.gpu(|gpu| (gpu.platform, gpu.mig_enabled) = (platform.clone(), mig_enabled));
        node.slow(|slow| slow.fabric = Some(fabric(state)));
        assert_eq!(reasons(&node.at(1), None), expected, "{state} {platform:?} {mig_enabled:?}");
    }
}

#[test]
fn a_device_is_unknown_until_checked_and_then_healthy() {
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.unresponsive = [GPU.into()].into();
    node.at(1);
    assert_eq!(node.reasons(), unknown());
    assert_eq!(node.health.next_deadline(), Some(Monotonic::from_secs(6)));
    node.unresponsive.clear();
    let state = node.at(2);
    assert_eq!((node.reasons(), &state.transitions), (WELL, &vec![]), "a first check is no recovery");
    assert_eq!(state.device(&GPU.into(), None).unwrap().since, moment(2));
    assert!(Arc::ptr_eq(&state, &node.at(3)), "nothing has changed");
    node.release();
    node.at(4);
    node.at(100);
    node.hardware.released = None;
    let state = node.at(101);
    let of_gpu = state.transitions.iter().filter(|transition| transition.gpu == GPU.into());
    let changes: Vec<_> = of_gpu.map(|transition| (transition.to_healthy, transition.reason)).collect();
    assert_eq!(changes, [(false, UnhealthyReason::Unknown), (true, UnhealthyReason::Unknown)], "later ones are");
}

#[test]
fn unknown_lasts_for_five_seconds_where_no_read_was_requested() {
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.unresponsive = [GPU.into()].into();
    for seconds in 1..6 {
        node.at(seconds);
        assert_eq!(node.reasons(), unknown(), "at {seconds}");
    }
    node.at(6);
    assert_eq!(node.reasons(), WELL, "absence of data is not unhealthy by itself");
}

fn fabric(state: &'static str) -> FabricState {
    FabricState { state, ..FabricState::default() }
}

type NodeChange = fn(&mut TwoGpuNode);

/// A reason, what causes it, and what ends it.
fn causes() -> [(&'static str, NodeChange, NodeChange); 9] {
    [
        (
            "recovery_action",
            |node| node.slow(|slow| slow.recovery_action = Some(4)),
            |node| node.slow(|slow| slow.recovery_action = Some(0)),
        ),
        ("lost", |node| node.stop_responding(|readings| readings.lost = true), TwoGpuNode::respond),
        (
            "lost",
            |node| {
                node.stop_responding(|_| {});
                node.gpu(|gpu| gpu.present = false);
            },
            TwoGpuNode::respond,
        ),
        (
            "row_remap_failed",
            |node| node.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() })),
            |node| node.slow(|slow| slow.row_remap = Some(RowRemap::default())),
        ),
        (
            "fabric",
            |node| node.slow(|slow| slow.fabric = Some(fabric("in_progress"))),
            |node| node.slow(|slow| slow.fabric = Some(fabric("completed"))),
        ),
        (
            "fabric",
            |node| node.slow(|slow| slow.fabric = Some(fabric("failed"))),
            |node| node.slow(|slow| slow.fabric = Some(fabric("completed"))),
        ),
        ("stuck", |node| node.stop_responding(|readings| readings.stuck = true), TwoGpuNode::respond),
        (
            "xid",
            |node| drop(node.with(10, &[xid(48, 10)])),
            |node| {
                node.slow(|slow| slow.recovery_action = Some(1));
                node.at(21);
                node.slow(|slow| slow.recovery_action = Some(0));
            },
        ),
        ("xid", |node| drop(node.with(10, &[xid(79, 10)])), |node| node.hardware.driver_loads += 1),
    ]
}

/// A reason from a hardware state appears with it, and ends after the hold-down.
#[test]
fn each_reason_appears_with_its_cause_and_ends_after_the_hold_down() {
    for (reason, down, up) in causes() {
        let mut node = TwoGpuNode::checked();
        node.at(2);
        assert_eq!(node.reasons(), WELL, "{reason}");
        down(&mut node);
        node.at(10);
        // Stuck has its own limit.
        node.at(20);
        assert_eq!(node.reasons(), [reason]);
        node.at(5000);
        assert_eq!(node.reasons(), [reason], "time alone heals nothing");
        up(&mut node);
        node.at(6000);
        node.at(6001);
        assert!(node.reasons().contains(&reason), "{reason} is held down");
        node.at(6059);
        assert!(node.reasons().contains(&reason), "{reason} is held down");
        assert!(node.health.next_deadline().is_some_and(|deadline| deadline <= Monotonic::from_secs(6061)));
        let state = node.at(6061);
        assert_eq!(node.reasons(), WELL, "{reason}");
        assert_eq!(state.transitions.last().map(|transition| transition.reason.into_str()), Some(reason));
    }
}

#[test]
fn a_reason_without_new_signals_stays() {
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() }));
    node.at(1);
    node.slow(|slow| slow.row_remap = None);
    node.at(1000);
    assert_eq!(node.reasons(), ["row_remap_failed"]);
    node.stop_responding(|_| {});
    node.at(2000);
    assert_eq!(node.reasons(), ["row_remap_failed"]);
}

#[test]
fn an_unknown_recovery_action_is_no_reason_and_logged_once() {
    let mut node = TwoGpuNode::checked();
    node.slow(|slow| slow.recovery_action = Some(99));
    node.at(2);
    node.at(3);
    assert_eq!(node.reasons(), WELL);
    let notes = node.health.drain_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    node.slow(|slow| slow.recovery_action = Some(1));
    node.at(4);
    node.slow(|slow| slow.recovery_action = Some(99));
    node.at(1000);
    assert_eq!(node.reasons(), ["recovery_action"], "no inputs for it either");
}

#[test]
fn uncorrectable_memory_errors_count_by_policy_and_until_the_driver_is_reloaded() {
    let errors = |uncorrected| vec![EccLocation { location: "dram", corrected: None, uncorrected: Some(uncorrected) }];
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.slow(|slow| slow.ecc = errors(3));
    node.at(1);
    assert_eq!(node.reasons(), WELL);
    let mut node = TwoGpuNode::new(HealthConfig { uncorrectable_ecc: EccPolicy::Unhealthy, ..HealthConfig::default() });
    node.slow(|slow| slow.ecc = errors(3));
    node.at(1);
    node.at(1000);
    assert_eq!(node.reasons(), ["ecc"], "the level counts, also when it was there before");
    node.hardware.driver_loads += 1;
    node.at(1001);
    node.at(1061);
    assert_eq!(node.reasons(), WELL);
    node.slow(|slow| slow.ecc = errors(4));
    node.at(1062);
    assert_eq!(node.reasons(), ["ecc"]);
}

#[test]
fn an_observed_reset_clears_the_memory_errors() {
    let errors = |uncorrected| vec![EccLocation { location: "dram", corrected: None, uncorrected: Some(uncorrected) }];
    type Reset = fn(&mut TwoGpuNode);
    let resets: [Reset; 2] = [|node| node.energy_counter = 0, |node| node.slow(|slow| slow.recovery_action = Some(0))];
    for reset in resets {
        let mut node =
            TwoGpuNode::new(HealthConfig { uncorrectable_ecc: EccPolicy::Unhealthy, ..HealthConfig::default() });
        node.slow(|slow| slow.ecc = errors(3));
        node.at(1);
        node.slow(|slow| slow.recovery_action = Some(1));
        node.at(2);
        assert_eq!(node.reasons(), ["recovery_action", "ecc"]);
        reset(&mut node);
        node.at(3);
        node.slow(|slow| slow.recovery_action = Some(0));
        node.at(4);
        node.at(64);
        assert_eq!(node.reasons(), WELL);
        node.slow(|slow| slow.ecc = errors(4));
        node.at(65);
        assert_eq!(node.reasons(), ["ecc"]);
    }
}

#[test]
fn a_driver_that_cannot_be_opened_for_longer_than_the_limit_is_no_driver() {
    let mut node = TwoGpuNode::checked();
    node.unresponsive = [GPU.into(), OTHER.into()].into();
    node.hardware.readings.clear();
    node.hardware.problem = Some("the driver is away".into());
    let healthy = |node: &TwoGpuNode| node.health.state().gpus.values().filter(|gpu| gpu.is_healthy()).count();
    node.at(2);
    node.at(11);
    assert_eq!(healthy(&node), 2);
    node.at(12);
    assert_eq!(healthy(&node), 0);
    node.unresponsive.clear();
    node.hardware.problem = None;
    node.hardware.driver_loads += 1;
    node.at(13);
    assert_eq!(healthy(&node), 2, "a reload is no fault");
}

/// A reading older than its limit is no input; nor is the fact that the driver can be opened.
#[test]
fn what_is_unknown_stays_so_until_the_device_answers() {
    let unknown = |node: &TwoGpuNode| {
        let state = node.health.state();
        let device = state.device(&GPU.into(), None).unwrap();
        assert_ne!(device.healthy, device.reason() == Some(UnhealthyReason::Unknown), "{device:?}");
        !device.healthy
    };
    // Released for too long, and the release ends before the driver is back.
    let mut node = TwoGpuNode::checked();
    node.release();
    node.unresponsive = [GPU.into(), OTHER.into()].into();
    node.hardware.readings.clear();
    node.at(2);
    node.at(40);
    assert!(unknown(&node));
    node.hardware.released = None;
    node.hardware.problem = Some("the driver is away".into());
    for seconds in 41..60 {
        node.at(seconds);
        assert!(unknown(&node), "at {seconds}");
    }
    // It is back: one answers at once, the other later.
    node.hardware.problem = None;
    node.hardware.driver_loads += 1;
    node.unresponsive = [GPU.into()].into();
    for seconds in 60..90 {
        node.at(seconds);
        assert!(unknown(&node), "at {seconds}");
    }
    assert!(node.health.state().device(&OTHER.into(), None).unwrap().healthy);
    node.unresponsive.clear();
    node.at(90);
    assert_eq!(node.reasons(), WELL);

    // The driver was away for too long, and is back before the GPU is.
    node.unresponsive = [GPU.into(), OTHER.into()].into();
    node.hardware.readings.clear();
    node.hardware.problem = Some("the driver is away".into());
    node.at(100);
    node.at(110);
    assert!(unknown(&node));
    node.hardware.problem = None;
    node.unresponsive = [GPU.into()].into();
    node.at(111);
    node.at(200);
    assert!(unknown(&node));
    node.unresponsive.clear();
    node.at(201);
    assert_eq!(node.reasons(), WELL);
}

/// Too few threads, for example.
#[test]
fn a_gpu_that_this_process_cannot_read_is_unknown_with_the_reason() {
    let detail =
        |node: &TwoGpuNode| node.health.state().device(&GPU.into(), None).unwrap().causes[0].detail.to_string();
    for was_checked in [false, true] {
        let mut node = if was_checked { TwoGpuNode::checked() } else { TwoGpuNode::new(HealthConfig::default()) };
        node.stop_responding(|readings| readings.problem = Some("no thread".into()));
        node.at(2);
        for seconds in [100, 1_000] {
            node.at(seconds);
            assert_eq!((node.reasons(), detail(&node)), (unknown(), "no thread".to_owned()), "{was_checked}");
        }
        node.respond();
        node.at(1_001);
        assert_eq!(node.reasons(), WELL);
    }
}

#[test]
fn a_device_whose_first_check_hangs_goes_from_unknown_to_stuck() {
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.stop_responding(|readings| readings.pass_began = Some(Monotonic::from_secs(1)));
    for seconds in 1..11 {
        node.at(seconds);
        assert_eq!(node.reasons(), unknown(), "at {seconds}");
    }
    node.stop_responding(|readings| (readings.pass_began, readings.stuck) = (Some(Monotonic::from_secs(1)), true));
    let state = node.at(11);
    assert_eq!(node.reasons(), ["stuck"]);
    assert!(state.transitions.iter().all(|transition| transition.gpu != GPU.into()), "{:?}", state.transitions);
}

#[test]
fn released_devices_keep_their_health_for_a_while() {
    let mut node = TwoGpuNode::checked();
    node.stop_responding(|readings| readings.stuck = true);
    node.at(2);
    node.release();
    node.gpu(|gpu| gpu.present = false);
    node.at(2);
    node.at(31);
    assert_eq!(node.health.next_deadline(), Some(Monotonic::from_secs(32)));
    assert_eq!(node.reasons(), WELL);
    node.at(32);
    let whole = &node.health.state().gpus[&GPU.into()].whole.clone();
    assert_eq!(whole.reason(), Some(UnhealthyReason::Unknown));
    node.hardware.released = None;
    node.respond();
    node.at(603);
    assert_eq!(node.reasons(), WELL);
}

#[test]
fn nothing_becomes_healthy_while_it_is_released() {
    let mut node = TwoGpuNode::checked();
    node.slow(|slow| slow.recovery_action = Some(1));
    node.at(2);
    node.slow(|slow| slow.recovery_action = Some(0));
    node.at(3);
    node.release();
    node.at(100);
    assert_eq!(node.reasons(), ["recovery_action"]);
    node.hardware.released = None;
    node.at(101);
    assert_eq!(node.reasons(), WELL);
}
