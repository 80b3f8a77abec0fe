//! Decides what each configured entry offers, from the inventory and the nodes found. Pure.
//!
//! In: the configuration, the inventory, the nodes found, the earlier offers. Out: offers, and what is not offered, as
//! problems. Does not use: which of them the kubelet has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::missing;
use super::offered_device::{Offer, OfferedDevice, OfferedHardware, PluginUnhealthy};
use crate::domain::holders::HeldHardware;
use crate::domain::model::{DeviceId, Gpu, Inventory, MigDevice, PluginUnhealthyReason, ResourceName, UnhealthyReason};
use crate::plugin::config::{
    DeviceReference, EntryConfig, MigStrategy, NamePattern, NvidiaConfig, Replication, resource_name,
};
use crate::wire::v1beta1::DeviceSpec;

/// One device of kind `path`: a node, or a group of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathDevice {
    pub id: DeviceId,
    pub nodes: Arc<[DeviceSpec]>,
    pub numa_nodes: BTreeSet<i64>,
}

/// What can be offered, and what cannot. Sorted by resource; a resource without devices is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    pub offers: Vec<Offer>,
    /// What is not offered, each as a sentence for the log and the page.
    pub problems: Vec<String>,
}

/// The offers of an entry. `path_devices`: the host's devices for an entry of kind `path`; empty for the others.
pub fn offers(config: &EntryConfig, inventory: &Inventory, path_devices: &[PathDevice]) -> Offers {
    let mut problems = vec![];
    let slots = match config {
        EntryConfig::Nvidia(nvidia) => {
            let devices = match nvidia.mig_strategy {
                MigStrategy::None => whole_gpus(nvidia, inventory, |_| true),
                MigStrategy::Single => devices_of_one_kind(nvidia, inventory, &mut problems),
                MigStrategy::Mixed => devices_of_every_kind(nvidia, inventory, &mut problems),
            };
            let mut slots = share(nvidia, devices, &mut problems);
            slots.extend(missing::missing(config, inventory));
            slots
        }
        EntryConfig::Path(path) => {
            let slots = |found: &PathDevice| {
                let device = OfferedDevice::new(found.id.clone(), OfferedHardware::Nodes(Arc::clone(&found.nodes)));
                slots_of(&OfferedDevice { numa_nodes: found.numa_nodes.clone(), ..device }, path.shared)
            };
            path_devices.iter().flat_map(slots).map(|device| (path.name.clone(), device)).collect()
        }
        EntryConfig::Simulated(simulated) => (0..simulated.devices)
            .map(|number| {
                let id = DeviceId::new(format!("simulated-{number}"));
                (simulated.name.clone(), OfferedDevice::new(id, OfferedHardware::Nothing))
            })
            .collect(),
    };
    Offers { offers: by_resource(slots), problems }
}

/// The offers `now`, with every device of `previous` that is missing in them as unhealthy: a device that was sent to
/// the kubelet stays in the list of an open registration (`layout` has the reason). New devices with which the list would be too
/// long are not offered, as a problem.
pub fn merge(previous: &[Offer], Offers { offers, mut problems }: Offers, inventory: &Inventory) -> Offers {
    let before = previous.iter().flat_map(|offer| offer.devices.iter().map(|device| (&offer.resource, device)));
    let before_as_absent = before.map(|(resource, device)| {
        let health = Err(absence_reason(&device.hardware, inventory));
        (resource.clone(), OfferedDevice { health, ..device.clone() })
    });
    let now = offers
        .into_iter()
        .flat_map(|Offer { resource, devices }| devices.into_iter().map(move |device| (resource.clone(), device)));
    // A device of now replaces its absent form: the later one counts.
    let mut offers = by_resource(before_as_absent.chain(now));
    for offer in offers.iter_mut().filter(|offer| list_bytes(offer) > MOST_LIST_BYTES) {
        let before = previous.iter().filter(|before| before.resource == offer.resource);
        let sent: BTreeSet<&DeviceId> = before.flat_map(|before| &before.devices).map(|device| &device.id).collect();
        problems.push(too_long(offer, !sent.is_empty()));
        offer.devices.retain(|device| sent.contains(&device.id));
    }
    offers.retain(|offer| !offer.devices.is_empty());
    Offers { offers, problems }
}

