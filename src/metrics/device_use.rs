//! How busy the devices are, and how full.

use super::device_identity::{DEVICE, counted_since_start, divided, named, per_device, per_device_and};
use super::{Descriptor, Family, Group, Label};
use crate::model::{DeviceReadings, GpmRatios, Medium, MemoryUse, Snapshot};

static BUSY: Descriptor = Descriptor::counter(
    "podmeter_device_busy_seconds_total",
    DEVICE,
    "seconds",
    "NVML GetSamples (GPU utilization), else GetUtilizationRates",
    "Seconds in which at least one kernel ran.",
);
static UTILIZATION: Descriptor = Descriptor::gauge(
    "podmeter_device_utilization_ratio",
    DEVICE,
    "ratio",
    "NVML GetSamples (GPU utilization), else GetUtilizationRates",
    "Part of the driver's last sample in which at least one kernel ran, 0 to 1.",
);
static MEMORY_BUSY: Descriptor = Descriptor::counter(
    "podmeter_device_memory_busy_seconds_total",
    DEVICE,
    "seconds",
    "NVML GetSamples (memory utilization), else GetUtilizationRates",
    "Seconds in which device memory was read or written.",
);
static ENGINE_BUSY: Descriptor = Descriptor::counter(
    "podmeter_device_engine_busy_seconds_total",
    &["gpu_uuid", "gpu", "engine"],
    "seconds",
    "NVML Get{Encoder,Decoder,Jpg,Ofa}Utilization",
    "Seconds in which a fixed-function engine was busy.",
);
static UNCOVERED: Descriptor = Descriptor::counter(
    "podmeter_device_uncovered_seconds_total",
    DEVICE,
    "seconds",
    "podmeter",
    "Seconds that no sample of the driver covers: counted, not guessed.",
);
static GRAPHICS_ENGINE_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_device_graphics_engine_active_ratio",
    DEVICE,
    "ratio",
    "NVML GPM 1",
    "Part of the time in which the graphics or compute engine was active, 0 to 1.",
);
static SM_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_device_sm_active_ratio",
    DEVICE,
    "ratio",
    "NVML GPM 2",
    "Part of the SMs' time with at least one warp resident, 0 to 1.",
);
static SM_OCCUPANCY: Descriptor = Descriptor::gauge(
    "podmeter_device_sm_occupancy_ratio",
    DEVICE,
    "ratio",
    "NVML GPM 3",
    "Resident warps as part of what the SMs can hold, 0 to 1.",
);
static PIPE_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_device_pipe_active_ratio",
    &["gpu_uuid", "gpu", "pipe"],
    "ratio",
    "NVML GPM 4-9 and 11-13",
    "Part of the time in which an arithmetic pipe was active, 0 to 1; pipes overlap, so do not sum over pipe.",
);
static DRAM_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_device_dram_active_ratio",
    DEVICE,
    "ratio",
    "NVML GPM 10",
    "Memory bandwidth used as part of its peak, 0 to 1.",
);
static SM_CYCLES: Descriptor =
    Descriptor::counter("podmeter_device_sm_cycles_total", DEVICE, "", "NVML GPM 248", "SM cycles that passed.");
static SM_ACTIVE_CYCLES: Descriptor = Descriptor::counter(
    "podmeter_device_sm_active_cycles_total",
    DEVICE,
    "",
    "NVML GPM 249",
    "SM cycles with at least one warp resident.",
);
static MEMORY: Descriptor = Descriptor::gauge(
    "podmeter_device_memory_bytes",
    &["gpu_uuid", "gpu", "state"],
    "bytes",
    "NVML GetMemoryInfo_v2",
    "Device memory by state; the states sum to the capacity.",
);
static MEMORY_CAPACITY: Descriptor = Descriptor::gauge(
    "podmeter_device_memory_capacity_bytes",
    DEVICE,
    "bytes",
    "NVML GetMemoryInfo_v2",
    "Device memory in all.",
);

pub(super) const GROUP: Group = Group {
    section: "Device: use",
    descriptors: &[
        &BUSY,
        &UTILIZATION,
        &MEMORY_BUSY,
        &ENGINE_BUSY,
        &UNCOVERED,
        &GRAPHICS_ENGINE_ACTIVE,
        &SM_ACTIVE,
        &SM_OCCUPANCY,
        &PIPE_ACTIVE,
        &DRAM_ACTIVE,
        &SM_CYCLES,
        &SM_ACTIVE_CYCLES,
        &MEMORY,
        &MEMORY_CAPACITY,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let totals = [
        divided(snapshot, &BUSY, |divided| divided.busy_seconds),
        per_device(snapshot, &MEMORY_BUSY, |readings| readings.totals.memory_busy_seconds),
        per_device_and(snapshot, &ENGINE_BUSY, "engine", |readings| named(&readings.totals.engine_busy_seconds)),
        per_device(snapshot, &UNCOVERED, |readings| Some(readings.totals.uncovered_seconds)),
    ];
    let mut families: Vec<_> = totals.map(|family| counted_since_start(family, snapshot)).into();
    families.extend([
        per_device(snapshot, &UTILIZATION, |readings| readings.fast.as_ref()?.value.utilization_ratio),
        per_device(snapshot, &GRAPHICS_ENGINE_ACTIVE, |readings| gpm(readings)?.graphics_engine_active),
        per_device(snapshot, &SM_ACTIVE, |readings| gpm(readings)?.sm_active),
        per_device(snapshot, &SM_OCCUPANCY, |readings| gpm(readings)?.sm_occupancy),
        per_device(snapshot, &DRAM_ACTIVE, |readings| gpm(readings)?.dram_active),
        per_device_and(snapshot, &PIPE_ACTIVE, "pipe", |readings| {
            gpm(readings).map_or_else(Vec::new, |gpm| named(&gpm.pipes))
        }),
        per_device(snapshot, &SM_CYCLES, |readings| medium(readings)?.sm_cycles),
        per_device(snapshot, &SM_ACTIVE_CYCLES, |readings| medium(readings)?.sm_active_cycles),
        per_device_and(snapshot, &MEMORY, "state", |readings| {
            medium(readings).and_then(|medium| medium.memory).map_or_else(Vec::new, memory_states)
        }),
        per_device(snapshot, &MEMORY_CAPACITY, |readings| Some(medium(readings)?.memory?.total)),
    ]);
    families
}

pub(super) fn memory_states(memory: MemoryUse) -> Vec<(Label, Option<u64>)> {
    vec![("used".into(), Some(memory.used)), ("free".into(), Some(memory.free)), ("reserved".into(), memory.reserved)]
}

pub(super) fn medium(readings: &DeviceReadings) -> Option<&Medium> {
    Some(&readings.medium.as_ref()?.value)
}

fn gpm(readings: &DeviceReadings) -> Option<&GpmRatios> {
    Some(&medium(readings)?.gpm)
}
