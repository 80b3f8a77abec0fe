//! Joins the kubelet's device IDs with the driver's hardware. In: allocations, what is allocatable, the inventory, slots.
//! Out: who holds which device and which fraction of it; claims by device; what does not match. Does not know use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claims::{resolve_claim, weights};
use super::device_id::parse_device_id;
use super::drift::drift;
use super::resolve::{resolve, resolve_device};
use crate::domain::model::{
    Allocatable, Allocations, Attribution, ClaimDevice, ClaimGpu, ContainerRef, DeviceId, DeviceRef, GpuUuid,
    HeldDevice, Holding, Inventory, InventoryDrift, MigUuid, ResourceName, SharingForm, SlotCounts, UnresolvedDevices,
};

/// A container and the GPU or MIG device it holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldingKey {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Join {
    pub holdings: BTreeMap<HoldingKey, Holding>,
    pub unresolved: Vec<UnresolvedDevices>,
    pub claims: Vec<ClaimGpu>,
    pub drift: Vec<InventoryDrift>,
}

/// The device IDs of one container on one target.
#[derive(Default)]
struct HeldIds<'a> {
    resource: Option<&'a ResourceName>,
    ids: BTreeSet<&'a DeviceId>,
    is_slot: bool,
    /// Without a resource it is held through these alone.
    claims: BTreeSet<ClaimName<'a>>,
}

/// Namespace, name, and the share ID where the device is allocated in shares.
type ClaimName<'a> = (&'a str, &'a str, Option<&'a str>);
/// With driver, pool and device.
type ClaimKey<'a> = (ClaimName<'a>, &'a str, &'a str, &'a DeviceId);

/// The containers of each claim of one target, and what the claim consumes of it.
#[derive(Default)]
struct DeviceClaims<'a> {
    containers: BTreeMap<ClaimName<'a>, usize>,
    consumed: BTreeMap<ClaimName<'a>, BTreeMap<&'a str, u64>>,
}

/// All holders of one target.
#[derive(Default)]
struct DeviceHolders {
    count: usize,
    weight: f64,
}

/// What the kubelet's device IDs and claims resolve to.
#[derive(Default)]
struct ResolvedAllocations<'a> {
    held: BTreeMap<HoldingKey, HeldIds<'a>>,
    unresolved: BTreeMap<(ResourceName, &'static str), BTreeSet<&'a DeviceId>>,
    claims: BTreeMap<ClaimKey<'a>, ClaimGpu>,
    device_claims: BTreeMap<DeviceRef, DeviceClaims<'a>>,
}

pub fn join(allocations: &Allocations, allocatable: &Allocatable, inventory: &Inventory, slots: &Slots) -> Join {
    let mut resolved = ResolvedAllocations::default();
    for container in allocations.containers() {
        for held in &container.devices {
            resolved.add_device(&container.reference, held, inventory);
        }
        for claim in &container.claims {
            resolved.add_claim(&container.reference, claim, inventory);
        }
    }
    let holdings = resolved.holdings(slots, inventory);
    let unresolved =
        |((resource, form), ids): (_, BTreeSet<_>)| UnresolvedDevices { resource, form, devices: ids.len() };
    Join {
        holdings: within_each_gpu(holdings),
        unresolved: resolved.unresolved.into_iter().map(unresolved).collect(),
        claims: resolved.claims.into_values().collect(),
        drift: drift(allocations, allocatable, inventory),
    }
}

impl<'a> ResolvedAllocations<'a> {
    fn add_device(&mut self, container: &ContainerRef, device: &'a HeldDevice, inventory: &Inventory) {
        let (form, targets) = resolve_device(&device.resource, &device.id, inventory);
        if targets.is_empty() {
            self.unresolved.entry((device.resource.clone(), form.name())).or_default().insert(&device.id);
        }
        for target in targets {
            let held = self.held.entry(key(container, target)).or_default();
            held.resource.get_or_insert(&device.resource);
            held.ids.insert(&device.id);
            held.is_slot |= form.is_slot();
        }
    }

