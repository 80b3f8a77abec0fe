use super::*;
use crate::domain::holders::test_data::{A, B, M1, M2, container, inventory};
use crate::domain::model::{ClaimAllocation, Container};
use crate::test_data::{allocatable, allocations, pod};

/// "pod gpu-or-mig sharing share" of every holding.
fn held(holdings: &Holdings) -> Vec<String> {
    let line = |(key, holding): (&HoldingKey, &Holding)| {
        let device = key.mig.as_ref().map_or_else(|| key.gpu.as_str(), MigUuid::as_str);
        let share = holding.fraction.map_or_else(|| "unknown".to_owned(), |share| format!("{share:.4}"));
        format!("{} {} {} {share}", key.container.pod, &device[..5], holding.sharing.into_str())
    };
    holdings.by_key.iter().map(line).collect()
}

fn joined(containers: Vec<Container>, allocatable: &Allocatable) -> Holdings {
    let (mut slots, allocations) = (Slots::default(), allocations(containers.into_iter().map(pod)));
    slots.update_counts(&allocations, allocatable, &inventory(), true);
    join(&allocations, allocatable, &inventory(), &slots)
}

fn check(containers: Vec<Container>, allocatable: &Allocatable, expected: &[&str]) -> Holdings {
    let holdings = joined(containers, allocatable);
    assert_eq!(held(&holdings), expected);
    holdings
}

#[test]
fn slots_of_a_resource_whose_plugin_reports_mps_are_shared_by_mps() {
    let slot = format!("{A}::0");
    let (shared, other) = (container("p", &[("x/mps", &slot)], &[]), container("q", &[("x/slices", &slot)], &[]));
    let mut slots = Slots::default();
    assert!(slots.set_mps(["x/mps".into()].into()) && !slots.set_mps(["x/mps".into()].into()));
    let of = |container: &Container, slots: &Slots| {
        let allocations = allocations([pod(container.clone())]);
        let holdings = join(&allocations, &Allocatable::default(), &inventory(), slots);
        holdings.by_key.into_values().next().unwrap().sharing
    };
    assert_eq!((of(&shared, &slots), of(&other, &slots)), (SharingForm::Mps, SharingForm::TimeSlicing));
    let whole = container("p", &[("x/mps", A)], &[]);
    assert_eq!(of(&whole, &slots), SharingForm::Exclusive);
}

#[test]
fn every_form_resolves_to_its_hardware() {
    let none = Allocatable::default();
    for (id, expected) in [
        (A.to_owned(), vec!["p GPU-a exclusive 1.0000"]),
        (format!("{A}::0"), vec!["p GPU-a time_slicing unknown"]),
        (format!("{A}-0"), vec!["p GPU-a time_slicing unknown"]),
        (M1.to_owned(), vec!["p MIG-1 mig 0.1429"]),
        (format!("{M2}::1"), vec!["p MIG-2 time_slicing unknown"]),
        ("all".to_owned(), vec!["p GPU-a exclusive 1.0000", "p GPU-b exclusive 1.0000"]),
        ("nvidia1".to_owned(), vec!["p GPU-a exclusive 1.0000"]),
        ("nvidia0/gi7".to_owned(), vec!["p MIG-1 mig 0.1429"]),
        ("nvidia1/vgpu3".to_owned(), vec!["p GPU-a time_slicing unknown"]),
        ("nvidia0/gi2/vgpu0".to_owned(), vec!["p MIG-2 time_slicing unknown"]),
    ] {
        let holdings = check(vec![container("p", &[("any.example/name", &id)], &[])], &none, &expected);
        assert!(holdings.unresolved.is_empty(), "{id}");
    }
    for (device, expected) in [
        ("gpu-1", "p GPU-a exclusive 1.0000"),
        ("gpu-0-mig-1g10gb-19-4", "p MIG-1 mig 0.1429"),
        ("gpu-0-mig-9-0-4", "p MIG-2 mig 0.4286"),
    ] {
        let holdings = check(vec![container("p", &[], &[("gpu.nvidia.com", device)])], &none, &[expected]);
        assert_eq!(holdings.claims.len(), 1, "{device}");
    }
}

#[test]
fn the_minor_number_joins_and_the_index_does_not() {
    let containers = vec![container("p", &[("nvidia.com/gpu", "nvidia0")], &[])];
    let holdings = joined(containers, &Allocatable::default());
    assert_eq!(holdings.by_key.keys().next().map(|key| key.gpu.as_str()), Some(B));
}

