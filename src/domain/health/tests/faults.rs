//! Faults that an agent leaves to the next one.

use super::*;
use crate::domain::model::DriverInfo;

const VERSION: &str = "580.1";

impl TwoGpuNode {
    fn driver(&mut self, version: &str) {
        let driver = DriverInfo { driver_version: version.into(), cuda_version: None, nvml_version: None };
        Arc::make_mut(&mut self.hardware.inventory).driver = Some(driver);
    }

    /// The faults as the file has them.
    fn faults(&self) -> String {
        serde_json::to_string(&self.health.faults()).unwrap()
    }

    /// The same node with another agent, which has not read it yet.
    fn restarted(&self, seconds: u64, config: HealthConfig) -> Self {
        let mut next = Self { slow: self.slow.clone(), energy_counter: self.energy_counter, ..Self::new(config) };
        next.hardware.inventory = Arc::clone(&self.hardware.inventory);
        next.health.restore(moment(seconds), &serde_json::from_str(&self.faults()).unwrap());
        next
    }
}

/// A node in which the GPU has this XID since second 2.
fn sick(code: u32) -> TwoGpuNode {
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    node.driver(VERSION);
    node.at(1);
    node.with(2, &[xid(code, 2)]);
    node
}

#[test]
fn an_xid_outlives_the_agent_until_a_reset_is_observed() {
    type Change = fn(&mut TwoGpuNode);
    let nothing: Change = |_| {};
    let needs_reset: Change = |node| {
        node.slow(|slow| slow.recovery_action = Some(1));
        node.at(3);
    };
    let is_lost: Change = |node| {
        node.stop_responding(|readings| readings.lost = true);
        node.at(3);
    };
    // Before the end of the first agent, before the start of the second, and which XIDs have ended then.
    for (what, before, between, ended) in [
        ("nothing", nothing, nothing, &[][..]),
        ("the counter rises", nothing, |node: &mut TwoGpuNode| node.energy_counter += 1, &[]),
        ("the counter fell", nothing, |node| node.energy_counter -= 1, &[48, 79]),
        ("another driver", nothing, |node| node.driver("590.2"), &[48, 79]),
        ("the driver requests none", needs_reset, |node| node.slow(|slow| slow.recovery_action = Some(0)), &[48]),
        ("another, and later none", needs_reset, |node| node.slow(|slow| slow.recovery_action = Some(2)), &[48]),
        ("the driver reports none", needs_reset, |node| node.slow(|slow| slow.recovery_action = None), &[]),
        ("it was lost", is_lost, TwoGpuNode::respond, &[48]),
    ] as [(_, Change, Change, &[u32]); 8]
    {
        for code in [48, 79] {
            let mut node = sick(code);
            before(&mut node);
            between(&mut node);
            let mut node = node.restarted(10, HealthConfig::default());
            for seconds in [10, 11, 30] {
                let state = node.at(seconds);
                assert_eq!(state.gpus[&GPU.into()].whole.reason(), Some(UnhealthyReason::Xid), "{what}: XID {code}");
                assert!(!state.device(&GPU.into(), Some(&SLICE.into())).unwrap().healthy);
            }
            node.slow(|slow| slow.recovery_action = slow.recovery_action.map(|_| 0));
            node.at(31);
            node.at(1000);
            assert_eq!(node.reasons() == WELL, ended.contains(&code), "{what}: XID {code}");
        }
    }
}

#[test]
fn a_restored_fault_is_shown_with_its_time_and_logged_once() {
    let mut node = sick(48);
    let faults = node.faults();
    let mut next = node.restarted(10, HealthConfig::default());
    assert_eq!(next.faults(), faults, "kept before the GPU is listed");
    let notes = next.health.drain_notes();
    assert_eq!(notes, ["GPU-0: XID 48 (double-bit memory error) is restored from before podmeter started"]);
    next.unresponsive = [GPU.into()].into();
    next.at(10);
    assert_eq!(next.reasons(), ["xid", "unknown"]);
    next.unresponsive.clear();
    let state = next.at(11);
    assert_eq!(next.reasons(), ["xid"]);
    assert_eq!(state.gpus[&GPU.into()].whole.since.unix, moment(2).unix);
    assert_eq!((next.faults(), next.health.drain_notes()), (faults, vec![]));
    // Whom it concerned, it concerns.
    next.order(&clear_faults(GPU));
    assert_eq!((next.reasons(), next.health.faults()), (WELL, NodeFaults::default()));
    node.order(&clear_faults(GPU));
    assert_eq!(node.health.faults(), NodeFaults::default());
}

