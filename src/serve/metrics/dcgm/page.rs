//! The series of `/metrics/dcgm`: each value with the labels of the device and of its holders.
//!
//! As in dcgm-exporter, a value of a shared device is repeated for each slot that a container holds. Utilization and
//! memory in use are each container's own, beside the device's without a pod.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::model::{
    Account, ContainerRef, DeviceReadings, GpmRatios, Gpu, GpuUuid, Holding, InstanceReading, Medium, MemoryUse,
    SharingForm, Slow, Snapshot,
};
use crate::serve::metrics;
use crate::serve::metrics::family::{Family, SampleValue};
use crate::serve::metrics::labels::{Labels, medium, slow, with_readings};
use crate::serve::metrics::mig;

use super::{DcgmName, Generation};

/// One family of the page while it is filled, from values in base units.
pub struct Series {
    pub(super) family: Family,
    /// What values in base units are multiplied by.
    pub(super) per_base: f64,
}

/// The devices of a snapshot, with the labels of one generation.
pub struct DcgmPage<'snapshot> {
    pub(super) snapshot: &'snapshot Snapshot,
    pub(super) generation: Generation,
    gpus: BTreeMap<&'snapshot GpuUuid, DcgmDevice<'snapshot>>,
    instances: Vec<DcgmDevice<'snapshot>>,
}

/// A device that has series.
struct DcgmDevice<'snapshot> {
    instance: Option<&'snapshot InstanceReading>,
    labels: Arc<Labels>,
    /// Of its holders, by index.
    accounts: Vec<(usize, &'snapshot Account)>,
    holders: Vec<DcgmHolder<'snapshot>>,
    is_shared: bool,
    /// How many it has had so far.
    values: Cell<usize>,
}

struct DcgmHolder<'snapshot> {
    account: &'snapshot Account,
    /// Of the device and each slot that it holds.
    slots: Vec<Arc<Labels>>,
    /// Of the device and its own value.
    own: Arc<Labels>,
}

/// The value of one holder of a shared device, in base units.
type Own = fn(&Account) -> Option<f64>;

impl Series {
    fn push(&mut self, labels: Arc<Labels>, value: f64) {
        let value = if self.per_base == 1.0 {
            value
        } else {
            // Enough digits for the smallest share, and none that the conversion alone has made.
            (value * self.per_base * 1000.0).round() / 1000.0
        };
        let is_whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
        self.family.push(labels, if is_whole { SampleValue::Integer(value as u64) } else { SampleValue::Float(value) });
    }
}

impl<'snapshot> DcgmPage<'snapshot> {
    /// Without the allocations at some indices.
    pub fn of(snapshot: &'snapshot Snapshot, generation: Generation, without: &dyn Fn(usize) -> bool) -> Self {
        let device = |gpu, instance| DcgmDevice::of(snapshot, generation, gpu, instance, without);
        let gpus = snapshot.hardware.inventory.gpus.values();
        let instances = mig::instances(snapshot);
        Self {
            snapshot,
            generation,
            gpus: gpus.map(|gpu| (&gpu.uuid, device(gpu, None))).collect(),
            instances: instances.map(|(gpu, instance)| device(gpu, Some(instance))).collect(),
        }
    }

    /// Adds to each account the series that its slots have, from the values that its device has had.
    pub fn count(&self, series: &mut [usize]) {
        for device in self.gpus.values().chain(&self.instances) {
            for (index, account) in &device.accounts {
                series[*index] += device.values.get() * slots(account);
            }
        }
    }

    /// `None` where podmeter does not serve it.
    pub fn family(&self, name: &'static DcgmName) -> Option<Family> {
        let source = name.row.source?;
        let (descriptor, per_base) = name.of(self.generation);
        let mut series = Series { family: Family::new(descriptor), per_base };
        source.fill(self, &mut series, name.row.podmeter.as_deref());
        series.family.ordered()
    }

    pub fn gpus(&self, series: &mut Series, own: Option<Own>, read: &dyn Fn(&DeviceReadings) -> Option<f64>) {
        self.each_gpu(series, own, &|_, readings| read(readings));
    }

    pub fn medium(&self, series: &mut Series, read: &dyn Fn(&Medium) -> Option<f64>) {
        self.gpus(series, None, &|readings| read(medium(readings)?));
    }

    pub fn slow(&self, series: &mut Series, read: &dyn Fn(&Slow) -> Option<f64>) {
        self.gpus(series, None, &|readings| read(slow(readings)?));
    }

    /// Of each GPU; of a shared one also of each holder, where `own` has its value.
    pub fn each_gpu(&self, series: &mut Series, own: Option<Own>, read: &dyn Fn(&Gpu, &DeviceReadings) -> Option<f64>) {
        for (gpu, readings) in with_readings(self.snapshot) {
            if let (Some(device), Some(value)) = (self.gpus.get(&gpu.uuid), read(gpu, readings)) {
                device.push(series, own, &Labels::default(), value);
            }
        }
    }