/// The largest message that the kubelet's gRPC client accepts: a longer list ends the stream and the resource.
const MOST_LIST_BYTES: usize = 4 << 20;

/// The most bytes of the list, with every device unhealthy: 17 for each device and 4 for each NUMA node, of which one may become
/// known, beside the ID.
pub(super) fn list_bytes(offer: &Offer) -> usize {
    offer.devices.iter().map(|device| 17 + device.id.as_str().len() + 4 * device.numa_nodes.len().max(1)).sum()
}

fn too_long(offer: &Offer, is_offered: bool) -> String {
    let (name, devices) = (&offer.resource, offer.devices.len());
    let what = if is_offered { "offered without its new devices" } else { "not offered" };
    let most = MOST_LIST_BYTES / list_bytes(offer).div_ceil(devices);
    format!(
        "{name} is {what}: its list of {devices} devices and slots exceeds the 4 MiB that the kubelet accepts; configure {most} at \
         most, or restart podmeter where some are gone for good"
    )
}

/// Why a device is absent: a present GPU that no longer has it has changed its layout.
fn absence_reason(hardware: &OfferedHardware, inventory: &Inventory) -> PluginUnhealthy {
    let detail = "it is no longer present";
    match hardware.gpu() {
        Some(gpu) if !inventory.is_expected(gpu) => {
            PluginUnhealthy::new(PluginUnhealthyReason::Unplugged, "another kernel driver has its GPU")
        }
        None => PluginUnhealthy::new(PluginUnhealthyReason::Unplugged, detail),
        Some(gpu) if inventory.gpus.get(gpu).is_some_and(|gpu| gpu.present) => {
            PluginUnhealthy::new(PluginUnhealthyReason::Layout, detail)
        }
        Some(_) => PluginUnhealthy::device(UnhealthyReason::Lost, detail),
    }
}

impl Offer {
    /// The offer with its slots unhealthy where its resource is in `without_mps`: a container would start without the
    /// daemon, and its first CUDA call fail.
    #[must_use]
    pub fn with_mps_health(mut self, without_mps: &BTreeMap<ResourceName, Arc<str>>) -> Self {
        let Some(detail) = without_mps.get(&self.resource) else { return self };
        for device in self.devices.iter_mut().filter(|device| device.is_slot() && device.health.is_ok()) {
            device.health = Err(PluginUnhealthy::new(PluginUnhealthyReason::Mps, Arc::clone(detail)));
        }
        self
    }

    /// The offer with the devices unhealthy whose hardware containers hold under a name that this offer does not have:
    /// its slots share hardware with each other, but not with a slot or GPU that is no longer offered. A device that is
    /// held under its offered name too stays healthy: a kubelet that restarts may request it again.
    #[must_use]
    pub fn with_holders(mut self, held: &HeldHardware) -> Self {
        // Sorted by ID, so that slots of the same hardware follow each other.
        let is_offered = |id: &DeviceId| self.device(id).is_some();
        let others = held.others(|resource, id| *resource == self.resource && is_offered(id));
        let mut last: (&str, Option<Arc<str>>) = ("", None);
        let mut holders = vec![];
        for device in &self.devices {
            let base = device.id.without_slot();
            if base != last.0 {
                let holder = match &device.hardware {
                    OfferedHardware::Nodes(_) => held.other_slots(&self.resource, base, is_offered),
                    hardware => hardware.device().and_then(|hardware| others.of(&hardware)),
                };
                last = (base, holder.map(Arc::from));
            }
            let is_withheld = |_: &Arc<str>| device.health.is_ok() && !held.contains_id(&self.resource, &device.id);
            holders.push(last.1.clone().filter(is_withheld));
        }
        for (device, holder) in self.devices.iter_mut().zip(holders) {
            if let Some(holder) = holder {
                device.health = Err(PluginUnhealthy::new(PluginUnhealthyReason::Held, holder));
            }
        }
        self
    }
}

type NamedDevice = (ResourceName, OfferedDevice);