#[test]
fn what_does_not_resolve_is_counted_with_its_form() {
    let holdings = check(
        vec![container(
            "p",
            &[
                ("nvidia.com/gpu", "GPU-cccccccc-0000-0000-0000-000000000000"),
                ("nvidia.com/gpu", "tegra"),
                ("example.com/nic", "0000:3b:00.1"),
                ("example.com/nic", "0000:3b:00.2"),
            ],
            &[
                ("compute-domain.nvidia.com", "channel-0"),
                ("gpu.nvidia.com", "gpu-vfio-0"),
                ("gpu.nvidia.com", "gpu-7"),
            ],
        )],
        &Allocatable::default(),
        &[],
    );
    let counted: Vec<_> =
        holdings.unresolved.iter().map(|row| (row.resource.as_str(), row.form, row.devices)).collect();
    assert_eq!(
        counted,
        [
            ("compute-domain.nvidia.com", "dra_compute_domain", 1),
            ("example.com/nic", "other", 2),
            ("gpu.nvidia.com", "dra_gpu", 1),
            ("gpu.nvidia.com", "dra_other", 1),
            ("nvidia.com/gpu", "gpu_uuid", 1),
            ("nvidia.com/gpu", "tegra", 1),
        ]
    );
}

/// Slots of A that a kubelet offers.
fn slots_of_a(count: usize) -> Allocatable {
    let slots: Vec<String> = (0..count).map(|slot| format!("{A}::{slot}")).collect();
    allocatable("nvidia.com/gpu", &slots.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_count_of_slots_shrinks_with_a_settled_offer() {
    let first = format!("{A}::0");
    let holder = allocations([pod(container("p", &[("nvidia.com/gpu", &first)], &[]))]);
    let mut known = Slots::default();
    let mut after = |count, settled| {
        known.update_counts(&holder, &slots_of_a(count), &inventory(), settled);
        held(&join(&holder, &slots_of_a(count), &inventory(), &known))[0].clone()
    };
    assert_eq!(after(8, true), "p GPU-a time_slicing 0.1250");
    assert_eq!(after(4, false), "p GPU-a time_slicing 0.1250", "the offer may be partial");
    assert_eq!(after(4, true), "p GPU-a time_slicing 0.2500");
    assert_eq!(after(0, true), "p GPU-a time_slicing 0.2500", "the device is missing");
    assert_eq!(after(2, true), "p GPU-a time_slicing 0.5000");
}

#[test]
fn a_holder_of_a_slot_that_is_no_longer_offered_holds_one_of_those_offered() {
    let last = format!("{A}::7");
    let holder = allocations([pod(container("p", &[("nvidia.com/gpu", &last)], &[]))]);
    let mut known = Slots::default();
    known.update_counts(&holder, &slots_of_a(8), &inventory(), true);
    known.update_counts(&holder, &slots_of_a(4), &inventory(), true);
    let holdings = join(&holder, &slots_of_a(4), &inventory(), &known);
    assert_eq!(held(&holdings), ["p GPU-a time_slicing 0.2500"]);
}

/// The offer of eight slots is replaced by one of four, and no free slot is healthy until the holder of the seventh ends.
#[test]
fn a_device_keeps_its_count_while_only_its_held_slots_are_healthy() {
    let slot = |name, slot| pod(container(name, &[("nvidia.com/gpu", &format!("{A}::{slot}"))], &[]));
    let claim = pod(container("claim", &[], &[("gpu.nvidia.com", "gpu-1")]));
    let listed = allocatable("nvidia.com/gpu", &[&format!("{A}::1")]);
    for other in [slot("p", 6), claim] {
        let holders = allocations([slot("q", 1), other]);
        let mut known = Slots::default();
        known.update_counts(&holders, &slots_of_a(8), &inventory(), true);
        known.update_counts(&holders, &listed, &inventory(), true);
        let holdings = join(&holders, &listed, &inventory(), &known);
        assert!(
            held(&holdings).iter().any(|line| line.starts_with("q GPU-a time_slicing 0.1")),
            "{:?}",
            held(&holdings)
        );
    }
}

#[test]
fn holders_together_have_at_most_the_whole_gpu() {
    let offered = allocatable("nvidia.com/gpu", &[&format!("{A}::0"), &format!("{A}::1")]);
    let slot = |name, slot| container(name, &[("nvidia.com/gpu", &format!("{A}::{slot}"))], &[]);
    let claim = container("claim", &[], &[("gpu.nvidia.com", "gpu-1")]);
    let holdings = joined(vec![slot("one", 0), slot("two", 1), claim], &offered);
    let sum: f64 = holdings.by_key.values().filter_map(|holding| holding.fraction).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{:?}", held(&holdings));
}

#[test]
fn a_minor_number_is_the_present_gpus_not_a_removed_ones() {
    let mut inventory = inventory();
    let mut gone = inventory.gpus[&GpuUuid::from(A)].clone();
    gone.uuid = "GPU-00000000-0000-0000-0000-000000000000".into();
    gone.present = false;
    inventory.gpus.insert(gone.uuid.clone(), gone);
    assert_eq!(inventory.by_minor(1).map(|gpu| gpu.uuid.as_str()), Some(A));
}

#[test]
fn an_observer_is_joined_and_holds_nothing() {
    let claim = [("gpu.nvidia.com", "gpu-1")];
    let mut observer = container("observer", &[], &claim);
    observer.claims[0].claim = "observing".into();
    let allocation = ClaimAllocation { admin_access: true, ..ClaimAllocation::default() };
    observer.claims[0].record.allocation = Some(allocation.clone());
    let mut lost = container("lost", &[], &[("gpu.nvidia.com", "gpu-9")]);
    lost.claims[0].record.allocation = Some(allocation);
    let containers = vec![container("holder", &[], &claim), observer, lost];
    assert!(!HeldHardware::new(&containers[1..], &inventory()).contains(&A.into()));
    let holdings = check(containers, &Allocatable::default(), &["holder GPU-a exclusive 1.0000"]);
    assert_eq!(holdings.claims.len(), 2);
    assert_eq!(holdings.unresolved, [], "of what is held");
}

#[test]
fn a_device_is_divided_by_claims_and_a_claims_part_by_its_containers() {
    let mut containers = ["a", "b", "c"].map(|name| container(name, &[], &[("gpu.nvidia.com", "gpu-1")])).to_vec();
    containers[2].claims[0].claim = "another".into();
    let holdings = check(
        containers,
        &Allocatable::default(),
        &["a GPU-a time_slicing 0.2500", "b GPU-a time_slicing 0.2500", "c GPU-a time_slicing 0.5000"],
    );
    let weights: Vec<f64> = holdings.by_key.values().map(|holding| holding.weight).collect();
    assert_eq!(weights, [0.5, 0.5, 1.0]);
}

#[test]
fn drift_names_each_disagreement() {
    let gone = "GPU-cccccccc-0000-0000-0000-000000000000";
    let drift = |containers, ids: &[&str]| {
        let rows = joined(containers, &allocatable("nvidia.com/gpu", ids)).drift;
        rows.into_iter().map(|row| (row.advertised_not_allocatable, row.allocatable_not_advertised)).collect::<Vec<_>>()
    };
    let holder = || vec![container("p", &[("nvidia.com/gpu", A)], &[])];
    assert_eq!(drift(holder(), &[A]), [(0, 0)], "agreement");
    assert_eq!(drift(holder(), &[]), [(1, 0)], "plugin gone or device unhealthy");
    assert_eq!(drift(vec![], &[A, gone]), [(0, 1)], "kubelet believes in a GPU that is not there");
    assert_eq!(drift(vec![], &[M1]), [(0, 0)], "other profiles are other resources");
    assert_eq!(drift(vec![], &["Dev-1"]), [], "other vendors' hardware is not ours to judge");
}

#[test]
fn the_order_of_inputs_does_not_matter() {
    let containers = || {
        vec![
            container("a", &[("r.example/x", A)], &[]),
            container("b", &[("r.example/x", M1), ("r.example/x", M2)], &[]),
        ]
    };
    let mut reversed = containers();
    reversed.reverse();
    for container in &mut reversed {
        container.devices.reverse();
    }
    let none = Allocatable::default();
    // `held` has its parts in the order of the pods.
    let joined = |containers| Holdings { held: HeldHardware::default(), ..joined(containers, &none) };
    assert_eq!(joined(containers()), joined(reversed));
}
