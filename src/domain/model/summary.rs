//! The values of devices, resources and the node that page, `top` and metrics share: a part of each snapshot, computed once.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    Account, Allocations, Attribution, DeviceReadings, Gpu, GpuUuid, Holding, Inventory, MigDevice, MigUuid,
    PluginResource, ProcessState, ResourceName, SharingForm, Snapshot,
};

/// The values that the page and `top` show of a snapshot, computed once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Each GPU, followed by its MIG devices.
    pub devices: Vec<DeviceOverview>,
    pub resources: BTreeMap<ResourceName, ResourceCount>,
    pub node: NodeOverview,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOverview {
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// Whether it can be allocated; `None` until the kubelet has answered.
    pub state: Option<DeviceState>,
    /// How busy it is now: `summary::busy_ratio`.
    pub busy_ratio: Option<f64>,
    /// The number of slots of a shared device.
    pub slots: Option<usize>,
    /// The number of slots that a container can get; 0 for a device that is not healthy or not present.
    pub free_slots: Option<usize>,
}

/// Whether a device can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// No container holds it, and it is healthy and present.
    Free,
    Held,
    /// A GPU with MIG devices: these are free or held.
    Partitioned,
    /// No container holds it, and the NVIDIA driver is not expected to serve it.
    Unserved,
    /// No container holds it, and it is not healthy or not present.
    Unavailable,
}

/// The numbers of devices of one extended resource, of any vendor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceCount {
    /// The healthy devices in the kubelet's list.
    pub allocatable: usize,
    /// The allocated devices; `None` until the kubelet has answered.
    pub allocated: Option<usize>,
    /// The devices that pods can still get: allocatable minus allocated, at least 0, without those whose hardware is
    /// held under another name.
    pub free: Option<usize>,
    /// The devices that are allocated, but not allocatable. The scheduler subtracts them twice, until their pods end.
    pub held_unhealthy: Option<usize>,
    /// The unhealthy devices; `None` where the bundled plugin does not serve the resource.
    pub unhealthy: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeOverview {
    pub gpus: usize,
    /// The sum of the fractions of GPUs that are held; `None` where one is unknown.
    pub allocated_gpus: Option<f64>,
    pub free_gpus: usize,
    pub mig_devices: usize,
    pub free_mig_devices: usize,
    /// The mean of the GPUs whose `busy_ratio` is known.
    pub busy_ratio: Option<f64>,
    /// The number of these GPUs.
    pub busy_known: usize,
}

/// The number of slots of each shared device.
pub type SlotCounts = BTreeMap<(GpuUuid, Option<MigUuid>), usize>;

impl Overview {
    pub fn summarize(snapshot: &Snapshot, slots: &SlotCounts) -> Self {
        let mut holdings = HoldingsByDevice::new();
        for account in &snapshot.accounts {
            let of_device = holdings.entry((&account.gpu, account.mig.as_ref())).or_default();
            of_device.extend(&account.holding);
        }
        let mut devices = vec![];
        for gpu in snapshot.hardware.inventory.gpus.values() {
            devices.push(device(snapshot, slots, &holdings, gpu, None));
            devices.extend(gpu.mig_devices.iter().map(|mig| device(snapshot, slots, &holdings, gpu, Some(mig))));
        }
        let node = NodeOverview::summarize(snapshot, &devices);
        Self { devices, resources: ResourceCount::all(snapshot), node }
    }

