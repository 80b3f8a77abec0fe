//! The GPUs that the PCI bus or the kubelet has and the driver does not enumerate: missing, or not served.
//! In: the state of the hardware, with the PCI bus, and of the kubelet. Out: the hardware with these GPUs, whose time is
//! uncovered.
//!
//! A GPU that was lost before podmeter started is one of them: a pod may hold it, and no other source reports it.
//!
//! | the driver does not enumerate | example | result |
//! |---|---|---|
//! | a GPU on the bus, at another kernel driver than NVIDIA's: vfio-pci, nouveau | 3b:00.0 at vfio-pci | not served, with the UUID that the driver gave it before, else named by its address |
//! | a GPU on the bus without a kernel driver, and without evidence that NVIDIA's should serve it (`is_evident`) | 3b:00.0, an old display card | not served; but as below where the kubelet has more UUIDs, or MIG devices, than the other cases explain |
//! | a GPU on the bus with a UUID | 3b:00.0 is GPU-a | GPU-a is missing, at 3b:00.0 |
//! | one GPU on the bus without a UUID, one UUID that only the kubelet has | 3b:00.0; GPU-a | GPU-a is missing, at 3b:00.0 |
//! | GPUs on the bus without a UUID, no UUID that only the kubelet has | 3b:00.0, 86:00.0 | PCI-0000:3b:00.0 and PCI-0000:86:00.0 are missing |
//! | in all other cases, UUIDs that only the kubelet has | GPU-a, GPU-b; 3b:00.0, 86:00.0 | GPU-a and GPU-b are missing without an address; `detail` of each names both addresses |
//! | UUIDs that only the kubelet has and no container holds, and that may be of a GPU at another kernel driver (`of_kubelet`) | GPU-a; 3b:00.0 at vfio-pci | 3b:00.0 is not served, GPU-a is not missing |
//!
//! A holding of a GPU that is not served has allocated and uncovered time: it has no readings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::model::{
    BusGpu, DeviceId, DeviceReadings, Gpu, GpuUuid, HardwareState, HeldDevice, Inventory, KubeletState, MigUuid,
    MissingGpu, Monotonic, NodeDevices, PciBusId, ResourceName, UnservedGpu,
};

/// Device IDs by resource.
type DeviceIds = BTreeMap<ResourceName, BTreeSet<DeviceId>>;
type IdsByGpu<'a> = BTreeMap<&'a GpuUuid, &'a DeviceIds>;

/// Keeps the device IDs that the kubelet has and the driver has not enumerated, because the kubelet drops an unhealthy device
/// that no pod holds. A GPU that was replaced is none of them: the driver enumerates every GPU on the bus, and only the kubelet's
/// checkpoint names the old one.
#[derive(Debug, Default)]
pub struct MissingGpus {
    gpus: BTreeMap<GpuUuid, DeviceIds>,
    migs: BTreeMap<MigUuid, DeviceIds>,
    /// Where the NVIDIA driver had a GPU, at any time.
    served: BTreeSet<PciBusId>,
    /// The MIG devices that the driver has enumerated at any time: one that it no longer enumerates was deleted.
    enumerated_migs: BTreeSet<MigUuid>,
    /// The inventory of the last call: an equal one is the same `Arc`, so that nothing is joined again for it.
    last_inventory: Arc<Inventory>,
    /// The time of each before its first pass, uncovered for as long as the GPU has readings.
    times: BTreeMap<GpuUuid, MissingTime>,
}

#[derive(Clone, Copy, Debug)]
struct MissingTime {
    since: Monotonic,
    until: Option<Monotonic>,
}

impl MissingGpus {
    /// `served`: where an earlier agent had GPUs that the driver served.
    pub fn new(served: BTreeSet<PciBusId>) -> Self {
        Self { served, ..Self::default() }
    }