/// The GPUs that the driver has enumerated, with their indexes; without those that it is not expected to serve now.
fn enumerated(inventory: &Inventory) -> impl Iterator<Item = (&Gpu, u32)> {
    let gpus = inventory.gpus.values().filter(|gpu| inventory.is_expected(&gpu.uuid));
    gpus.filter_map(|gpu| Some((gpu, gpu.index?)))
}

fn whole_gpus(nvidia: &NvidiaConfig, inventory: &Inventory, which: impl Fn(&Gpu) -> bool) -> Vec<NamedDevice> {
    enumerated(inventory).filter(|(gpu, _)| which(gpu)).map(|(gpu, index)| whole_gpu(nvidia, gpu, index)).collect()
}

fn devices_of_every_kind(nvidia: &NvidiaConfig, inventory: &Inventory, problems: &mut Vec<String>) -> Vec<NamedDevice> {
    let mut devices = whole_gpus(nvidia, inventory, |gpu| !has_mig(gpu));
    for (gpu, index) in enumerated(inventory).filter(|(gpu, _)| has_mig(gpu)) {
        report_unpartitioned(gpu, problems);
        for mig in &gpu.mig_devices {
            match mixed_name(nvidia, mig) {
                Ok(name) => devices.push((name, mig_device(gpu, index, mig))),
                Err(reason) => problems.push(format!("{} is not offered: {reason}", mig.uuid)),
            }
        }
    }
    devices
}

/// The devices under `single`, all of one kind: a MIG profile, or whole GPUs. Where the node has several, the kind that
/// most GPUs have is offered (then that of most devices, then the first by name), and the rest is a problem: a node
/// that is half reconfigured keeps most of its devices, instead of losing all.
fn devices_of_one_kind(nvidia: &NvidiaConfig, inventory: &Inventory, problems: &mut Vec<String>) -> Vec<NamedDevice> {
    let mut kinds: BTreeMap<&str, Vec<NamedDevice>> = BTreeMap::new();
    for (gpu, index) in enumerated(inventory) {
        if has_mig(gpu) {
            report_unpartitioned(gpu, problems);
            for mig in &gpu.mig_devices {
                let name = name_by_pattern(&nvidia.names.mig, &mig.profile).unwrap_or_else(|| nvidia.name.clone());
                kinds.entry(&mig.profile).or_default().push((name, mig_device(gpu, index, mig)));
            }
        } else {
            kinds.entry("a whole GPU").or_default().push(whole_gpu(nvidia, gpu, index));
        }
    }
    let weight = |devices: &[NamedDevice]| {
        let gpus: BTreeSet<_> = devices.iter().map(|(_, device)| device.hardware.gpu()).collect();
        (gpus.len(), devices.len())
    };
    // The first of equal weights counts: max_by_key alone would take the last.
    let heaviest = kinds.iter().rev().max_by_key(|(_, devices)| weight(devices)).map(|(kind, _)| *kind);
    let Some(chosen) = heaviest else { return vec![] };
    let devices = kinds.remove(chosen).unwrap_or_default();
    for (kind, others) in kinds {
        let ids: Vec<&str> = others.iter().map(|(_, device)| device.id.as_str()).collect();
        problems.push(format!(
            "migStrategy single offers devices of one kind, here {chosen}: not offered are {} ({kind}); make the layouts \
             equal or set migStrategy mixed",
            ids.join(", "),
        ));
    }
    devices
}

fn has_mig(gpu: &Gpu) -> bool {
    gpu.mig_enabled == Some(true)
}

fn report_unpartitioned(gpu: &Gpu, problems: &mut Vec<String>) {
    if gpu.mig_devices.is_empty() {
        problems.push(format!(
            "{} has MIG enabled and no MIG devices: it offers nothing; make MIG devices on it",
            gpu.uuid
        ));
    }
}

fn name_by_pattern(names: &[NamePattern], text: &str) -> Option<ResourceName> {
    names.iter().find(|name| name.pattern.matches(text)).map(|name| name.name.clone())
}

fn mixed_name(nvidia: &NvidiaConfig, mig: &MigDevice) -> Result<ResourceName, String> {
    if let Some(name) = name_by_pattern(&nvidia.names.mig, &mig.profile) {
        return Ok(name);
    }
    let domain = nvidia.name.as_str().split_once('/').map_or("nvidia.com", |(domain, _)| domain);
    resource_name(&format!("{domain}/mig-{}", mig.profile.replace('+', ".")))
}

