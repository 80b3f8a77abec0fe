//! Joins the kubelet's device IDs with the driver's hardware.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claims::{resolve_claim, weights};
use super::device_id::{DeviceForm, is_domain_of_nvidia, parse_device_id, parse_host_device};
use crate::domain::model::{
    Allocatable, Allocations, Attribution, ClaimGpu, ContainerRef, DeviceId, DeviceRef, Gpu, GpuUuid, Holding,
    Inventory, InventoryDrift, MigDevice, MigUuid, PassthroughGpu, ResourceName, SharingForm, SlotCounts,
    UnresolvedDevices,
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
struct HeldDevices<'a> {
    resource: Option<&'a ResourceName>,
    ids: BTreeSet<&'a DeviceId>,
    replica: bool,
    /// Held through these claims alone; empty once it is held in another way too.
    claims: BTreeSet<ClaimName<'a>>,
}

/// Namespace, name, and the share ID where the device is allocated in shares.
type ClaimName<'a> = (&'a str, &'a str, Option<&'a str>);
/// With driver, pool and device.
type ClaimKey<'a> = (ClaimName<'a>, &'a str, &'a str, &'a DeviceId);

/// The containers of each claim of one target, and what the claim consumes of it.
#[derive(Default)]
struct Sharers<'a> {
    containers: BTreeMap<ClaimName<'a>, usize>,
    consumed: BTreeMap<ClaimName<'a>, BTreeMap<&'a str, u64>>,
}

/// All holders of one target.
#[derive(Default)]
struct Holders {
    count: usize,
    weight: f64,
}

