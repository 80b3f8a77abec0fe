//! The series of `/metrics/dcgm`: each value with the labels of the device and of its holders.
//!
//! As in dcgm-exporter, a GPU that has GPU instances is on the page as these, with its values in each of them, and a value
//! of a shared device is repeated for each slot that a container holds. Where a device is not used by one container
//! alone, each container has its part of utilization and memory in use, beside the device's value without a pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::domain::model::{
    Account, DeviceReadings, GpmRatios, Gpu, Holding, Medium, MemoryUse, PodIdentity, SharingForm, Slow, Snapshot,
    busy_ratio, parts_of_device,
};
use crate::serve::metrics;
use crate::serve::metrics::family::{Family, SampleValue};
use crate::serve::metrics::labels::{Labels, medium, slow};

use super::{DcgmName, Generation};

/// One value of a device, before it is repeated for the device's holders.
pub struct DcgmValue {
    /// Index in the page's devices.
    device: usize,
    /// Labels beside the device's.
    more: Labels,
    /// The device's value in base units. `None`: only its holders have one.
    value: Option<f64>,
    /// Gives the value of each holder instead, on a device of several users and without `value`.
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
    instance: GpuInstance,
    labels: Arc<Labels>,
    /// Whether its use is not all of one holder.
    has_several_users: bool,
    /// The accounts of the containers that hold it, with their indices in the snapshot.
    accounts: Vec<(usize, &'snapshot Account)>,
    /// The accounts that have series; empty before `add_holders`.
    holders: Vec<DcgmHolder<'snapshot>>,
}

struct DcgmHolder<'snapshot> {
    account: &'snapshot Account,
    /// The labels of each slot that it holds.
    slots: Vec<Arc<Labels>>,
    /// The labels of the holder's part of a value, without a slot where it holds several.
    own: Arc<Labels>,
}

/// The number of a GPU instance; `None`: the GPU as a whole, which has none.
pub type GpuInstance = Option<u32>;

/// The part of one holder of a device of several users, given the device's value, in base units.
pub type Own = fn(&Snapshot, &Account, Option<f64>) -> Option<f64>;

fn in_unit(value: f64, per_base: f64) -> SampleValue {
    // A conversion leaves rounding errors beyond three decimals.
    let value = if per_base == 1.0 { value } else { (value * per_base * 1000.0).round() / 1000.0 };
    let is_whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
    if is_whole { SampleValue::Integer(value as u64) } else { SampleValue::Float(value) }
}

