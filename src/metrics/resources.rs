//! Resources of any vendor, as PodResources tells of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Descriptor, Family, Group, Label};
use crate::model::{
    Allocatable, Allocations, ContainerRef, CpuSet, DeviceId, MemoryBlock, PluginResource, ResourceName, Snapshot,
};

const LIST: &str = "PodResources List";
const BOTH: &str = "PodResources List and GetAllocatableResources";

static CONTAINER_DEVICE_INFO: Descriptor = Descriptor::gauge(
    "podmeter_container_device_info",
    &["namespace", "pod", "container", "resource", "device", "numa_node", "source"],
    "",
    LIST,
    "A device that a container holds, of any vendor; always 1.",
);
static CONTAINER_CLAIM_INFO: Descriptor = Descriptor::gauge(
    "podmeter_container_claim_info",
    &["namespace", "pod", "container", "claim", "claim_namespace", "driver", "pool", "device", "share_id", "gpu_uuid"],
    "",
    LIST,
    "A device of a DRA claim that a container refers to; always 1.",
);
static CONTAINER_EXCLUSIVE_CPUS: Descriptor = Descriptor::gauge(
    "podmeter_container_exclusive_cpus",
    &["namespace", "pod", "container"],
    "",
    LIST,
    "CPUs allocated to this container alone.",
);
static CONTAINER_EXCLUSIVE_CPUS_INFO: Descriptor = Descriptor::gauge(
    "podmeter_container_exclusive_cpus_info",
    &["namespace", "pod", "container", "cpus"],
    "",
    LIST,
    "Which CPUs are allocated to this container alone; always 1.",
);
static CONTAINER_MEMORY_RESERVED: Descriptor = Descriptor::gauge(
    "podmeter_container_memory_reserved_bytes",
    &["namespace", "pod", "container", "memory_type", "numa_node"],
    "bytes",
    LIST,
    "Memory and hugepages that the memory manager reserved for a container.",
);
static POD_EXCLUSIVE_CPUS: Descriptor = Descriptor::gauge(
    "podmeter_pod_exclusive_cpus",
    &["namespace", "pod"],
    "",
    LIST,
    "CPUs allocated to this pod as a whole; those of its containers are among them.",
);
static POD_MEMORY_RESERVED: Descriptor = Descriptor::gauge(
    "podmeter_pod_memory_reserved_bytes",
    &["namespace", "pod", "memory_type", "numa_node"],
    "bytes",
    LIST,
    "Memory and hugepages reserved for this pod as a whole.",
);
static NODE_CPUS: Descriptor = Descriptor::gauge(
    "podmeter_node_cpus",
    &["state"],
    "",
    BOTH,
    "CPUs of the node by state; shared is allocatable less exclusive, so do not sum over state.",
);
static NODE_MEMORY: Descriptor = Descriptor::gauge(
    "podmeter_node_memory_bytes",
    &["memory_type", "numa_node", "state"],
    "bytes",
    BOTH,
    "Memory of the node by NUMA node and state; reserved is part of allocatable, so do not sum over state.",
);
static RESOURCE_DEVICES: Descriptor = Descriptor::gauge(
    "podmeter_resource_devices",
    &["resource", "state"],
    "",
    BOTH,
    "Devices of an extended resource; allocatable is what the kubelet says, unallocated those of them that nobody holds, \
     unhealthy is known of the bundled plugin's.",
);
static RESOURCE_DRIFT_DEVICES: Descriptor = Descriptor::gauge(
    "podmeter_resource_drift_devices",
    &["resource", "drift"],
    "",
    BOTH,
    "Devices on which the hardware or the bundled plugin, the kubelet's allocatable list and its allocations disagree.",
);
static UNRESOLVED_DEVICES: Descriptor = Descriptor::gauge(
    "podmeter_unresolved_devices",
    &["resource", "form"],
    "",
    "podmeter",
    "Held devices whose id could not be joined to hardware.",
);
static PODS: Descriptor = Descriptor::gauge(
    "podmeter_pods",
    &["state"],
    "",
    LIST,
    "Pods that the kubelet lists; with_devices are among the listed.",
);

