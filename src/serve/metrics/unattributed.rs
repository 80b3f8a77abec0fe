//! Use of a device that is attributed to no container.

use std::collections::BTreeMap;

use super::family::{Family, Group, SampleValue, counter, gauge};
use super::labels::{of_device, of_pod};
use crate::domain::model::{Snapshot, Unattributed, UnattributedReason};

pub(super) static GROUP: Group = Group {
    section: "Unattributed use",
    labels: "gpu_uuid gpu reason",
    source: "PodResources List joined with NVML and /proc",
    metrics: &[
        gauge(
            "podmeter_device_unattributed_processes",
            "Processes on the GPU that belong to no container holding it.",
            |snapshot, family| by_reason(snapshot, family, |unattributed| &unattributed.processes),
        ),
        gauge(
            "podmeter_device_unattributed_memory_bytes",
            "Device memory in use that is not attributed to a container.",
            |snapshot, family| by_reason(snapshot, family, |unattributed| &unattributed.memory_bytes),
        ),
        counter(
            "podmeter_device_unattributed_energy_joules_total",
            "Energy not attributed to a container; reason idle is the idle power of the board.",
            |snapshot, family| by_reason(snapshot, family, |unattributed| &unattributed.energy_joules),
        ),
        counter(
            "podmeter_device_unattributed_busy_seconds_total",
            "Busy seconds not attributed to a container.",
            |snapshot, family| by_reason(snapshot, family, |unattributed| &unattributed.busy_seconds),
        ),
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
        )
        .labels("namespace pod container gpu_uuid"),
    ],
};

fn by_reason<V: Into<SampleValue> + Copy>(
    snapshot: &Snapshot,
    family: &mut Family,
    read: impl Fn(&Unattributed) -> &BTreeMap<UnattributedReason, V>,
) {
    for unattributed in &snapshot.unattributed {
        let Some(gpu) = snapshot.hardware.inventory.gpus.get(&unattributed.gpu) else { continue };
        for (reason, value) in read(unattributed) {
            family.push(of_device(gpu).and("reason", reason.into_str()), *value);
        }
    }
}
