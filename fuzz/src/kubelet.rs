use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use prost::Message;

use crate::domain::holders::{Holdings, Slots, join};
use crate::domain::model::{Allocatable, Allocations, Gpu, GpuUuid, Inventory, MigDevice, PodIdentity, PodUid};
use crate::kubelet::{checkpoint, client, pods};
use crate::wire::{v1, v1alpha1};

/// Two whole GPUs and one with two MIG devices, which device ids of an answer may name.
static INVENTORY: LazyLock<Inventory> = LazyLock::new(inventory);

/// A byte for the kind, then a message of the kubelet in protobuf or its device checkpoint.
pub fn kubelet_answer(bytes: &[u8]) {
    let Some((kind, message)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => decoded(message, |answer| allocations(&client::allocations(answer))),
        1 => decoded(message, |answer| allocatable(&client::allocatable(answer))),
        2 => decoded(message, |answer: v1::GetPodResourcesResponse| {
            if let Some(pod) = answer.pod_resources.map(client::convert_pod) {
                allocations(&Allocations { pods: vec![pod] });
            }
        }),
        3 => decoded(message, |event| pod_event(&event)),
        _ => drop(checkpoint::parse(message)),
    }
}

fn decoded<M: Message + Default>(bytes: &[u8], check: impl FnOnce(M)) {
    // tonic refuses what cannot be decoded.
    if let Ok(message) = M::decode(bytes) {
        check(message);
    }
}

fn allocations(allocations: &Allocations) {
    for container in allocations.containers() {
        let rises = container
            .devices
            .windows(2)
            .all(|pair| (&pair[0].resource, &pair[0].id) < (&pair[1].resource, &pair[1].id));
        assert!(rises && container.claims.is_sorted_by(|one, other| one < other), "{container:?}");
    }
    assert!(allocations.pods.is_sorted_by(|one, other| one.reference < other.reference), "{allocations:?}");
    // Once with everything held also offered, once with nothing offered.
    let mut offered = Allocatable::default();
    for device in allocations.containers().flat_map(|container| &container.devices) {
        offered.devices.entry(device.resource.clone()).or_default().insert(device.id.clone());
    }
    joined(allocations, &offered);
    joined(allocations, &Allocatable::default());
}

fn allocatable(offered: &Allocatable) {
    joined(&Allocations::default(), offered);
}

fn joined(allocations: &Allocations, offered: &Allocatable) {
    let mut slots = Slots::default();
    slots.update_counts(allocations, offered, &INVENTORY, true);
    let Holdings { by_key: holdings, .. } = join(allocations, offered, &INVENTORY, &slots);
    let mut held: BTreeMap<&GpuUuid, f64> = BTreeMap::new();
    for (key, holding) in &holdings {
        assert!(INVENTORY.gpus.contains_key(&key.gpu), "{key:?} is on no GPU");
        assert!(!holding.device_ids.is_empty() && holding.weight > 0.0, "{key:?}: {holding:?}");
        *held.entry(&key.gpu).or_default() += holding.fraction.unwrap_or(0.0);
    }
    // No GPU is held more than once over.
    assert!(held.values().all(|fraction| (0.0..=1.0 + 1e-9).contains(fraction)), "{held:?}");
}

fn pod_event(event: &v1alpha1::WatchPodsEvent) {
    let mut known: BTreeMap<PodUid, Arc<PodIdentity>> = BTreeMap::new();
    let labels: [Arc<str>; 1] = ["app".into()];
    let changed = pods::apply(&mut known, event, &labels);
    // The same event again changes nothing.
    let again = pods::apply(&mut known, event, &labels);
    assert!(!again, "{event:?}");
    assert_eq!(changed, !known.is_empty(), "{event:?}");
    let kept: BTreeSet<&Arc<str>> = known.values().flat_map(|pod| &pod.labels).map(|(key, _)| key).collect();
    assert!(
        kept.into_iter().all(|key| labels.contains(key)) && known.iter().all(|(uid, pod)| *uid == pod.uid),
        "{known:?}"
    );
}

fn inventory() -> Inventory {
    let gpu = |number: u32, mig_devices: Vec<MigDevice>| Gpu {
        minor: Some(number),
        mig_enabled: Some(!mig_devices.is_empty()),
        mig_devices,
        mig_slices: Some(7),
        ..Gpu::listed(format!("GPU-0000000{number}-0000-0000-0000-000000000000").as_str().into(), number)
    };
    let mig = |number: u32| MigDevice {
        uuid: format!("MIG-0000000{number}-0000-0000-0000-000000000000").as_str().into(),
        index: number,
        gpu_instance: number + 1,
        compute_instance: 0,
        profile: "3g.40gb".into(),
        profile_id: Some(9),
        placement_start: Some(4 * number),
        slices: 3,
        memory_bytes: None,
    };
    let gpus = [gpu(0, vec![]), gpu(1, vec![]), gpu(2, vec![mig(0), mig(1)])];
    Inventory { gpus: gpus.into_iter().map(|gpu| (gpu.uuid.clone(), gpu)).collect(), ..Inventory::default() }
}
