//! Utilization, engine activity and memory use of each device.

use super::family::{Family, Group, counter, gauge};
use super::labels::{DEVICE, medium, named, of_device, per_device, per_device_and, with_readings};
use crate::model::{DeviceReadings, Divided, GpmRatios, MemoryUse, Snapshot};

pub(super) static GROUP: Group = Group {
    section: "Device: use",
    metrics: &[
        counter(
            "podmeter_device_busy_seconds_total",
            DEVICE,
            "NVML GetSamples (GPU utilization), else GetUtilizationRates",
            "Seconds in which at least one kernel ran.",
            |snapshot, family| divided(snapshot, family, |divided| divided.busy_seconds),
        ),
        gauge(
            "podmeter_device_utilization_ratio",
            DEVICE,
            "NVML GetSamples (GPU utilization), else GetUtilizationRates",
            "Fraction of the driver's last sample in which at least one kernel ran, 0 to 1.",
            |snapshot, family| per_device(snapshot, family, |readings| readings.fast.as_ref()?.value.utilization_ratio),
        ),
        counter(
            "podmeter_device_memory_busy_seconds_total",
            DEVICE,
            "NVML GetSamples (memory utilization), else GetUtilizationRates",
            "Seconds in which device memory was read or written.",
            |snapshot, family| {
                per_device(snapshot, family.since(snapshot.started), |readings| readings.totals.memory_busy_seconds);
            },
        ),
        counter(
            "podmeter_device_engine_busy_seconds_total",
            &["gpu_uuid", "gpu", "engine"],
            "NVML Get{Encoder,Decoder,Jpg,Ofa}Utilization",
            "Seconds in which a fixed-function engine was busy.",
            |snapshot, family| {
                per_device_and(snapshot, family.since(snapshot.started), "engine", |readings| {
                    Some(named(&readings.totals.engine_busy_seconds))
                });
            },
        ),
        counter(
            "podmeter_device_uncovered_seconds_total",
            DEVICE,
            "podmeter",
            "Seconds that no sample of the driver covers.",
            |snapshot, family| {
                per_device(snapshot, family.since(snapshot.started), |readings| {
                    Some(readings.totals.uncovered_seconds)
                });
            },
        ),
        gauge(
            "podmeter_device_graphics_engine_active_ratio",
            DEVICE,
            "NVML GPM 1",
            "Fraction of time in which the graphics or compute engine was active, 0 to 1.",
            |snapshot, family| per_device(snapshot, family, |readings| gpm(readings)?.graphics_engine_active),
        ),
        gauge(
            "podmeter_device_sm_active_ratio",
            DEVICE,
            "NVML GPM 2",
            "Fraction of SM time with at least one warp resident, 0 to 1.",
            |snapshot, family| per_device(snapshot, family, |readings| gpm(readings)?.sm_active),
        ),
        gauge(
            "podmeter_device_sm_occupancy_ratio",
            DEVICE,
            "NVML GPM 3",
            "Resident warps as a fraction of the maximum, 0 to 1.",
            |snapshot, family| per_device(snapshot, family, |readings| gpm(readings)?.sm_occupancy),
        ),
        gauge(
            "podmeter_device_pipe_active_ratio",
            &["gpu_uuid", "gpu", "pipe"],
            "NVML GPM 4-9 and 11-13",
            "Fraction of time in which an arithmetic pipe was active, 0 to 1; pipes overlap, so do not sum over pipe.",
            |snapshot, family| per_device_and(snapshot, family, "pipe", |readings| Some(named(&gpm(readings)?.pipes))),
        ),
        gauge(
            "podmeter_device_dram_active_ratio",
            DEVICE,
            "NVML GPM 10",
            "Memory bandwidth used as a fraction of the peak, 0 to 1.",
            |snapshot, family| per_device(snapshot, family, |readings| gpm(readings)?.dram_active),
        ),
        counter("podmeter_device_sm_cycles_total", DEVICE, "NVML GPM 248", "SM cycles elapsed.", |snapshot, family| {
            per_device(snapshot, family, |readings| medium(readings)?.sm_cycles);
        }),
        counter(
            "podmeter_device_sm_active_cycles_total",
            DEVICE,
            "NVML GPM 249",
            "SM cycles with at least one warp resident.",
            |snapshot, family| per_device(snapshot, family, |readings| medium(readings)?.sm_active_cycles),
        ),
        gauge(
            "podmeter_device_memory_bytes",
            &["gpu_uuid", "gpu", "state"],
            "NVML GetMemoryInfo_v2",
            "Device memory by state; the states sum to the capacity.",
            |snapshot, family| {
                per_device_and(snapshot, family, "state", |readings| medium(readings)?.memory.map(memory_states));
            },
        ),
        gauge(
            "podmeter_device_memory_capacity_bytes",
            DEVICE,
            "NVML GetMemoryInfo_v2",
            "Total device memory.",
            |snapshot, family| per_device(snapshot, family, |readings| Some(medium(readings)?.memory?.total)),
        ),
    ],
};

/// One series per GPU that has the quantity, to which holders' shares and the unattributed part add up at any time. The
/// integrals were zero when the agent started, or when the GPU appeared after that.
pub(super) fn divided(snapshot: &Snapshot, family: &mut Family, read: impl Fn(&Divided) -> Option<f64>) {
    family.since(snapshot.started);
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
