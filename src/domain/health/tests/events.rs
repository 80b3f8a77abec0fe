use super::*;

#[test]
fn what_xids_do_by_class_with_and_without_a_recovery_action() {
    for (code, known, unknown) in [
        (31, false, false),
        (94, false, false),
        (48, true, true),
        (79, true, true),
        (74, false, true),
        (169, false, true),
        (145, false, false),
        (54, true, true),
        (43, false, false),
        (45, false, false),
        (154, false, false),
        (151, false, false),
        (999, false, false),
    ] {
        for (mut node, down) in [
            (TwoGpuNode::new(HealthConfig::default()), known),
            (TwoGpuNode::without_recovery_action(HealthConfig::default()), unknown),
        ] {
            node.at(1);
            let state = node.with(2, &[xid(code, 2)]);
            assert_eq!(node.reasons(), if down { vec!["xid"] } else { vec![] }, "XID {code}");
            assert_eq!(state.gpus[&GPU.into()].xids.by_class[&xids::class(code)], 1, "XID {code}");
        }
    }
}

#[test]
fn configured_xids_go_before_their_class() {
    let xids = [(48, XidRule::Count), (31, XidRule::Unhealthy), (45, XidRule::Ignore)].into();
    let mut node = TwoGpuNode::new(HealthConfig { xids, ..HealthConfig::default() });
    node.at(1);
    let state = node.with(2, &[xid(48, 2), xid(45, 2)]);
    assert_eq!(node.reasons(), WELL);
    let counts = &state.gpus[&GPU.into()].xids.by_class;
    assert_eq!((counts[&XidClass::GpuReset], counts[&XidClass::Corroborating]), (1, 0));
    node.with(3, &[xid(31, 3)]);
    assert_eq!(node.reasons(), ["xid"]);
}

/// It was noted as one that does not change the health, by its class alone.
#[test]
fn an_xid_that_makes_a_device_unhealthy_by_configuration_is_in_no_note() {
    let xids = [(182, XidRule::Unhealthy), (78, XidRule::Unhealthy)].into();
    let mut node = TwoGpuNode::new(HealthConfig { xids, ..HealthConfig::default() });
    node.at(1);
    node.with(2, &[xid(182, 2), xid(78, 2), xid(183, 2), xid(151, 2), xid(31, 2)]);
    let notes = ["GPU-0: XID 151 (key rotation error), class software", "GPU-0: XID 183, class unknown"];
    let notes = notes.map(|note| format!("{note}: counted; it does not change the health"));
    assert_eq!(node.health.drain_notes(), notes);
    node.with(3, &[xid(151, 3), xid(183, 3)]);
    assert_eq!((node.reasons(), node.health.drain_notes()), (vec!["xid", "xid"], vec![]));
}

#[test]
fn without_a_recovery_action_a_reload_or_a_return_from_loss_clears_an_xid() {
    for (code, back_from_loss) in [(48, true), (79, false)] {
        let mut node = TwoGpuNode::without_recovery_action(HealthConfig::default());
        node.at(1);
        node.with(2, &[xid(code, 2)]);
        node.stop_responding(|readings| readings.lost = true);
        node.at(3);
        node.respond();
        node.at(4);
        node.at(1000);
        let cleared = node.reasons().is_empty();
        assert_eq!(cleared, back_from_loss, "XID {code}: a lost bus takes a new session");
        node.hardware.driver_loads += 1;
        node.at(1001);
        node.at(1061);
        assert_eq!(node.reasons(), WELL, "XID {code}");
    }
}

#[test]
fn a_new_session_clears_nothing_and_a_gpu_reset_does() {
    for code in [48, 79] {
        let mut node = TwoGpuNode::without_recovery_action(HealthConfig::default());
        node.at(1);
        node.with(2, &[xid(code, 2)]);
        node.release();
        node.at(3);
        node.hardware.released = None;
        node.hardware.sessions += 1;
        node.at(4);
        node.at(1000);
        assert_eq!(node.reasons(), ["xid"], "XID {code}: nothing has been reset");
        node.energy_counter = 0;
        node.at(1001);
        node.at(1061);
        assert_eq!(node.reasons(), WELL, "XID {code}");
    }
}

#[test]
fn a_reload_clears_nothing_while_the_driver_needs_more_or_the_device_does_not_answer() {
    let mut node = TwoGpuNode::checked();
    node.slow(|slow| slow.recovery_action = Some(1));
    node.with(2, &[xid(48, 2)]);
    node.hardware.driver_loads += 1;
    node.at(3);
    node.at(1000);
    assert_eq!(node.reasons(), ["xid", "recovery_action"]);
    node.stop_responding(|_| {});
    node.at(2000);
    node.slow(|slow| slow.recovery_action = Some(0));
    node.at(3000);
    assert_eq!(node.reasons(), ["xid", "recovery_action"], "its recovery action has not changed yet");
}

#[test]
fn an_event_from_before_a_reload_reported_after_it_is_ignored() {
    let mut node = TwoGpuNode::without_recovery_action(HealthConfig::default());
    node.at(1);
    node.hardware.driver_loads += 1;
    node.at(10);
    let state = node.with(11, &[xid(48, 5)]);
    assert_eq!(node.reasons(), WELL);
    assert_eq!(state.gpus[&GPU.into()].xids.by_class[&XidClass::GpuReset], 1);
    node.with(12, &[xid(48, 11)]);
    assert_eq!(node.reasons(), ["xid"]);
}