    /// Of each GPU, or of its GPU instances while it is partitioned; of a shared device also of each holder.
    pub fn parts(
        &self,
        series: &mut Series,
        own: Option<Own>,
        read: &dyn Fn(Option<MemoryUse>, &GpmRatios) -> Option<f64>,
    ) {
        self.gpus(series, own, &|readings| {
            let medium = medium(readings).filter(|medium| medium.instances.is_empty())?;
            read(medium.memory, &medium.gpm)
        });
        for device in &self.instances {
            if let Some(value) = device.instance.and_then(|instance| read(instance.memory, &instance.gpm)) {
                device.push(series, own, &Labels::default(), value);
            }
        }
    }

    /// Of each GPU with a series of podmeter's that the selector, with at most one label, matches.
    pub fn selected(&self, series: &mut Series, selector: &str) {
        let (name, matcher) = selector.split_once('{').unwrap_or((selector, ""));
        let matcher = matcher.trim_end_matches("\"}").split_once("=\"");
        for sample in metrics::family(self.snapshot, name).iter().flat_map(|family| &family.samples) {
            let has = |label: (&str, &str)| sample.labels.iter().any(|its| its == label);
            let device = self.gpus.iter().find(|(uuid, _)| has(("gpu_uuid", uuid.as_str())));
            if let (Some((_, device)), Some(value)) =
                (device.filter(|_| matcher.is_none_or(has)), sample.value.as_f64())
            {
                device.push(series, None, &Labels::default(), value);
            }
        }
    }

    /// Of one GPU, with more labels.
    pub fn gpu_and(&self, series: &mut Series, gpu: &Gpu, more: &Labels, value: f64) {
        if let Some(device) = self.gpus.get(&gpu.uuid) {
            device.push(series, None, more, value);
        }
    }
}

impl<'snapshot> DcgmDevice<'snapshot> {
    fn of(
        snapshot: &'snapshot Snapshot,
        generation: Generation,
        gpu: &'snapshot Gpu,
        instance: Option<&'snapshot InstanceReading>,
        without: &dyn Fn(usize) -> bool,
    ) -> Self {
        // A partitioned GPU has no holder as a whole, even while one container holds a part of it.
        let holds = |account: &&Account| match (instance, &account.mig) {
            (Some(instance), Some(mig)) => instance.members.contains(mig),
            (None, None) => gpu.mig_enabled != Some(true) && account.gpu == gpu.uuid,
            _ => false,
        };
        let accounts = snapshot.accounts.iter().enumerate();
        let accounts: Vec<_> = accounts.filter(|(_, account)| slots(account) > 0 && holds(account)).collect();
        let is_shared = |holding: &Holding| [SharingForm::TimeSlicing, SharingForm::Mps].contains(&holding.sharing);
        let labels = Arc::new(device_labels(snapshot, generation, gpu, instance));
        let shown = accounts.iter().filter(|(index, _)| !without(*index));
        Self {
            instance,
            is_shared: accounts.iter().any(|(_, account)| account.holding.as_ref().is_some_and(is_shared)),
            holders: shown.filter_map(|(_, account)| DcgmHolder::of(snapshot, &labels, account)).collect(),
            accounts,
            labels,
            values: Cell::default(),
        }
    }

    fn push(&self, series: &mut Series, own: Option<Own>, more: &Labels, value: f64) {
        let has_own = |own: &Own| self.is_shared && self.holders.iter().any(|holder| own(holder.account).is_some());
        let own = own.filter(has_own);
        let labels = |of: &Arc<Labels>| match more.iter().next() {
            None => Arc::clone(of),
            Some(_) => Arc::new(of.with(self.labels.iter().count(), more)),
        };
        self.values.set(self.values.get() + 1);
        if self.holders.is_empty() || own.is_some() {
            series.push(labels(&self.labels), value);
        }
        for holder in &self.holders {
            match own {
                Some(own) => {
                    if let Some(value) = own(holder.account) {
                        series.push(labels(&holder.own), value);
                    }
                }
                None => holder.slots.iter().for_each(|slot| series.push(labels(slot), value)),
            }
        }
    }
}

