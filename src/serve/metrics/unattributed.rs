//! Use of a device that is attributed to no container.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, Labels, of_device, of_pod};
use crate::domain::model::{Snapshot, Unattributed};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Unattributed use",
    labels: DEVICE,
    source: "PodResources List joined with NVML and /proc",
    metrics: vec![
        gauge("podmeter_device_unattributed_processes")
            .help("Processes on the GPU that belong to no container holding it.")
            .by_key("reason", by_gpu, |unattributed| Some(&unattributed.processes)),
        gauge("podmeter_device_unattributed_memory_bytes")
            .help("Device memory in use that is not attributed to a container.")
            .by_key("reason", by_gpu, |unattributed| Some(&unattributed.memory_bytes)),
        counter("podmeter_device_unattributed_energy_joules_total")
            .help("Energy not attributed to a container; reason idle is the idle power of the board.")
            .by_key("reason", by_gpu, |unattributed| Some(&unattributed.energy_joules)),
        counter("podmeter_device_unattributed_busy_seconds_total")
            .help("Busy seconds not attributed to a container.")
            .by_key("reason", by_gpu, |unattributed| Some(&unattributed.busy_seconds)),
        gauge("podmeter_container_unallocated_use")
            .help("A pod with a process on a GPU that it does not hold; always 1.")
            .labels("namespace pod container gpu_uuid")
            .samples(|snapshot, family| {
                for one in &snapshot.unallocated_uses {
                    let labels =
                        of_pod(&one.pod).and_known("container", one.container.as_ref()).and("gpu_uuid", &one.gpu);
                    family.push(labels, 1u64);
                }
            }),
    ],
});

/// The unattributed use of each GPU that the driver lists.
fn by_gpu(snapshot: &Snapshot) -> Vec<(Labels, &Unattributed)> {
    let gpus = &snapshot.hardware.inventory.gpus;
    snapshot.unattributed.iter().filter_map(|one| Some((of_device(gpus.get(&one.gpu)?), one))).collect()
}