    pub fn device(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Option<&DeviceOverview> {
        self.devices.iter().find(|device| device.gpu == *gpu && device.mig.as_ref() == mig)
    }

    /// The number of its free slots or MIG devices, and of all of them.
    pub fn free_parts(&self, device: &DeviceOverview) -> Option<(usize, usize)> {
        if let Some(slots) = device.slots {
            return Some((device.free_slots?, slots));
        }
        let parts = || self.devices.iter().filter(|part| part.gpu == device.gpu && part.mig.is_some());
        let free = parts().filter(|part| part.state == Some(DeviceState::Free)).count();
        (device.state == Some(DeviceState::Partitioned)).then(|| (free, parts().count()))
    }
}

type HoldingsByDevice<'a> = BTreeMap<(&'a GpuUuid, Option<&'a MigUuid>), Vec<&'a Holding>>;

fn device(
    snapshot: &Snapshot,
    slots: &SlotCounts,
    holdings: &HoldingsByDevice<'_>,
    gpu: &Gpu,
    mig: Option<&MigDevice>,
) -> DeviceOverview {
    let mig_uuid = mig.map(|mig| &mig.uuid);
    let holdings = holdings.get(&(&gpu.uuid, mig_uuid)).map_or(&[][..], Vec::as_slice);
    let slots = slots.get(&(gpu.uuid.clone(), mig_uuid.cloned())).copied();
    let held: usize = holdings.iter().map(|holding| holding.device_ids.len()).sum();
    let is_healthy = snapshot.health.device(&gpu.uuid, mig_uuid).is_some_and(|health| health.healthy);
    let is_available = gpu.present && is_healthy;
    let free_of = |slots: usize| if is_available { slots.saturating_sub(held) } else { 0 };
    let state = match holdings.first() {
        Some(_) => DeviceState::Held,
        None if snapshot.hardware.inventory.unserved.contains_key(&gpu.uuid) => DeviceState::Unserved,
        None if mig.is_none() && !gpu.mig_devices.is_empty() => DeviceState::Partitioned,
        None if is_available => DeviceState::Free,
        None => DeviceState::Unavailable,
    };
    DeviceOverview {
        gpu: gpu.uuid.clone(),
        mig: mig_uuid.cloned(),
        state: snapshot.kubelet.allocations.is_some().then_some(state),
        busy_ratio: busy_ratio(gpu, snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings), mig),
        slots,
        free_slots: slots.filter(|_| snapshot.kubelet.allocations.is_some()).map(free_of),
    }
}

/// How busy a device is now: the part of the last ten seconds read in which a kernel ran, 0 to 1. For a MIG device it
/// is the activity of its GPU instance; for a GPU with MIG devices their sum by slices. `None`: unknown.
pub fn busy_ratio(gpu: &Gpu, readings: Option<&DeviceReadings>, mig: Option<&MigDevice>) -> Option<f64> {
    let fast = &readings?.fast.as_ref()?.value;
    let of_part =
        |mig: &MigDevice| Some(gpu.mig_activity(mig, *fast.instance_utilization_ratios.get(&mig.gpu_instance)?));
    match mig {
        Some(mig) => of_part(mig),
        None if gpu.mig_devices.is_empty() => fast.utilization_ratio,
        None => {
            let parts = gpu.mig_devices.iter().map(|mig| Some(of_part(mig)? * gpu.slice_fraction(mig.slices)?));
            parts.sum::<Option<f64>>().map(|sum| sum.min(1.0))
        }
    }
}

/// The parts of the device that a holder holds and keeps busy now, each 0 to 1. `None`: unknown, or no holder.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceParts {
    pub held: Option<f64>,
    pub busy: Option<f64>,
}

pub fn parts_of_device(inventory: &Inventory, account: &Account) -> DeviceParts {
    let Some(holding) = &account.holding else { return DeviceParts::default() };
    if matches!(holding.sharing, SharingForm::Exclusive | SharingForm::Mig) {
        return DeviceParts { held: Some(1.0), busy: account.utilization_ratio };
    }
    let device = match &account.mig {
        None => Some(1.0),
        Some(mig) => inventory.gpus.get(&account.gpu).and_then(|gpu| gpu.slice_fraction(gpu.mig_device(mig)?.slices)),
    };
    let part = |of_gpu: Option<f64>| Some((of_gpu? / device?).min(1.0));
    DeviceParts { held: part(holding.fraction), busy: part(account.gpu_utilization_ratio) }
}

