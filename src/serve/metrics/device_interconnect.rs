//! PCIe, NVLink and the fabric.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, medium, slow};
use crate::domain::model::{DeviceReadings, Pcie};

/// Every state, so that each has its series; in the order of the numbers of NVML and, except for the last, of DCGM.
pub(super) const FABRIC_STATES: [&str; 5] = ["not_supported", "not_started", "in_progress", "completed", "failed"];

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Device: interconnect",
    labels: DEVICE,
    source: "NVML",
    metrics: vec![
        counter("podmeter_device_pcie_replays_total")
            .help("PCIe packets retransmitted.")
            .source("NVML GetPcieReplayCounter")
            .each(devices, |readings| pcie(readings)?.replays),
        counter("podmeter_device_pcie_errors_total").help("PCIe errors by kind.").source("NVML fields 173-183").by_key(
            "error",
            devices,
            |readings| Some(&pcie(readings)?.errors),
        ),
        counter("podmeter_device_pcie_bytes_total")
            .help(
                "Bytes over PCIe, in the GPU's direction; without a 64-bit counter, GPM's mean rates times their \
                     time.",
            )
            .source("NVML fields 197 and 198, else GPM 20 and 21")
            .by("direction", devices, |readings| {
                let pcie = pcie(readings)?;
                Some([("transmit", pcie.transmitted_bytes), ("receive", pcie.received_bytes)])
            }),
        gauge("podmeter_device_pcie_link_generation")
            .help("PCIe generation in use; falls while the GPU idles.")
            .source("NVML GetCurrPcieLinkGeneration")
            .each(devices, |readings| pcie(readings)?.link_generation),
        gauge("podmeter_device_pcie_link_generation_max")
            .help("Maximum PCIe generation of GPU and slot.")
            .source("NVML GetMaxPcieLinkGeneration")
            .each(devices, |readings| pcie(readings)?.link_generation_max),
        gauge("podmeter_device_pcie_link_width_lanes")
            .help("PCIe lanes in use.")
            .source("NVML GetCurrPcieLinkWidth")
            .each(devices, |readings| pcie(readings)?.link_width_lanes),
        gauge("podmeter_device_pcie_link_width_lanes_max")
            .help("Maximum PCIe lanes of GPU and slot.")
            .source("NVML GetMaxPcieLinkWidth")
            .each(devices, |readings| pcie(readings)?.link_width_lanes_max),
        counter("podmeter_device_nvlink_bytes_total")
            .help("Bytes over all NVLinks.")
            .source("NVML fields 138 and 139, or 202 and 204")
            .by("direction", devices, |readings| {
                let nvlink = &slow(readings)?.nvlink;
                Some([("transmit", nvlink.transmitted_bytes), ("receive", nvlink.received_bytes)])
            }),
        counter("podmeter_device_nvlink_errors_total")
            .help("NVLink errors by kind, over all links.")
            .source("NVML fields 161-163, or 206-212, 214 and 215")
            .by_key("error", devices, |readings| Some(&slow(readings)?.nvlink.errors)),
        gauge("podmeter_device_nvlink_links").help("NVLinks by state.").source("NVML GetNvLinkState").by(
            "state",
            devices,
            |readings| {
                let nvlink = &slow(readings)?.nvlink;
                Some([("active", nvlink.active_links), ("inactive", nvlink.inactive_links)])
            },
        ),
        gauge("podmeter_device_c2c_enabled")
            .help("Whether NVLink-C2C to the CPU is enabled.")
            .source("NVML GetC2cModeInfoV")
            .each(devices, |readings| slow(readings)?.c2c.enabled),
        gauge("podmeter_device_c2c_links").help("NVLink-C2C links by state.").source("NVML fields 170 and 171").by(
            "state",
            devices,
            |readings| {
                let c2c = slow(readings)?.c2c;
                Some([("active", c2c.active_links), ("inactive", c2c.inactive_links)])
            },
        ),
        gauge("podmeter_device_c2c_bytes_per_second")
            .help(
                "Traffic over NVLink-C2C with its overhead, in the GPU's direction, averaged since the last \
                     reading.",
            )
            .source("NVML GPM 100 and 101")
            .by("direction", devices, |readings| {
                let traffic = medium(readings)?.rates.traffic;
                Some([("transmit", traffic.c2c_transmitted), ("receive", traffic.c2c_received)])
            }),
        gauge("podmeter_device_c2c_bytes_per_second_max")
            .help("Speed of all active NVLink-C2C links together.")
            .source("NVML field 172")
            .each(devices, |readings| slow(readings)?.c2c.bytes_per_second_max),
        gauge("podmeter_device_fabric_state")
            .help("Registration with the NVLink fabric: one series per state.")
            .source("NVML GetGpuFabricInfoV")
            .by("state", devices, |readings| {
                let current = slow(readings)?.fabric.as_ref()?.state;
                Some(FABRIC_STATES.map(|state| (state, Some(state == current))))
            }),
        gauge("podmeter_device_fabric_condition")
            .help("Fabric conditions that the driver reports; 1 is a fault or a limit.")
            .source("NVML GetGpuFabricInfoV health mask")
            .by_key("condition", devices, |readings| Some(&slow(readings)?.fabric.as_ref()?.conditions)),
    ],
});

fn pcie(readings: &DeviceReadings) -> Option<&Pcie> {
    Some(&slow(readings)?.pcie)
}
