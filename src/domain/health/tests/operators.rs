use super::*;

#[test]
fn an_operators_mark_applies_until_it_is_removed_or_ends() {
    let mut world = World::partitioned(HealthConfig::default());
    world.at(1);
    let mark = |device: &str, until| OperatorOrder::Mark { device: device.into(), reason: "smells".into(), until };
    for name in [GPU, "0"] {
        world.order(&mark(name, None));
        let state = world.at(1000);
        assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (vec!["admin"], vec!["admin"]));
        assert!(state.gpus[&GPU.into()].whole.ensure_healthy().unwrap_err().contains("smells"));
        world.order(&unmark(name));
        assert_eq!(world.reasons(), WELL, "an operator need not wait");
    }
    world.order(&mark(SLICE, Some(Monotonic::from_secs(1010))));
    let state = world.health.state();
    assert_eq!((reasons(&state, None), reasons(&state, Some(SLICE))), (WELL, vec!["admin"]));
    assert_eq!(world.health.next_deadline(), Some(Monotonic::from_secs(1010)));
    let state = world.at(1010);
    assert_eq!(reasons(&state, Some(SLICE)), WELL);
    let refused = |order: OperatorOrder| Health::new(HealthConfig::default()).execute(moment(1), &order);
    assert_eq!(refused(unmark("GPU-9")), Err(MarkError::UnknownDevice("GPU-9".into())));
    let nothing = OperatorOrder::Mark { device: GPU.into(), reason: String::new(), until: None };
    assert_eq!(refused(nothing), Err(MarkError::Reason(0)));
    for reason in ["two\nlines", "red\u{1b}[31m", "bel\u{7}"] {
        let forged = OperatorOrder::Mark { device: GPU.into(), reason: reason.into(), until: None };
        assert_eq!(refused(forged), Err(MarkError::ControlCharacter(4)), "{reason:?}");
    }
    assert_eq!(refused(mark(GPU, Some(Monotonic::from_secs(1)))), Err(MarkError::AlreadyEnded));
}

/// The driver gives the index of a GPU that is gone to another.
#[test]
fn an_index_names_a_gpu_that_is_present_and_an_order_returns_its_uuid() {
    let mut world = World::checked();
    let order = |world: &mut World, device: &str| world.health.execute(moment(world.now), &unmark(device));
    assert_eq!(order(&mut world, "0"), Ok(GPU.to_owned()));
    Arc::make_mut(&mut world.hardware.inventory).gpus.get_mut(&OTHER.into()).unwrap().index = Some(0);
    world.at(2);
    assert_eq!(order(&mut world, "0"), Err(MarkError::Ambiguous("0".to_owned())));
    world.gpu(|gpu| gpu.present = false);
    world.at(3);
    assert_eq!(order(&mut world, "0"), Ok(OTHER.to_owned()));
    assert_eq!(order(&mut world, "1"), Err(MarkError::UnknownDevice("1".to_owned())));
    assert_eq!(order(&mut world, GPU), Ok(GPU.to_owned()));
    // The driver lists no GPU.
    world.hardware = HardwareState::default();
    world.at(4);
    assert_eq!(order(&mut world, "0"), Err(MarkError::UnknownDevice("0".to_owned())));
}

/// Its mark would be lost when its UUID is read.
#[test]
fn a_gpu_that_is_known_by_its_address_only_has_no_mark() {
    let mut world = World::checked();
    let address = GpuUuid::of_address(&"0000:17:00.0".into());
    let gpu = Gpu::not_present(address.clone());
    Arc::make_mut(&mut world.hardware.inventory).gpus.insert(address.clone(), gpu);
    assert!(!world.at(2).device(&address, None).unwrap().healthy);
    let mark = OperatorOrder::Mark { device: address.to_string(), reason: "smells".to_owned(), until: None };
    assert_eq!(world.health.execute(moment(2), &mark), Err(MarkError::UnknownDevice(address.to_string())));
}

#[test]
fn in_manual_only_an_unmark_brings_a_device_back_and_only_if_it_has_recovered() {
    let mut world = World::new(HealthConfig { recovery: Recovery::Manual, ..HealthConfig::default() });
    world.at(1);
    assert_eq!(world.reasons(), WELL, "the first check needs no operator");
    world.slow(|slow| slow.recovery_action = Some(1));
    world.with(2, &[xid(48, 2)]);
    world.order(&unmark(GPU));
    assert_eq!(world.reasons(), ["recovery_action"], "its own recovery action remains");
    world.slow(|slow| slow.recovery_action = Some(0));
    world.at(3);
    world.at(100_000);
    assert_eq!(world.reasons(), ["recovery_action"]);
    world.order(&unmark(GPU));
    assert_eq!(world.reasons(), WELL);
}
