//! PCIe, NVLink and the fabric.

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, medium, named, slow};
use crate::domain::model::{DeviceReadings, Pcie};

/// Every state, so that each has its series.
const FABRIC_STATES: [&str; 5] = ["not_supported", "not_started", "in_progress", "completed", "failed"];

pub(super) static GROUP: Group = Group {
    section: "Device: interconnect",
    labels: DEVICE,
    source: "NVML",
    metrics: &[
        counter("podmeter_device_pcie_replays_total", "PCIe packets retransmitted.", |snapshot, family| {
            family.each(devices(snapshot), |readings| pcie(readings)?.replays);
        })
        .source("NVML GetPcieReplayCounter"),
        counter("podmeter_device_pcie_errors_total", "PCIe errors by kind.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| Some(named(&pcie(readings)?.errors)));
        })
        .labels("gpu_uuid gpu error")
        .source("NVML fields 173-183"),
        counter(
            "podmeter_device_pcie_bytes_total",
            "Bytes over PCIe, in the GPU's direction; without a 64-bit counter, GPM's mean rates times their time.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| {
                    let pcie = pcie(readings)?;
                    Some([("transmit", pcie.transmitted_bytes), ("receive", pcie.received_bytes)])
                });
            },
        )
        .labels("gpu_uuid gpu direction")
        .source("NVML fields 197 and 198, else GPM 20 and 21"),
        gauge(
            "podmeter_device_pcie_link_generation",
            "PCIe generation in use; falls while the GPU idles.",
            |snapshot, family| family.each(devices(snapshot), |readings| pcie(readings)?.link_generation),
        )
        .source("NVML GetCurrPcieLinkGeneration"),
        gauge(
            "podmeter_device_pcie_link_generation_max",
            "Maximum PCIe generation of GPU and slot.",
            |snapshot, family| family.each(devices(snapshot), |readings| pcie(readings)?.link_generation_max),
        )
        .source("NVML GetMaxPcieLinkGeneration"),
        gauge("podmeter_device_pcie_link_width_lanes", "PCIe lanes in use.", |snapshot, family| {
            family.each(devices(snapshot), |readings| pcie(readings)?.link_width_lanes);
        })
        .source("NVML GetCurrPcieLinkWidth"),
        gauge(
            "podmeter_device_pcie_link_width_lanes_max",
            "Maximum PCIe lanes of GPU and slot.",
            |snapshot, family| family.each(devices(snapshot), |readings| pcie(readings)?.link_width_lanes_max),
        )
        .source("NVML GetMaxPcieLinkWidth"),
        counter("podmeter_device_nvlink_bytes_total", "Bytes over all NVLinks.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| {
                let nvlink = &slow(readings)?.nvlink;
                Some([("transmit", nvlink.transmitted_bytes), ("receive", nvlink.received_bytes)])
            });
        })
        .labels("gpu_uuid gpu direction")
        .source("NVML fields 138 and 139, or 202 and 204"),
        counter("podmeter_device_nvlink_errors_total", "NVLink errors by kind, over all links.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| Some(named(&slow(readings)?.nvlink.errors)));
        })
        .labels("gpu_uuid gpu error")
        .source("NVML fields 161-163, or 206-212, 214 and 215"),
        gauge("podmeter_device_nvlink_links", "NVLinks by state.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| {
                let nvlink = &slow(readings)?.nvlink;
                Some([("active", nvlink.active_links), ("inactive", nvlink.inactive_links)])
            });
        })
        .labels("gpu_uuid gpu state")
        .source("NVML GetNvLinkState"),
        gauge("podmeter_device_c2c_enabled", "Whether NVLink-C2C to the CPU is enabled.", |snapshot, family| {
            family.each(devices(snapshot), |readings| slow(readings)?.c2c.enabled);
        })
        .source("NVML GetC2cModeInfoV"),
        gauge("podmeter_device_c2c_links", "NVLink-C2C links by state.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| {
                let c2c = slow(readings)?.c2c;
                Some([("active", c2c.active_links), ("inactive", c2c.inactive_links)])
            });
        })
        .labels("gpu_uuid gpu state")
        .source("NVML fields 170 and 171"),
        gauge(
            "podmeter_device_c2c_bytes_per_second",
            "Traffic over NVLink-C2C with its overhead, in the GPU's direction, averaged since the last reading.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| {
                    let traffic = medium(readings)?.rates.traffic;
                    Some([("transmit", traffic.c2c_transmitted), ("receive", traffic.c2c_received)])
                });
            },
        )
        .labels("gpu_uuid gpu direction")
        .source("NVML GPM 100 and 101"),
        gauge(
            "podmeter_device_c2c_bytes_per_second_max",
            "Speed of all active NVLink-C2C links together.",
            |snapshot, family| family.each(devices(snapshot), |readings| slow(readings)?.c2c.bytes_per_second_max),
        )
        .source("NVML field 172"),
        gauge(
            "podmeter_device_fabric_state",
            "Registration with the NVLink fabric: one series per state.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| {
                    let current = slow(readings)?.fabric.as_ref()?.state;
                    Some(FABRIC_STATES.map(|state| (state, Some(state == current))))
                });
            },
        )
        .labels("gpu_uuid gpu state")
        .source("NVML GetGpuFabricInfoV"),
        gauge(
            "podmeter_device_fabric_condition",
            "Fabric conditions that the driver reports; 1 is a fault or a limit.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some(named(&slow(readings)?.fabric.as_ref()?.conditions)));
            },
        )
        .labels("gpu_uuid gpu condition")
        .source("NVML GetGpuFabricInfoV health mask"),
    ],
};

fn pcie(readings: &DeviceReadings) -> Option<&Pcie> {
    Some(&slow(readings)?.pcie)
}