pub(super) const GROUP: Group = Group {
    section: "Resources of any vendor (PodResources)",
    descriptors: &[
        &CONTAINER_DEVICE_INFO,
        &CONTAINER_CLAIM_INFO,
        &CONTAINER_EXCLUSIVE_CPUS,
        &CONTAINER_EXCLUSIVE_CPUS_INFO,
        &CONTAINER_MEMORY_RESERVED,
        &POD_EXCLUSIVE_CPUS,
        &POD_MEMORY_RESERVED,
        &NODE_CPUS,
        &NODE_MEMORY,
        &RESOURCE_DEVICES,
        &RESOURCE_DRIFT_DEVICES,
        &UNRESOLVED_DEVICES,
        &PODS,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut families = Vec::new();
    let kubelet = &snapshot.kubelet;
    if let Some(allocations) = &kubelet.allocations {
        families.extend([devices(allocations), claims(allocations, snapshot), pods(allocations)]);
        families.extend(exclusive_cpus(allocations));
        families.extend(reserved_memory(allocations));
    }
    if let Some(allocatable) = &kubelet.allocatable {
        families.extend([
            node_cpus(allocatable, kubelet.allocations.as_deref()),
            node_memory(allocatable, kubelet.allocations.as_deref()),
            resource_devices(allocatable, snapshot),
        ]);
    }
    families.extend([drift(snapshot), unresolved(snapshot)]);
    families
}

fn devices(allocations: &Allocations) -> Family {
    let mut family = Family::new(&CONTAINER_DEVICE_INFO);
    for container in allocations.containers() {
        for device in &container.devices {
            let mut labels = of_container(&container.reference);
            labels.push(("resource", device.resource.to_shared().into()));
            labels.push(("device", device.id.to_shared().into()));
            labels.extend(numa_label(&device.numa_nodes));
            labels.push(("source", "device_plugin".into()));
            family.push(labels, 1u64);
        }
        for claim in &container.claims {
            // A claim belongs to no extended resource; its driver stands in, as the one name of what was asked for.
            let mut labels = of_container(&container.reference);
            labels.push(("resource", (&claim.driver).into()));
            labels.push(("device", claim.device.to_shared().into()));
            labels.push(("source", "dra".into()));
            family.push(labels, 1u64);
        }
    }
    family
}

fn claims(allocations: &Allocations, snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&CONTAINER_CLAIM_INFO);
    for container in allocations.containers() {
        for claim in &container.claims {
            let mut labels = of_container(&container.reference);
            labels.push(("claim", (&claim.claim).into()));
            labels.push(("claim_namespace", (&claim.claim_namespace).into()));
            labels.push(("driver", (&claim.driver).into()));
            labels.push(("pool", (&claim.pool).into()));
            labels.push(("device", claim.device.to_shared().into()));
            labels.extend(claim.share_id.as_ref().map(|share| ("share_id", share.into())));
            let joined = snapshot.claim_gpus.iter().find(|joined| {
                joined.driver == claim.driver && joined.pool == claim.pool && joined.device == claim.device
            });
            labels.extend(joined.map(|joined| ("gpu_uuid", joined.gpu.to_shared().into())));
            family.push(labels, 1u64);
        }
    }
    family
}

fn exclusive_cpus(allocations: &Allocations) -> [Family; 3] {
    let mut count = Family::new(&CONTAINER_EXCLUSIVE_CPUS);
    let mut which = Family::new(&CONTAINER_EXCLUSIVE_CPUS_INFO);
    let mut of_pods = Family::new(&POD_EXCLUSIVE_CPUS);
    for pod in &allocations.pods {
        if !pod.exclusive_cpus.is_empty() {
            of_pods.push(of_pod(&pod.reference.namespace, &pod.reference.pod), pod.exclusive_cpus.len());
        }
        for container in pod.containers.iter().filter(|container| !container.exclusive_cpus.is_empty()) {
            count.push(of_container(&container.reference), container.exclusive_cpus.len());
            let mut labels = of_container(&container.reference);
            labels.push(("cpus", container.exclusive_cpus.to_string().into()));
            which.push(labels, 1u64);
        }
    }
    [count, which, of_pods]
}