impl<'snapshot> DcgmPage<'snapshot> {
    /// A page without holders; `add_holders` adds them.
    pub fn new(snapshot: &'snapshot Snapshot, generation: Generation) -> Self {
        let instances = |gpu: &Gpu| -> BTreeSet<u32> { gpu.mig_devices.iter().map(|mig| mig.gpu_instance).collect() };
        let devices = |gpu| match instances(gpu) {
            instances if instances.is_empty() => vec![DcgmDevice::new(snapshot, generation, gpu, None)],
            instances => {
                let device = |instance| DcgmDevice::new(snapshot, generation, gpu, Some(instance));
                instances.into_iter().map(device).collect()
            }
        };
        let devices = snapshot.hardware.inventory.gpus.values().flat_map(devices).collect();
        Self { snapshot, generation, devices }
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

    /// The values of a metric; empty where podmeter does not serve it.
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

    /// The family with the samples of these values; `None` without any.
    pub fn family(&self, name: &'static DcgmName, values: &[DcgmValue]) -> Option<Family> {
        let (descriptor, per_base) = name.in_generation(self.generation);
        let mut family = Family::new(descriptor);
        for value in values {
            let device = &self.devices[value.device];
            device.each_series(self.snapshot, value, |labels, value| family.push(labels, in_unit(value, per_base)));
        }
        family.ordered()
    }

    /// Every device by its index.
    pub fn devices(&self) -> impl Iterator<Item = (usize, &'snapshot Gpu, GpuInstance)> {
        self.devices.iter().enumerate().map(|(index, device)| (index, device.gpu, device.instance))
    }

    /// The devices whose GPU has readings.
    pub fn with_readings(
        &self,
    ) -> impl Iterator<Item = (usize, &'snapshot Gpu, GpuInstance, &'snapshot DeviceReadings)> {
        let readings = &self.snapshot.hardware.readings;
        self.devices().filter_map(|(device, gpu, part)| Some((device, gpu, part, readings.get(&gpu.uuid)?.as_ref())))
    }

    /// Adds the value of each GPU, or of each of its GPU instances. `own` gives those of holders.
    pub fn each(
        &self,
        values: &mut Values,
        own: Option<Own>,
        read: &dyn Fn(&Gpu, GpuInstance, &DeviceReadings) -> Option<f64>,
    ) {
        for (device, gpu, instance, readings) in self.with_readings() {
            if let Some(value) = read(gpu, instance, readings) {
                values.push(DcgmValue { device, more: Labels::default(), value: Some(value), own });
            }
        }
    }

    pub fn medium(&self, values: &mut Values, read: &dyn Fn(&Medium) -> Option<f64>) {
        self.each(values, None, &|_, _, readings| read(medium(readings)?));
    }

    pub fn slow(&self, values: &mut Values, read: &dyn Fn(&Slow) -> Option<f64>) {
        self.each(values, None, &|_, _, readings| read(slow(readings)?));
    }

    /// Adds a value made of memory and GPM metrics, which each GPU instance has too.
    pub fn parts(
        &self,
        values: &mut Values,
        own: Option<Own>,
        read: &dyn Fn(Option<MemoryUse>, &GpmRatios) -> Option<f64>,
    ) {
        self.each(values, own, &|_, instance, readings| {
            let (memory, gpm) = memory_and_gpm(instance, readings)?;
            read(memory, gpm)
        });
    }

    /// Adds the holders' values of each GPU for which the driver reports no memory.
    pub fn without_memory(&self, values: &mut Values, own: Own) {
        for (device, _, instance, readings) in self.with_readings() {
            if instance.is_none() && medium(readings).is_some_and(|medium| medium.memory.is_none()) {
                values.push(DcgmValue { device, more: Labels::default(), value: None, own: Some(own) });
            }
        }
    }

    /// Adds the value of each of podmeter's series of a GPU that the selector, with at most one label, matches.
    pub fn selected(&self, values: &mut Values, selector: &str) {
        let (name, matcher) = selector.split_once('{').unwrap_or((selector, ""));
        let matcher = matcher.trim_end_matches("\"}").split_once("=\"");
        for sample in metrics::family(self.snapshot, name).iter().flat_map(|family| &family.samples) {
            let has = |label: (&str, &str)| sample.labels.iter().any(|its| its == label);
            let Some(value) = sample.value.as_f64().filter(|_| matcher.is_none_or(has)) else { continue };
            for (device, _, _) in self.devices().filter(|(_, gpu, _)| has(("gpu_uuid", gpu.uuid.as_str()))) {
                self.push(values, device, Labels::default(), value);
            }
        }
    }

    /// Adds a value of one device, with more labels.
    pub fn push(&self, values: &mut Values, device: usize, more: Labels, value: f64) {
        values.push(DcgmValue { device, more, value: Some(value), own: None });
    }
}

impl<'snapshot> DcgmDevice<'snapshot> {
    fn new(snapshot: &'snapshot Snapshot, generation: Generation, gpu: &'snapshot Gpu, instance: GpuInstance) -> Self {
        // No container holds a GPU in MIG mode as a whole.
        let holds = |account: &Account| match &account.mig {
            Some(mig) => gpu.mig_device(mig).map(|mig| mig.gpu_instance) == instance && instance.is_some(),
            None => instance.is_none() && gpu.mig_enabled != Some(true),
        };
        let accounts = snapshot.accounts.iter().enumerate();
        let accounts: Vec<_> =
            accounts.filter(|(_, account)| account.gpu == gpu.uuid && slots(account) > 0 && holds(account)).collect();
        let readings = snapshot.hardware.readings.get(&gpu.uuid);
        let busy = readings.and_then(|readings| utilization(gpu, instance, readings));
        let memory = readings.and_then(|readings| memory_and_gpm(instance, readings)?.0);
        let used = memory.map(|memory| memory.used);
        let is_shared = |holding: &Holding| [SharingForm::TimeSlicing, SharingForm::Mps].contains(&holding.sharing);
        let is_part = |account: &Account| {
            let own = parts_of_device(&snapshot.hardware.inventory, account).busy;
            let has_all = own == busy && account.memory_used_bytes == used;
            account.holding.as_ref().is_some_and(|holding| is_shared(holding) || !has_all)
        };
        Self {
            gpu,
            instance,
            labels: Arc::new(device_labels(snapshot, generation, gpu, instance)),
            has_several_users: accounts.iter().any(|(_, account)| is_part(account)),
            accounts,
            holders: vec![],
        }
    }

