//! The hardware of DRA claims' devices, and how several claims divide one device.
//!
//! A driver's files name hardware by UUID, PCI address or device node and take precedence over the driver's naming
//! convention: minor numbers, which the convention is made of, can change. `ClaimSource` has the order.

use std::collections::BTreeMap;

use super::device_id::{DeviceForm, parse_claim_device};
use super::join::{Target, resolve};
use crate::model::{ClaimDevice, ClaimHardware, ClaimSource, Inventory};

/// In this order: what the claims of a device consume of it says how they divide it.
const CAPACITIES: [&str; 2] = ["shares", "memory"];
/// Two sources name different hardware.
pub(super) const CONTRADICTION: &str = "dra_contradiction";

/// The hardware and what says so, or the form that matches none.
pub(super) fn resolve_claim(
    claim: &ClaimDevice,
    inventory: &Inventory,
) -> Result<(Vec<Target>, ClaimSource), &'static str> {
    let form = parse_claim_device(&claim.driver, claim.device.as_str());
    let mut found: Option<(Vec<Target>, ClaimSource)> = None;
    let mut is_named = false;
    for (source, hardware) in &claim.record.hardware {
        let targets = hardware_targets(hardware, inventory);
        let is_identity = !matches!(source, ClaimSource::Cdi | ClaimSource::DeviceName);
        is_named |= is_identity;
        match &found {
            None if !targets.is_empty() => found = Some((targets, *source)),
            Some((already, _)) if is_identity && !targets.is_empty() && *already != targets => {
                return Err(CONTRADICTION);
            }
            _ => {}
        }
    }
    if let Some(found) = found {
        return Ok(found);
    }
    // Hardware that is named and not listed yet, such as a MIG device made a moment ago. A name could find its
    // predecessor.
    let by_name = if is_named { vec![] } else { resolve(&form, inventory) };
    if by_name.is_empty() { Err(form.name()) } else { Ok((by_name, ClaimSource::DeviceName)) }
}

fn hardware_targets(hardware: &ClaimHardware, inventory: &Inventory) -> Vec<Target> {
    let form = match hardware {
        ClaimHardware::Gpu(uuid) => DeviceForm::Gpu { uuid: uuid.clone() },
        ClaimHardware::Mig(uuid) => DeviceForm::Mig { uuid: uuid.clone() },
        ClaimHardware::Minor(minor) => DeviceForm::DraGpu { minor: *minor },
        ClaimHardware::Pci(address) => DeviceForm::PciAddress { address: address.clone() },
        ClaimHardware::Instance { minor, gpu_instance, compute_instance } => {
            let instances = inventory
                .by_minor(*minor)
                .into_iter()
                .flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| (gpu, mig)));
            return instances
                .filter(|(_, mig)| (mig.gpu_instance, mig.compute_instance) == (*gpu_instance, *compute_instance))
                .map(|(gpu, mig)| Target { gpu: gpu.uuid.clone(), mig: Some(mig.uuid.clone()) })
                .collect();
        }
        ClaimHardware::IommuGroup(group) => DeviceForm::IommuGroup { group: *group },
    };
    resolve(&form, inventory)
}

/// The weight of each claim among the claims of one device, 1 on average: by the first capacity of which all consume
/// something, else equal.
pub(super) fn weights<K: Ord + Clone>(consumed: &BTreeMap<K, BTreeMap<&str, u64>>) -> BTreeMap<K, f64> {
    let amounts = |capacity: &&str| -> Option<BTreeMap<K, f64>> {
        let amount =
            |of: &BTreeMap<&str, u64>| of.get(capacity).filter(|amount| **amount > 0).map(|amount| *amount as f64);
        consumed.iter().map(|(claim, of)| Some((claim.clone(), amount(of)?))).collect()
    };
    let equal = || consumed.keys().map(|claim| (claim.clone(), 1.0)).collect();
    let mut weights: BTreeMap<K, f64> = CAPACITIES.iter().find_map(amounts).unwrap_or_else(equal);
    let average = weights.values().sum::<f64>() / weights.len() as f64;
    weights.values_mut().for_each(|weight| *weight /= average);
    weights
}

#[cfg(test)]
mod tests;
