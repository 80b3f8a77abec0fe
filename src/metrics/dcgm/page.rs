//! The series of `/metrics/dcgm`: each value with the labels of the device and of its holders.
//!
//! As in dcgm-exporter, a value of a shared device is repeated for each slot that a container holds. Utilization and
//! memory in use are each container's own, beside the device's without a pod.

use crate::metrics::family::{Family, Value};
use crate::metrics::labels::{Labels, medium, with_readings};
use crate::metrics::mig;
use crate::model::{
    Account, ClaimDevice, ClaimGpu, ContainerRef, DeviceReadings, GpmRatios, Gpu, Holding, InstanceReading, MemoryUse,
    Sharing, Snapshot,
};

use super::Generation;
use super::name::Unit;

/// One family of the page while it is filled, from values in base units.
pub struct Series {
    pub(super) family: Family,
    /// The unit in which values are written; `None` for the base unit.
    pub(super) unit: Option<Unit>,
    pub(super) generation: Generation,
}

pub struct Page<'snapshot> {
    pub(super) snapshot: &'snapshot Snapshot,
}

/// The value of one holder of a shared device, in base units.
type Own = fn(&Account) -> Option<f64>;

impl Series {
    fn push(&mut self, labels: Labels, value: f64) {
        let value = match self.unit {
            // Enough digits for the smallest share, and none that the conversion alone has made.
            Some(unit) if unit.per_base() != 1.0 => (value * unit.per_base() * 1000.0).round() / 1000.0,
            _ => value,
        };
        let is_whole = value.fract() == 0.0 && (0.0..9e15).contains(&value);
        self.family.push(labels, if is_whole { Value::Integer(value as u64) } else { Value::Float(value) });
    }
}

impl Page<'_> {
    /// Of each GPU.
    pub fn gpus(&self, series: &mut Series, read: fn(&DeviceReadings) -> Option<f64>) {
        for (gpu, readings) in with_readings(self.snapshot) {
            if let Some(value) = read(readings) {
                self.device(series, Device::whole(gpu), None, value);
            }
        }
    }

    /// Of each GPU; of a shared one also of each holder.
    pub fn gpus_and_holders(&self, series: &mut Series, own: Own, read: fn(&DeviceReadings) -> Option<f64>) {
        for (gpu, readings) in with_readings(self.snapshot) {
            if let Some(value) = read(readings) {
                self.device(series, Device::whole(gpu), Some(own), value);
            }
        }
    }

    /// Of each GPU, or of its GPU instances while it is partitioned; of a shared device also of each holder.
    pub fn parts(&self, series: &mut Series, own: Option<Own>, read: fn(Option<MemoryUse>, &GpmRatios) -> Option<f64>) {
        for (gpu, readings) in with_readings(self.snapshot) {
            if let Some(medium) = medium(readings).filter(|medium| medium.instances.is_empty())
                && let Some(value) = read(medium.memory, &medium.gpm)
            {
                self.device(series, Device::whole(gpu), own, value);
            }
        }
        for (gpu, instance) in mig::instances(self.snapshot) {
            if let Some(value) = read(instance.memory, &instance.gpm) {
                self.device(series, Device { instance: Some(instance), ..Device::whole(gpu) }, own, value);
            }
        }
    }

    /// Of one GPU, with more labels.
    pub fn gpu_and(&self, series: &mut Series, gpu: &Gpu, more: Labels, value: f64) {
        self.device(series, Device { more, ..Device::whole(gpu) }, None, value);
    }

    fn device(&self, series: &mut Series, device: Device<'_>, own: Option<Own>, value: f64) {
        let holders = self.holders(&device);
        let labels = device.labels(self.snapshot, series.generation);
        let own = own.filter(|own| {
            let is_shared = |holding: &Holding| [Sharing::TimeSlicing, Sharing::Mps].contains(&holding.sharing);
            holders.iter().any(|(_, holding)| is_shared(holding))
                && holders.iter().any(|(account, _)| own(account).is_some())
        });
        if holders.is_empty() || own.is_some() {
            series.push(labels.clone(), value);
        }
        for (account, holding) in holders {
            match own {
                Some(own) => {
                    if let Some(value) = own(account) {
                        let slot = holding.device_ids.first().filter(|_| holding.device_ids.len() == 1);
                        let labels =
                            self.holder_labels(labels.clone(), account, slot.and_then(|id| replica(id.as_str())));
                        series.push(labels.and_known("pod_uid", account.container.pod_uid.as_ref()), value);
                    }
                }
                None if holding.device_ids.is_empty() => {
                    series.push(self.holder_labels(labels.clone(), account, None), value);
                }
                None => {
                    for slot in &holding.device_ids {
                        series.push(self.holder_labels(labels.clone(), account, replica(slot.as_str())), value);
                    }
                }
            }
        }
    }

    /// A partitioned GPU has no holder as a whole, even while one container holds a part of it.
    fn holders(&self, device: &Device<'_>) -> Vec<(&Account, &Holding)> {
        let holds = |account: &&Account| match (device.instance, &account.mig) {
            (Some(instance), Some(mig)) => instance.members.contains(mig),
            (None, None) => device.gpu.mig_enabled != Some(true) && account.gpu == device.gpu.uuid,
            _ => false,
        };
        let shown = self.snapshot.accounts.iter().filter(|account| !account.over_limit).filter(holds);
        shown.filter_map(|account| Some((account, account.holding.as_ref()?))).collect()
    }

    fn holder_labels(&self, labels: Labels, account: &Account, replica: Option<&str>) -> Labels {
        let container = &account.container;
        let labels = labels
            .and("container", &container.container)
            .and("namespace", &container.namespace)
            .and("pod", &container.pod)
            .and_known("vgpu", replica.map(str::to_owned));
        self.claim_labels(self.pod_labels(labels, container), account)
    }

    /// The pod labels that are configured to be shown. One that the pod does not have is absent.
    fn pod_labels(&self, labels: Labels, container: &ContainerRef) -> Labels {
        let Some(processes) = &self.snapshot.processes else { return labels };
        let identity = processes.pods.get(&container.pod_ref());
        let identity = identity.filter(|identity| container.pod_uid.as_ref().is_none_or(|uid| identity.uid == *uid));
        let Some(identity) = identity else { return labels };
        processes.pod_labels.iter().fold(labels, |labels, label| {
            let name = label.name.strip_prefix("label_").unwrap_or(label.name);
            let name = if labels.iter().any(|(taken, _)| taken == name) { label.name } else { name };
            labels.and_known(name, identity.labels.get(label.key.as_str()))
        })
    }

    /// Of a device that the container holds by a DRA claim.
    fn claim_labels(&self, labels: Labels, account: &Account) -> Labels {
        let Some((claim, joined)) = self.claim(account) else { return labels };
        let mig = joined.mig.as_ref();
        let profile = mig.and_then(|mig| Some(&self.snapshot.hardware.inventory.mig(mig)?.1.profile));
        labels
            .and("dra_claim_name", &claim.claim)
            .and("dra_claim_namespace", &claim.claim_namespace)
            .and("dra_driver_name", &claim.driver)
            .and("dra_pool_name", &claim.pool)
            .and("dra_device_name", &claim.device)
            .and_known("dra_mig_profile", profile)
            .and_known("dra_mig_device_uuid", mig)
    }

    fn claim(&self, account: &Account) -> Option<(&ClaimDevice, &ClaimGpu)> {
        let containers = self.snapshot.kubelet.allocations.iter().flat_map(|allocations| allocations.containers());
        let its = containers.filter(|container| container.reference == account.container);
        its.flat_map(|container| &container.claims).find_map(|claim| {
            let is_device = |joined: &&ClaimGpu| {
                joined.driver == claim.driver && joined.pool == claim.pool && joined.device == claim.device
            };
            let joined = self.snapshot.claim_gpus.iter().find(is_device)?;
            (joined.gpu == account.gpu && joined.mig == account.mig).then_some((claim, joined))
        })
    }
}