    fn add_claim(&mut self, container: &ContainerRef, claim: &'a ClaimDevice, inventory: &Inventory) {
        let (targets, source) = match resolve_claim(claim, inventory) {
            Ok(resolved) => resolved,
            // An observer holds nothing.
            Err(_) if claim.is_observer() => return,
            Err(form) => {
                let driver = ResourceName::new(Arc::clone(&claim.driver));
                self.unresolved.entry((driver, form)).or_default().insert(&claim.device);
                return;
            }
        };
        let name = (&*claim.claim_namespace, &*claim.claim, claim.share_id.as_deref());
        for target in targets {
            let DeviceRef { gpu, mig } = target.clone();
            let claim_key = (name, &*claim.driver, &*claim.pool, &claim.device);
            self.claims.entry(claim_key).or_insert_with(|| ClaimGpu { claim: claim.clone(), gpu, mig, source });
            if claim.is_observer() {
                continue;
            }
            let device_claims = self.device_claims.entry(target.clone()).or_default();
            *device_claims.containers.entry(name).or_default() += 1;
            device_claims.consumed.insert(name, claim.consumed().collect());
            let held = self.held.entry(key(container, target)).or_default();
            held.ids.insert(&claim.device);
            held.claims.insert(name);
        }
    }

    fn holdings(&self, slots: &Slots, inventory: &Inventory) -> BTreeMap<HoldingKey, Holding> {
        let claims: ClaimWeights<'_> =
            self.device_claims.iter().map(|(target, claims)| (target, claims.weights())).collect();
        let weight = |(key, held): (&'_ HoldingKey, &HeldIds<'a>)| held.weight(&target_of(key), &claims);
        let mut holders: BTreeMap<DeviceRef, DeviceHolders> = BTreeMap::new();
        for (key, held) in &self.held {
            let holders = holders.entry(target_of(key)).or_default();
            holders.count += 1;
            holders.weight += weight((key, held));
        }
        let holding = |(key, held)| {
            let target = target_of(key);
            (key.clone(), holding(&target, held, weight((key, held)), &holders[&target], slots, inventory))
        };
        self.held.iter().map(holding).collect()
    }
}

type ClaimWeights<'a> = BTreeMap<&'a DeviceRef, BTreeMap<ClaimName<'a>, f64>>;

impl<'a> DeviceClaims<'a> {
    /// A claim is one holder; its containers divide its weight.
    fn weights(&self) -> BTreeMap<ClaimName<'a>, f64> {
        let weights = weights(&self.consumed).into_iter();
        weights.map(|(claim, weight)| (claim, weight / self.containers[&claim] as f64)).collect()
    }
}

impl HeldIds<'_> {
    fn weight(&self, target: &DeviceRef, claims: &ClaimWeights<'_>) -> f64 {
        if self.resource.is_some() { 1.0 } else { self.claims.iter().map(|claim| claims[target][claim]).sum() }
    }
}

fn key(container: &ContainerRef, target: DeviceRef) -> HoldingKey {
    HoldingKey { container: container.clone(), gpu: target.gpu, mig: target.mig }
}

fn target_of(key: &HoldingKey) -> DeviceRef {
    DeviceRef { gpu: key.gpu.clone(), mig: key.mig.clone() }
}

