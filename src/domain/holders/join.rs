//! Joins the kubelet's device IDs with the driver's hardware. In: allocations, what is allocatable, the inventory, slots.
//! Out: who holds which device and which fraction of it; claims by device; what does not match. Does not know use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claims::{claim_weights, resolve_claim};
use super::drift::drift;
use super::held::HeldHardware;
use super::resolve::{resolve, resolve_device};
use crate::domain::model::{
    Allocatable, Allocations, ClaimDevice, ClaimGpu, ClaimKey, ClaimName, ContainerRef, DeviceId, DeviceRef, GpuUuid,
    HeldDevice, Holding, Inventory, InventoryDrift, MigUuid, ResourceName, SharingForm, SlotCounts, UnresolvedDevices,
};

/// A container and the GPU or MIG device it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldingKey {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
}

/// Who holds which device, and what of the kubelet's devices does not match the hardware.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holdings {
    pub by_key: BTreeMap<HoldingKey, Holding>,
    pub unresolved: Vec<UnresolvedDevices>,
    /// The hardware of claims, by `ClaimDevice::key`.
    pub claims: Vec<ClaimGpu>,
    pub drift: Vec<InventoryDrift>,
    /// The number of allocatable devices of each resource whose hardware is held under another name.
    pub unavailable: BTreeMap<ResourceName, usize>,
    /// The hardware that is held, also by pods that the kubelet may still reject.
    pub held: HeldHardware,
    pub slots: SlotCounts,
}

impl Holdings {
    /// The containers that hold the device, or a part of it; without `mig` the whole GPU.
    pub fn holders<'a>(&'a self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> BTreeSet<&'a ContainerRef> {
        let of_device = |key: &&HoldingKey| key.gpu == *gpu && (mig.is_none() || key.mig.as_ref() == mig);
        self.by_key.keys().filter(of_device).map(|key| &key.container).collect()
    }

    /// The GPUs with a holding that `other` does not have.
    pub fn differing_gpus<'a>(&'a self, other: &Self) -> impl Iterator<Item = &'a GpuUuid> {
        self.by_key.iter().filter(|(key, holding)| other.by_key.get(key) != Some(holding)).map(|(key, _)| &key.gpu)
    }
}

/// The device IDs and claims by which one container holds one device.
#[derive(Default)]
struct HoldingIds<'a> {
    /// `None`: it is held through claims alone.
    resource: Option<&'a ResourceName>,
    device_ids: BTreeSet<&'a DeviceId>,
    is_slot: bool,
    claims: BTreeSet<ClaimName<'a>>,
}

/// The claims of one device: how many containers hold it through each, and what each consumes of it.
#[derive(Default)]
struct DeviceClaims<'a> {
    containers: BTreeMap<ClaimName<'a>, usize>,
    consumed: BTreeMap<ClaimName<'a>, BTreeMap<&'a str, u64>>,
}

/// What the kubelet's device IDs and claims resolve to.
#[derive(Default)]
struct ResolvedAllocations<'a> {
    held: BTreeMap<HoldingKey, HoldingIds<'a>>,
    unresolved: BTreeMap<(ResourceName, &'static str), BTreeSet<&'a DeviceId>>,
    /// The GPU or MIG device that the device of each claim resolves to.
    claims: BTreeMap<ClaimKey<'a>, ClaimGpu>,
    device_claims: BTreeMap<DeviceRef, DeviceClaims<'a>>,
}

pub fn join(allocations: &Allocations, allocatable: &Allocatable, inventory: &Inventory, slots: &Slots) -> Holdings {
    let resolved = ResolvedAllocations::new(allocations, inventory);
    let holdings = resolved.holdings(slots, inventory);
    let unresolved =
        |((resource, form), ids): (_, BTreeSet<_>)| UnresolvedDevices { resource, form, devices: ids.len() };
    let held = HeldHardware::new(allocations.containers(), inventory);
    Holdings {
        by_key: within_each_gpu(holdings),
        unresolved: resolved.unresolved.into_iter().map(unresolved).collect(),
        claims: resolved.claims.into_values().collect(),
        drift: drift(allocations, allocatable, inventory),
        unavailable: held.unavailable(allocatable, inventory),
        held,
        slots: slots.shared_counts(),
    }
}

impl<'a> ResolvedAllocations<'a> {
    fn new(allocations: &'a Allocations, inventory: &Inventory) -> Self {
        let mut resolved = Self::default();
        for container in allocations.containers() {
            for held in &container.devices {
                resolved.add_id(&container.reference, held, inventory);
            }
            for claim in &container.claims {
                resolved.add_claim(&container.reference, claim, inventory);
            }
        }
        resolved
    }