fn reserved_memory(allocations: &Allocations) -> [Family; 2] {
    let mut of_containers = Family::new(&CONTAINER_MEMORY_RESERVED);
    let mut of_pods = Family::new(&POD_MEMORY_RESERVED);
    for pod in &allocations.pods {
        for (labels, bytes) in by_type_and_numa(&pod.memory) {
            of_pods.push([of_pod(&pod.reference.namespace, &pod.reference.pod), labels].concat(), bytes);
        }
        for container in &pod.containers {
            for (labels, bytes) in by_type_and_numa(&container.memory) {
                of_containers.push([of_container(&container.reference), labels].concat(), bytes);
            }
        }
    }
    [of_containers, of_pods]
}

fn pods(allocations: &Allocations) -> Family {
    let mut family = Family::new(&PODS);
    family.push(vec![("state", "listed".into())], allocations.pods.len());
    let with_devices = allocations.pods.iter().filter(|pod| pod.has_devices()).count();
    family.push(vec![("state", "with_devices".into())], with_devices);
    family
}

fn node_cpus(allocatable: &Allocatable, allocations: Option<&Allocations>) -> Family {
    let mut family = Family::new(&NODE_CPUS);
    if allocatable.cpus.is_empty() {
        return family; // the kubelet does not say
    }
    family.push(vec![("state", "allocatable".into())], allocatable.cpus.len());
    if let Some(allocations) = allocations {
        let held = allocations.pods.iter().fold(CpuSet::default(), |held, pod| {
            pod.containers.iter().fold(held.union(&pod.exclusive_cpus), |held, one| held.union(&one.exclusive_cpus))
        });
        family.push(vec![("state", "exclusive".into())], held.len());
        family.push(vec![("state", "shared".into())], allocatable.cpus.difference(&held).len());
    }
    family
}

fn node_memory(allocatable: &Allocatable, allocations: Option<&Allocations>) -> Family {
    let mut family = Family::new(&NODE_MEMORY);
    let total = by_type_and_numa(&allocatable.memory);
    let reserved = allocations.map(|allocations| {
        // Containers' blocks are part of their pod's where the pod has its own.
        let blocks: Vec<MemoryBlock> = allocations
            .pods
            .iter()
            .flat_map(|pod| {
                let of_containers = pod.containers.iter().flat_map(|container| &container.memory);
                let (own, theirs) =
                    if pod.memory.is_empty() { (None, Some(of_containers)) } else { (Some(&pod.memory), None) };
                own.into_iter().flatten().chain(theirs.into_iter().flatten()).cloned()
            })
            .collect();
        by_type_and_numa(&blocks)
    });
    for (labels, bytes) in &total {
        family.push([labels.clone(), vec![("state", "allocatable".into())]].concat(), *bytes);
        if let Some(reserved) = &reserved {
            let bytes = reserved.get(labels).copied().unwrap_or(0);
            family.push([labels.clone(), vec![("state", "reserved".into())]].concat(), bytes);
        }
    }
    for (labels, bytes) in reserved.iter().flatten().filter(|(labels, _)| !total.contains_key(*labels)) {
        family.push([labels.clone(), vec![("state", "reserved".into())]].concat(), *bytes);
    }
    family
}

fn resource_devices(allocatable: &Allocatable, snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&RESOURCE_DEVICES);
    let held = snapshot.kubelet.allocations.as_deref().map(held_devices);
    let nobody = BTreeSet::new();
    let resources = allocatable.devices.keys().chain(held.iter().flat_map(|held| held.keys().copied()));
    for resource in resources.collect::<BTreeSet<_>>() {
        let offered = allocatable.devices.get(resource);
        let mut push = |state: &'static str, count: usize| {
            family.push(vec![("resource", resource.to_shared().into()), ("state", state.into())], count);
        };
        push("allocatable", offered.map_or(0, BTreeSet::len));
        if let Some(held) = &held {
            let held = held.get(resource).unwrap_or(&nobody);
            push("allocated", held.len());
            push("unallocated", offered.map_or(0, |offered| offered.iter().filter(|id| !held.contains(id)).count()));
        }
        if let Some(ours) = served(snapshot, resource) {
            push("unhealthy", ours.count().1);
        }
    }
    family
}