fn holding(
    target: &DeviceRef,
    held_ids: &HeldIds<'_>,
    weight: f64,
    holders: &DeviceHolders,
    slots: &Slots,
    inventory: &Inventory,
) -> Holding {
    let whole = match &target.mig {
        None => Some(1.0),
        // The size of a MIG device that only the kubelet names is not known.
        Some(mig) => inventory.mig(mig).and_then(|(gpu, mig)| gpu.slice_fraction(mig.slices)),
    };
    let part = match (held_ids.is_slot, slots.counts.get(target).copied()) {
        (false, _) => Some(weight / holders.weight),
        (true, Some(slots)) => Some(held_ids.ids.len() as f64 / slots.max(held_ids.ids.len()) as f64),
        (true, None) => None,
    };
    let sharing = match (held_ids.is_slot || holders.count > 1, &target.mig) {
        (true, _) if held_ids.is_slot && held_ids.resource.is_some_and(|resource| slots.mps.contains(resource)) => {
            SharingForm::Mps
        }
        (true, _) => SharingForm::TimeSlicing,
        (false, Some(_)) => SharingForm::Mig,
        (false, None) => SharingForm::Exclusive,
    };
    // Until the ledger sets the method by which it divides.
    let attribution = match (sharing, &target.mig) {
        (_, Some(_)) => Attribution::Estimated,
        (SharingForm::Exclusive, None) => Attribution::Exclusive,
        _ => Attribution::EqualShare,
    };
    Holding {
        resource: held_ids.resource.cloned(),
        device_ids: held_ids.ids.iter().map(|id| (*id).clone()).collect(),
        sharing,
        attribution: Some(attribution),
        fraction: whole.zip(part).map(|(whole, part)| whole * part),
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

/// The GPUs that some container holds, or a part of.
pub fn held_gpus(allocations: &Allocations, inventory: &Inventory) -> BTreeSet<GpuUuid> {
    let devices = allocations.containers().flat_map(|container| &container.devices);
    let of_devices = devices.flat_map(|held| resolve_device(&held.resource, &held.id, inventory).1);
    let claims = allocations.containers().flat_map(|container| &container.claims);
    let holding = claims.filter(|claim| !claim.is_observer());
    let of_claims = holding.filter_map(|claim| resolve_claim(claim, inventory).ok()).flat_map(|(targets, _)| targets);
    of_devices.chain(of_claims).map(|target| target.gpu).collect()
}

/// How many slots each shared device has, as last offered. The kubelet offers healthy devices only, so the count of a
/// device outlives its place in the offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slots {
    counts: BTreeMap<DeviceRef, usize>,
    /// Those with a slot that is offered or held.
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

    /// Updates the counts from what the kubelet offers and what containers hold. An offer replaces the count of each
    /// device in it. While the kubelet's answers are not `settled` an offer may be partial, and a count only grows. A
    /// device that is missing from the offer (unhealthy, or its plugin is restarting) keeps its count.
    pub fn update_counts(
        &mut self,
        allocations: &Allocations,
        allocatable: &Allocatable,
        inventory: &Inventory,
        settled: bool,
    ) {
        let held = allocations.containers().flat_map(|container| container.devices.iter().map(|held| &held.id));
        let held = slots_by_device(held, inventory);
        let offered = slots_by_device(allocatable.devices.values().flatten(), inventory);
        self.shared = held.keys().chain(offered.keys()).cloned().collect();
        for (target, offered) in offered {
            let held = held.get(&target).into_iter().flatten();
            let known = held.chain(&offered).collect::<BTreeSet<_>>().len();
            let count = self.counts.entry(target).or_default();
            *count = if settled { offered.len() } else { known.max(*count) };
        }
    }

    /// Of the devices that are shared now.
    pub fn counts(&self) -> SlotCounts {
        let shared = self.shared.iter().filter_map(|target| Some((target, *self.counts.get(target)?)));
        shared.map(|(target, count)| ((target.gpu.clone(), target.mig.clone()), count)).collect()
    }
}

/// By device: those of `ids` that are a slot of it.
fn slots_by_device<'a>(
    ids: impl Iterator<Item = &'a DeviceId>,
    inventory: &Inventory,
) -> BTreeMap<DeviceRef, BTreeSet<&'a DeviceId>> {
    let mut slots: BTreeMap<DeviceRef, BTreeSet<&DeviceId>> = BTreeMap::new();
    for id in ids {
        let form = parse_device_id(id.as_str());
        let targets = if form.is_slot() { resolve(&form, inventory) } else { vec![] };
        for target in targets {
            slots.entry(target).or_default().insert(id);
        }
    }
    slots
}

#[cfg(test)]
mod tests;
