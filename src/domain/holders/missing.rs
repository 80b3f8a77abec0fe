//! The GPUs that the PCI bus or the kubelet has and the driver does not enumerate: missing, or not served.
//! In: the state of the hardware, with the PCI bus, and of the kubelet. Out: the hardware with these GPUs, whose time is
//! uncovered.
//!
//! A GPU that was lost before podmeter started is one of them: a pod may hold it, and no other source reports it.
//!
//! Three decisions, in this order; of the cases of one decision the first that applies. `tests.rs` shows
//! each case under the number of its decision.
//!
//! 1. What is a GPU on the bus? (`OnlyOnBus::find`)
//!
//! | case | reason | result |
//! |---|---|---|
//! | `other_driver` | the kernel bound it to vfio-pci or nouveau, so NVIDIA's driver cannot have it | not served, with the UUID that the driver gave it before, else named by its address |
//! | enumerated | the driver has its address or UUID, or is configured to ignore it | none |
//! | `identified` | NVIDIA's kernel driver has its UUID | missing, with UUID and address; where another GPU has that UUID, it is named by its address |
//! | `expected` | NVIDIA's driver has or had it, or serves one of its kind | missing; decision 3 names it |
//! | `unclear` | it has no kernel driver: an old display card, or a GPU whose driver failed | not served; in decision 3 as `expected` where the kubelet has more UUIDs, or MIG devices, than the other cases explain |
//!
//! 2. Which UUIDs does only the kubelet have? (`only_of_kubelet`)
//!
//! | case | reason | result |
//! |---|---|---|
//! | a container holds it | a GPU that is in use exists | one of them |
//! | at most as many as GPUs of `other_driver` that NVIDIA's driver never had | a plugin offered them before they were bound elsewhere | none of them |
//! | more | some are missing, and it is unknown which | all of them |
//!
//! 3. Which of these UUIDs is at which address? (`missing`)
//!
//! | UUIDs | GPUs without one | result |
//! |---|---|---|
//! | GPU-a | 3b:00.0 | GPU-a is missing, at 3b:00.0: nothing else fits |
//! | none | 3b:00.0, 86:00.0 | PCI-0000:3b:00.0 and PCI-0000:86:00.0 are missing |
//! | GPU-a, GPU-b | any other number | GPU-a and GPU-b are missing without an address, because none is guessed; `detail` of each names all addresses |
//!
//! A holding of a GPU that is not served has allocated and uncovered time: it has no readings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::resolve::gpu_at;
use crate::domain::model::{
    BusGpu, DeviceId, DeviceReadings, Gpu, GpuUuid, HardwareState, HeldDevice, Inventory, KubeletState, MigUuid,
    MissingGpu, Monotonic, NodeDevices, PciBusId, ResourceName, UnservedGpu,
};