fn drift(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&RESOURCE_DRIFT_DEVICES);
    let mut push = |resource: &ResourceName, drift: &'static str, count: usize| {
        family.push(vec![("resource", resource.to_shared().into()), ("drift", drift.into())], count);
    };
    // Of what we advertise ourselves we know more than the hardware tells.
    for drift in snapshot.drift.iter().filter(|drift| served(snapshot, &drift.resource).is_none()) {
        push(&drift.resource, "advertised_not_allocatable", drift.advertised_not_allocatable);
        push(&drift.resource, "allocatable_not_advertised", drift.allocatable_not_advertised);
    }
    if let (Some(plugin), Some(allocatable)) = (&snapshot.plugin, &snapshot.kubelet.allocatable) {
        for (resource, ours) in plugin.resources.iter().filter(|(_, ours)| ours.registered) {
            let offered = allocatable.devices.get(resource);
            let is_offered = |id: &DeviceId| offered.is_some_and(|offered| offered.contains(id));
            let healthy = ours.devices.iter().filter(|(_, reason)| reason.is_none());
            push(resource, "advertised_not_allocatable", healthy.filter(|(id, _)| !is_offered(id)).count());
            let unknown = offered.into_iter().flatten().filter(|id| !ours.devices.contains_key(*id)).count();
            push(resource, "allocatable_not_advertised", unknown);
        }
    }
    if let (Some(allocations), Some(allocatable)) = (&snapshot.kubelet.allocations, &snapshot.kubelet.allocatable) {
        let held = held_devices(allocations);
        let resources: BTreeSet<_> = allocatable.devices.keys().chain(held.keys().copied()).collect();
        for resource in resources {
            let offered = allocatable.devices.get(resource);
            let unknown = held.get(resource).map_or(0, |held| {
                held.iter().filter(|id| !offered.is_some_and(|offered| offered.contains(**id))).count()
            });
            push(resource, "allocated_unknown", unknown);
        }
    }
    family
}

/// What the bundled plugin says of a resource that it is registered for.
fn served<'a>(snapshot: &'a Snapshot, resource: &ResourceName) -> Option<&'a PluginResource> {
    snapshot.plugin.as_ref()?.resources.get(resource).filter(|ours| ours.registered)
}

fn unresolved(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&UNRESOLVED_DEVICES);
    for unresolved in &snapshot.unresolved {
        let labels = vec![("resource", unresolved.resource.to_shared().into()), ("form", unresolved.form.into())];
        family.push(labels, unresolved.devices);
    }
    family
}

fn held_devices(allocations: &Allocations) -> BTreeMap<&ResourceName, BTreeSet<&DeviceId>> {
    let mut held: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for device in allocations.containers().flat_map(|container| &container.devices) {
        held.entry(&device.resource).or_default().insert(&device.id);
    }
    held
}

/// Blocks of one kind on the same NUMA nodes are one series.
fn by_type_and_numa(blocks: &[MemoryBlock]) -> BTreeMap<Vec<(&'static str, Label)>, u64> {
    let mut sums = BTreeMap::new();
    for block in blocks {
        let mut labels = vec![("memory_type", Label::from(&block.memory_type))];
        labels.extend(numa_label(&block.numa_nodes));
        let sum: &mut u64 = sums.entry(labels).or_default();
        *sum = sum.saturating_add(block.bytes);
    }
    sums
}

fn numa_label(nodes: &BTreeSet<i64>) -> Option<(&'static str, Label)> {
    let text = nodes.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    (!text.is_empty()).then(|| ("numa_node", text.into()))
}

fn of_pod(namespace: &std::sync::Arc<str>, pod: &std::sync::Arc<str>) -> Vec<(&'static str, Label)> {
    vec![("namespace", namespace.into()), ("pod", pod.into())]
}