    /// Calls `push` with the labels and the number of each series that the value has.
    fn each_series(&self, snapshot: &Snapshot, value: &DcgmValue, mut push: impl FnMut(Arc<Labels>, f64)) {
        let DcgmValue { more, value, own, .. } = value;
        let own = own.map(|own| move |holder: &DcgmHolder<'_>| own(snapshot, holder.account, *value));
        let own = own.filter(|_| self.has_several_users || value.is_none());
        let labels = |of: &Arc<Labels>| match more.iter().next() {
            None => Arc::clone(of),
            Some(_) => Arc::new(of.insert_at(self.labels.iter().count(), more)),
        };
        if self.holders.is_empty() || own.is_some() {
            value.iter().for_each(|value| push(labels(&self.labels), *value));
        }
        for holder in &self.holders {
            match own {
                Some(own) => own(holder).into_iter().for_each(|value| push(labels(&holder.own), value)),
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
        // Labels and UID of another pod of the same name are not this one's.
        let uid = snapshot.pod_uid(container);
        let identity = snapshot.processes.as_ref().and_then(|processes| processes.pods.get(&container.pod_ref()));
        let identity = identity.filter(|identity| uid.is_none_or(|uid| identity.has_uid(uid)));
        let uid = identity.map(|identity| &identity.uid).or(uid);
        let pod = identity.map_or_else(Labels::default, |identity| pod_labels(snapshot, identity));
        let more = claim_labels(snapshot, Labels::default().and_known("pod_uid", uid).and_all(&pod), account);
        let labels = |slot: Option<&str>| -> Arc<Labels> {
            let labels = device.clone().and("container", &container.container).and("namespace", &container.namespace);
            labels.and("pod", &container.pod).and_known("vgpu", slot).and_all(&more).into()
        };
        let slots = account.holding.as_ref()?.device_ids.iter().map(|id| labels(slot_number(id.as_str())));
        let mut slots: Vec<_> = slots.collect();
        if slots.is_empty() {
            slots.push(labels(None));
        }
        let own = if slots.len() == 1 { Arc::clone(&slots[0]) } else { labels(None) };
        Some(Self { account, slots, own })
    }
}

/// How busy the GPU or its instance is.
pub fn utilization(gpu: &Gpu, instance: GpuInstance, readings: &DeviceReadings) -> Option<f64> {
    match instance {
        Some(instance) => readings.fast.as_ref()?.value.instance_utilization_ratios.get(&instance).copied(),
        None => busy_ratio(gpu, Some(readings), None),
    }
}

/// Memory and GPM metrics of the GPU or its instance.
fn memory_and_gpm(instance: GpuInstance, readings: &DeviceReadings) -> Option<(Option<MemoryUse>, &GpmRatios)> {
    let medium = medium(readings)?;
    let Some(instance) = instance else { return Some((medium.memory, &medium.gpm)) };
    let its = medium.instances.iter().find(|reading| reading.gpu_instance == instance)?;
    Some((its.memory, &its.gpm))
}

/// How many series a value of a device has for the account.
pub(super) fn slots(account: &Account) -> usize {
    let holding = account.holding.as_ref().filter(|_| !account.over_limit);
    holding.map_or(0, |holding| holding.device_ids.len().max(1))
}

fn device_labels(snapshot: &Snapshot, generation: Generation, gpu: &Gpu, instance: GpuInstance) -> Labels {
    // dcgm-exporter puts the index into `device`, not the minor number.
    let mut labels = Labels::default()
        .and_known("gpu", gpu.index)
        .and("UUID", &gpu.uuid)
        .and_known("pci_bus_id", gpu.pci_bus_id.as_ref().map(|id| nvml_bus_id(id.as_str())))
        .and_known("device", gpu.index.map(|index| format!("nvidia{index}")))
        .and_known("modelName", gpu.model.as_ref());
    if let Some(instance) = instance {
        let profile = gpu.mig_devices.iter().find(|mig| mig.gpu_instance == instance).map(|mig| &mig.profile);
        labels = labels.and_known("GPU_I_PROFILE", profile).and("GPU_I_ID", instance);
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

/// The configured pod labels, as far as the pod has them.
fn pod_labels(snapshot: &Snapshot, identity: &PodIdentity) -> Labels {
    let shown = snapshot.processes.iter().flat_map(|processes| processes.pod_labels.iter());
    shown.fold(Labels::default(), |labels, label| {
        let name = label.name.strip_prefix("label_").unwrap_or(label.name);
        let name = if OWN_LABELS.split(' ').any(|own| own == name) { label.name } else { name };
        labels.and_known(name, identity.labels.get(label.key.as_str()))
    })
}

/// The names of the page's labels: a pod label of such a name keeps podmeter's prefix.
pub(super) const OWN_LABELS: &str = "gpu UUID pci_bus_id device modelName Hostname hostname container namespace pod vgpu pod_uid \
                          GPU_I_PROFILE GPU_I_ID DCGM_FI_DRIVER_VERSION DCGM_FI_SYSTEM_DRIVER_VERSION err_code err_msg \
                          clock_event xid window_size_in_ms health_watch health_error_code dra_claim_name \
                          dra_claim_namespace dra_driver_name dra_pool_name dra_device_name dra_mig_profile \
                          dra_mig_device_uuid";

/// Adds the labels of the DRA claim by which the container holds the device, if any.
fn claim_labels(snapshot: &Snapshot, labels: Labels, account: &Account) -> Labels {
    let Some((claim, joined)) = snapshot.claim_of(account) else { return labels };
    let mig = joined.mig.as_ref();
    let profile = mig.and_then(|mig| Some(&snapshot.hardware.inventory.mig(mig.as_str())?.1.profile));
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