#[test]
fn the_xid_of_an_instance_stays_with_its_mig_devices() {
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    node.at(1);
    node.with(2, &[in_instance(95, 2, 7, Some(0))]);
    let mut next = node.restarted(10, HealthConfig::default());
    let state = next.at(10);
    assert_eq!((reasons(&state, Some(SLICE)), reasons(&state, Some(OTHER_SLICE))), (vec!["xid"], WELL));
    assert!(next.health.drain_notes()[0].starts_with("MIG-7: XID 95"));
    next.order(&clear_faults(SLICE));
    assert_eq!(next.health.faults(), NodeFaults::default());
    // Not resolved to MIG devices yet.
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    let inventory = std::mem::take(&mut node.hardware.inventory);
    node.with(1, &[in_instance(95, 1, 7, Some(0))]);
    node.hardware.inventory = inventory;
    assert_eq!(reasons(&node.restarted(10, HealthConfig::default()).at(10), None), ["xid"]);
}

#[test]
fn the_configuration_decides_anew() {
    let rule = |code, rule| HealthConfig { xids: [(code, rule)].into(), ..HealthConfig::default() };
    for config in [rule(48, XidRule::Count), rule(48, XidRule::Ignore)] {
        let mut next = sick(48).restarted(10, config);
        next.at(10);
        assert_eq!((next.reasons(), next.health.faults()), (WELL, NodeFaults::default()));
    }
    let mut node = TwoGpuNode::new(rule(31, XidRule::Unhealthy));
    node.at(1);
    node.with(2, &[xid(31, 2)]);
    assert_eq!(reasons(&node.restarted(10, rule(31, XidRule::Unhealthy)).at(10), None), ["xid"]);
    assert_eq!(reasons(&node.restarted(10, HealthConfig::default()).at(10), None), WELL);
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.slow(|slow| slow.fabric = Some(FabricState { state: "failed", ..FabricState::default() }));
    assert_eq!(reasons(&node.at(1), None), ["fabric"]);
    let config = HealthConfig { fabric: FabricPolicy::Ignore, ..HealthConfig::default() };
    assert_eq!(reasons(&node.restarted(10, config).at(10), None), WELL);
}

#[test]
fn a_mark_outlives_the_agent_and_the_driver_until_its_end() {
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    node.driver(VERSION);
    node.at(1);
    node.order(&mark(GPU, None));
    node.order(&mark(SLICE, Some(99)));
    (node.energy_counter, node.hardware.driver_loads) = (0, 7);
    node.driver("590.2");
    let mut next = node.restarted(10, HealthConfig::default());
    assert_eq!(next.health.drain_notes()[1], "MIG-7: the mark \"smells\" is restored from before podmeter started");
    next = node.restarted(99, HealthConfig::default());
    let mig = |state: &HealthState| state.device(&GPU.into(), Some(&SLICE.into())).unwrap().causes.len();
    assert_eq!((reasons(&next.at(99), None), mig(&next.health.state())), (vec!["admin"], 2));
    assert_eq!(mig(&next.at(100)), 1);
    assert_eq!(mig(&node.restarted(100, HealthConfig::default()).at(100)), 1, "its end was while no agent ran");
}

/// The mark was dropped silently, and the GPU became healthy.
#[test]
fn a_mark_with_a_reason_that_no_operator_can_give_is_restored_with_another() {
    let mut node = TwoGpuNode::checked();
    node.order(&mark(GPU, None));
    let long = "x".repeat(300);
    for (given, restored) in [
        ("", "no readable reason"),
        ("red\\u001b[31m", "red [31m"),
        ("\\n", "no readable reason"),
        (&*long, &long[..256]),
    ] {
        let mut next = TwoGpuNode::new(HealthConfig::default());
        next.health.restore(moment(1), &serde_json::from_str(&node.faults().replace("smells", given)).unwrap());
        let why = "its stored reason was too long or had control characters";
        let note = format!("GPU-0: the mark {restored:?} ({why}) is restored from before");
        assert!(next.health.drain_notes()[0].starts_with(&note), "{given:?}");
        assert_eq!(reasons(&next.at(1), None), ["admin"], "{given:?}");
        assert_eq!(
            next.health.state().gpus[&GPU.into()].whole.causes[0].detail,
            format!("marked by an operator: {restored}").into()
        );
    }
}

/// So that one whose devices are missing from a damaged file makes no GPU healthy.
#[test]
fn an_xid_of_no_device_is_restored_as_one_of_the_gpu() {
    let faults = sick(48).faults().replace(r#""whole":true"#, r#""whole":false"#);
    let mut next = TwoGpuNode::new(HealthConfig::default());
    next.health.restore(moment(10), &serde_json::from_str(&faults).unwrap());
    assert_eq!(reasons(&next.at(10), None), ["xid"]);
}

#[test]
fn a_fault_that_has_ended_is_held_down_by_the_next_agent() {
    for (recovery, lasts) in [(Recovery::Auto, false), (Recovery::Manual, true)] {
        let config = HealthConfig { recovery, ..HealthConfig::default() };
        let mut node = TwoGpuNode::new(config.clone());
        node.at(1);
        node.with(2, &[xid(48, 2)]);
        node.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() }));
        node.at(3);
        node.hardware.driver_loads += 1;
        node.slow(|slow| slow.row_remap = Some(RowRemap::default()));
        node.at(4);
        assert_eq!(node.reasons(), ["xid", "row_remap_failed"]);
        let mut next = node.restarted(10, config);
        assert_eq!(next.faults(), node.faults(), "before the driver is open");
        next.at(10);
        next.at(69);
        assert_eq!(next.reasons(), ["xid", "row_remap_failed"]);
        next.at(70);
        assert_eq!(!next.reasons().is_empty(), lasts, "{recovery:?}");
        next.order(&clear_faults(GPU));
        assert_eq!((next.reasons(), next.health.faults()), (WELL, NodeFaults::default()));
    }
}