    /// The hardware with these GPUs as devices that are not present, and with their uncovered time; itself where there
    /// are none. Without a driver that has been opened nothing is missing from its list. `may_be_offered`:
    /// by the bundled plugin.
    pub fn add_to(
        &mut self,
        hardware: &Arc<HardwareState>,
        kubelet: &KubeletState,
        may_be_offered: &dyn Fn(&ResourceName) -> bool,
        now: Monotonic,
    ) -> Arc<HardwareState> {
        let inventory = &hardware.inventory;
        let bus = hardware.node_devices.as_ref();
        let of_nvidia = bus.into_iter().flat_map(|bus| &bus.on_bus).filter(|(_, gpu)| gpu.is_of_nvidia());
        self.served.extend(of_nvidia.map(|(address, _)| address.clone()));
        let mut on_bus = OnlyOnBus::find(inventory, bus, &self.served);
        let mut found = vec![];
        if inventory.generation > 0 {
            self.update_kubelet_ids(inventory, &on_bus, kubelet, may_be_offered);
            found = self.missing(inventory, &mut on_bus, bus, kubelet);
        }
        let unserved = on_bus.unserved;
        if found.is_empty() && unserved.is_empty() && self.times.is_empty() {
            return Arc::clone(hardware);
        }
        let mut completed = (**hardware).clone();
        let inventory = Arc::make_mut(&mut completed.inventory);
        for (address, of_kernel) in unserved {
            let Some(gpu) = not_present(inventory, address, of_kernel.numa_node) else { continue };
            let BusGpu { kernel_driver, pci_device_id, .. } = of_kernel.clone();
            if let Some(bus) = completed.node_devices.as_mut().filter(|_| kernel_driver.is_none()) {
                bus.expected = bus.expected.saturating_sub(1);
            }
            completed.readings.remove(&gpu.uuid);
            inventory.unserved.insert(gpu.uuid.clone(), UnservedGpu { kernel_driver, pci_device_id });
            inventory.gpus.insert(gpu.uuid.clone(), gpu);
        }
        for (gpu, missing) in found {
            let readings = DeviceReadings { lost: true, not_enumerated: true, ..DeviceReadings::default() };
            completed.readings.insert(gpu.uuid.clone(), Arc::new(readings));
            self.times.entry(gpu.uuid.clone()).or_insert(MissingTime { since: now, until: None });
            inventory.missing.insert(gpu.uuid.clone(), missing);
            inventory.gpus.insert(gpu.uuid.clone(), gpu);
        }
        if *self.last_inventory != *completed.inventory {
            self.last_inventory = Arc::clone(&completed.inventory);
        }
        completed.inventory = Arc::clone(&self.last_inventory);
        self.add_uncovered_time(&mut completed, now);
        Arc::new(completed)
    }

    /// The driver's own totals begin with the GPU's first pass; the time before it is added to them from then on.
    fn add_uncovered_time(&mut self, state: &mut HardwareState, now: Monotonic) {
        self.times.retain(|uuid, time| {
            let Some(readings) = state.readings.get_mut(uuid) else { return false };
            let totals = &mut Arc::make_mut(readings).totals;
            time.until = time.until.or(totals.last_pass());
            totals.uncovered_seconds += time.until.unwrap_or(now).since(time.since).as_secs_f64();
            true
        });
    }

