//! The hardware behind a device ID. In: an ID or its parsed form, the inventory. Out: GPUs and MIG devices; none where the
//! inventory has no such device. Does not know who holds them.

use super::device_id::{DeviceForm, is_domain_of_nvidia, parse_device_id};
use crate::domain::model::{DeviceId, DeviceRef, Gpu, Inventory, MigDevice, ResourceName};

/// The form of a device plugin's ID, and the hardware behind it. A PCI address is of a GPU where the resource is NVIDIA's,
/// or where a GPU has it.
pub(super) fn resolve_device(
    resource: &ResourceName,
    id: &DeviceId,
    inventory: &Inventory,
) -> (DeviceForm, Vec<DeviceRef>) {
    let form = parse_device_id(id.as_str());
    let devices = resolve(&form, inventory);
    let is_of_others = form.is_pci_address() && devices.is_empty() && !is_domain_of_nvidia(resource);
    (if is_of_others { DeviceForm::Other } else { form }, devices)
}

/// The hardware behind an ID; nothing when the inventory has no such device.
pub(super) fn resolve(form: &DeviceForm, inventory: &Inventory) -> Vec<DeviceRef> {
    let whole = |gpu: &Gpu| DeviceRef { gpu: gpu.uuid.clone(), mig: None };
    match form {
        DeviceForm::Gpu { uuid } | DeviceForm::GpuSlot { uuid } | DeviceForm::GpuVirtual { uuid } => {
            inventory.gpus.get(uuid).map(whole).into_iter().collect()
        }
        DeviceForm::Mig { uuid } | DeviceForm::MigSlot { uuid } => {
            let missing = || Some(DeviceRef { gpu: inventory.missing_parent(uuid)?.clone(), mig: Some(uuid.clone()) });
            let known = inventory.mig(uuid).map(|(gpu, mig)| mig_device(gpu, mig));
            known.or_else(missing).into_iter().collect()
        }
        DeviceForm::All { .. } => inventory.gpus.values().map(whole).collect(),
        // There is only ever one integrated GPU; beside discrete ones the id would be ambiguous.
        DeviceForm::Tegra { .. } if inventory.gpus.len() == 1 => inventory.gpus.values().map(whole).collect(),
        DeviceForm::Minor { minor, gpu_instance: None, .. } | DeviceForm::DraGpu { minor } => {
            inventory.by_minor(*minor).map(whole).into_iter().collect()
        }
        DeviceForm::Minor { minor, gpu_instance: Some(gpu_instance), .. } => {
            mig_devices(inventory.by_minor(*minor), |mig| mig.gpu_instance == *gpu_instance)
        }
        DeviceForm::DraMig { minor, profile_id, placement_start } => mig_devices(inventory.by_minor(*minor), |mig| {
            (mig.profile_id, mig.placement_start) == (Some(*profile_id), Some(*placement_start))
        }),
        DeviceForm::PciAddress { address } => inventory
            .gpus
            .values()
            .filter(|gpu| gpu.pci_bus_id.as_ref() == Some(address))
            .max_by_key(|gpu| gpu.present || !inventory.is_expected(&gpu.uuid))
            .map(whole)
            .into_iter()
            .collect(),
        DeviceForm::Tegra { .. }
        | DeviceForm::DraComputeDomain
        | DeviceForm::DraUnknown
        | DeviceForm::DraOther
        | DeviceForm::Other => vec![],
    }
}

/// The MIG devices of `gpu` that are meant.
pub(super) fn mig_devices(gpu: Option<&Gpu>, is_meant: impl Fn(&MigDevice) -> bool) -> Vec<DeviceRef> {
    let of_gpu = gpu.into_iter().flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| (gpu, mig)));
    of_gpu.filter(|(_, mig)| is_meant(mig)).map(|(gpu, mig)| mig_device(gpu, mig)).collect()
}

fn mig_device(gpu: &Gpu, mig: &MigDevice) -> DeviceRef {
    DeviceRef { gpu: gpu.uuid.clone(), mig: Some(mig.uuid.clone()) }
}
