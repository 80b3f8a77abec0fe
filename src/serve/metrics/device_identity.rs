//! What the devices are, and how many the node has.

use std::sync::LazyLock;

use super::family::{Group, gauge};
use super::labels::{Labels, devices, of_device, slow, with_health};
use super::plugin::schedulable_gpus;
use crate::domain::model::{HardwareSource, Platform};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Device: identity",
    labels: "",
    source: "NVML",
    metrics: vec![
        gauge("podmeter_device_info")
            .help("Properties of a GPU; also of a lost one.")
            .labels("gpu_uuid gpu minor pci_bus_id model architecture compute_capability vbios_version numa_node")
            .samples(|snapshot, family| {
                for gpu in snapshot.hardware.inventory.gpus.values() {
                    let labels = of_device(gpu)
                        .and_known("minor", gpu.minor)
                        .and_known("pci_bus_id", gpu.pci_bus_id.as_ref())
                        .and_known("model", gpu.model.as_ref())
                        .and_known("architecture", gpu.architecture.as_ref())
                        .and_known("compute_capability", gpu.compute_capability.as_ref())
                        .and_known("vbios_version", gpu.vbios_version.as_ref())
                        .and_known("numa_node", gpu.numa_node);
                    family.push(labels, 1u64);
                }
            }),
        gauge("podmeter_device_platform_info")
            .help(
                "Where a GPU is: the lowest PCI bus id of its module, slot and tray, and whether its NVLink peers \
                     are behind a switch.",
            )
            .labels("gpu_uuid gpu module slot tray host_id gpu_module_id peer_type")
            .source("NVML GetPlatformInfo, GetSerial")
            .samples(|snapshot, family| {
                let inventory = &snapshot.hardware.inventory;
                for gpu in inventory.gpus.values() {
                    let readings = snapshot.hardware.readings.get(&gpu.uuid);
                    let is_on_module = readings.is_some_and(|readings| readings.totals.module_energy_joules.is_some());
                    let platform = gpu.platform.clone().or_else(|| is_on_module.then(Platform::default));
                    let Some(platform) = platform else { continue };
                    let labels = of_device(gpu)
                        .and_known("module", inventory.module_of(&gpu.uuid).map(|(module, _)| module))
                        .and_known("slot", platform.slot)
                        .and_known("tray", platform.tray)
                        .and_known("host_id", platform.host)
                        .and_known("gpu_module_id", platform.module_id)
                        .and_known("peer_type", platform.peer_type);
                    family.push(labels, 1u64);
                }
            }),
        gauge("podmeter_device_fabric_info")
            .help("NVLink domain (a rack) of a GPU, and its clique in it.")
            .labels("gpu_uuid gpu cluster_uuid clique_id")
            .source("NVML GetGpuFabricInfoV")
            .samples(|snapshot, family| {
                for (labels, readings) in devices(snapshot) {
                    if let Some(domain) = slow(readings).and_then(|slow| slow.fabric.as_ref()?.domain.as_ref()) {
                        let labels = labels.and("cluster_uuid", &domain.cluster_uuid);
                        family.push(labels.and("clique_id", domain.clique_id), 1u64);
                    }
                }
            }),
        gauge("podmeter_driver_info")
            .help("Versions of the driver.")
            .labels("driver_version cuda_version nvml_version")
            .samples(|snapshot, family| {
                if let Some(driver) = &snapshot.hardware.inventory.driver {
                    let labels = Labels::new("driver_version", &driver.driver_version)
                        .and_known("cuda_version", driver.cuda_version.as_ref())
                        .and_known("nvml_version", driver.nvml_version.as_ref());
                    family.push(labels, 1u64);
                }
            }),
        gauge("podmeter_node_devices")
            .help(
                "GPUs of the node by state: expected from the PCI bus, visible to the driver, healthy, \
                     schedulable, unserved by the NVIDIA driver.",
            )
            .labels("state")
            .source("sysfs and NVML")
            .samples(|snapshot, family| {
                let hardware = &snapshot.hardware;
                let mut push = |state, count: Option<usize>| family.push_known(Labels::new("state", state), count);
                push("expected", hardware.node_devices.as_ref().map(|counts| counts.expected));
                push("unserved", hardware.node_devices.as_ref().map(|_| hardware.inventory.unserved.len()));
                // Zero while the driver is not loaded; absent only where no hardware is read.
                let reads = hardware.source != HardwareSource::None;
                push("visible", reads.then(|| hardware.inventory.visible()));
                push(
                    "healthy",
                    reads.then(|| with_health(snapshot).iter().filter(|(_, health)| health.is_healthy()).count()),
                );
                // What is schedulable is known only for the bundled plugin.
                let schedulable =
                    |plugin| schedulable_gpus(plugin).into_values().filter(|is_schedulable| *is_schedulable).count();
                push("schedulable", snapshot.plugin.as_deref().map(schedulable));
            }),
    ],
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::Snapshot;
    use crate::serve::metrics::tests::{fixture, value};

    #[test]
    fn every_state_is_counted_and_none_is_schedulable_that_the_plugin_does_not_serve() {
        let mut snapshot = fixture::snapshot();
        let count =
            |snapshot: &Snapshot, state| value(&GROUP.families(snapshot), "podmeter_node_devices", &[("state", state)]);
        let states = ["expected", "visible", "healthy", "schedulable", "unserved"].map(|state| count(&snapshot, state));
        assert_eq!(states, [3.0, 2.0, 1.0, 1.0, 1.0].map(Some));
        snapshot.plugin = None;
        assert_eq!(count(&snapshot, "schedulable"), None);
    }
}