    fn add_id(&mut self, container: &ContainerRef, held: &'a HeldDevice, inventory: &Inventory) {
        let (form, devices) = resolve_device(&held.resource, &held.id, inventory);
        if devices.is_empty() {
            self.unresolved.entry((held.resource.clone(), form.into_str())).or_default().insert(&held.id);
        }
        for device in devices {
            let holding = self.held.entry(key(container, device)).or_default();
            holding.resource.get_or_insert(&held.resource);
            holding.device_ids.insert(&held.id);
            holding.is_slot |= held.id.is_slot();
        }
    }

    fn add_claim(&mut self, container: &ContainerRef, claim: &'a ClaimDevice, inventory: &Inventory) {
        let (devices, source) = match resolve_claim(claim, inventory) {
            Ok(resolved) => resolved,
            // An observer holds nothing.
            Err(_) if claim.is_observer() => return,
            Err(form) => {
                let driver = ResourceName::new(Arc::clone(&claim.driver));
                self.unresolved.entry((driver, form)).or_default().insert(&claim.device);
                return;
            }
        };
        let claim_key = claim.key();
        let name = claim_key.0;
        for device in devices {
            let DeviceRef { gpu, mig } = device.clone();
            self.claims.entry(claim_key).or_insert_with(|| ClaimGpu { claim: claim.clone(), gpu, mig, source });
            if claim.is_observer() {
                continue;
            }
            let device_claims = self.device_claims.entry(device.clone()).or_default();
            *device_claims.containers.entry(name).or_default() += 1;
            device_claims.consumed.insert(name, claim.consumed().collect());
            let holding = self.held.entry(key(container, device)).or_default();
            holding.device_ids.insert(&claim.device);
            holding.claims.insert(name);
        }
    }

    fn holdings(&self, slots: &Slots, inventory: &Inventory) -> BTreeMap<HoldingKey, Holding> {
        let claims: ContainerWeights<'_> =
            self.device_claims.iter().map(|(device, claims)| (device, claims.container_weights())).collect();
        let mut weights: BTreeMap<DeviceRef, Vec<f64>> = BTreeMap::new();
        for (key, ids) in &self.held {
            let device = device_of(key);
            let weight = ids.weight(&device, &claims);
            weights.entry(device).or_default().push(weight);
        }
        let holding_by_key = |(key, ids): (&HoldingKey, &HoldingIds<'a>)| {
            let device = device_of(key);
            let weight = ids.weight(&device, &claims);
            (key.clone(), holding(&device, ids, weight, &weights[&device], slots, inventory))
        };
        self.held.iter().map(holding_by_key).collect()
    }
}

/// The weight of each container that holds a device through a claim, by device and claim.
type ContainerWeights<'a> = BTreeMap<&'a DeviceRef, BTreeMap<ClaimName<'a>, f64>>;

impl<'a> DeviceClaims<'a> {
    /// A claim is one holder; its containers divide its weight.
    fn container_weights(&self) -> BTreeMap<ClaimName<'a>, f64> {
        let weights = claim_weights(&self.consumed).into_iter();
        weights.map(|(claim, weight)| (claim, weight / self.containers[&claim] as f64)).collect()
    }
}

impl HoldingIds<'_> {
    fn weight(&self, device: &DeviceRef, claims: &ContainerWeights<'_>) -> f64 {
        if self.resource.is_some() { 1.0 } else { self.claims.iter().map(|claim| claims[device][claim]).sum() }
    }
}

fn key(container: &ContainerRef, device: DeviceRef) -> HoldingKey {
    HoldingKey { container: container.clone(), gpu: device.gpu, mig: device.mig }
}

fn device_of(key: &HoldingKey) -> DeviceRef {
    DeviceRef { gpu: key.gpu.clone(), mig: key.mig.clone() }
}

/// `weights`: those of all holders of the device.
fn holding(
    device: &DeviceRef,
    ids: &HoldingIds<'_>,
    weight: f64,
    weights: &[f64],
    slots: &Slots,
    inventory: &Inventory,
) -> Holding {
    let fraction_of_gpu = match &device.mig {
        None => Some(1.0),
        // The size of a MIG device that only the kubelet names is not known.
        Some(mig) => inventory.mig(mig.as_str()).and_then(|(gpu, mig)| gpu.slice_fraction(mig.slices)),
    };
    let fraction_of_device = match (ids.is_slot, slots.counts.get(device).copied()) {
        (false, _) => Some(weight / weights.iter().sum::<f64>()),
        (true, Some(slots)) => Some(ids.device_ids.len() as f64 / slots.max(ids.device_ids.len()) as f64),
        (true, None) => None,
    };
    let is_mps = ids.is_slot && ids.resource.is_some_and(|resource| slots.mps.contains(resource));
    let sharing = match &device.mig {
        _ if is_mps => SharingForm::Mps,
        _ if ids.is_slot || weights.len() > 1 => SharingForm::TimeSlicing,
        Some(_) => SharingForm::Mig,
        None => SharingForm::Exclusive,
    };
    Holding {
        resource: ids.resource.cloned(),
        device_ids: ids.device_ids.iter().map(|id| (*id).clone()).collect(),
        sharing,
        attribution: None, // set by the ledger
        fraction: fraction_of_gpu.zip(fraction_of_device).map(|(gpu, device)| gpu * device),
        weight,
    }
}

