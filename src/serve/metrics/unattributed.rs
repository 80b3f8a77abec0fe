//! Use of a device that is attributed to no container.

use super::family::{Group, counter, gauge};
use super::labels::{Labels, named, of_device, of_pod};
use crate::domain::model::{Snapshot, Unattributed};

const BY_REASON: &str = "gpu_uuid gpu reason";

pub(super) static GROUP: Group = Group {
    section: "Unattributed use",
    labels: "namespace pod container gpu_uuid",
    source: "PodResources List joined with NVML and /proc",
    metrics: &[
        gauge(
            "podmeter_device_unattributed_processes",
            "Processes on the GPU that belong to no container holding it.",
            |snapshot, family| family.by_name(by_gpu(snapshot), |unattributed| Some(named(&unattributed.processes))),
        )
        .labels(BY_REASON),
        gauge(
            "podmeter_device_unattributed_memory_bytes",
            "Device memory in use that is not attributed to a container.",
            |snapshot, family| family.by_name(by_gpu(snapshot), |unattributed| Some(named(&unattributed.memory_bytes))),
        )
        .labels(BY_REASON),
        counter(
            "podmeter_device_unattributed_energy_joules_total",
            "Energy not attributed to a container; reason idle is the idle power of the board.",
            |snapshot, family| {
                family.by_name(by_gpu(snapshot), |unattributed| Some(named(&unattributed.energy_joules)));
            },
        )
        .labels(BY_REASON),
        counter(
            "podmeter_device_unattributed_busy_seconds_total",
            "Busy seconds not attributed to a container.",
            |snapshot, family| family.by_name(by_gpu(snapshot), |unattributed| Some(named(&unattributed.busy_seconds))),
        )
        .labels(BY_REASON),
        gauge(
            "podmeter_container_unallocated_use",
            "A pod with a process on a GPU that it does not hold; always 1.",
            |snapshot, family| {
                for one in &snapshot.unallocated_uses {
                    let labels =
                        of_pod(&one.pod).and_known("container", one.container.as_ref()).and("gpu_uuid", &one.gpu);
                    family.push(labels, 1u64);
                }
            },
        ),
    ],
};

/// The unattributed use of each GPU that the driver lists.
fn by_gpu(snapshot: &Snapshot) -> impl Iterator<Item = (Labels, &Unattributed)> {
    let gpus = &snapshot.hardware.inventory.gpus;
    snapshot.unattributed.iter().filter_map(|one| Some((of_device(gpus.get(&one.gpu)?), one)))
}
