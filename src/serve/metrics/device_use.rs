//! Utilization, engine activity and memory use of each device.

use super::family::{Family, Group, counter, gauge};
use super::labels::{DEVICE, devices, medium, named, of_device, with_readings};
use crate::domain::model::{DeviceReadings, Divided, GpmRatios, MemoryUse, Snapshot, busy_ratio};

const BUSY: &str = "NVML GetSamples (GPU utilization), else GetUtilizationRates; with MIG GPM 1, else 2";

pub(super) static GROUP: Group = Group {
    section: "Device: use",
    labels: DEVICE,
    source: "NVML",
    metrics: &[
        counter(
            "podmeter_device_busy_seconds_total",
            "Seconds in which at least one kernel ran; with MIG, by slices.",
            |snapshot, family| divided(snapshot, family, |divided| divided.busy_seconds),
        )
        .source(BUSY),
        gauge(
            "podmeter_device_utilization_ratio",
            "Fraction of the last ten seconds read in which at least one kernel ran; with MIG, by slices.",
            |snapshot, family| {
                for (gpu, readings) in with_readings(snapshot) {
                    family.push_known(of_device(gpu), busy_ratio(gpu, Some(readings), None));
                }
            },
        )
        .source(BUSY),
        counter(
            "podmeter_device_memory_busy_seconds_total",
            "Seconds in which device memory was read or written.",
            |snapshot, family| family.each(devices(snapshot), |readings| readings.totals.memory_busy_seconds),
        )
        .source("NVML GetSamples (memory utilization), else GetUtilizationRates"),
        counter(
            "podmeter_device_engine_busy_seconds_total",
            "Seconds in which a fixed-function engine was busy.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some(named(&readings.totals.engine_busy_seconds)));
            },
        )
        .labels("gpu_uuid gpu engine")
        .source("NVML Get{Encoder,Decoder,Jpg,Ofa}Utilization"),
        counter(
            "podmeter_device_uncovered_seconds_total",
            "Seconds that no sample of the driver covers.",
            |snapshot, family| family.each(devices(snapshot), |readings| Some(readings.totals.uncovered_seconds)),
        )
        .source("podmeter"),
        gauge(
            "podmeter_device_graphics_engine_active_ratio",
            "Fraction of time in which the graphics or compute engine was active.",
            |snapshot, family| family.each(devices(snapshot), |readings| gpm(readings)?.graphics_engine_active),
        )
        .source("NVML GPM 1"),
        gauge(
            "podmeter_device_sm_active_ratio",
            "Fraction of SM time with at least one warp resident.",
            |snapshot, family| family.each(devices(snapshot), |readings| gpm(readings)?.sm_active),
        )
        .source("NVML GPM 2"),
        gauge(
            "podmeter_device_sm_occupancy_ratio",
            "Resident warps as a fraction of the maximum.",
            |snapshot, family| family.each(devices(snapshot), |readings| gpm(readings)?.sm_occupancy),
        )
        .source("NVML GPM 3"),
        gauge(
            "podmeter_device_pipe_active_ratio",
            "Fraction of time in which an arithmetic pipe was active; pipes overlap.",
            |snapshot, family| family.by_name(devices(snapshot), |readings| Some(named(&gpm(readings)?.pipes))),
        )
        .labels("gpu_uuid gpu pipe")
        .source("NVML GPM 4-9 and 11-13"),
        gauge(
            "podmeter_device_dram_active_ratio",
            "Memory bandwidth used as a fraction of the peak.",
            |snapshot, family| family.each(devices(snapshot), |readings| gpm(readings)?.dram_active),
        )
        .source("NVML GPM 10"),
        counter("podmeter_device_sm_cycles_total", "SM cycles elapsed.", |snapshot, family| {
            family.each(devices(snapshot), |readings| medium(readings)?.sm_cycles);
        })
        .source("NVML GPM 248"),
        counter(
            "podmeter_device_sm_active_cycles_total",
            "SM cycles with at least one warp resident.",
            |snapshot, family| family.each(devices(snapshot), |readings| medium(readings)?.sm_active_cycles),
        )
        .source("NVML GPM 249"),
        gauge(
            "podmeter_device_memory_bytes",
            "Device memory by state; the states sum to the capacity.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| medium(readings)?.memory.map(memory_states));
            },
        )
        .labels("gpu_uuid gpu state")
        .source("NVML GetMemoryInfo_v2"),
        gauge("podmeter_device_memory_capacity_bytes", "Total device memory.", |snapshot, family| {
            family.each(devices(snapshot), |readings| Some(medium(readings)?.memory?.total));
        })
        .source("NVML GetMemoryInfo_v2"),
    ],
};

/// Adds the total that the ledger has divided, of each GPU that has the quantity: holders' shares and the unattributed
/// part add up to it at any time. It starts at zero with the agent, or when the GPU appears after that.
pub(super) fn divided(snapshot: &Snapshot, family: &mut Family, read: impl Fn(&Divided) -> Option<f64>) {
    for (gpu, _) in with_readings(snapshot) {
        let unattributed = snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
        family.push_known(of_device(gpu), unattributed.and_then(|unattributed| read(&unattributed.divided)));
    }
}

pub(super) fn memory_states(memory: MemoryUse) -> [(&'static str, Option<u64>); 3] {
    [("used", Some(memory.used)), ("free", Some(memory.free)), ("reserved", memory.reserved)]
}

fn gpm(readings: &DeviceReadings) -> Option<&GpmRatios> {
    Some(&medium(readings)?.gpm)
}