/// One GPU may have IDs of several kinds (its slots and a claim, or IDs from before it was partitioned):
/// no GPU is held more than once over.
fn within_each_gpu(mut holdings: BTreeMap<HoldingKey, Holding>) -> BTreeMap<HoldingKey, Holding> {
    let mut sums: BTreeMap<GpuUuid, f64> = BTreeMap::new();
    for (key, holding) in &holdings {
        *sums.entry(key.gpu.clone()).or_default() += holding.fraction.unwrap_or(0.0);
    }
    for (key, holding) in &mut holdings {
        holding.fraction = holding.fraction.map(|fraction| fraction / sums[&key.gpu].max(1.0));
    }
    holdings
}

/// How many slots each shared device has, as the kubelet last listed them as allocatable. It lists healthy devices only,
/// so a device keeps its count while it is not listed, or only its held slots are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slots {
    counts: BTreeMap<DeviceRef, usize>,
    /// Those with a slot that is allocatable or held.
    shared: BTreeSet<DeviceRef>,
    mps: BTreeSet<ResourceName>,
}

impl Slots {
    /// The resources whose slots are shared through MPS, as their own plugin reports: IDs do not show it. True when
    /// these are others than before.
    pub fn set_mps(&mut self, resources: BTreeSet<ResourceName>) -> bool {
        let changed = self.mps != resources;
        self.mps = resources;
        changed
    }

    /// Updates the count of each device that is allocatable; one that is not (unhealthy, or its plugin is restarting)
    /// keeps its count. While the kubelet's answers are not `settled` its list may be partial, and a count only grows. So it is
    /// while a device is held under another name and no free slot of it is listed: free ones may be unhealthy until that ends.
    pub fn update_counts(
        &mut self,
        allocations: &Allocations,
        allocatable: &Allocatable,
        inventory: &Inventory,
        settled: bool,
    ) {
        let held = allocations.containers().flat_map(|container| container.devices.iter().map(|held| &held.id));
        let held = slots_by_device(held, inventory);
        let listed = slots_by_device(allocatable.devices.values().flatten(), inventory);
        self.shared = held.keys().chain(listed.keys()).cloned().collect();
        let claims = allocations.containers().flat_map(|container| &container.claims);
        let claims =
            claims.filter(|claim| !claim.is_observer()).filter_map(|claim| resolve_claim(claim, inventory).ok());
        let claimed: BTreeSet<DeviceRef> = claims.flat_map(|(devices, _)| devices).collect();
        for (device, listed) in listed {
            let held = held.get(&device).into_iter().flatten().copied().collect::<BTreeSet<_>>();
            let is_held_elsewhere = held.difference(&listed).next().is_some() || claimed.contains(&device);
            let is_partial = !settled || (is_held_elsewhere && listed.is_subset(&held));
            let count = self.counts.entry(device).or_default();
            *count = if is_partial { held.union(&listed).count().max(*count) } else { listed.len() };
        }
    }

    /// The resources whose slots are shared through MPS.
    pub const fn by_mps(&self) -> &BTreeSet<ResourceName> {
        &self.mps
    }

    fn shared_counts(&self) -> SlotCounts {
        let shared = self.shared.iter().filter_map(|device| Some((device, *self.counts.get(device)?)));
        shared.map(|(device, count)| ((device.gpu.clone(), device.mig.clone()), count)).collect()
    }
}

/// Those of `ids` that are a slot, by device.
fn slots_by_device<'a>(
    ids: impl Iterator<Item = &'a DeviceId>,
    inventory: &Inventory,
) -> BTreeMap<DeviceRef, BTreeSet<&'a DeviceId>> {
    let mut slots: BTreeMap<DeviceRef, BTreeSet<&DeviceId>> = BTreeMap::new();
    for id in ids {
        let devices = if id.is_slot() { resolve(id, inventory) } else { vec![] };
        for device in devices {
            slots.entry(device).or_default().insert(id);
        }
    }
    slots
}

#[cfg(test)]
mod tests;