impl<'snapshot> DcgmHolder<'snapshot> {
    fn of(snapshot: &'snapshot Snapshot, device: &Labels, account: &'snapshot Account) -> Option<Self> {
        let container = &account.container;
        let more = claim_labels(snapshot, pod_labels(snapshot, container), account);
        let labels = |slot: Option<&str>| {
            let labels = device.clone().and("container", &container.container).and("namespace", &container.namespace);
            labels.and("pod", &container.pod).and_known("vgpu", slot).and_all(&more)
        };
        let slots: Vec<_> = account.holding.as_ref()?.device_ids.iter().map(|id| slot_number(id.as_str())).collect();
        let only = slots.first().copied().flatten().filter(|_| slots.len() == 1);
        let own = labels(only).and_known("pod_uid", container.pod_uid.as_ref()).into();
        let slots = if slots.is_empty() { vec![None] } else { slots };
        Some(Self { account, slots: slots.into_iter().map(|slot| labels(slot).into()).collect(), own })
    }
}

/// How many series a value of a device has for the account.
pub(super) fn slots(account: &Account) -> usize {
    let holding = account.holding.as_ref().filter(|_| !account.over_limit);
    holding.map_or(0, |holding| holding.device_ids.len().max(1))
}

fn device_labels(snapshot: &Snapshot, generation: Generation, gpu: &Gpu, instance: Option<&InstanceReading>) -> Labels {
    // dcgm-exporter puts the index into `device`, not the minor number.
    let mut labels = Labels::default()
        .and_known("gpu", gpu.index)
        .and("UUID", &gpu.uuid)
        .and_known("pci_bus_id", gpu.pci_bus_id.as_ref().map(|id| nvml_bus_id(id.as_str())))
        .and_known("device", gpu.index.map(|index| format!("nvidia{index}")))
        .and_known("modelName", gpu.model.as_ref());
    if let Some(instance) = instance {
        let profile = gpu.mig_devices.iter().find(|mig| mig.gpu_instance == instance.gpu_instance);
        labels =
            labels.and_known("GPU_I_PROFILE", profile.map(|mig| &mig.profile)).and("GPU_I_ID", instance.gpu_instance);
    }
    let node = Some(&snapshot.node_name).filter(|name| !name.is_empty());
    let driver = snapshot.hardware.inventory.driver.as_ref().map(|driver| &driver.driver_version);
    let (old, new) = (generation != Generation::New, generation != Generation::Old);
    labels
        .and_known("Hostname", node.filter(|_| old))
        .and_known("hostname", node.filter(|_| new))
        .and_known("DCGM_FI_DRIVER_VERSION", driver.filter(|_| old))
        .and_known("DCGM_FI_SYSTEM_DRIVER_VERSION", driver.filter(|_| new))
}

/// The pod labels that are configured to be shown. One that the pod does not have is absent.
fn pod_labels(snapshot: &Snapshot, container: &ContainerRef) -> Labels {
    let Some(processes) = &snapshot.processes else { return Labels::default() };
    let identity = processes.pods.get(&container.pod_ref());
    let identity = identity.filter(|identity| container.pod_uid.as_ref().is_none_or(|uid| identity.uid == *uid));
    let Some(identity) = identity else { return Labels::default() };
    processes.pod_labels.iter().fold(Labels::default(), |labels, label| {
        let name = label.name.strip_prefix("label_").unwrap_or(label.name);
        let name = if OWN_LABELS.split(' ').any(|own| own == name) { label.name } else { name };
        labels.and_known(name, identity.labels.get(label.key.as_str()))
    })
}

/// A pod label of such a name keeps podmeter's prefix.
const OWN_LABELS: &str = "gpu UUID pci_bus_id device modelName Hostname hostname container namespace pod vgpu";

/// Of a device that the container holds by a DRA claim.
fn claim_labels(snapshot: &Snapshot, labels: Labels, account: &Account) -> Labels {
    let Some((claim, joined)) = snapshot.claim_of(account) else { return labels };
    let mig = joined.mig.as_ref();
    let profile = mig.and_then(|mig| Some(&snapshot.hardware.inventory.mig(mig)?.1.profile));
    labels
        .and("dra_claim_name", &claim.claim)
        .and("dra_claim_namespace", &claim.claim_namespace)
        .and("dra_driver_name", &claim.driver)
        .and("dra_pool_name", &claim.pool)
        .and("dra_device_name", &claim.device)
        .and_known("dra_mig_profile", profile)
        .and_known("dra_mig_device_uuid", mig)
}

/// The number of the slot in a device ID of a shared device.
fn slot_number(id: &str) -> Option<&str> {
    Some(id.split_once("::")?.1)
}

/// DCGM writes bus ids as NVML does: eight-digit domain, upper case.
fn nvml_bus_id(kernel: &str) -> String {
    match kernel.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}").to_ascii_uppercase(),
        None => kernel.to_ascii_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_written_as_nvml_does() {
        assert_eq!(nvml_bus_id("0000:3b:00.0"), "00000000:3B:00.0");
        assert_eq!(nvml_bus_id("00010000:3d:00.0"), "00010000:3D:00.0");
    }
}
