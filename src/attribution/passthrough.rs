//! The GPUs that a kernel driver reserves for virtual machines: vfio-pci, its variants, pci-stub.
//!
//! The PCI bus identifies them, since the NVIDIA driver does not have them. A GPU that the NVIDIA driver had before
//! keeps its UUID. They have no readings: a holding of one has allocated and uncovered time.

use std::collections::{BTreeMap, BTreeSet};

use super::device_id::parse_device_id;
use crate::model::{Gpu, GpuUuid, Inventory, KubeletState, NodeDevices, PassthroughGpu, PciBusId};

/// The GPUs that are passed through now. None of them is present.
pub fn gpus(inventory: &Inventory, bus: Option<&NodeDevices>) -> Vec<(Gpu, PassthroughGpu)> {
    let known = known(inventory);
    let on_bus = bus.into_iter().flat_map(|bus| &bus.passthrough);
    let gpu = |(address, of_kernel): (&PciBusId, &PassthroughGpu)| {
        let gpu = match known.get(address) {
            // Bound to the NVIDIA driver again since the bus was scanned.
            Some(known) if known.present => return None,
            Some(known) => Gpu { mig_enabled: None, mig_devices: vec![], ..(*known).clone() },
            None => Gpu {
                pci_bus_id: Some(address.clone()),
                numa_node: of_kernel.numa_node,
                ..Gpu::not_present(GpuUuid::of_address(address))
            },
        };
        Some((gpu, of_kernel.clone()))
    };
    on_bus.filter_map(gpu).collect()
}

/// By address, the GPUs that the driver lists or has listed. One that is present is the one at its address.
fn known(inventory: &Inventory) -> BTreeMap<&PciBusId, &Gpu> {
    let mut gpus: Vec<&Gpu> = inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| gpu.present);
    gpus.into_iter().filter_map(|gpu| Some((gpu.pci_bus_id.as_ref()?, gpu))).collect()
}

/// Those of the `unlisted` UUIDs that may be of GPUs that are passed through, which then are not known to be missing: a
/// device plugin may offer a GPU that was bound to vfio meanwhile. No container holds them.
pub fn may_be<'a>(
    inventory: &Inventory,
    bus: Option<&NodeDevices>,
    kubelet: &KubeletState,
    unlisted: impl Iterator<Item = &'a GpuUuid>,
) -> BTreeSet<GpuUuid> {
    let known = known(inventory);
    let addresses = bus.into_iter().flat_map(|bus| bus.passthrough.keys());
    let anonymous = addresses.filter(|address| !known.contains_key(address)).count();
    let held = kubelet.allocations.iter().flat_map(|allocations| allocations.containers());
    let held: BTreeSet<GpuUuid> = held
        .flat_map(|container| &container.devices)
        .filter_map(|device| parse_device_id(device.id.as_str()).gpu().cloned())
        .collect();
    let candidates: BTreeSet<GpuUuid> = unlisted.filter(|uuid| !held.contains(*uuid)).cloned().collect();
    // More than there are: some of them are missing, and which is unknown.
    if candidates.len() <= anonymous { candidates } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests;