    fn update_kubelet_ids(
        &mut self,
        inventory: &Inventory,
        on_bus: &OnlyOnBus<'_>,
        kubelet: &KubeletState,
        may_be_offered: &dyn Fn(&ResourceName) -> bool,
    ) {
        let mut named = answered(kubelet);
        let checkpoint = kubelet.checkpoint.as_deref();
        let names_others = || checkpoint.is_some_and(|ids| names_every_enumerated(ids, inventory));
        if !on_bus.all_enumerated || !on_bus.without_evidence.is_empty() && names_others() {
            add(&mut named, checkpoint);
        } else if on_bus.without_evidence.is_empty() && kubelet.settled && kubelet.allocatable.is_some() {
            let ids: BTreeSet<&DeviceId> = named.values().flatten().collect();
            let are_named = |kept: &DeviceIds| kept.values().flatten().any(|id| ids.contains(id));
            self.gpus.retain(|_, of_gpu| are_named(of_gpu));
            self.migs.retain(|_, of_mig| are_named(of_mig));
        }
        let enumerated = inventory.gpus.values().flat_map(|gpu| &gpu.mig_devices).map(|mig| mig.uuid.clone());
        self.enumerated_migs.extend(enumerated);
        for (resource, ids) in named {
            // `None`: it names neither.
            let is_enumerated = |id: &DeviceId| {
                let gpu = id.gpu().map(|uuid| inventory.gpu(uuid).is_some());
                gpu.or_else(|| id.mig().map(|uuid| self.enumerated_migs.contains(&uuid.into())))
            };
            // Other vendors' ids may have the same form.
            let is_nvidias = resource.is_of_nvidia() || may_be_offered(&resource);
            if !is_nvidias && !ids.iter().any(|id| is_enumerated(id) == Some(true)) {
                continue;
            }
            for id in ids.iter().filter(|id| is_enumerated(id) == Some(false)) {
                let ids = match (id.gpu(), id.mig()) {
                    (Some(gpu), _) => self.gpus.entry(gpu.into()).or_default(),
                    (None, Some(mig)) => self.migs.entry(mig.into()).or_default(),
                    (None, None) => continue,
                };
                ids.entry(resource.clone()).or_default().insert(id.clone());
            }
        }
        self.migs.retain(|mig, _| !self.enumerated_migs.contains(mig));
    }

    /// GPUs without evidence are among them where the kubelet has an ID that only they can explain; else they are not
    /// served.
    fn missing(
        &self,
        inventory: &Inventory,
        on_bus: &mut OnlyOnBus<'_>,
        bus: Option<&NodeDevices>,
        kubelet: &KubeletState,
    ) -> Vec<(Gpu, MissingGpu)> {
        let OnlyOnBus { with_uuid, without_uuid, without_evidence, unserved, .. } = on_bus;
        let of_kubelet = self.of_kubelet(inventory, bus, kubelet);
        let only_kubelet: Vec<&GpuUuid> =
            of_kubelet.keys().copied().filter(|uuid| !with_uuid.contains_key(*uuid)).collect();
        let has_unexplained_migs = !self.migs.is_empty() && with_uuid.is_empty() && without_uuid.is_empty();
        let is_explained = only_kubelet.len() <= without_uuid.len() && !has_unexplained_migs;
        if is_explained { &mut *unserved } else { &mut *without_uuid }.append(without_evidence);
        let missing = |uuid: &GpuUuid, location: Option<&BusLocation<'_>>, one_of: &[BusLocation<'_>]| {
            let ids = of_kubelet.get(uuid).map(|ids| (*ids).clone()).unwrap_or_default();
            missing_gpu(uuid.clone(), location, ids, one_of)
        };
        let mut found: Vec<_> = with_uuid.iter().map(|(uuid, location)| missing(uuid, Some(location), &[])).collect();
        match (without_uuid.as_slice(), only_kubelet.as_slice()) {
            ([location], [uuid]) => found.push(missing(uuid, Some(location), &[])),
            (places, []) => found.extend(places.iter().map(|at| missing(&GpuUuid::of_address(at.0), Some(at), &[]))),
            (places, uuids) => found.extend(uuids.iter().map(|uuid| missing(uuid, None, places))),
        }
        // Which of several has a MIG device is unknown.
        if let [(_, missing)] = found.as_mut_slice() {
            for (mig, ids) in &self.migs {
                missing.mig_devices.insert(mig.clone());
                add(&mut missing.kubelet_ids, Some(ids));
            }
        }
        found
    }

    /// The UUIDs that the kubelet has and the driver does not enumerate. Those that no container holds may be of GPUs that were
    /// bound to another kernel driver after a plugin offered them: they are left out where at least as many such GPUs were
    /// never enumerated by the driver. Where fewer were, some of them are missing, and all stay, because it is unknown which.
    fn of_kubelet(&self, inventory: &Inventory, bus: Option<&NodeDevices>, kubelet: &KubeletState) -> IdsByGpu<'_> {
        let is_not_enumerated = |(uuid, _): &(&GpuUuid, &DeviceIds)| !inventory.gpus.contains_key(*uuid);
        let mut of_kubelet: IdsByGpu<'_> = self.gpus.iter().filter(is_not_enumerated).collect();
        if of_kubelet.is_empty() {
            return of_kubelet;
        }
        let held: BTreeSet<&str> = held(kubelet).filter_map(|device| device.id.gpu()).collect();
        let unheld = of_kubelet.keys().filter(|uuid| !held.contains(uuid.as_str())).count();
        let on_bus = bus.into_iter().flat_map(|bus| &bus.on_bus);
        let is_elsewhere =
            |(address, gpu): &(&PciBusId, &BusGpu)| gpu.is_of_another_driver() && gpu_at(inventory, address).is_none();
        if unheld <= on_bus.filter(is_elsewhere).count() {
            of_kubelet.retain(|uuid, _| held.contains(uuid.as_str()));
        }
        of_kubelet
    }
}

