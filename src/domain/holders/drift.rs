//! Differences between the hardware and the devices that the kubelet lists. In: allocations, the kubelet's allocatable
//! devices, the inventory. Out: how many devices of each resource only one of both has. Does not know who holds them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::resolve::{mig_devices, resolve_device};
use crate::domain::model::{
    Allocatable, Allocations, DeviceForm, DeviceId, DeviceRef, Gpu, Inventory, InventoryDrift, ResourceName,
};

pub(super) fn drift(
    allocations: &Allocations,
    allocatable: &Allocatable,
    inventory: &Inventory,
) -> Vec<InventoryDrift> {
    let held = allocations.held_devices();
    let resources: BTreeSet<&ResourceName> = allocatable.devices.keys().chain(held.keys().copied()).collect();
    let present: BTreeSet<DeviceRef> = inventory.gpus.values().filter(|gpu| gpu.present).flat_map(devices_of).collect();
    let nothing = BTreeSet::new();
    let of_resource = |resource: &ResourceName| {
        let allocatable = allocatable.devices.get(resource).unwrap_or(&nothing);
        let held = held.get(resource).into_iter().flatten().copied();
        resource_drift(resource, allocatable, held, &present, inventory)
    };
    resources.into_iter().filter_map(of_resource).collect()
}

/// `None` for other vendors' hardware, which is not in the inventory.
fn resource_drift<'a>(
    resource: &ResourceName,
    allocatable: &'a BTreeSet<DeviceId>,
    held: impl Iterator<Item = &'a DeviceId>,
    present: &BTreeSet<DeviceRef>,
    inventory: &Inventory,
) -> Option<InventoryDrift> {
    let is_expected = |device: &DeviceRef| inventory.is_expected(&device.gpu);
    let is_of_driver = |device: &&DeviceRef| !inventory.missing.contains_key(&device.gpu) && is_expected(device);
    let (mut is_known_hardware, mut without_hardware) = (false, 0);
    // Whole GPUs and MIG devices are resources of their own: a resource is compared with devices of its kind.
    let (mut kinds, mut listed) = (BTreeSet::new(), BTreeSet::new());
    for id in allocatable.iter().chain(held) {
        let (form, devices) = resolve_device(resource, id, inventory);
        // Which of the GPUs at other kernel drivers should be allocatable is unknown.
        if form == DeviceForm::Other || form == DeviceForm::PciAddress && !devices.iter().any(is_expected) {
            continue;
        }
        is_known_hardware = true;
        kinds.extend(devices.iter().filter(is_of_driver).map(|device| kind(device, inventory)));
        if allocatable.contains(id) {
            without_hardware += usize::from(!devices.iter().any(|device| present.contains(device)));
            listed.extend(devices);
        }
    }
    let is_unlisted = |device: &&DeviceRef| kinds.contains(&kind(device, inventory)) && !listed.contains(*device);
    // In these names "advertised" is what the driver lists as present, as in the metric's label.
    is_known_hardware.then(|| InventoryDrift {
        resource: resource.clone(),
        advertised_not_allocatable: present.iter().filter(is_unlisted).count(),
        allocatable_not_advertised: without_hardware,
    })
}

/// What may be allocatable of a GPU: itself, or its MIG devices once it is partitioned.
fn devices_of(gpu: &Gpu) -> Vec<DeviceRef> {
    if gpu.mig_enabled == Some(true) {
        mig_devices(Some(gpu), |_| true)
    } else {
        vec![DeviceRef { gpu: gpu.uuid.clone(), mig: None }]
    }
}

/// `None`: a whole GPU; else the MIG profile.
fn kind(device: &DeviceRef, inventory: &Inventory) -> Option<Arc<str>> {
    let (_, mig) = inventory.mig(device.mig.as_ref()?.as_str())?;
    Some(mig.profile.clone())
}
