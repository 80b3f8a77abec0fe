//! GPUs partitioned with MIG.

use super::device_identity::{DEVICE, of_device, with_readings};
use super::device_use::{medium, memory_states};
use super::{Descriptor, Family, Group, Label, Value};
use crate::model::{Gpu, InstanceReading, Snapshot};

const INSTANCE: &[&str] = &["gpu_uuid", "gpu_instance"];

static MIG_DEVICE_INFO: Descriptor = Descriptor::gauge(
    "podmeter_mig_device_info",
    &["gpu_uuid", "mig_uuid", "gpu_instance", "compute_instance", "profile"],
    "",
    "NVML GetMigDeviceHandleByIndex",
    "A MIG device and the GPU it is part of; always 1.",
);
static MIG_MODE_ENABLED: Descriptor = Descriptor::gauge(
    "podmeter_mig_mode_enabled",
    DEVICE,
    "",
    "NVML GetMigMode",
    "Whether the GPU is in MIG mode, 0 or 1; absent where the GPU has none.",
);
static MIG_MEMORY: Descriptor = Descriptor::gauge(
    "podmeter_mig_memory_bytes",
    &["gpu_uuid", "gpu_instance", "state"],
    "bytes",
    "NVML GetMemoryInfo_v2 of a MIG device",
    "Memory of a GPU instance by state, once per instance; its compute instances share it.",
);
static MIG_SM_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_mig_sm_active_ratio",
    INSTANCE,
    "ratio",
    "NVML GPM 2",
    "Part of the instance's SMs' time with at least one warp resident, 0 to 1.",
);
static MIG_SM_OCCUPANCY: Descriptor = Descriptor::gauge(
    "podmeter_mig_sm_occupancy_ratio",
    INSTANCE,
    "ratio",
    "NVML GPM 3",
    "Resident warps as part of what the instance's SMs can hold, 0 to 1.",
);
static MIG_PIPE_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_mig_pipe_active_ratio",
    &["gpu_uuid", "gpu_instance", "pipe"],
    "ratio",
    "NVML GPM 4-9 and 11-13",
    "Part of the time in which an arithmetic pipe of the instance was active, 0 to 1; do not sum over pipe.",
);
static MIG_DRAM_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_mig_dram_active_ratio",
    INSTANCE,
    "ratio",
    "NVML GPM 10",
    "Memory bandwidth of the instance used as part of its peak, 0 to 1.",
);

pub(super) const GROUP: Group = Group {
    section: "MIG",
    descriptors: &[
        &MIG_DEVICE_INFO,
        &MIG_MODE_ENABLED,
        &MIG_MEMORY,
        &MIG_SM_ACTIVE,
        &MIG_SM_OCCUPANCY,
        &MIG_PIPE_ACTIVE,
        &MIG_DRAM_ACTIVE,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    vec![
        devices(snapshot),
        mode(snapshot),
        per_instance_and(snapshot, &MIG_MEMORY, "state", |instance| {
            instance.memory.map_or_else(Vec::new, memory_states)
        }),
        per_instance(snapshot, &MIG_SM_ACTIVE, |instance| instance.gpm.sm_active),
        per_instance(snapshot, &MIG_SM_OCCUPANCY, |instance| instance.gpm.sm_occupancy),
        per_instance(snapshot, &MIG_DRAM_ACTIVE, |instance| instance.gpm.dram_active),
        per_instance_and(snapshot, &MIG_PIPE_ACTIVE, "pipe", |instance| {
            super::device_identity::named(&instance.gpm.pipes)
        }),
    ]
}

fn devices(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&MIG_DEVICE_INFO);
    for gpu in snapshot.hardware.inventory.gpus.values() {
        for mig in &gpu.mig_devices {
            let labels = vec![
                ("gpu_uuid", gpu.uuid.to_shared().into()),
                ("mig_uuid", mig.uuid.to_shared().into()),
                ("gpu_instance", mig.gpu_instance.into()),
                ("compute_instance", mig.compute_instance.into()),
                ("profile", (&mig.profile).into()),
            ];
            family.push(labels, 1u64);
        }
    }
    family
}

fn mode(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&MIG_MODE_ENABLED);
    for gpu in snapshot.hardware.inventory.gpus.values().filter(|gpu| gpu.present) {
        family.push_known(of_device(gpu), gpu.mig_enabled);
    }
    family
}

fn per_instance(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    read: impl Fn(&InstanceReading) -> Option<f64>,
) -> Family {
    let mut family = Family::new(descriptor);
    for (gpu, instance) in instances(snapshot) {
        family.push_known(of_instance(gpu, instance), read(instance));
    }
    family
}

fn per_instance_and<V: Into<Value>>(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    label: &'static str,
    read: impl Fn(&InstanceReading) -> Vec<(Label, Option<V>)>,
) -> Family {
    let mut family = Family::new(descriptor);
    for (gpu, instance) in instances(snapshot) {
        for (name, value) in read(instance) {
            let mut labels = of_instance(gpu, instance);
            labels.push((label, name));
            family.push_known(labels, value);
        }
    }
    family
}

fn of_instance(gpu: &Gpu, instance: &InstanceReading) -> Vec<(&'static str, Label)> {
    vec![("gpu_uuid", gpu.uuid.to_shared().into()), ("gpu_instance", instance.gpu_instance.into())]
}

pub(super) fn instances(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &InstanceReading)> {
    with_readings(snapshot).flat_map(|(gpu, readings)| {
        let instances = medium(readings).map_or(&[][..], |medium| &medium.instances);
        instances.iter().map(move |instance| (gpu, instance))
    })
}
