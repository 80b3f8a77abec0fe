//! The series of `/metrics/dcgm`: each value with the labels of the device and of its holders.
//!
//! As in dcgm-exporter, a value of a shared device is repeated for each slot that a container holds. Utilization and
//! memory in use are each container's own, beside the device's without a pod.

use std::collections::BTreeSet;
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

/// One value of a device, before it is repeated for the device's holders.
pub struct DcgmValue {
    /// Index in the page's devices.
    device: usize,
    /// Labels beside the device's.
    more: Labels,
    /// In base units. `None`: only its holders have one.
    value: Option<f64>,
    /// On a shared device, and without `value`, each holder has its own instead, where any is known.
    own: Option<Own>,
}

pub type Values = Vec<DcgmValue>;

/// The devices of a snapshot, with the labels of one generation.
pub struct DcgmPage<'snapshot> {
    pub(super) snapshot: &'snapshot Snapshot,
    generation: Generation,
    devices: Vec<DcgmDevice<'snapshot>>,
}

/// A device that has series.
struct DcgmDevice<'snapshot> {
    gpu: &'snapshot Gpu,
    /// `None`: the GPU as a whole.
    instance: Option<&'snapshot InstanceReading>,
    labels: Arc<Labels>,
    is_shared: bool,
    /// Of every container that holds it, with their indices in the snapshot.
    accounts: Vec<(usize, &'snapshot Account)>,
    /// Those of the accounts that have series; none before `add_holders`.
    holders: Vec<DcgmHolder<'snapshot>>,
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

fn in_unit(value: f64, per_base: f64) -> SampleValue {
    // A conversion leaves rounding errors beyond three decimals.
    let value = if per_base == 1.0 { value } else { (value * per_base * 1000.0).round() / 1000.0 };
    let is_whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
    if is_whole { SampleValue::Integer(value as u64) } else { SampleValue::Float(value) }
}

impl<'snapshot> DcgmPage<'snapshot> {
    /// Without holders.
    pub fn new(snapshot: &'snapshot Snapshot, generation: Generation) -> Self {
        let gpus = snapshot.hardware.inventory.gpus.values().map(|gpu| (gpu, None));
        let instances = mig::instances(snapshot).map(|(gpu, instance)| (gpu, Some(instance)));
        let device = |(gpu, instance)| DcgmDevice::new(snapshot, generation, gpu, instance);
        Self { snapshot, generation, devices: gpus.chain(instances).map(device).collect() }
    }

    /// Adds the holders of each device, except the accounts at the indices `dropped`.
    pub fn add_holders(&mut self, dropped: &BTreeSet<usize>) {
        for device in &mut self.devices {
            let shown = device.accounts.iter().filter(|(index, _)| !dropped.contains(index));
            let holder =
                |(_, account): &(usize, &'snapshot Account)| DcgmHolder::new(self.snapshot, &device.labels, account);
            device.holders = shown.filter_map(holder).collect();
        }
    }

    /// Empty where podmeter does not serve it.
    pub fn values(&self, name: &DcgmName) -> Values {
        let mut values = vec![];
        if let Some(source) = name.row.source {
            source.fill(self, &mut values, name.row.podmeter.as_deref());
        }
        values
    }

    /// Adds to each account the series that its slots have of these values.
    pub fn count(&self, values: &[DcgmValue], series: &mut [usize]) {
        for value in values {
            for (index, account) in &self.devices[value.device].accounts {
                series[*index] += slots(account);
            }
        }
    }

    /// `None` without values.
    pub fn family(&self, name: &'static DcgmName, values: &[DcgmValue]) -> Option<Family> {
        let (descriptor, per_base) = name.in_generation(self.generation);
        let mut family = Family::new(descriptor);
        for value in values {
            let device = &self.devices[value.device];
            device.each_series(value, |labels, value| family.push(labels, in_unit(value, per_base)));
        }
        family.ordered()
    }

    fn gpu(&self, uuid: &GpuUuid) -> Option<usize> {
        self.devices.iter().position(|device| device.instance.is_none() && device.gpu.uuid == *uuid)
    }

    pub fn gpus(&self, values: &mut Values, own: Option<Own>, read: &dyn Fn(&DeviceReadings) -> Option<f64>) {
        self.each_gpu(values, own, &|_, readings| read(readings));
    }

    pub fn medium(&self, values: &mut Values, read: &dyn Fn(&Medium) -> Option<f64>) {
        self.gpus(values, None, &|readings| read(medium(readings)?));
    }

    pub fn slow(&self, values: &mut Values, read: &dyn Fn(&Slow) -> Option<f64>) {
        self.gpus(values, None, &|readings| read(slow(readings)?));
    }

    /// Of each GPU; of a shared one also of each holder, where `own` has its value.
    pub fn each_gpu(&self, values: &mut Values, own: Option<Own>, read: &dyn Fn(&Gpu, &DeviceReadings) -> Option<f64>) {
        for (gpu, readings) in with_readings(self.snapshot) {
            if let (Some(device), Some(value)) = (self.gpu(&gpu.uuid), read(gpu, readings)) {
                values.push(DcgmValue { device, more: Labels::default(), value: Some(value), own });
            }
        }
    }

    /// Of each GPU, or of its GPU instances while it is partitioned; of a shared device also of each holder.
    pub fn parts(
        &self,
        values: &mut Values,
        own: Option<Own>,
        read: &dyn Fn(Option<MemoryUse>, &GpmRatios) -> Option<f64>,
    ) {
        self.gpus(values, own, &|readings| {
            let medium = medium(readings).filter(|medium| medium.instances.is_empty())?;
            read(medium.memory, &medium.gpm)
        });
        for (index, device) in self.devices.iter().enumerate() {
            if let Some(value) = device.instance.and_then(|instance| read(instance.memory, &instance.gpm)) {
                values.push(DcgmValue { device: index, more: Labels::default(), value: Some(value), own });
            }
        }
    }

    /// Of the holders of each GPU for which the driver has no memory.
    pub fn without_memory(&self, values: &mut Values, own: Own) {
        for (gpu, readings) in with_readings(self.snapshot) {
            let is_without =
                medium(readings).is_some_and(|medium| medium.memory.is_none() && medium.instances.is_empty());
            if let Some(device) = self.gpu(&gpu.uuid).filter(|_| is_without) {
                values.push(DcgmValue { device, more: Labels::default(), value: None, own: Some(own) });
            }
        }
    }

    /// Of each GPU with a series of podmeter's that the selector, with at most one label, matches.
    pub fn selected(&self, values: &mut Values, selector: &str) {
        let (name, matcher) = selector.split_once('{').unwrap_or((selector, ""));
        let matcher = matcher.trim_end_matches("\"}").split_once("=\"");
        for sample in metrics::family(self.snapshot, name).iter().flat_map(|family| &family.samples) {
            let has = |label: (&str, &str)| sample.labels.iter().any(|its| its == label);
            let is_its = |one: &DcgmDevice<'_>| one.instance.is_none() && has(("gpu_uuid", one.gpu.uuid.as_str()));
            let device = self.devices.iter().position(is_its).filter(|_| matcher.is_none_or(has));
            if let (Some(device), Some(value)) = (device, sample.value.as_f64()) {
                values.push(DcgmValue { device, more: Labels::default(), value: Some(value), own: None });
            }
        }
    }

    /// Of one GPU, with more labels.
    pub fn gpu_and(&self, values: &mut Values, gpu: &Gpu, more: Labels, value: f64) {
        if let Some(device) = self.gpu(&gpu.uuid) {
            values.push(DcgmValue { device, more, value: Some(value), own: None });
        }
    }
}

impl<'snapshot> DcgmDevice<'snapshot> {
    fn new(
        snapshot: &'snapshot Snapshot,
        generation: Generation,
        gpu: &'snapshot Gpu,
        instance: Option<&'snapshot InstanceReading>,
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
        Self {
            gpu,
            instance,
            labels: Arc::new(device_labels(snapshot, generation, gpu, instance)),
            is_shared: accounts.iter().any(|(_, account)| account.holding.as_ref().is_some_and(is_shared)),
            accounts,
            holders: vec![],
        }
    }

    /// Calls `push` with the labels and the number of each series that the value has.
    fn each_series(&self, value: &DcgmValue, mut push: impl FnMut(Arc<Labels>, f64)) {
        let DcgmValue { more, value, own, .. } = value;
        let has_own = |own: &Own| {
            (self.is_shared || value.is_none()) && self.holders.iter().any(|holder| own(holder.account).is_some())
        };
        let own = own.filter(has_own);
        let labels = |of: &Arc<Labels>| match more.iter().next() {
            None => Arc::clone(of),
            Some(_) => Arc::new(of.insert_at(self.labels.iter().count(), more)),
        };
        if self.holders.is_empty() || own.is_some() {
            value.iter().for_each(|value| push(labels(&self.labels), *value));
        }
        for holder in &self.holders {
            match own {
                Some(own) => own(holder.account).into_iter().for_each(|value| push(labels(&holder.own), value)),
                None => value.iter().for_each(|value| {
                    holder.slots.iter().for_each(|slot| push(labels(slot), *value));
                }),
            }
        }
    }
}

impl<'snapshot> DcgmHolder<'snapshot> {
    fn new(snapshot: &'snapshot Snapshot, device: &Labels, account: &'snapshot Account) -> Option<Self> {
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
    let identity = identity.filter(|identity| container.pod_uid.as_ref().is_none_or(|uid| identity.has_uid(uid)));
    let Some(identity) = identity else { return Labels::default() };
    processes.pod_labels.iter().fold(Labels::default(), |labels, label| {
        let name = label.name.strip_prefix("label_").unwrap_or(label.name);
        let name = if OWN_LABELS.split(' ').any(|own| own == name) { label.name } else { name };
        labels.and_known(name, identity.labels.get(label.key.as_str()))
    })
}

/// A pod label of such a name keeps podmeter's prefix.
pub(super) const OWN_LABELS: &str = "gpu UUID pci_bus_id device modelName Hostname hostname container namespace pod vgpu pod_uid \
                          GPU_I_PROFILE GPU_I_ID DCGM_FI_DRIVER_VERSION DCGM_FI_SYSTEM_DRIVER_VERSION err_code err_msg \
                          clock_event xid window_size_in_ms health_watch health_error_code dra_claim_name \
                          dra_claim_namespace dra_driver_name dra_pool_name dra_device_name dra_mig_profile \
                          dra_mig_device_uuid";

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
