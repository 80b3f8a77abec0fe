//! GPUs partitioned with MIG.

use std::sync::LazyLock;

use super::device_use::memory_states;
use super::family::{Group, gauge};
use super::labels::{DEVICE, Labels, medium, of_device, with_readings};
use crate::domain::model::{Gpu, InstanceReading, Snapshot};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "MIG",
    labels: "gpu_uuid gpu_instance",
    source: "NVML",
    metrics: vec![
        gauge("podmeter_mig_device_info")
            .help("A MIG device and its GPU.")
            .labels("gpu_uuid mig_uuid gpu_instance compute_instance profile")
            .source("NVML GetMigDeviceHandleByIndex")
            .samples(|snapshot, family| {
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
            }),
        gauge("podmeter_mig_mode_enabled")
            .help("Whether the GPU is in MIG mode.")
            .labels(DEVICE)
            .source("NVML GetMigMode")
            .samples(|snapshot, family| {
                for gpu in snapshot.hardware.inventory.gpus.values().filter(|gpu| gpu.present) {
                    family.push_known(of_device(gpu), gpu.mig_enabled);
                }
            }),
        gauge("podmeter_mig_memory_bytes")
            .help("Memory of a GPU instance by state, once per instance; its compute instances share it.")
            .source("NVML GetMemoryInfo_v2 of a MIG device")
            .by("state", instances, |instance| instance.memory.map(memory_states)),
        gauge("podmeter_mig_utilization_ratio")
            .help(
                "Fraction of the last ten seconds read in which a kernel ran on the instance, or its SM activity \
                     where only that is known.",
            )
            .source("NVML GPM 1, else 2")
            .samples(|snapshot, family| {
                for (gpu, readings) in with_readings(snapshot) {
                    let ratios = readings.fast.iter().flat_map(|fast| &fast.value.instance_utilization_ratios);
                    for (instance, ratio) in ratios {
                        family.push(of_instance(gpu, *instance), *ratio);
                    }
                }
            }),
        gauge("podmeter_mig_sm_active_ratio")
            .help("Fraction of the instance's SM time with at least one warp resident.")
            .source("NVML GPM 2")
            .each(instances, |instance| instance.gpm.sm_active),
        gauge("podmeter_mig_sm_occupancy_ratio")
            .help("Resident warps of the instance as a fraction of the maximum.")
            .source("NVML GPM 3")
            .each(instances, |instance| instance.gpm.sm_occupancy),
        gauge("podmeter_mig_pipe_active_ratio")
            .help("Fraction of time in which an arithmetic pipe of the instance was active; pipes overlap.")
            .source("NVML GPM 4-9 and 11-13")
            .by_key("pipe", instances, |instance| Some(&instance.gpm.pipes)),
        gauge("podmeter_mig_dram_active_ratio")
            .help("Memory bandwidth of the instance used as a fraction of its peak.")
            .source("NVML GPM 10")
            .each(instances, |instance| instance.gpm.dram_active),
    ],
});

fn instances(snapshot: &Snapshot) -> Vec<(Labels, &InstanceReading)> {
    let of_gpu = |(gpu, readings)| {
        let instances = medium(readings).map_or(&[][..], |medium| &medium.instances);
        instances.iter().map(move |instance| (of_instance(gpu, instance.gpu_instance), instance))
    };
    with_readings(snapshot).flat_map(of_gpu).collect()
}

fn of_instance(gpu: &Gpu, instance: u32) -> Labels {
    Labels::new("gpu_uuid", &gpu.uuid).and("gpu_instance", instance)
}