fn whole_gpu(nvidia: &NvidiaConfig, gpu: &Gpu, index: u32) -> NamedDevice {
    let model = gpu.model.as_deref().unwrap_or_default();
    let name = name_by_pattern(&nvidia.names.gpus, model).unwrap_or_else(|| nvidia.name.clone());
    (name, device_on(gpu, gpu.uuid.as_str(), OfferedHardware::of_gpu(gpu, index)))
}

fn mig_device(gpu: &Gpu, gpu_index: u32, mig: &MigDevice) -> OfferedDevice {
    device_on(gpu, mig.uuid.as_str(), OfferedHardware::of_mig(gpu, gpu_index, mig))
}

fn device_on(gpu: &Gpu, id: &str, hardware: OfferedHardware) -> OfferedDevice {
    let lost = || format!("{} is lost: the driver no longer finds it", gpu.uuid);
    OfferedDevice {
        numa_nodes: gpu.numa_node.map(i64::from).into_iter().collect(),
        health: if gpu.present { Ok(()) } else { Err(PluginUnhealthy::device(UnhealthyReason::Lost, lost())) },
        ..OfferedDevice::new(id, hardware)
    }
}

fn share(nvidia: &NvidiaConfig, devices: Vec<NamedDevice>, problems: &mut Vec<String>) -> Vec<NamedDevice> {
    let Some(replication) = nvidia.sharing.replication() else { return devices };
    let mut slots = vec![];
    for (name, device) in devices {
        let replicas = replicas(replication, &name, &device).unwrap_or(1);
        let is_mig = matches!(device.hardware, OfferedHardware::Mig { .. });
        if replicas <= 1 {
            slots.push((name, device));
        } else if nvidia.shares_through_mps() && is_mig {
            problems.push(format!("{} is not shared: MPS cannot share MIG devices", device.id));
            slots.push((name, device));
        } else {
            let shared_name = shared_name(replication, &name);
            slots.extend(slots_of(&device, replicas).into_iter().map(|slot| (shared_name.clone(), slot)));
        }
    }
    slots
}

/// The slots of a device by the narrowest rule: for this device, its GPU, its resource, all.
fn replicas(replication: &Replication, resource: &ResourceName, device: &OfferedDevice) -> Option<u32> {
    let gpu = match &device.hardware {
        OfferedHardware::Mig { gpu, gpu_index, .. } => Some([gpu.to_string(), gpu_index.to_string()]),
        _ => None,
    };
    let mut names = device.hardware.names().into_iter().chain(gpu).flatten();
    let per_gpu = names.find_map(|name| replication.per_gpu.get(&DeviceReference::parse(&name)?));
    let per_resource = || replication.per_resource.get(resource).map(|rule| rule.replicas);
    per_gpu.copied().or_else(per_resource).or(replication.replicas)
}

fn shared_name(replication: &Replication, name: &ResourceName) -> ResourceName {
    let rename = replication.per_resource.get(name).and_then(|rule| rule.rename.as_ref());
    match rename {
        Some(rename) => rename.0.clone(),
        None if replication.rename_by_default => ResourceName::new(format!("{name}.shared")),
        None => name.clone(),
    }
}

/// The slots of a device; a single one is the device itself, with its ID.
fn slots_of(device: &OfferedDevice, slots: u32) -> Vec<OfferedDevice> {
    if slots <= 1 {
        return vec![device.clone()];
    }
    let slot = |number| OfferedDevice { id: DeviceId::new(format!("{}::{number}", device.id)), ..device.clone() };
    (0..slots).map(slot).collect()
}

/// The offer of each resource; of several devices with the same ID, the last counts.
fn by_resource(devices: impl IntoIterator<Item = NamedDevice>) -> Vec<Offer> {
    let mut resources: BTreeMap<ResourceName, BTreeMap<DeviceId, OfferedDevice>> = BTreeMap::new();
    for (resource, device) in devices {
        resources.entry(resource).or_default().insert(device.id.clone(), device);
    }
    let offer = |(resource, devices): (_, BTreeMap<_, _>)| Offer { resource, devices: devices.into_values().collect() };
    resources.into_iter().map(offer).collect()
}