/// The GPU at this address, which another driver has or none.
fn not_present(inventory: &Inventory, address: &PciBusId, numa_node: Option<u32>) -> Option<Gpu> {
    match gpu_at(inventory, address) {
        // Bound to the NVIDIA driver again since the bus was scanned.
        Some(known) if known.present => None,
        Some(known) => Some(Gpu { mig_enabled: None, mig_devices: vec![], ..known.clone() }),
        None => {
            let gpu = Gpu::not_present(GpuUuid::of_address(address));
            Some(Gpu { pci_bus_id: Some(address.clone()), numa_node, ..gpu })
        }
    }
}

/// How many GPUs on the bus the driver should enumerate, as far as the driver and the bus show it.
pub fn expected_on_bus(inventory: &Inventory, bus: &NodeDevices) -> usize {
    let on_bus = OnlyOnBus::find(inventory, Some(bus), &BTreeSet::new());
    bus.expected.saturating_sub(on_bus.without_evidence.len())
}

/// The GPU that the driver enumerates or has enumerated there. Of several it is the one that is present.
fn gpu_at<'a>(inventory: &'a Inventory, address: &PciBusId) -> Option<&'a Gpu> {
    let there = inventory.gpus.values().filter(|gpu| gpu.pci_bus_id.as_ref() == Some(address));
    there.max_by_key(|gpu| gpu.present)
}

/// A PCI address, and what the kernel reports of it.
type BusLocation<'a> = (&'a PciBusId, &'a BusGpu);

/// The GPUs on the bus that the driver does not enumerate.
#[derive(Default)]
struct OnlyOnBus<'a> {
    with_uuid: BTreeMap<GpuUuid, BusLocation<'a>>,
    without_uuid: Vec<BusLocation<'a>>,
    /// Without a UUID and a kernel driver.
    without_evidence: Vec<BusLocation<'a>>,
    /// At another kernel driver.
    unserved: Vec<BusLocation<'a>>,
    /// There are GPUs on the bus, and the driver enumerates each of them that it is known to serve.
    all_enumerated: bool,
}

impl<'a> OnlyOnBus<'a> {
    /// `served`: where the NVIDIA driver had a GPU before.
    fn find(inventory: &Inventory, bus: Option<&'a NodeDevices>, served: &BTreeSet<PciBusId>) -> Self {
        let enumerated: BTreeSet<&PciBusId> =
            inventory.gpus.values().filter_map(|gpu| gpu.pci_bus_id.as_ref()).collect();
        let mut here = Self::default();
        let mut without_address = inventory.gpus.values().filter(|gpu| gpu.pci_bus_id.is_none()).count();
        for (address, gpu) in bus.into_iter().flat_map(|bus| &bus.on_bus) {
            if gpu.is_of_another_driver() && gpu_at(inventory, address).is_none_or(|known| !known.present) {
                here.unserved.push((address, gpu));
                continue;
            }
            if enumerated.contains(address) || gpu.excluded {
                continue;
            }
            match &gpu.uuid {
                Some(uuid) if inventory.gpus.contains_key(uuid) => without_address = without_address.saturating_sub(1),
                Some(uuid) => drop(here.with_uuid.insert(uuid.clone(), (address, gpu))),
                None if is_evident(gpu, address, served, &enumerated, bus) => here.without_uuid.push((address, gpu)),
                None => here.without_evidence.push((address, gpu)),
            }
        }
        // They may be those that the driver enumerates without an address.
        if without_address > 0 {
            here.without_uuid.clear();
            here.without_evidence.clear();
        }
        let has_gpus = bus.is_some_and(|bus| !bus.on_bus.is_empty());
        here.all_enumerated = has_gpus && here.with_uuid.is_empty() && here.without_uuid.is_empty();
        here
    }
}

