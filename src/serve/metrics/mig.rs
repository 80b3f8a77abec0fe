//! GPUs partitioned with MIG.

use super::device_use::memory_states;
use super::family::{Family, Group, gauge};
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
            |snapshot, family| {
                for (gpu, instance) in instances(snapshot) {
                    for (state, bytes) in instance.memory.map(memory_states).into_iter().flatten() {
                        family.push_known(of_instance(gpu, instance).and("state", state), bytes);
                    }
                }
            },
        )
        .labels("gpu_uuid gpu_instance state")
        .source("NVML GetMemoryInfo_v2 of a MIG device"),
        gauge(
            "podmeter_mig_utilization_ratio",
            "Fraction of the last second in which a kernel ran on the instance, or its SM activity where only that \
             is known.",
            |snapshot, family| {
                for (gpu, readings) in with_readings(snapshot) {
                    let ratios = readings.fast.iter().flat_map(|fast| &fast.value.instance_utilization_ratios);
                    for (instance, ratio) in ratios {
                        family.push(Labels::new("gpu_uuid", &gpu.uuid).and("gpu_instance", *instance), *ratio);
                    }
                }
            },
        )
        .source("NVML GPM 1, else 2"),
        gauge(
            "podmeter_mig_sm_active_ratio",
            "Fraction of the instance's SM time with at least one warp resident.",
            |snapshot, family| per_instance(snapshot, family, |instance| instance.gpm.sm_active),
        )
        .source("NVML GPM 2"),
        gauge(
            "podmeter_mig_sm_occupancy_ratio",
            "Resident warps of the instance as a fraction of the maximum.",
            |snapshot, family| per_instance(snapshot, family, |instance| instance.gpm.sm_occupancy),
        )
        .source("NVML GPM 3"),
        gauge(
            "podmeter_mig_pipe_active_ratio",
            "Fraction of time in which an arithmetic pipe of the instance was active; pipes overlap.",
            |snapshot, family| {
                for (gpu, instance) in instances(snapshot) {
                    for (pipe, ratio) in named(&instance.gpm.pipes) {
                        family.push_known(of_instance(gpu, instance).and("pipe", pipe), ratio);
                    }
                }
            },
        )
        .labels("gpu_uuid gpu_instance pipe")
        .source("NVML GPM 4-9 and 11-13"),
        gauge(
            "podmeter_mig_dram_active_ratio",
            "Memory bandwidth of the instance used as a fraction of its peak.",
            |snapshot, family| per_instance(snapshot, family, |instance| instance.gpm.dram_active),
        )
        .source("NVML GPM 10"),
    ],
};

fn per_instance(snapshot: &Snapshot, family: &mut Family, read: impl Fn(&InstanceReading) -> Option<f64>) {
    for (gpu, instance) in instances(snapshot) {
        family.push_known(of_instance(gpu, instance), read(instance));
    }
}

fn of_instance(gpu: &Gpu, instance: &InstanceReading) -> Labels {
    Labels::new("gpu_uuid", &gpu.uuid).and("gpu_instance", instance.gpu_instance)
}

fn instances(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &InstanceReading)> {
    with_readings(snapshot).flat_map(|(gpu, readings)| {
        let instances = medium(readings).map_or(&[][..], |medium| &medium.instances);
        instances.iter().map(move |instance| (gpu, instance))
    })
}