/// Where the next agent did not read the value, the reason ended and the device was healthy after the hold-down.
#[test]
fn a_reason_of_an_earlier_agent_stays_until_its_value_is_read() {
    type Change = fn(&mut Slow);
    let errors = |uncorrected| vec![EccLocation { location: "dram", corrected: None, uncorrected: Some(uncorrected) }];
    let fabric = |state| Some(FabricState { state, ..FabricState::default() });
    let remap = |failed| Some(RowRemap { failed, ..RowRemap::default() });
    let faulty = Slow {
        recovery_action: Some(1),
        row_remap: remap(true),
        fabric: fabric("failed"),
        ecc: errors(3),
        ..Slow::default()
    };
    let well = Slow {
        recovery_action: Some(0),
        row_remap: remap(false),
        fabric: fabric("completed"),
        ecc: errors(0),
        ..faulty.clone()
    };
    for (reason, make_absent) in [
        ("recovery_action", |slow| slow.recovery_action = None),
        ("row_remap_failed", |slow| slow.row_remap = None),
        ("fabric", |slow| slow.fabric = None),
        ("ecc", |slow| slow.ecc.clear()),
    ] as [(&str, Change); 4]
    {
        for hold_down in [0, 60].map(Duration::from_secs) {
            let config = HealthConfig { uncorrectable_ecc: EccPolicy::Unhealthy, hold_down, ..HealthConfig::default() };
            let mut node = TwoGpuNode::new(config.clone());
            node.slow(|slow| *slow = faulty.clone());
            node.at(1);
            assert_eq!(node.reasons(), ["recovery_action", "row_remap_failed", "fabric", "ecc"]);
            let mut next = node.restarted(10, config.clone());
            next.slow(|slow| *slow = well.clone());
            next.slow(make_absent);
            next.at(10);
            next.at(1_000);
            assert_eq!(next.reasons(), [reason]);
            let mut next = next.restarted(1_001, config);
            next.slow(|slow| *slow = Slow::default());
            next.at(1_001);
            next.at(2_000);
            assert_eq!(next.reasons(), [reason], "nothing was read since, by two agents");
            let mut unmarked = next.restarted(2_000, next.health.config.clone());
            unmarked.slow(|slow| *slow = Slow::default());
            unmarked.at(2_000);
            unmarked.order(&clear_faults(GPU));
            unmarked.at(2_001);
            assert_eq!((unmarked.reasons(), unmarked.health.faults()), (WELL, NodeFaults::default()));
            next.slow(|slow| *slow = well.clone());
            next.at(3_000);
            assert_eq!(next.reasons().is_empty(), hold_down.is_zero(), "{reason} is held down from now on");
            next.at(3_060);
            assert_eq!(next.reasons(), WELL);
        }
    }
}

#[test]
fn faults_change_with_the_health_and_the_energy_counter_once_a_minute() {
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.unresponsive = [GPU.into()].into();
    node.at(1);
    assert_eq!((node.reasons(), node.health.faults()), (unknown(), NodeFaults::default()));
    node.unresponsive.clear();
    node.at(2);
    assert_eq!(node.health.faults(), NodeFaults::default());
    let kept = |node: &TwoGpuNode| node.health.faults().gpus[&GPU.into()].energy_counter;
    node.with(3, &[xid(79, 3)]);
    assert_eq!(kept(&node), Some(1_000_000));
    for (seconds, counter, expected) in [(10, 1_500_000, 1_000_000), (62, 2_000_000, 2_000_000), (63, 70, 70)] {
        node.energy_counter = counter;
        node.at(seconds);
        assert_eq!(kept(&node), Some(expected), "at {seconds}");
    }
    assert_eq!(node.health.faults().gpus.len(), 1);
}

#[test]
fn a_lost_gpu_leaves_its_address_so_that_the_next_agent_expects_it() {
    let mut node = TwoGpuNode::checked();
    node.gpu(|gpu| gpu.pci_bus_id = Some("0000:65:00.0".into()));
    node.at(2);
    assert_eq!(node.health.faults().gpus.len(), 0);
    node.stop_responding(|readings| readings.lost = true);
    node.at(3);
    let next = node.restarted(10, HealthConfig::default());
    let address = |node: &TwoGpuNode| node.health.faults().gpus[&GPU.into()].pci_bus_id.clone();
    assert_eq!((address(&node), address(&next)), (Some("0000:65:00.0".into()), Some("0000:65:00.0".into())));
}
