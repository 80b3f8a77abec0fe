//! Resources of any vendor, from PodResources.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::family::{Family, Group, gauge};
use super::labels::{Labels, of_container, of_pod};
use super::memory_manager::{by_type_and_numa, memory_excess, node_memory};
use crate::domain::model::{
    Allocatable, Allocations, Container, CpuSet, DeviceId, ResourceCount, ResourceName, Snapshot, served,
};

const BOTH: &str = "PodResources List and GetAllocatableResources";

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Resources of any vendor (PodResources)",
    labels: "",
    source: "PodResources List",
    metrics: vec![
        gauge("podmeter_container_device_info")
            .help("A device that a container holds, of any vendor.")
            .labels("namespace pod container resource device numa_node source")
            .samples(|snapshot, family| {
                for container in allocations(snapshot).flat_map(Allocations::containers) {
                    for device in &container.devices {
                        let labels = of_container(&container.reference)
                            .and("resource", &device.resource)
                            .and("device", &device.id)
                            .and_known("numa_node", numa_nodes(&device.numa_nodes));
                        family.push(labels.and("source", "device_plugin"), 1u64);
                    }
                    for claim in container.claims.iter().filter(|claim| !claim.is_observer()) {
                        // A claim belongs to no extended resource: the label has its driver.
                        let labels = of_container(&container.reference)
                            .and("resource", &claim.driver)
                            .and("device", &claim.device);
                        family.push(labels.and("source", "dra"), 1u64);
                    }
                }
            }),
        gauge("podmeter_container_claim_info")
            .help("A device of a DRA claim that a container refers to.")
            .labels(
                "namespace pod container claim claim_namespace driver pool device share_id gpu_uuid join \
                     admin_access",
            )
            .samples(|snapshot, family| {
                for container in allocations(snapshot).flat_map(Allocations::containers) {
                    for claim in &container.claims {
                        let joined = snapshot.joined_claim(claim);
                        let labels = of_container(&container.reference)
                            .and("claim", &claim.claim)
                            .and("claim_namespace", &claim.claim_namespace)
                            .and("driver", &claim.driver)
                            .and("pool", &claim.pool)
                            .and("device", &claim.device)
                            .and_known("share_id", claim.share_id.as_ref())
                            .and_known("gpu_uuid", joined.map(|joined| &joined.gpu))
                            .and_known("join", joined.map(|joined| joined.source.into_str()))
                            .and_known("admin_access", claim.is_observer().then_some("true"));
                        family.push(labels, 1u64);
                    }
                }
            }),
        gauge("podmeter_container_exclusive_cpus")
            .help("CPUs allocated exclusively to the container.")
            .labels("namespace pod container")
            .samples(|snapshot, family| {
                for container in with_exclusive_cpus(snapshot) {
                    family.push(of_container(&container.reference), container.exclusive_cpus.len());
                }
            }),
        gauge("podmeter_container_exclusive_cpus_info")
            .help("Which CPUs are allocated exclusively to the container.")
            .labels("namespace pod container cpus")
            .samples(|snapshot, family| {
                for container in with_exclusive_cpus(snapshot) {
                    let cpus = container.exclusive_cpus.to_string();
                    family.push(of_container(&container.reference).and("cpus", cpus), 1u64);
                }
            }),
        gauge("podmeter_container_memory_reserved_bytes")
            .help("Memory and hugepages that the memory manager reserved for a container.")
            .labels("namespace pod container memory_type numa_node")
            .samples(|snapshot, family| {
                for container in allocations(snapshot).flat_map(Allocations::containers) {
                    for (kind, bytes) in by_type_and_numa(&container.memory) {
                        family.push(of_container(&container.reference).and_all(&kind.labels()), bytes);
                    }
                }
            }),
        gauge("podmeter_pod_exclusive_cpus")
            .help("CPUs allocated to the pod as a whole, including those of its containers.")
            .labels("namespace pod")
            .samples(|snapshot, family| {
                let pods = allocations(snapshot).flat_map(|allocations| &allocations.pods);
                for pod in pods.filter(|pod| !pod.exclusive_cpus.is_empty()) {
                    family.push(of_pod(&pod.reference), pod.exclusive_cpus.len());
                }
            }),
        gauge("podmeter_pod_memory_reserved_bytes")
            .help("Memory and hugepages reserved for the pod as a whole.")
            .labels("namespace pod memory_type numa_node")
            .samples(|snapshot, family| {
                for pod in allocations(snapshot).flat_map(|allocations| &allocations.pods) {
                    for (kind, bytes) in by_type_and_numa(&pod.memory) {
                        family.push(of_pod(&pod.reference).and_all(&kind.labels()), bytes);
                    }
                }
            }),
        gauge("podmeter_node_cpus")
            .help("CPUs of the node by state; shared is allocatable minus exclusive.")
            .labels("state")
            .source(BOTH)
            .samples(|snapshot, family| {
                // Without CPUs in its answer the kubelet does not report them.
                let cpus = allocatable(snapshot).map(|allocatable| &allocatable.cpus);
                let Some(cpus) = cpus.filter(|cpus| !cpus.is_empty()) else { return };
                family.push(Labels::new("state", "allocatable"), cpus.len());
                for allocations in allocations(snapshot) {
                    let of_pods = allocations.pods.iter().map(|pod| &pod.exclusive_cpus);
                    let all = of_pods.chain(allocations.containers().map(|container| &container.exclusive_cpus));
                    let held = all.fold(CpuSet::default(), |held, cpus| held.union(cpus));
                    family.push(Labels::new("state", "exclusive"), held.len());
                    family.push(Labels::new("state", "shared"), cpus.difference(&held).len());
                }
            }),
        gauge("podmeter_node_memory_bytes")
            .help("Memory of the node by NUMA node and state; reserved is part of allocatable.")
            .labels("memory_type numa_node state")
            .source(BOTH)
            .samples(node_memory),
        gauge("podmeter_node_memory_excess_bytes")
            .help(
                "Reserved memory beyond the allocatable, from blocks of ended pods (kubelets up to 1.33); \
                     reserved is then absent.",
            )
            .labels("memory_type")
            .source(BOTH)
            .samples(|snapshot, family| {
                for (memory_type, bytes) in memory_excess(snapshot) {
                    family.push(Labels::new("memory_type", memory_type), bytes);
                }
            }),
        gauge("podmeter_resource_devices")
            .help(
                "Devices of an extended resource: allocatable as the kubelet reports, unallocated what pods can \
                     still get, unhealthy only for the bundled plugin's.",
            )
            .labels("resource state")
            .source(BOTH)
            .samples(resource_devices),
        gauge("podmeter_resource_drift_devices")
            .help(
                "Devices on which the hardware or bundled plugin, the kubelet's allocatable list and its \
                     allocations disagree.",
            )
            .labels("resource drift")
            .source(BOTH)
            .samples(drift),
        gauge("podmeter_unresolved_devices")
            .help("Held devices whose ID matches no hardware.")
            .labels("resource form")
            .source("podmeter")
            .samples(|snapshot, family| {
                for unresolved in &snapshot.unresolved {
                    let labels = Labels::new("resource", &unresolved.resource).and("form", unresolved.form);
                    family.push(labels, unresolved.devices);
                }
            }),
        gauge("podmeter_pods")
            .help("Pods that the kubelet lists; listed includes with_devices.")
            .labels("state")
            .samples(|snapshot, family| {
                for allocations in allocations(snapshot) {
                    family.push(Labels::new("state", "listed"), allocations.pods.len());
                    let with_devices = allocations.pods.iter().filter(|pod| pod.has_devices()).count();
                    family.push(Labels::new("state", "with_devices"), with_devices);
                }
            }),
    ],
});

