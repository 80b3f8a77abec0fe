//! What a device did that is no container's.

use std::collections::BTreeMap;

use super::device_identity::of_device;
use super::{Descriptor, Family, Group, Value};
use crate::model::{Reason, Snapshot, Unattributed, UnixSeconds};

const LEDGER: &str = "PodResources List joined with NVML and /proc";
const DEVICE_REASON: &[&str] = &["gpu_uuid", "gpu", "reason"];

static PROCESSES: Descriptor = Descriptor::gauge(
    "podmeter_device_unattributed_processes",
    DEVICE_REASON,
    "",
    LEDGER,
    "Processes on the GPU that belong to no container holding it; absent where processes are not known.",
);
static MEMORY: Descriptor = Descriptor::gauge(
    "podmeter_device_unattributed_memory_bytes",
    DEVICE_REASON,
    "bytes",
    LEDGER,
    "Device memory in use that is not attributed to a container.",
);
static ENERGY: Descriptor = Descriptor::counter(
    "podmeter_device_unattributed_energy_joules_total",
    DEVICE_REASON,
    "joules",
    LEDGER,
    "Energy not attributed to a container; reason idle is what the board draws with nothing running.",
);
static BUSY: Descriptor = Descriptor::counter(
    "podmeter_device_unattributed_busy_seconds_total",
    DEVICE_REASON,
    "seconds",
    LEDGER,
    "Busy seconds not attributed to a container.",
);
static UNALLOCATED_USE: Descriptor = Descriptor::gauge(
    "podmeter_container_unallocated_use",
    &["namespace", "pod", "container", "gpu_uuid"],
    "",
    LEDGER,
    "A pod has a process on a GPU that it does not hold; always 1.",
);

pub(super) const GROUP: Group = Group {
    section: "What is no container's",
    descriptors: &[&PROCESSES, &MEMORY, &ENERGY, &BUSY, &UNALLOCATED_USE],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    vec![
        by_reason(snapshot, &PROCESSES, |unattributed| (&unattributed.processes, None)),
        by_reason(snapshot, &MEMORY, |unattributed| (&unattributed.memory_bytes, None)),
        by_reason(snapshot, &ENERGY, |unattributed| (&unattributed.energy_joules, Some(unattributed.created))),
        by_reason(snapshot, &BUSY, |unattributed| (&unattributed.busy_seconds, Some(unattributed.created))),
        unallocated_uses(snapshot),
    ]
}

fn by_reason<V: Into<Value> + Copy>(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    read: impl Fn(&Unattributed) -> (&BTreeMap<Reason, V>, Option<UnixSeconds>),
) -> Family {
    let mut family = Family::new(descriptor);
    for unattributed in &snapshot.unattributed {
        let Some(gpu) = snapshot.hardware.inventory.gpus.get(&unattributed.gpu) else { continue };
        let (values, created) = read(unattributed);
        for (reason, value) in values {
            let mut labels = of_device(gpu);
            labels.push(("reason", reason.as_str().into()));
            family.push_created(labels, Some(*value), created);
        }
    }
    family
}

fn unallocated_uses(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&UNALLOCATED_USE);
    for one in &snapshot.unallocated_uses {
        let mut labels = vec![("namespace", (&one.pod.namespace).into()), ("pod", (&one.pod.pod).into())];
        labels.extend(one.container.as_ref().map(|container| ("container", container.into())));
        labels.push(("gpu_uuid", one.gpu.to_shared().into()));
        family.push(labels, 1u64);
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::{fixture, value};

    #[test]
    fn unattributed_use_is_shown_by_reason() {
        let snapshot = fixture::snapshot();
        let page = families(&snapshot);
        let of = |name: &str, reason| value(&page, name, &[("gpu_uuid", fixture::WHOLE), ("reason", reason)]);
        assert_eq!(of("podmeter_device_unattributed_energy_joules_total", "idle"), Some(9_000.0));
        assert_eq!(of("podmeter_device_unattributed_busy_seconds_total", "idle"), None, "idleness is not busy");
        assert_eq!(of("podmeter_device_unattributed_processes", "host"), Some(1.0));
        assert!(page.iter().all(|family| {
            let counts = family.descriptor.kind == super::super::Kind::Counter;
            family.samples.iter().all(|sample| sample.created.is_some() == counts)
        }));
    }
}