pub fn join(allocations: &Allocations, allocatable: &Allocatable, inventory: &Inventory, slots: &Slots) -> Join {
    let mut held_by_key: BTreeMap<HoldingKey, HeldDevices<'_>> = BTreeMap::new();
    let mut unresolved: BTreeMap<(ResourceName, &'static str), BTreeSet<&DeviceId>> = BTreeMap::new();
    let mut claims: BTreeMap<ClaimKey<'_>, ClaimGpu> = BTreeMap::new();
    let mut sharers: BTreeMap<DeviceRef, Sharers<'_>> = BTreeMap::new();
    for container in allocations.containers() {
        for held in &container.devices {
            let (form, targets) = look_up(&held.resource, &held.id, inventory);
            if targets.is_empty() {
                unresolved.entry((held.resource.clone(), form.name())).or_default().insert(&held.id);
            }
            for target in targets {
                let held_devices = held_by_key.entry(key(&container.reference, target)).or_default();
                held_devices.resource.get_or_insert(&held.resource);
                held_devices.ids.insert(&held.id);
                held_devices.replica |= form.is_replica();
            }
        }
        for claim in &container.claims {
            let (targets, source) = match resolve_claim(claim, inventory) {
                Ok(resolved) => resolved,
                // An observer holds nothing.
                Err(_) if claim.is_observer() => continue,
                Err(form) => {
                    let driver = ResourceName::new(Arc::clone(&claim.driver));
                    unresolved.entry((driver, form)).or_default().insert(&claim.device);
                    continue;
                }
            };
            let name = (&*claim.claim_namespace, &*claim.claim, claim.share_id.as_deref());
            for target in targets {
                let DeviceRef { gpu, mig } = target.clone();
                claims.entry((name, &claim.driver, &claim.pool, &claim.device)).or_insert_with(|| ClaimGpu {
                    claim: claim.clone(),
                    gpu,
                    mig,
                    join: source,
                });
                if claim.is_observer() {
                    continue;
                }
                let sharers = sharers.entry(target.clone()).or_default();
                *sharers.containers.entry(name).or_default() += 1;
                sharers.consumed.insert(name, claim.consumed().collect());
                let held_devices = held_by_key.entry(key(&container.reference, target)).or_default();
                held_devices.ids.insert(&claim.device);
                held_devices.claims.insert(name);
            }
        }
    }
    // A claim is one holder; its containers divide its share.
    let parts: BTreeMap<&DeviceRef, BTreeMap<ClaimName<'_>, f64>> = sharers
        .iter()
        .map(|(target, sharers)| {
            let weights = weights(&sharers.consumed).into_iter();
            (target, weights.map(|(claim, weight)| (claim, weight / sharers.containers[&claim] as f64)).collect())
        })
        .collect();
    let weigh = |key: &HoldingKey, held_devices: &HeldDevices<'_>| {
        let part = |claim: &ClaimName<'_>| parts[&target_of(key)][claim];
        if held_devices.resource.is_some() { 1.0 } else { held_devices.claims.iter().map(part).sum() }
    };
    let mut holders: BTreeMap<DeviceRef, Holders> = BTreeMap::new();
    for (key, held_devices) in &held_by_key {
        let holders = holders.entry(target_of(key)).or_default();
        holders.count += 1;
        holders.weight += weigh(key, held_devices);
    }
    let holdings = held_by_key.into_iter().map(|(key, held_devices)| {
        let (target, weight) = (target_of(&key), weigh(&key, &held_devices));
        let holding = holding(&target, &held_devices, weight, &holders[&target], slots, inventory);
        (key, holding)
    });
    Join {
        holdings: within_each_gpu(holdings.collect()),
        unresolved: unresolved
            .into_iter()
            .map(|((resource, form), ids)| UnresolvedDevices { resource, form, devices: ids.len() })
            .collect(),
        claims: claims.into_values().collect(),
        drift: drift(allocations, allocatable, inventory),
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
    held_devices: &HeldDevices<'_>,
    weight: f64,
    holders: &Holders,
    slots: &Slots,
    inventory: &Inventory,
) -> Holding {
    let whole = match &target.mig {
        None => Some(1.0),
        // The size of a MIG device that only the kubelet names is not known.
        Some(mig) => inventory.mig(mig).and_then(|(gpu, mig)| gpu.slice_fraction(mig.slices)),
    };
    let part = match (held_devices.replica, slots.counts.get(target).copied()) {
        (false, _) => Some(weight / holders.weight),
        (true, Some(slots)) => Some(held_devices.ids.len() as f64 / slots.max(held_devices.ids.len()) as f64),
        (true, None) => None,
    };
    let sharing = match (held_devices.replica || holders.count > 1, &target.mig) {
        (true, _)
            if held_devices.replica && held_devices.resource.is_some_and(|resource| slots.mps.contains(resource)) =>
        {
            SharingForm::Mps
        }
        (true, _) => SharingForm::TimeSlicing,
        (false, Some(_)) => SharingForm::Mig,
        (false, None) => SharingForm::Exclusive,
    };
    // Where processes are known, the ledger divides a shared GPU by them and sets that method.
    let attribution = match (sharing, &target.mig) {
        (_, Some(_)) => Attribution::Estimated,
        (SharingForm::Exclusive, None) => Attribution::Exclusive,
        _ => Attribution::EqualShare,
    };
    Holding {
        resource: held_devices.resource.cloned(),
        device_ids: held_devices.ids.iter().map(|id| (*id).clone()).collect(),
        sharing,
        attribution: Some(attribution),
        share: whole.zip(part).map(|(whole, part)| whole * part),
        weight,
    }
}

/// One GPU may have IDs of several kinds (its slots and a claim, or IDs from before it was partitioned):
/// no GPU is held more than once over.
fn within_each_gpu(mut holdings: BTreeMap<HoldingKey, Holding>) -> BTreeMap<HoldingKey, Holding> {
    let mut sums: BTreeMap<GpuUuid, f64> = BTreeMap::new();
    for (key, holding) in &holdings {
        *sums.entry(key.gpu.clone()).or_default() += holding.share.unwrap_or(0.0);
    }
    for (key, holding) in &mut holdings {
        holding.share = holding.share.map(|share| share / sums[&key.gpu].max(1.0));
    }
    holdings
}

/// The form of a device plugin's ID, and the hardware behind it. The host's name of a device is of a GPU where the
/// resource is NVIDIA's, or where a GPU has it.
fn look_up(resource: &ResourceName, id: &DeviceId, inventory: &Inventory) -> (DeviceForm, Vec<DeviceRef>) {
    let form = parse_device_id(id.as_str());
    if form != DeviceForm::Other {
        let targets = resolve(&form, inventory);
        return (form, targets);
    }
    let of_host = parse_host_device(resource, id.as_str()).map(|form| (resolve(&form, inventory), form));
    match of_host {
        Some((targets, form)) if is_domain_of_nvidia(resource) || !targets.is_empty() => (form, targets),
        _ => (DeviceForm::Other, vec![]),
    }
}

/// The hardware behind an id; nothing when the inventory has no such device.
pub(super) fn resolve(form: &DeviceForm, inventory: &Inventory) -> Vec<DeviceRef> {
    let whole = |gpu: &Gpu| DeviceRef { gpu: gpu.uuid.clone(), mig: None };
    let passed_through = |is_meant: &dyn Fn(&PassthroughGpu) -> bool| {
        let meant = inventory.passthrough.iter().filter(|(_, gpu)| is_meant(gpu));
        meant.map(|(uuid, _)| DeviceRef { gpu: uuid.clone(), mig: None }).collect()
    };
    match form {
        DeviceForm::Gpu { uuid } | DeviceForm::GpuReplica { uuid } | DeviceForm::GpuVirtual { uuid } => {
            inventory.gpus.get(uuid).map(whole).into_iter().collect()
        }
        DeviceForm::Mig { uuid } | DeviceForm::MigReplica { uuid } => {
            let missing = || Some(DeviceRef { gpu: inventory.missing_parent(uuid)?.clone(), mig: Some(uuid.clone()) });
            let known = inventory.mig(uuid).map(|(gpu, mig)| mig_target(gpu, mig));
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
        DeviceForm::DraVfio { bus_index } => passed_through(&|gpu| gpu.bus_index == *bus_index),
        // Every GPU of the group: the kernel gives it to one process at a time.
        DeviceForm::IommuGroup { group } => passed_through(&|gpu| gpu.iommu_group == Some(*group)),
        DeviceForm::VfioDevice { name } => passed_through(&|gpu| gpu.vfio_device.as_deref() == Some(name)),
        DeviceForm::PciAddress { address } => inventory
            .gpus
            .values()
            .filter(|gpu| gpu.pci_bus_id.as_ref() == Some(address))
            .max_by_key(|gpu| gpu.present || inventory.passthrough.contains_key(&gpu.uuid))
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
    of_gpu.filter(|(_, mig)| is_meant(mig)).map(|(gpu, mig)| mig_target(gpu, mig)).collect()
}

fn mig_target(gpu: &Gpu, mig: &MigDevice) -> DeviceRef {
    DeviceRef { gpu: gpu.uuid.clone(), mig: Some(mig.uuid.clone()) }
}

/// The GPUs that some container holds, or a part of.
pub fn held_gpus(allocations: &Allocations, inventory: &Inventory) -> BTreeSet<GpuUuid> {
    let devices = allocations.containers().flat_map(|container| &container.devices);
    let of_devices = devices.flat_map(|held| look_up(&held.resource, &held.id, inventory).1);
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
        let held = replicas(held, inventory);
        let offered = replicas(allocatable.devices.values().flatten(), inventory);
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
fn replicas<'a>(
    ids: impl Iterator<Item = &'a DeviceId>,
    inventory: &Inventory,
) -> BTreeMap<DeviceRef, BTreeSet<&'a DeviceId>> {
    let mut replicas: BTreeMap<DeviceRef, BTreeSet<&DeviceId>> = BTreeMap::new();
    for id in ids {
        let form = parse_device_id(id.as_str());
        let targets = if form.is_replica() { resolve(&form, inventory) } else { vec![] };
        for target in targets {
            replicas.entry(target).or_default().insert(id);
        }
    }
    replicas
}

fn drift(allocations: &Allocations, allocatable: &Allocatable, inventory: &Inventory) -> Vec<InventoryDrift> {
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
            let (form, targets) = look_up(resource, id, inventory);
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

#[cfg(test)]
mod tests;