/// The allocations; none until the kubelet has answered once.
pub(super) fn allocations(snapshot: &Snapshot) -> impl Iterator<Item = &Allocations> {
    snapshot.kubelet.allocations.as_deref().into_iter()
}

pub(super) fn allocatable(snapshot: &Snapshot) -> Option<&Allocatable> {
    snapshot.kubelet.allocatable.as_deref()
}

fn with_exclusive_cpus(snapshot: &Snapshot) -> impl Iterator<Item = &Container> {
    let containers = allocations(snapshot).flat_map(Allocations::containers);
    containers.filter(|container| !container.exclusive_cpus.is_empty())
}

fn resource_devices(snapshot: &Snapshot, family: &mut Family) {
    for (resource, count) in ResourceCount::all(snapshot) {
        let states = [
            ("allocatable", Some(count.allocatable)),
            ("allocated", count.allocated),
            ("unallocated", count.free),
            ("unhealthy", count.unhealthy),
        ];
        for (state, count) in states {
            family.push_known(Labels::new("resource", &resource).and("state", state), count);
        }
    }
}

fn drift(snapshot: &Snapshot, family: &mut Family) {
    let mut push = |resource: &ResourceName, drift: &'static str, count: usize| {
        family.push(Labels::new("resource", resource).and("drift", drift), count);
    };
    // What the bundled plugin advertises is known: no need to infer it from the hardware.
    for drift in snapshot.drift.iter().filter(|drift| served(snapshot, &drift.resource).is_none()) {
        push(&drift.resource, "advertised_not_allocatable", drift.advertised_not_allocatable);
        push(&drift.resource, "allocatable_not_advertised", drift.allocatable_not_advertised);
    }
    let Some(allocatable) = allocatable(snapshot) else { return };
    let is_offered =
        |resource, id: &DeviceId| allocatable.devices.get(resource).is_some_and(|offered| offered.contains(id));
    let resources = snapshot.plugin.iter().flat_map(|plugin| &plugin.resources);
    for (resource, ours) in resources.filter(|(_, ours)| ours.registered) {
        let healthy = ours.devices.iter().filter(|(_, reason)| reason.is_none());
        push(resource, "advertised_not_allocatable", healthy.filter(|(id, _)| !is_offered(resource, id)).count());
        let offered = allocatable.devices.get(resource).into_iter().flatten();
        push(resource, "allocatable_not_advertised", offered.filter(|id| !ours.devices.contains_key(*id)).count());
    }
    for allocations in allocations(snapshot) {
        let held = allocations.held_devices();
        for resource in allocatable.devices.keys().chain(held.keys().copied()).collect::<BTreeSet<_>>() {
            let held = held.get(resource).into_iter().flatten();
            push(resource, "allocated_unknown", held.filter(|id| !is_offered(resource, id)).count());
        }
    }
}

