//! GPUs partitioned with MIG.

use super::device_use::memory_states;
use super::family::{Group, gauge};
use super::labels::{DEVICE, Labels, medium, named, of_device, with_readings};
use crate::domain::model::{Gpu, InstanceReading, Snapshot};

pub(super) static GROUP: Group = Group {
    section: "MIG",
    labels: "gpu_uuid gpu_instance",
    source: "NVML",
    metrics: &[
        gauge("podmeter_mig_device_info", "A MIG device and its GPU.", |snapshot, family| {
            for gpu in snapshot.hardware.inventory.gpus.values() {
                for mig in &gpu.mig_devices {
                    let labels = Labels::new("gpu_uuid", &gpu.uuid)
                        .and("mig_uuid", &mig.uuid)
                        .and("gpu_instance", mig.gpu_instance)
                        .and("compute_instance", mig.compute_instance)
                        .and("profile", &mig.profile);
                    family.push(labels, 1u64);
                }
            }
        })
        .labels("gpu_uuid mig_uuid gpu_instance compute_instance profile")
        .source("NVML GetMigDeviceHandleByIndex"),
        gauge("podmeter_mig_mode_enabled", "Whether the GPU is in MIG mode.", |snapshot, family| {
            for gpu in snapshot.hardware.inventory.gpus.values().filter(|gpu| gpu.present) {
                family.push_known(of_device(gpu), gpu.mig_enabled);
            }
        })
        .labels(DEVICE)
        .source("NVML GetMigMode"),
        gauge(
            "podmeter_mig_memory_bytes",
            "Memory of a GPU instance by state, once per instance; its compute instances share it.",
            |snapshot, family| family.by_name(instances(snapshot), |instance| instance.memory.map(memory_states)),
        )
        .labels("gpu_uuid gpu_instance state")
        .source("NVML GetMemoryInfo_v2 of a MIG device"),
        gauge(
            "podmeter_mig_utilization_ratio",
            "Fraction of the last ten seconds read in which a kernel ran on the instance, or its SM activity where \
             only that is known.",
            |snapshot, family| {
                for (gpu, readings) in with_readings(snapshot) {
                    let ratios = readings.fast.iter().flat_map(|fast| &fast.value.instance_utilization_ratios);
                    for (instance, ratio) in ratios {
                        family.push(of_instance(gpu, *instance), *ratio);
                    }
                }
            },
        )
        .source("NVML GPM 1, else 2"),
        gauge(
            "podmeter_mig_sm_active_ratio",
            "Fraction of the instance's SM time with at least one warp resident.",
            |snapshot, family| family.each(instances(snapshot), |instance| instance.gpm.sm_active),
        )
        .source("NVML GPM 2"),
        gauge(
            "podmeter_mig_sm_occupancy_ratio",
            "Resident warps of the instance as a fraction of the maximum.",
            |snapshot, family| family.each(instances(snapshot), |instance| instance.gpm.sm_occupancy),
        )
        .source("NVML GPM 3"),
        gauge(
            "podmeter_mig_pipe_active_ratio",
            "Fraction of time in which an arithmetic pipe of the instance was active; pipes overlap.",
            |snapshot, family| family.by_name(instances(snapshot), |instance| Some(named(&instance.gpm.pipes))),
        )
        .labels("gpu_uuid gpu_instance pipe")
        .source("NVML GPM 4-9 and 11-13"),
        gauge(
            "podmeter_mig_dram_active_ratio",
            "Memory bandwidth of the instance used as a fraction of its peak.",
            |snapshot, family| family.each(instances(snapshot), |instance| instance.gpm.dram_active),
        )
        .source("NVML GPM 10"),
    ],
};

fn instances(snapshot: &Snapshot) -> impl Iterator<Item = (Labels, &InstanceReading)> {
    with_readings(snapshot).flat_map(|(gpu, readings)| {
        let instances = medium(readings).map_or(&[][..], |medium| &medium.instances);
        instances.iter().map(|instance| (of_instance(gpu, instance.gpu_instance), instance))
    })
}

fn of_instance(gpu: &Gpu, instance: u32) -> Labels {
    Labels::new("gpu_uuid", &gpu.uuid).and("gpu_instance", instance)
}