pub(super) fn of_container(container: &ContainerRef) -> Vec<(&'static str, Label)> {
    // With room for what callers add.
    let mut labels = Vec::with_capacity(8);
    labels.extend([
        ("namespace", (&container.namespace).into()),
        ("pod", (&container.pod).into()),
        ("container", (&container.container).into()),
    ]);
    labels
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::tests::{fixture, value};

    fn with(change: impl FnOnce(&mut Allocations, &mut Allocatable)) -> Vec<Family> {
        let mut snapshot = fixture::snapshot();
        let kubelet = Arc::make_mut(&mut snapshot.kubelet);
        let allocations = Arc::make_mut(kubelet.allocations.as_mut().unwrap());
        change(allocations, Arc::make_mut(kubelet.allocatable.as_mut().unwrap()));
        families(&snapshot)
    }

    #[test]
    fn the_shared_pool_is_what_nobody_holds_alone() {
        let page = with(|allocations, _| {
            // A container's own CPUs are a subset of its pod's: counted once.
            let pod = allocations.pods.last_mut().unwrap();
            pod.containers[0].exclusive_cpus = [10].into_iter().collect();
        });
        let cpus = |state| value(&page, "podmeter_node_cpus", &[("state", state)]);
        assert_eq!((cpus("allocatable"), cpus("exclusive"), cpus("shared")), (Some(16.0), Some(7.0), Some(9.0)));
    }

    #[test]
    fn memory_of_a_pod_covers_that_of_its_containers() {
        let page = with(|allocations, _| {
            let pod = allocations.pods.last_mut().unwrap();
            pod.containers[0].memory = pod.memory.clone();
        });
        let labels = [("memory_type", "memory"), ("numa_node", "1"), ("state", "reserved")];
        assert_eq!(value(&page, "podmeter_node_memory_bytes", &labels), Some(f64::from(1 << 30)));
    }

    #[test]
    fn held_and_not_allocatable_is_drift() {
        let drift = |page: &[Family], resource| {
            value(page, "podmeter_resource_drift_devices", &[("resource", resource), ("drift", "allocated_unknown")])
        };
        let page = with(|_, _| {});
        assert_eq!(drift(&page, "example.com/nic"), Some(1.0), "nic-7 is held and not offered");
        assert_eq!(drift(&page, "nvidia.com/gpu"), Some(0.0));
        let page = with(|_, allocatable| drop(allocatable.devices.remove(&"nvidia.com/gpu".into())));
        assert_eq!(drift(&page, "nvidia.com/gpu"), Some(1.0), "a resource that is gone");
        let devices =
            |state| value(&page, "podmeter_resource_devices", &[("resource", "nvidia.com/gpu"), ("state", state)]);
        assert_eq!(
            (devices("allocatable"), devices("allocated"), devices("unallocated")),
            (Some(0.0), Some(1.0), Some(0.0))
        );
    }

    #[test]
    fn of_our_own_resource_we_know_what_was_advertised() {
        let mut snapshot = fixture::snapshot();
        Arc::make_mut(snapshot.plugin.as_mut().unwrap()).resources.get_mut(&"nvidia.com/gpu".into()).unwrap().devices =
            Arc::new([("GPU-new".into(), None), ("GPU-ill".into(), Some("lost".into()))].into());
        let page = families(&snapshot);
        let drift = |drift| {
            let labels = [("resource", "nvidia.com/gpu"), ("drift", drift)];
            value(&page, "podmeter_resource_drift_devices", &labels)
        };
        assert_eq!(drift("advertised_not_allocatable"), Some(1.0), "the healthy one");
        assert_eq!(drift("allocatable_not_advertised"), Some(1.0), "the one of before");
        let unhealthy = [("resource", "nvidia.com/gpu"), ("state", "unhealthy")];
        assert_eq!(value(&page, "podmeter_resource_devices", &unhealthy), Some(1.0));
    }

    #[test]
    fn before_the_kubelet_answers_there_is_nothing() {
        let page = super::super::family::ordered(families(&Snapshot::default()));
        assert!(page.is_empty(), "{page:?}");
    }

    #[test]
    fn a_claim_says_its_gpu_only_when_it_is_known() {
        let name = "podmeter_container_claim_info";
        let mut snapshot = fixture::snapshot();
        let gpu = [("gpu_uuid", fixture::PARTITIONED)];
        assert_eq!(value(&families(&snapshot), name, &gpu), Some(1.0));
        snapshot.claim_gpus.clear();
        assert_eq!(value(&families(&snapshot), name, &gpu), None);
        assert_eq!(value(&families(&snapshot), name, &[]), Some(1.0));
    }
}