pub(super) fn numa_nodes(nodes: &BTreeSet<i64>) -> Option<String> {
    (!nodes.is_empty()).then(|| nodes.iter().map(i64::to_string).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::serve::metrics::tests::{fixture, value};

    pub fn with(change: impl FnOnce(&mut Allocations, &mut Allocatable)) -> Vec<Family> {
        let mut snapshot = fixture::snapshot();
        let kubelet = Arc::make_mut(&mut snapshot.kubelet);
        let allocations = Arc::make_mut(kubelet.allocations.as_mut().unwrap());
        change(allocations, Arc::make_mut(kubelet.allocatable.as_mut().unwrap()));
        GROUP.families(&snapshot)
    }

    #[test]
    fn the_shared_pool_excludes_exclusive_cpus() {
        let page = with(|allocations, _| {
            // A container's CPUs are a subset of its pod's: counted once.
            let pod = allocations.pods.last_mut().unwrap();
            pod.containers[0].exclusive_cpus = [10].into_iter().collect();
        });
        let cpus = |state| value(&page, "podmeter_node_cpus", &[("state", state)]);
        assert_eq!((cpus("allocatable"), cpus("exclusive"), cpus("shared")), (Some(16.0), Some(7.0), Some(9.0)));
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
    fn drift_of_our_resource_uses_what_was_advertised() {
        let mut snapshot = fixture::snapshot();
        Arc::make_mut(snapshot.plugin.as_mut().unwrap()).resources.get_mut(&"nvidia.com/gpu".into()).unwrap().devices =
            Arc::new([("GPU-new".into(), None), ("GPU-ill".into(), Some("lost".into()))].into());
        let page = GROUP.families(&snapshot);
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
        let page = GROUP.families(&Snapshot::default());
        assert!(page.is_empty(), "{page:?}");
    }

    #[test]
    fn a_claim_has_its_gpu_only_when_it_is_known() {
        let name = "podmeter_container_claim_info";
        let mut snapshot = fixture::snapshot();
        let gpu = [("gpu_uuid", fixture::PARTITIONED)];
        assert_eq!(value(&GROUP.families(&snapshot), name, &gpu), Some(1.0));
        snapshot.claim_gpus.clear();
        assert_eq!(value(&GROUP.families(&snapshot), name, &gpu), None);
        assert_eq!(value(&GROUP.families(&snapshot), name, &[]), Some(1.0));
    }
}
