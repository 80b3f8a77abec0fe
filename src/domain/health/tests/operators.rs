use super::*;

#[test]
fn an_operators_mark_applies_until_it_is_removed_or_ends() {
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    node.at(1);
    for name in [GPU, "0"] {
        node.order(&mark(name, None));
        let state = node.at(1000);
        assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (vec!["admin"], vec!["admin"]));
        assert!(state.gpus[&GPU.into()].whole.ensure_healthy().unwrap_err().contains("smells"));
        node.order(&unmark(name));
        assert_eq!(node.reasons(), WELL, "an operator need not wait");
    }
    node.order(&mark(SLICE, Some(10)));
    let state = node.health.state();
    assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (WELL, vec!["admin"]));
    assert_eq!(node.health.next_deadline(), Some(Monotonic::from_secs(1010)));
    let state = node.at(1010);
    assert_eq!(reasons(&state, Some(SLICE)), WELL);
    let refused = |order: OperatorOrder| Health::new(HealthConfig::default()).execute(moment(1), &order);
    assert_eq!(refused(unmark("GPU-9")), Err(MarkError::UnknownDevice("GPU-9".into())));
    let with = |reason: &str| OperatorOrder {
        action: OrderAction::Mark { reason: reason.to_owned(), lasts: None },
        device: GPU.to_owned(),
    };
    assert_eq!(refused(with("")), Err(MarkError::Reason(0)));
    for reason in ["two\nlines", "red\u{1b}[31m", "bel\u{7}"] {
        assert_eq!(refused(with(reason)), Err(MarkError::ControlCharacter(4)), "{reason:?}");
    }
    assert_eq!(refused(mark(GPU, Some(0))), Err(MarkError::AlreadyEnded));
}

/// The driver gives the index of a GPU that is gone to another.
#[test]
fn an_index_names_a_gpu_that_is_present_and_an_order_returns_its_uuid() {
    let mut node = TwoGpuNode::checked();
    let order = |node: &mut TwoGpuNode, device: &str| {
        node.health.execute(moment(node.now), &unmark(device)).map(|outcome| outcome.device)
    };
    assert_eq!(order(&mut node, "0"), Ok(GPU.to_owned()));
    Arc::make_mut(&mut node.hardware.inventory).gpus.get_mut(&OTHER.into()).unwrap().index = Some(0);
    node.at(2);
    assert_eq!(order(&mut node, "0"), Err(MarkError::Ambiguous("0".to_owned())));
    node.gpu(|gpu| gpu.present = false);
    node.at(3);
    assert_eq!(order(&mut node, "0"), Ok(OTHER.to_owned()));
    assert_eq!(order(&mut node, "1"), Err(MarkError::UnknownDevice("1".to_owned())));
    assert_eq!(order(&mut node, GPU), Ok(GPU.to_owned()));
    // The lost GPU is the only one with this index, by which `podmeter health` names it.
    Arc::make_mut(&mut node.hardware.inventory).gpus.get_mut(&OTHER.into()).unwrap().index = Some(1);
    node.at(4);
    assert_eq!([order(&mut node, "0"), order(&mut node, "1")], [Ok(GPU.to_owned()), Ok(OTHER.to_owned())]);
    // The driver lists no GPU.
    node.hardware = HardwareState::default();
    node.at(5);
    assert_eq!(order(&mut node, "0"), Err(MarkError::UnknownDevice("0".to_owned())));
}

/// Its mark would be lost when its UUID is read.
#[test]
fn a_gpu_that_is_known_by_its_address_only_has_no_mark() {
    let mut node = TwoGpuNode::checked();
    let address = GpuUuid::of_address(&"0000:17:00.0".into());
    let gpu = Gpu::not_present(address.clone());
    Arc::make_mut(&mut node.hardware.inventory).gpus.insert(address.clone(), gpu);
    assert!(!node.at(2).device(&address, None).unwrap().healthy);
    let refused = node.health.execute(moment(2), &mark(address.as_str(), None));
    assert_eq!(refused, Err(MarkError::UnknownDevice(address.to_string())));
}

/// After an XID 79, `mark` and `unmark` made the GPU schedulable again.
#[test]
fn an_unmark_removes_the_mark_only_and_each_answer_names_what_remains() {
    let mut node = TwoGpuNode::partitioned(HealthConfig::default());
    node.at(1);
    node.with(2, &[xid(79, 2), in_instance(48, 2, 7, Some(0))]);
    node.slow(|slow| slow.row_remap = Some(RowRemap { failed: true, ..RowRemap::default() }));
    node.at(3);
    assert!(node.order(&mark(GPU, None)).marked);
    node.order(&mark(SLICE, None));
    let listed = |causes: &[DeviceCause]| -> Vec<_> {
        causes.iter().map(|cause| (cause.device.clone(), cause.cause.reason.into_str())).collect()
    };
    let of = |device: &str, reason| (device.to_owned(), reason);
    let unmarked = node.order(&unmark(GPU));
    assert_eq!((&*unmarked.device, unmarked.marked), (GPU, false));
    assert_eq!(listed(&unmarked.removed), [of(GPU, "admin"), of(SLICE, "admin")]);
    assert_eq!(listed(&unmarked.remaining), [of(GPU, "xid"), of(GPU, "row_remap_failed"), of(SLICE, "xid")]);
    assert!(unmarked.remaining[0].cause.clears.ends_with("or podmeter clear-faults"));
    assert_eq!(listed(&node.order(&unmark(GPU)).removed), []);
    assert_eq!(node.reasons(), ["xid", "row_remap_failed"]);

    node.order(&mark(GPU, None));
    let part = node.order(&clear_faults(SLICE));
    assert_eq!((&*part.device, listed(&part.removed)), (SLICE, vec![of(SLICE, "xid")]));
    assert_eq!(listed(&part.remaining), [of(GPU, "xid"), of(GPU, "row_remap_failed"), of(GPU, "admin")]);
    let cleared = node.order(&clear_faults(GPU));
    assert_eq!((cleared.marked, listed(&cleared.removed)), (true, vec![of(GPU, "xid")]));
    assert_eq!(listed(&cleared.remaining), [of(GPU, "row_remap_failed"), of(GPU, "admin")], "it is still reported");
    node.slow(|slow| slow.row_remap = Some(RowRemap::default()));
    node.at(4);
    assert_eq!(
        listed(&node.order(&clear_faults(GPU)).removed),
        [of(GPU, "row_remap_failed")],
        "an operator need not wait"
    );
    let unmarked = node.order(&unmark(GPU));
    assert_eq!((listed(&unmarked.removed), unmarked.remaining), (vec![of(GPU, "admin")], vec![]));
    assert_eq!(node.reasons(), WELL);
}

#[test]
fn with_recovery_manual_only_clear_faults_makes_a_recovered_device_healthy() {
    let mut node = TwoGpuNode::new(HealthConfig { recovery: Recovery::Manual, ..HealthConfig::default() });
    node.at(1);
    assert_eq!(node.reasons(), WELL, "the first check needs no operator");
    node.slow(|slow| slow.recovery_action = Some(1));
    node.with(2, &[xid(48, 2)]);
    node.order(&clear_faults(GPU));
    assert_eq!(node.reasons(), ["recovery_action"], "its own recovery action remains");
    node.slow(|slow| slow.recovery_action = Some(0));
    node.at(3);
    node.at(100_000);
    assert_eq!(node.reasons(), ["recovery_action"]);
    node.order(&clear_faults(GPU));
    assert_eq!(node.reasons(), WELL);
}