/// Device IDs by resource.
type DeviceIds = BTreeMap<ResourceName, BTreeSet<DeviceId>>;

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
            found = self.missing(inventory, &mut on_bus, kubelet);
        }
        let unserved = on_bus.other_driver;
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
        // The checkpoint keeps GPUs that were replaced. It is used where a GPU is missing, and where one may be: if it names
        // all that are enumerated, its others were not replaced by these.
        if !on_bus.all_enumerated || !on_bus.unclear.is_empty() && names_others() {
            add(&mut named, checkpoint);
        } else if on_bus.unclear.is_empty() && kubelet.settled && kubelet.allocatable.is_some() {
            // No GPU is missing, so what the kubelet no longer has was removed.
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

    /// Decision 3. Leaves in `other_driver` all that are not served.
    fn missing(
        &self,
        inventory: &Inventory,
        on_bus: &mut OnlyOnBus<'_>,
        kubelet: &KubeletState,
    ) -> Vec<(Gpu, MissingGpu)> {
        let of_kubelet = self.only_of_kubelet(inventory, &on_bus.other_driver, kubelet);
        let OnlyOnBus { identified, expected, unclear, other_driver, .. } = on_bus;
        // What the kubelet has by a UUID that several GPUs have is none of them.
        let is_unknown =
            |uuid: &&GpuUuid| !identified.contains_key(*uuid) && !inventory.duplicate_uuids.contains_key(*uuid);
        let uuids: Vec<&GpuUuid> = of_kubelet.keys().copied().filter(is_unknown).collect();
        let has_unexplained_migs = !self.migs.is_empty() && identified.is_empty() && expected.is_empty();
        let is_explained = uuids.len() <= expected.len() && !has_unexplained_migs;
        if is_explained { other_driver } else { &mut *expected }.append(unclear);
        let missing = |uuid: &GpuUuid, location: Option<&BusLocation<'_>>, one_of: &[BusLocation<'_>]| {
            let ids = of_kubelet.get(uuid).map(|ids| (*ids).clone()).unwrap_or_default();
            missing_gpu(uuid.clone(), location, ids, one_of)
        };
        let mut found = vec![];
        for (uuid, locations) in &*identified {
            let is_shared = locations.len() > 1 || inventory.gpus.contains_key(uuid);
            let name = |at: &PciBusId| if is_shared { GpuUuid::of_address(at) } else { uuid.clone() };
            found.extend(locations.iter().map(|location| missing(&name(location.0), Some(location), &[])));
        }
        match (uuids.as_slice(), expected.as_slice()) {
            ([uuid], [location]) => found.push(missing(uuid, Some(location), &[])),
            ([], places) => found.extend(places.iter().map(|at| missing(&GpuUuid::of_address(at.0), Some(at), &[]))),
            (uuids, places) => found.extend(uuids.iter().map(|uuid| missing(uuid, None, places))),
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

    /// Decision 2.
    fn only_of_kubelet(
        &self,
        inventory: &Inventory,
        other_driver: &[BusLocation<'_>],
        kubelet: &KubeletState,
    ) -> BTreeMap<&GpuUuid, &DeviceIds> {
        let held: BTreeSet<&str> = held(kubelet).filter_map(|device| device.id.gpu()).collect();
        let not_enumerated = self.gpus.iter().filter(|(uuid, _)| !inventory.gpus.contains_key(*uuid));
        let (mut found, offered): (BTreeMap<_, _>, BTreeMap<_, _>) =
            not_enumerated.partition(|(uuid, _)| held.contains(uuid.as_str()));
        if offered.len() > other_driver.iter().filter(|(address, _)| gpu_at(address, inventory).is_none()).count() {
            found.extend(offered);
        }
        found
    }
}

/// The GPU at this address, which another driver has or none.
fn not_present(inventory: &Inventory, address: &PciBusId, numa_node: Option<u32>) -> Option<Gpu> {
    match gpu_at(address, inventory) {
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
    bus.expected.saturating_sub(on_bus.unclear.len())
}

/// A PCI address, and what the kernel reports of it.
type BusLocation<'a> = (&'a PciBusId, &'a BusGpu);

/// The GPUs on the bus that the driver does not enumerate, by the cases of decision 1.
#[derive(Default)]
struct OnlyOnBus<'a> {
    other_driver: Vec<BusLocation<'a>>,
    identified: BTreeMap<GpuUuid, Vec<BusLocation<'a>>>,
    expected: Vec<BusLocation<'a>>,
    unclear: Vec<BusLocation<'a>>,
    /// There are GPUs on the bus, and none is `identified` or `expected`.
    all_enumerated: bool,
}

impl<'a> OnlyOnBus<'a> {
    /// Decision 1. `served`: where the NVIDIA driver had a GPU before.
    fn find(inventory: &Inventory, bus: Option<&'a NodeDevices>, served: &BTreeSet<PciBusId>) -> Self {
        let gpus_on_bus = || bus.into_iter().flat_map(|bus| &bus.on_bus);
        let listed_at = |address: &PciBusId| gpu_at(address, inventory);
        let enumerated = gpus_on_bus().filter(|(address, _)| listed_at(address).is_some());
        let products: BTreeSet<_> = enumerated.filter_map(|(_, gpu)| gpu.pci_device_id.as_ref()).collect();
        let mut here = Self::default();
        let mut without_address = inventory.gpus.values().filter(|gpu| gpu.pci_bus_id.is_none()).count();
        let in_place: BTreeSet<_> = gpus_on_bus().filter_map(|(address, _)| Some(&listed_at(address)?.uuid)).collect();
        for (address, gpu) in gpus_on_bus() {
            let known = listed_at(address);
            let is_of_kind = gpu.pci_device_id.as_ref().is_some_and(|product| products.contains(product));
            // Where the driver has it, it was bound to NVIDIA's after this scan of the bus.
            let has_other_driver = gpu.is_of_another_driver() && known.is_none_or(|known| !known.present);
            match &gpu.uuid {
                _ if has_other_driver => here.other_driver.push((address, gpu)),
                _ if known.is_some() || gpu.excluded => {}
                Some(uuid) if inventory.gpus.contains_key(uuid) && !in_place.contains(uuid) => {
                    without_address = without_address.saturating_sub(1);
                }
                Some(uuid) => here.identified.entry(uuid.clone()).or_default().push((address, gpu)),
                None if gpu.is_of_nvidia() || served.contains(address) || is_of_kind => {
                    here.expected.push((address, gpu));
                }
                None => here.unclear.push((address, gpu)),
            }
        }
        // They may be those that the driver enumerates without an address.
        if without_address > 0 {
            here.expected.clear();
            here.unclear.clear();
        }
        here.all_enumerated = gpus_on_bus().next().is_some() && here.identified.is_empty() && here.expected.is_empty();
        here
    }
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
    let (mut reason, mut known) = ("the driver does not list it".to_owned(), vec![]);
    let mut gpu = Gpu::not_present(uuid);
    if let Some((address, on_bus)) = location {
        let driver = on_bus.kernel_driver.as_deref().map_or("no kernel driver".into(), |name| format!("driver {name}"));
        known.push(format!("the PCI bus has it at {address} ({driver})"));
        gpu.pci_bus_id = Some((*address).clone());
        if let Some(shared) = on_bus.uuid.as_ref().filter(|of_kernel| **of_kernel != gpu.uuid) {
            reason = format!("another GPU has the same UUID, {shared}, so they cannot be distinguished");
        }
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
        detail: format!("{reason}: {}", known.join("; ")).into(),
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
