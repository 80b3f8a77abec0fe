//! PCIe, NVLink and the fabric.

use super::device_identity::{DEVICE, named, per_device, per_device_and};
use super::{Descriptor, Family, Group};
use crate::model::{DeviceReadings, Pcie, Slow, Snapshot};

static PCIE_REPLAYS: Descriptor = Descriptor::counter(
    "podmeter_device_pcie_replays_total",
    DEVICE,
    "",
    "NVML GetPcieReplayCounter",
    "PCIe packets sent again.",
);
static PCIE_ERRORS: Descriptor = Descriptor::counter(
    "podmeter_device_pcie_errors_total",
    &["gpu_uuid", "gpu", "error"],
    "",
    "NVML fields 173-183",
    "PCIe errors by kind.",
);
static PCIE_BYTES: Descriptor = Descriptor::counter(
    "podmeter_device_pcie_bytes_total",
    &["gpu_uuid", "gpu", "direction"],
    "bytes",
    "NVML fields 197 and 198",
    "Bytes over PCIe, as the GPU sees the direction; absent where the counter has 32 bits.",
);
static LINK_GENERATION: Descriptor = Descriptor::gauge(
    "podmeter_device_pcie_link_generation",
    DEVICE,
    "",
    "NVML GetCurrPcieLinkGeneration",
    "PCIe generation in use; falls while the GPU idles.",
);
static LINK_GENERATION_MAX: Descriptor = Descriptor::gauge(
    "podmeter_device_pcie_link_generation_max",
    DEVICE,
    "",
    "NVML GetMaxPcieLinkGeneration",
    "PCIe generation that GPU and slot can reach.",
);
static LINK_WIDTH: Descriptor = Descriptor::gauge(
    "podmeter_device_pcie_link_width_lanes",
    DEVICE,
    "",
    "NVML GetCurrPcieLinkWidth",
    "PCIe lanes in use.",
);
static LINK_WIDTH_MAX: Descriptor = Descriptor::gauge(
    "podmeter_device_pcie_link_width_lanes_max",
    DEVICE,
    "",
    "NVML GetMaxPcieLinkWidth",
    "PCIe lanes that GPU and slot can reach.",
);
static NVLINK_BYTES: Descriptor = Descriptor::counter(
    "podmeter_device_nvlink_bytes_total",
    &["gpu_uuid", "gpu", "direction"],
    "bytes",
    "NVML fields 138-141 over all links, or 202 and 204",
    "Bytes over all NVLinks.",
);
static NVLINK_ERRORS: Descriptor = Descriptor::counter(
    "podmeter_device_nvlink_errors_total",
    &["gpu_uuid", "gpu", "error"],
    "",
    "NVML fields 161-163 and 206-215",
    "NVLink errors by kind, over all links.",
);
static NVLINK_LINKS: Descriptor = Descriptor::gauge(
    "podmeter_device_nvlink_links",
    &["gpu_uuid", "gpu", "state"],
    "",
    "NVML GetNvLinkState",
    "NVLinks by state.",
);
static FABRIC_STATE: Descriptor = Descriptor::gauge(
    "podmeter_device_fabric_state",
    &["gpu_uuid", "gpu", "state"],
    "",
    "NVML GetGpuFabricInfoV",
    "Registration with the NVLink fabric: one series per state, 0 or 1.",
);
static FABRIC_CONDITION: Descriptor = Descriptor::gauge(
    "podmeter_device_fabric_condition",
    &["gpu_uuid", "gpu", "condition"],
    "",
    "NVML GetGpuFabricInfoV health mask",
    "Conditions of the fabric that the driver supports, 0 or 1.",
);

/// Every state, so that each has its series.
const FABRIC_STATES: [&str; 5] = ["not_supported", "not_started", "in_progress", "completed", "failed"];

pub(super) const GROUP: Group = Group {
    section: "Device: interconnect",
    descriptors: &[
        &PCIE_REPLAYS,
        &PCIE_ERRORS,
        &PCIE_BYTES,
        &LINK_GENERATION,
        &LINK_GENERATION_MAX,
        &LINK_WIDTH,
        &LINK_WIDTH_MAX,
        &NVLINK_BYTES,
        &NVLINK_ERRORS,
        &NVLINK_LINKS,
        &FABRIC_STATE,
        &FABRIC_CONDITION,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    vec![
        per_device(snapshot, &PCIE_REPLAYS, |readings| pcie(readings)?.replays),
        per_device_and(snapshot, &PCIE_ERRORS, "error", |readings| {
            pcie(readings).map_or_else(Vec::new, |pcie| named(&pcie.errors))
        }),
        per_device_and(snapshot, &PCIE_BYTES, "direction", |readings| {
            let Some(pcie) = pcie(readings) else { return Vec::new() };
            vec![("transmit".into(), pcie.transmitted_bytes), ("receive".into(), pcie.received_bytes)]
        }),
        per_device(snapshot, &LINK_GENERATION, |readings| pcie(readings)?.link_generation),
        per_device(snapshot, &LINK_GENERATION_MAX, |readings| pcie(readings)?.link_generation_max),
        per_device(snapshot, &LINK_WIDTH, |readings| pcie(readings)?.link_width_lanes),
        per_device(snapshot, &LINK_WIDTH_MAX, |readings| pcie(readings)?.link_width_lanes_max),
        per_device_and(snapshot, &NVLINK_BYTES, "direction", |readings| {
            let Some(nvlink) = slow(readings).map(|slow| &slow.nvlink) else { return Vec::new() };
            vec![("transmit".into(), nvlink.transmitted_bytes), ("receive".into(), nvlink.received_bytes)]
        }),
        per_device_and(snapshot, &NVLINK_ERRORS, "error", |readings| {
            slow(readings).map_or_else(Vec::new, |slow| named(&slow.nvlink.errors))
        }),
        per_device_and(snapshot, &NVLINK_LINKS, "state", |readings| {
            let Some(nvlink) = slow(readings).map(|slow| &slow.nvlink) else { return Vec::new() };
            vec![("active".into(), nvlink.active_links), ("inactive".into(), nvlink.inactive_links)]
        }),
        per_device_and(snapshot, &FABRIC_STATE, "state", |readings| {
            let Some(fabric) = slow(readings).and_then(|slow| slow.fabric.as_ref()) else { return Vec::new() };
            FABRIC_STATES.map(|state| (state.into(), Some(state == fabric.state))).into()
        }),
        per_device_and(snapshot, &FABRIC_CONDITION, "condition", |readings| {
            let fabric = slow(readings).and_then(|slow| slow.fabric.as_ref());
            fabric.map_or_else(Vec::new, |fabric| named(&fabric.conditions))
        }),
    ]
}

pub(super) fn slow(readings: &DeviceReadings) -> Option<&Slow> {
    Some(&readings.slow.as_ref()?.value)
}

fn pcie(readings: &DeviceReadings) -> Option<&Pcie> {
    Some(&slow(readings)?.pcie)
}
