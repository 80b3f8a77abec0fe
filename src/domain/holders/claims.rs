//! The hardware of DRA claims' devices, and how several claims divide one device.
//!
//! A driver's files name hardware by UUID, PCI address or device node and take precedence over the driver's naming
//! convention: minor numbers, which the convention is made of, can change. `ClaimSource` has the order.

use std::collections::BTreeMap;

use super::resolve::{resolve, resolve_claim_hardware};
use crate::domain::model::{ClaimDevice, ClaimSource, DeviceRef, Inventory};

/// The capacities by which the claims of a device divide it, in this order.
const CAPACITIES: [&str; 2] = ["shares", "memory"];
/// Two sources name different hardware.
pub(super) const CONTRADICTION: &str = "dra_contradiction";

/// The hardware and the source that names it, or the label `form` of what is not resolved.
pub(super) fn resolve_claim(
    claim: &ClaimDevice,
    inventory: &Inventory,
) -> Result<(Vec<DeviceRef>, ClaimSource), &'static str> {
    let named_by = |source: ClaimSource| {
        let hardware = claim.record.hardware.get(&source)?;
        Some((resolve_claim_hardware(hardware, inventory), source))
    };
    let mut identities = [ClaimSource::Metadata, ClaimSource::Checkpoint].into_iter().filter_map(named_by);
    let (devices, source) = match identities.next() {
        Some((devices, _)) if identities.any(|(others, _)| others != devices) => return Err(CONTRADICTION),
        // Even without devices: its hardware may not be listed yet, such as a MIG device made a moment ago, and a device
        // node or a name could be its predecessor's.
        Some(named) => named,
        None => named_by(ClaimSource::Cdi)
            .filter(|(devices, _)| !devices.is_empty())
            .unwrap_or_else(|| (resolve(&claim.device, inventory), ClaimSource::DeviceName)),
    };
    if devices.is_empty() { Err(claim.device.form().into_str()) } else { Ok((devices, source)) }
}

/// The weight of each claim among the claims of one device, 1 on average: by the first capacity of which all consume
/// something, else equal. `consumed`: amounts by claim and capacity.
pub(super) fn claim_weights<K: Ord + Clone>(consumed: &BTreeMap<K, BTreeMap<&str, u64>>) -> BTreeMap<K, f64> {
    let by_capacity = |capacity: &&str| -> Option<BTreeMap<K, f64>> {
        let positive = |amounts: &BTreeMap<&str, u64>| amounts.get(capacity).copied().filter(|amount| *amount > 0);
        consumed.iter().map(|(claim, amounts)| Some((claim.clone(), positive(amounts)? as f64))).collect()
    };
    let equal = || consumed.keys().map(|claim| (claim.clone(), 1.0)).collect();
    let mut weights: BTreeMap<K, f64> = CAPACITIES.iter().find_map(by_capacity).unwrap_or_else(equal);
    let average = weights.values().sum::<f64>() / weights.len() as f64;
    weights.values_mut().for_each(|weight| *weight /= average);
    weights
}

#[cfg(test)]
mod tests;
