//! What the devices are, and how many the node has.

use super::health::judged;
use super::plugin::served;
use super::{Descriptor, Family, Group, Label, Value};
use crate::model::{DeviceReadings, Divided, Gpu, Snapshot};

/// The labels of a series that belongs to one GPU.
pub(super) const DEVICE: &[&str] = &["gpu_uuid", "gpu"];

static DEVICE_INFO: Descriptor = Descriptor::gauge(
    "podmeter_device_info",
    &[
        "gpu_uuid",
        "gpu",
        "minor",
        "pci_bus_id",
        "model",
        "architecture",
        "compute_capability",
        "vbios_version",
        "numa_node",
    ],
    "",
    "NVML",
    "What a GPU is; always 1, also for a GPU that is lost, whether or not the driver has ever listed it.",
);
static DRIVER_INFO: Descriptor = Descriptor::gauge(
    "podmeter_driver_info",
    &["driver_version", "cuda_version", "nvml_version"],
    "",
    "NVML",
    "Versions of the driver; always 1.",
);
static NODE_DEVICES: Descriptor = Descriptor::gauge(
    "podmeter_node_devices",
    &["state"],
    "",
    "sysfs and NVML",
    "GPUs of the node by state: expected on the PCI bus, visible to the driver, healthy, schedulable as the bundled \
     plugin sees it, bound to vfio; do not sum over state.",
);

pub(super) const GROUP: Group =
    Group { section: "Device: identity", descriptors: &[&DEVICE_INFO, &DRIVER_INFO, &NODE_DEVICES], families };

fn families(snapshot: &Snapshot) -> Vec<Family> {
    vec![devices(snapshot), driver(snapshot), counts(snapshot)]
}

fn devices(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&DEVICE_INFO);
    for gpu in snapshot.hardware.inventory.gpus.values() {
        let mut labels = of_device(gpu);
        labels.extend(gpu.minor.map(|minor| ("minor", minor.into())));
        labels.extend(gpu.pci_bus_id.as_ref().map(|id| ("pci_bus_id", id.to_shared().into())));
        labels.extend(gpu.model.as_ref().map(|text| ("model", text.into())));
        labels.extend(gpu.architecture.as_ref().map(|text| ("architecture", text.into())));
        labels.extend(gpu.compute_capability.as_ref().map(|text| ("compute_capability", text.into())));
        labels.extend(gpu.vbios_version.as_ref().map(|text| ("vbios_version", text.into())));
        labels.extend(gpu.numa_node.map(|node| ("numa_node", node.into())));
        family.push(labels, 1u64);
    }
    family
}

fn driver(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&DRIVER_INFO);
    if let Some(driver) = &snapshot.hardware.inventory.driver {
        let mut labels = vec![("driver_version", (&driver.driver_version).into())];
        labels.extend(driver.cuda_version.as_ref().map(|text| ("cuda_version", text.into())));
        labels.extend(driver.nvml_version.as_ref().map(|text| ("nvml_version", text.into())));
        family.push(labels, 1u64);
    }
    family
}

fn counts(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&NODE_DEVICES);
    let hardware = &snapshot.hardware;
    family.push_known(vec![("state", "expected".into())], hardware.node_devices.as_ref().map(|counts| counts.expected));
    family.push_known(vec![("state", "vfio".into())], hardware.node_devices.as_ref().map(|counts| counts.vfio));
    // A driver that is not there shows no GPU: that is a count, not a missing value.
    let reads = matches!(hardware.source, "nvml" | "simulated");
    family.push_known(vec![("state", "visible".into())], reads.then(|| hardware.inventory.visible()));
    let healthy = || judged(snapshot).filter(|(_, health)| health.is_healthy()).count();
    family.push_known(vec![("state", "healthy".into())], reads.then(healthy));
    // Another plugin's devices are not this one's to count.
    let schedulable = |plugin| served(plugin).into_values().filter(|is_schedulable| *is_schedulable).count();
    family.push_known(vec![("state", "schedulable".into())], snapshot.plugin.as_deref().map(schedulable));
    family
}

pub(super) fn of_device(gpu: &Gpu) -> Vec<(&'static str, Label)> {
    // With room for what callers add.
    let mut labels = Vec::with_capacity(4);
    labels.push(("gpu_uuid", gpu.uuid.to_shared().into()));
    labels.extend(gpu.index.map(|index| ("gpu", index.into())));
    labels
}

/// One series per GPU that has the value.
pub(super) fn per_device<V: Into<Value>>(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    read: impl Fn(&DeviceReadings) -> Option<V>,
) -> Family {
    let mut family = Family::new(descriptor);
    for (gpu, readings) in with_readings(snapshot) {
        family.push_known(of_device(gpu), read(readings));
    }
    family
}

/// One series per GPU that has the quantity, which containers and unattributed part add up to at any time.
pub(super) fn divided(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    read: impl Fn(&Divided) -> Option<f64>,
) -> Family {
    let mut family = Family::new(descriptor);
    for (gpu, _) in with_readings(snapshot) {
        let unattributed = snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
        family.push_known(of_device(gpu), unattributed.and_then(|unattributed| read(&unattributed.divided)));
    }
    family
}

/// One series per GPU and value of one more label.
pub(super) fn per_device_and<V: Into<Value>>(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    label: &'static str,
    read: impl Fn(&DeviceReadings) -> Vec<(Label, Option<V>)>,
) -> Family {
    let mut family = Family::new(descriptor);
    for (gpu, readings) in with_readings(snapshot) {
        for (name, value) in read(readings) {
            let mut labels = of_device(gpu);
            labels.push((label, name));
            family.push_known(labels, value);
        }
    }
    family
}

/// As they come from a map of readings by name.
pub(super) fn named<'map, V: Copy + 'map>(
    map: impl IntoIterator<Item = (&'map &'static str, &'map V)>,
) -> Vec<(Label, Option<V>)> {
    map.into_iter().map(|(name, value)| ((*name).into(), Some(*value))).collect()
}

/// The integrals began at zero with the agent, or later with the GPU: never before the agent.
pub(super) fn counted_since_start(mut family: Family, snapshot: &Snapshot) -> Family {
    for sample in &mut family.samples {
        sample.created = Some(snapshot.started);
    }
    family
}

pub(super) fn with_readings(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &DeviceReadings)> {
    let hardware = &snapshot.hardware;
    hardware.inventory.gpus.values().filter_map(|gpu| Some((gpu, hardware.readings.get(&gpu.uuid)?.as_ref())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::{fixture, value};

    #[test]
    fn every_state_is_counted_and_none_is_schedulable_that_the_plugin_does_not_serve() {
        let mut snapshot = fixture::snapshot();
        let count = |snapshot: &Snapshot, state| value(&families(snapshot), NODE_DEVICES.name, &[("state", state)]);
        let states = ["expected", "visible", "healthy", "schedulable", "vfio"].map(|state| count(&snapshot, state));
        assert_eq!(states, [3.0, 2.0, 1.0, 1.0, 1.0].map(Some));
        snapshot.plugin = None;
        assert_eq!(count(&snapshot, "schedulable"), None);
    }
}