/// Whether the NVIDIA driver should serve a GPU that it does not enumerate: it has or had it, or it serves one of its kind.
fn is_evident(
    gpu: &BusGpu,
    address: &PciBusId,
    served: &BTreeSet<PciBusId>,
    enumerated: &BTreeSet<&PciBusId>,
    bus: Option<&NodeDevices>,
) -> bool {
    let of_kind = |other: &&PciBusId| {
        let other = bus.and_then(|bus| bus.on_bus.get(*other));
        gpu.pci_device_id.is_some() && other.is_some_and(|other| other.pci_device_id == gpu.pci_device_id)
    };
    gpu.is_of_nvidia() || served.contains(address) || enumerated.iter().any(of_kind)
}

/// If so, other IDs among them are not of replaced GPUs: the GPU that replaced one would not be named.
fn names_every_enumerated(ids: &DeviceIds, inventory: &Inventory) -> bool {
    let names = |gpu: &Gpu, id: &DeviceId| {
        let mut migs = gpu.mig_devices.iter().map(|mig| mig.uuid.as_str());
        id.gpu() == Some(gpu.uuid.as_str()) || id.mig().is_some_and(|named| migs.any(|mig| mig == named))
    };
    let is_named = |gpu: &Gpu| ids.values().flatten().any(|id| names(gpu, id));
    inventory.gpus.values().filter(|gpu| gpu.present).all(is_named)
}

fn missing_gpu(
    uuid: GpuUuid,
    location: Option<&BusLocation<'_>>,
    ids: DeviceIds,
    one_of: &[BusLocation<'_>],
) -> (Gpu, MissingGpu) {
    let mut gpu = Gpu::not_present(uuid);
    let mut known = vec![];
    if let Some((address, on_bus)) = location {
        let driver = on_bus.kernel_driver.as_deref().map_or("no kernel driver".into(), |name| format!("driver {name}"));
        known.push(format!("the PCI bus has it at {address} ({driver})"));
        gpu.pci_bus_id = Some((*address).clone());
        (gpu.model, gpu.minor, gpu.numa_node) = (on_bus.model.clone(), on_bus.minor, on_bus.numa_node);
    }
    if !one_of.is_empty() {
        let addresses: Vec<&str> = one_of.iter().map(|(address, _)| address.as_str()).collect();
        known.push(format!("it is one of the GPUs on the PCI bus at {}", addresses.join(", ")));
    }
    if !ids.is_empty() {
        let resources: Vec<&str> = ids.keys().map(ResourceName::as_str).collect();
        known.push(format!("the kubelet has it as {}", resources.join(", ")));
    }
    let missing = MissingGpu {
        detail: format!("the driver does not list it: {}", known.join("; ")).into(),
        mig_devices: BTreeSet::new(),
        kubelet_ids: ids,
    };
    (gpu, missing)
}

fn held(kubelet: &KubeletState) -> impl Iterator<Item = &HeldDevice> {
    kubelet.allocations.iter().flat_map(|allocations| allocations.containers()).flat_map(|one| &one.devices)
}

/// Every device id that the kubelet has answered: held or allocatable.
fn answered(kubelet: &KubeletState) -> DeviceIds {
    let mut named = DeviceIds::new();
    for held in held(kubelet) {
        named.entry(held.resource.clone()).or_default().insert(held.id.clone());
    }
    add(&mut named, kubelet.allocatable.as_ref().map(|allocatable| &allocatable.devices));
    named
}

fn add(named: &mut DeviceIds, more: Option<&DeviceIds>) {
    for (resource, ids) in more.into_iter().flatten() {
        named.entry(resource.clone()).or_default().extend(ids.iter().cloned());
    }
}

#[cfg(test)]
mod tests;
