//! The hardware behind a device ID. In: an ID, the inventory. Out: GPUs and MIG devices; none where the
//! inventory has no such device. Does not know who holds them.

use crate::domain::model::{
    ClaimHardware, DeviceForm, DeviceId, DeviceRef, Gpu, Inventory, MigDevice, PciBusId, ResourceName,
};

/// The form of a device plugin's ID, and the hardware behind it. A PCI address is of a GPU where the resource is NVIDIA's,
/// or where a GPU has it.
pub(super) fn resolve_device(
    resource: &ResourceName,
    id: &DeviceId,
    inventory: &Inventory,
) -> (DeviceForm, Vec<DeviceRef>) {
    let devices = resolve(id, inventory);
    let is_of_others = id.form() == DeviceForm::PciAddress && devices.is_empty() && !resource.is_of_nvidia();
    (if is_of_others { DeviceForm::Other } else { id.form() }, devices)
}

/// The hardware behind an ID; nothing when the inventory has no such device.
pub(super) fn resolve(id: &DeviceId, inventory: &Inventory) -> Vec<DeviceRef> {
    match id.form() {
        DeviceForm::Gpu | DeviceForm::GpuSlot | DeviceForm::GpuVirtual => {
            whole(id.gpu().and_then(|uuid| inventory.gpu(uuid)))
        }
        DeviceForm::Mig | DeviceForm::MigSlot => id.mig().map_or_else(Vec::new, |uuid| mig_of_uuid(uuid, inventory)),
        DeviceForm::All { .. } => whole(inventory.gpus.values()),
        // There is only ever one integrated GPU; beside discrete ones the id would be ambiguous.
        DeviceForm::Tegra { .. } if inventory.gpus.len() == 1 => whole(inventory.gpus.values()),
        DeviceForm::Minor { minor, gpu_instance: None, .. } | DeviceForm::DraGpu { minor } => {
            whole(inventory.by_minor(minor))
        }
        DeviceForm::Minor { minor, gpu_instance: Some(gpu_instance), .. } => {
            mig_devices(inventory.by_minor(minor), |mig| mig.gpu_instance == gpu_instance)
        }
        DeviceForm::DraMig { minor, profile_id, placement_start } => mig_devices(inventory.by_minor(minor), |mig| {
            (mig.profile_id, mig.placement_start) == (Some(profile_id), Some(placement_start))
        }),
        DeviceForm::PciAddress => whole(id.pci_address().and_then(|address| gpu_at(&address, inventory))),
        DeviceForm::Tegra { .. }
        | DeviceForm::DraComputeDomain
        | DeviceForm::DraUnknown
        | DeviceForm::DraOther
        | DeviceForm::Other => vec![],
    }
}

/// The hardware that a file of a DRA driver names.
pub(super) fn resolve_claim_hardware(hardware: &ClaimHardware, inventory: &Inventory) -> Vec<DeviceRef> {
    match hardware {
        ClaimHardware::Gpu(uuid) => whole(inventory.gpus.get(uuid)),
        ClaimHardware::Mig(uuid) => mig_of_uuid(uuid.as_str(), inventory),
        ClaimHardware::Minor(minor) => whole(inventory.by_minor(*minor)),
        ClaimHardware::Pci(address) => whole(gpu_at(address, inventory)),
        ClaimHardware::Instance { minor, gpu_instance, compute_instance } => {
            mig_devices(inventory.by_minor(*minor), |mig| {
                (mig.gpu_instance, mig.compute_instance) == (*gpu_instance, *compute_instance)
            })
        }
    }
}

fn whole<'a>(gpus: impl IntoIterator<Item = &'a Gpu>) -> Vec<DeviceRef> {
    gpus.into_iter().map(|gpu| DeviceRef { gpu: gpu.uuid.clone(), mig: None }).collect()
}

fn mig_of_uuid(uuid: &str, inventory: &Inventory) -> Vec<DeviceRef> {
    let missing = || Some(DeviceRef { gpu: inventory.missing_parent(uuid)?.clone(), mig: Some(uuid.into()) });
    let known = inventory.mig(uuid).map(|(gpu, mig)| mig_device(gpu, mig));
    known.or_else(missing).into_iter().collect()
}

/// The GPU at this address, also one that is not present. Of several it is the one that is, or that another driver has.
pub(super) fn gpu_at<'a>(address: &PciBusId, inventory: &'a Inventory) -> Option<&'a Gpu> {
    let there = inventory.gpus.values().filter(|gpu| gpu.pci_bus_id.as_ref() == Some(address));
    there.max_by_key(|gpu| gpu.present || !inventory.is_expected(&gpu.uuid))
}

/// The MIG devices of `gpu` that are meant.
pub(super) fn mig_devices(gpu: Option<&Gpu>, is_meant: impl Fn(&MigDevice) -> bool) -> Vec<DeviceRef> {
    let of_gpu = gpu.into_iter().flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| (gpu, mig)));
    of_gpu.filter(|(_, mig)| is_meant(mig)).map(|(gpu, mig)| mig_device(gpu, mig)).collect()
}

fn mig_device(gpu: &Gpu, mig: &MigDevice) -> DeviceRef {
    DeviceRef { gpu: gpu.uuid.clone(), mig: Some(mig.uuid.clone()) }
}
