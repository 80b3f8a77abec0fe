//! Utilization, engine activity and memory use of each device.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, Labels, devices, medium, of_device, with_readings};
use crate::domain::model::{DeviceReadings, Divided, GpmRatios, Gpu, MemoryUse, Snapshot, busy_ratio};

const BUSY: &str = "NVML GetSamples (GPU utilization), else GetUtilizationRates; with MIG GPM 1, else 2";

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Device: use",
    labels: DEVICE,
    source: "NVML",
    metrics: vec![
        counter("podmeter_device_busy_seconds_total")
            .help("Seconds in which at least one kernel ran; with MIG, by slices.")
            .source(BUSY)
            .each(divided, |divided| divided.busy_seconds),
        gauge("podmeter_device_utilization_ratio")
            .help("Fraction of the last ten seconds read in which at least one kernel ran; with MIG, by slices.")
            .source(BUSY)
            .samples(|snapshot, family| {
                for (gpu, readings) in with_readings(snapshot) {
                    family.push_known(of_device(gpu), busy_ratio(gpu, Some(readings), None));
                }
            }),
        counter("podmeter_device_memory_busy_seconds_total")
            .help("Seconds in which device memory was read or written.")
            .source("NVML GetSamples (memory utilization), else GetUtilizationRates")
            .each(devices, |readings| readings.totals.memory_busy_seconds),
        counter("podmeter_device_engine_busy_seconds_total")
            .help("Seconds in which a fixed-function engine was busy.")
            .source("NVML Get{Encoder,Decoder,Jpg,Ofa}Utilization")
            .by_key("engine", devices, |readings| Some(&readings.totals.engine_busy_seconds)),
        counter("podmeter_device_uncovered_seconds_total")
            .help("Seconds that no sample of the driver covers.")
            .source("podmeter")
            .each(devices, |readings| Some(readings.totals.uncovered_seconds)),
        gauge("podmeter_device_graphics_engine_active_ratio")
            .help("Fraction of time in which the graphics or compute engine was active.")
            .source("NVML GPM 1")
            .each(devices, |readings| gpm(readings)?.graphics_engine_active),
        gauge("podmeter_device_sm_active_ratio")
            .help("Fraction of SM time with at least one warp resident.")
            .source("NVML GPM 2")
            .each(devices, |readings| gpm(readings)?.sm_active),
        gauge("podmeter_device_sm_occupancy_ratio")
            .help("Resident warps as a fraction of the maximum.")
            .source("NVML GPM 3")
            .each(devices, |readings| gpm(readings)?.sm_occupancy),
        gauge("podmeter_device_pipe_active_ratio")
            .help("Fraction of time in which an arithmetic pipe was active; pipes overlap.")
            .source("NVML GPM 4-9 and 11-13")
            .by_key("pipe", devices, |readings| Some(&gpm(readings)?.pipes)),
        gauge("podmeter_device_dram_active_ratio")
            .help("Memory bandwidth used as a fraction of the peak.")
            .source("NVML GPM 10")
            .each(devices, |readings| gpm(readings)?.dram_active),
        counter("podmeter_device_sm_cycles_total")
            .help("SM cycles elapsed.")
            .source("NVML GPM 248")
            .each(devices, |readings| medium(readings)?.sm_cycles),
        counter("podmeter_device_sm_active_cycles_total")
            .help("SM cycles with at least one warp resident.")
            .source("NVML GPM 249")
            .each(devices, |readings| medium(readings)?.sm_active_cycles),
        gauge("podmeter_device_memory_bytes")
            .help("Device memory by state; the states sum to the capacity.")
            .source("NVML GetMemoryInfo_v2")
            .by("state", devices, |readings| medium(readings)?.memory.map(memory_states)),
        gauge("podmeter_device_memory_capacity_bytes")
            .help("Total device memory.")
            .source("NVML GetMemoryInfo_v2")
            .each(devices, |readings| Some(medium(readings)?.memory?.total)),
    ],
});

/// The totals of each GPU that the ledger has divided: holders' shares and the unattributed part add up to them at any
/// time. They start at zero with the agent, or when the GPU appears after that.
pub(super) fn divided(snapshot: &Snapshot) -> Vec<(Labels, &Divided)> {
    let of = |gpu: &Gpu| snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
    with_readings(snapshot).filter_map(|(gpu, _)| Some((of_device(gpu), &of(gpu)?.divided))).collect()
}

pub(super) fn memory_states(memory: MemoryUse) -> [(&'static str, Option<u64>); 3] {
    [("used", Some(memory.used)), ("free", Some(memory.free)), ("reserved", memory.reserved)]
}

fn gpm(readings: &DeviceReadings) -> Option<&GpmRatios> {
    Some(&medium(readings)?.gpm)
}