/// Why holders' use is divided equally, with the remedy; `None` where it is not.
pub fn equal_division(accounts: &[Account], processes: Option<&ProcessState>) -> Option<String> {
    let mut holdings = accounts.iter().filter_map(|account| account.holding.as_ref());
    let why = match processes.is_some_and(|processes| processes.enabled) {
        true => "the driver reports no use by process",
        false => "hostPID is off; with hostPID=true in the chart it is divided by process",
    };
    let is_divided = holdings.any(|holding| holding.attribution == Some(Attribution::EqualShare));
    is_divided.then(|| format!("the use of shared devices is divided equally among their holders: {why}"))
}

/// The allocated part of each GPU, 0 to 1; without GPUs of which a fraction is unknown; empty until the kubelet has
/// answered.
pub fn allocated_ratios(snapshot: &Snapshot) -> BTreeMap<&GpuUuid, f64> {
    if snapshot.kubelet.allocations.is_none() {
        return BTreeMap::new();
    }
    let gpus = snapshot.hardware.inventory.gpus.keys();
    let mut allocated: BTreeMap<&GpuUuid, Option<f64>> = gpus.map(|gpu| (gpu, Some(0.0))).collect();
    for account in &snapshot.accounts {
        if let (Some(holding), Some(sum)) = (&account.holding, allocated.get_mut(&account.gpu)) {
            *sum = sum.zip(holding.fraction).map(|(sum, fraction)| sum + fraction);
        }
    }
    // Fractions such as 1/3 do not add up exactly.
    allocated.into_iter().filter_map(|(gpu, allocated)| Some((gpu, allocated?.min(1.0)))).collect()
}

impl ResourceCount {
    /// Every resource in the kubelet's lists; empty until it has reported what is allocatable.
    pub fn all(snapshot: &Snapshot) -> BTreeMap<ResourceName, Self> {
        let Some(allocatable) = snapshot.kubelet.allocatable.as_deref() else { return BTreeMap::new() };
        let held = snapshot.kubelet.allocations.as_deref().map(Allocations::held_devices);
        let resources = allocatable.devices.keys().chain(held.iter().flat_map(|held| held.keys().copied()));
        let count = |resource: &ResourceName| {
            let none = BTreeSet::new();
            let offered = allocatable.devices.get(resource).unwrap_or(&none);
            let held = held.as_ref().map(|held| held.get(resource).cloned().unwrap_or_default());
            let allocated = held.as_ref().map(BTreeSet::len);
            let taken = |allocated| allocated + snapshot.unavailable.get(resource).copied().unwrap_or(0);
            Self {
                allocatable: offered.len(),
                allocated,
                free: allocated.map(|allocated| offered.len().saturating_sub(taken(allocated))),
                held_unhealthy: held.as_ref().map(|held| held.iter().filter(|id| !offered.contains(**id)).count()),
                unhealthy: served(snapshot, resource).map(|ours| ours.count().1),
            }
        };
        resources.map(|resource| (resource.clone(), count(resource))).collect()
    }
}

/// The bundled plugin's state of a resource, if it is registered for it.
pub fn served<'a>(snapshot: &'a Snapshot, resource: &ResourceName) -> Option<&'a PluginResource> {
    snapshot.plugin.as_ref()?.resources.get(resource).filter(|ours| ours.registered)
}

impl NodeOverview {
    fn summarize(snapshot: &Snapshot, devices: &[DeviceOverview]) -> Self {
        let of_kind = |is_mig: bool| devices.iter().filter(move |device| device.mig.is_some() == is_mig);
        let free = |is_mig| of_kind(is_mig).filter(|device| device.state == Some(DeviceState::Free)).count();
        let busy: Vec<f64> = of_kind(false).filter_map(|gpu| gpu.busy_ratio).collect();
        let allocated = allocated_ratios(snapshot);
        Self {
            gpus: of_kind(false).count(),
            allocated_gpus: of_kind(false).try_fold(0.0, |sum, gpu| Some(sum + allocated.get(&gpu.gpu)?)),
            free_gpus: free(false),
            mig_devices: of_kind(true).count(),
            free_mig_devices: free(true),
            busy_ratio: (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64),
            busy_known: busy.len(),
        }
    }
}

#[cfg(test)]
mod tests;