#[test]
fn an_nvlink_xid_before_the_first_check_is_left_to_the_recovery_action() {
    let mut node = TwoGpuNode::new(HealthConfig::default());
    node.unresponsive = [GPU.into()].into();
    node.with(1, &[xid(74, 1)]);
    assert_eq!(node.reasons(), ["xid", "unknown"]);
    node.unresponsive.clear();
    node.at(2);
    assert_eq!(node.reasons(), WELL);
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
            let mut node = TwoGpuNode::partitioned(HealthConfig::default());
            if early {
                // Before the inventory has named the GPU.
                let known = std::mem::take(&mut node.hardware.inventory);
                node.with(1, &[XidEvent { at: moment(1), ..event.clone() }]);
                node.hardware.inventory = known;
            } else {
                node.at(1);
                node.with(2, std::slice::from_ref(&event));
            }
            let state = node.at(3);
            let down = |mig| !reasons(&state, mig).is_empty();
            assert_eq!([down(None), down(Some(SLICE)), down(Some(OTHER_SLICE))], [whole, slice, other], "{event:?}");
            assert!(!state.gpus[&GPU.into()].is_healthy());
        }
    }
}

#[test]
fn a_new_instance_does_not_inherit_the_xid_of_the_number_that_it_got() {
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    node.at(1);
    node.with(2, &[in_instance(95, 2, 7, Some(0))]);
    node.gpu(|gpu| gpu.mig_devices = vec![mig("MIG-new", 7), mig(OTHER_SLICE, 8)]);
    let state = node.at(3);
    assert_eq!(reasons(&state, Some("MIG-new")), WELL);
    assert_eq!(reasons(&state, None), WELL);
    assert!(state.device(&GPU.into(), Some(&SLICE.into())).is_none(), "what is gone has no health");
    node.gpu(|gpu| gpu.mig_devices = vec![mig(SLICE, 7), mig(OTHER_SLICE, 8)]);
    assert_eq!(reasons(&node.at(4), Some(SLICE)), ["xid"], "what comes back brings it along");
}

#[test]
fn xids_count_by_class_and_by_code() {
    let mut node = TwoGpuNode::checked();
    node.with(2, &[XidEvent { count: 3, ..xid(31, 2) }]);
    let state = node.with(120, &[xid(31, 120), XidEvent { at: moment(60), ..xid(31, 60) }]);
    let xids = &state.gpus[&GPU.into()].xids;
    let of_code = &xids.by_code[&31];
    let recent = [120, 310, 1_000].map(|seconds| of_code.recent.at(moment(seconds).monotonic));
    assert_eq!((xids.by_class[&XidClass::Application], of_code.count, of_code.at), (5, 5, moment(120)));
    assert_eq!(recent, [5, 2, 0]);
}

#[test]
fn an_xid_concerns_its_gpu_instance_and_one_of_the_whole_gpu_each() {
    let mut node = TwoGpuNode::checked();
    let unlikely: Vec<_> = (1_000..1_100).map(|instance| in_instance(13, 5, instance, None)).collect();
    let events = [in_instance(31, 2, 7, Some(0)), in_instance(31, 4, 8, None), xid(79, 3)];
    node.with(2, &events);
    let state = node.with(6, &unlikely);
    let concerning = |instance| -> Vec<_> {
        let xids = &state.gpus[&GPU.into()].xids;
        xids.concerning(instance).map(|(code, _, at)| (code, at)).collect()
    };
    let at = |seconds| moment(seconds).monotonic;
    assert_eq!(concerning(Some(7)), [(13, at(5)), (31, at(2)), (79, at(3))], "13: of more instances than there are");
    assert_eq!(concerning(Some(8)), [(13, at(5)), (31, at(4)), (79, at(3))]);
    assert_eq!(concerning(None), [(13, at(5)), (31, at(4)), (79, at(3))]);
}

#[test]
fn codes_and_transitions_are_bounded() {
    let mut node = TwoGpuNode::checked();
    let codes: Vec<XidEvent> = (0..10_000).map(|code| xid(code, 2)).collect();
    let state = node.with(2, &codes);
    let xids = &state.gpus[&GPU.into()].xids;
    assert_eq!(xids.by_class.values().sum::<u64>(), 10_000, "none is lost for that");
    assert_eq!(xids.by_code.values().map(|of_code| of_code.count).sum::<u64>(), 10_000);
    assert_eq!(xids.by_code.len(), 257);
    assert_eq!(node.health.drain_notes().len(), 256);
    for seconds in 3..300 {
        node.slow(|slow| slow.recovery_action = Some((seconds % 2) as u32));
        node.hardware.driver_loads += 1;
        node.at(seconds * 100);
        node.slow(|slow| slow.recovery_action = Some(0));
        node.at(seconds * 100 + 10);
        node.at(seconds * 100 + 90);
    }
    let state = node.health.state();
    assert_eq!(state.transitions.len(), MAX_TRANSITIONS);
}