/// A device that has series.
struct Device<'snapshot> {
    gpu: &'snapshot Gpu,
    instance: Option<&'snapshot InstanceReading>,
    more: Labels,
}

impl<'snapshot> Device<'snapshot> {
    fn whole(gpu: &'snapshot Gpu) -> Self {
        Self { gpu, instance: None, more: Labels::default() }
    }

    fn labels(&self, snapshot: &Snapshot, generation: Generation) -> Labels {
        let gpu = self.gpu;
        // dcgm-exporter puts the index into `device`, not the minor number.
        let mut labels = Labels::default()
            .and_known("gpu", gpu.index)
            .and("UUID", &gpu.uuid)
            .and_known("pci_bus_id", gpu.pci_bus_id.as_ref().map(|id| nvml_bus_id(id.as_str())))
            .and_known("device", gpu.index.map(|index| format!("nvidia{index}")))
            .and_known("modelName", gpu.model.as_ref());
        if let Some(instance) = self.instance {
            let profile = gpu.mig_devices.iter().find(|mig| mig.gpu_instance == instance.gpu_instance);
            labels = labels
                .and_known("GPU_I_PROFILE", profile.map(|mig| &mig.profile))
                .and("GPU_I_ID", instance.gpu_instance);
        }
        let node = Some(&snapshot.node_name).filter(|name| !name.is_empty());
        let driver = snapshot.hardware.inventory.driver.as_ref().map(|driver| &driver.driver_version);
        let (old, new) = (generation != Generation::New, generation != Generation::Old);
        labels
            .and_known("Hostname", node.filter(|_| old))
            .and_known("hostname", node.filter(|_| new))
            .and_known("DCGM_FI_DRIVER_VERSION", driver.filter(|_| old))
            .and_known("DCGM_FI_SYSTEM_DRIVER_VERSION", driver.filter(|_| new))
            .and_all(&self.more)
    }
}

/// The number of the slot in a device ID of a shared device.
fn replica(id: &str) -> Option<&str> {
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
