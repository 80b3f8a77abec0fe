//! Differences between the hardware and the devices that the kubelet lists. In: allocations, the kubelet's allocatable
//! devices, the inventory. Out: how many devices of each resource only one of both has. Does not know who holds them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::device_id::DeviceForm;
use super::resolve::{mig_devices, resolve_device};
use crate::domain::model::{Allocatable, Allocations, DeviceRef, Gpu, Inventory, InventoryDrift, ResourceName};

pub(super) fn drift(
    allocations: &Allocations,
    allocatable: &Allocatable,
    inventory: &Inventory,
) -> Vec<InventoryDrift> {
    let held = allocations.held_devices();
    let resources: BTreeSet<&ResourceName> = allocatable.devices.keys().chain(held.keys().copied()).collect();
    let present: BTreeSet<DeviceRef> = inventory.gpus.values().filter(|gpu| gpu.present).flat_map(targets).collect();
    let nothing = BTreeSet::new();
    let disagreements = resources.into_iter().filter_map(|resource| {
        let offered = allocatable.devices.get(resource).unwrap_or(&nothing);
        let held = held.get(resource).into_iter().flatten().copied();
        let (mut known_hardware, mut elsewhere) = (false, 0);
        // Whole GPUs and MIG devices are resources of their own: a resource is compared with devices of its kind.
        let (mut kinds, mut reachable) = (BTreeSet::new(), BTreeSet::new());
        for id in offered.iter().chain(held) {
            let (form, targets) = resolve_device(resource, id, inventory);
            let is_passed_through = |target: &DeviceRef| inventory.passthrough.contains_key(&target.gpu);
            // Which of the GPUs that are passed through a plugin should offer is unknown.
            if form == DeviceForm::Other || form.is_of_host() && targets.iter().all(is_passed_through) {
                continue;
            }
            known_hardware = true;
            let is_listed =
                |target: &&DeviceRef| !inventory.missing.contains_key(&target.gpu) && !is_passed_through(target);
            kinds.extend(targets.iter().filter(is_listed).map(|target| kind(target, inventory)));
            if offered.contains(id) {
                elsewhere += usize::from(!targets.iter().any(|target| present.contains(target)));
                reachable.extend(targets);
            }
        }
        let missing =
            present.iter().filter(|target| kinds.contains(&kind(target, inventory)) && !reachable.contains(*target));
        // Other vendors' hardware is not in the inventory.
        known_hardware.then(|| InventoryDrift {
            resource: resource.clone(),
            advertised_not_allocatable: missing.count(),
            allocatable_not_advertised: elsewhere,
        })
    });
    disagreements.collect()
}

/// What the plugin could advertise of a GPU: itself, or its MIG devices once it is partitioned.
fn targets(gpu: &Gpu) -> Vec<DeviceRef> {
    if gpu.mig_enabled == Some(true) {
        mig_devices(Some(gpu), |_| true)
    } else {
        vec![DeviceRef { gpu: gpu.uuid.clone(), mig: None }]
    }
}

/// `None`: a whole GPU; else the MIG profile.
fn kind(target: &DeviceRef, inventory: &Inventory) -> Option<Arc<str>> {
    let (_, mig) = inventory.mig(target.mig.as_ref()?)?;
    Some(mig.profile.clone())
}
