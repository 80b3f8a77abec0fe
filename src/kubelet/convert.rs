//! PodResources messages to types of the model. Any grouping of devices is accepted; each device comes out once,
//! sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::model::{
    Allocatable, Allocations, ClaimDevice, ClaimRecord, Container, ContainerRef, CpuSet, DeviceId, HeldDevice,
    MemoryBlock, Pod, PodRef, ResourceName, UUID_LENGTH, is_uuid,
};
use crate::wire::v1;

pub fn allocations(answer: v1::ListPodResourcesResponse) -> Allocations {
    // A pod listed twice is one pod: its containers come together under one name.
    let mut pods: BTreeMap<PodRef, Pod> = BTreeMap::new();
    for pod in answer.pod_resources {
        let mut converted = convert_pod(pod);
        let containers = std::mem::take(&mut converted.containers);
        pods.entry(converted.reference.clone()).or_insert(converted).containers.extend(containers);
    }
    for pod in pods.values_mut() {
        pod.containers.sort_by(|a, b| a.reference.cmp(&b.reference));
    }
    Allocations { pods: pods.into_values().collect() }
}

pub fn allocatable(answer: v1::AllocatableResourcesResponse) -> Allocatable {
    let mut devices: BTreeMap<ResourceName, BTreeSet<DeviceId>> = BTreeMap::new();
    for entry in answer.devices {
        let ids = entry.device_ids.into_iter().map(DeviceId::new);
        devices.entry(ResourceName::new(entry.resource_name)).or_default().extend(ids);
    }
    Allocatable { devices, cpus: cpus(&answer.cpu_ids), memory: memory(answer.memory) }
}

pub fn convert_pod(pod: v1::PodResources) -> Pod {
    let reference = PodRef::new(&pod.namespace, &pod.name);
    Pod {
        containers: pod.containers.into_iter().map(|container| convert_container(&reference, container)).collect(),
        reference,
        uid: None,
        exclusive_cpus: cpus(&pod.cpu_ids),
        memory: memory(pod.memory),
    }
}

fn convert_container(pod: &PodRef, container: v1::ContainerResources) -> Container {
    // One entry per device and NUMA node in recent kubelets, per resource in older ones.
    let mut devices: BTreeMap<(ResourceName, DeviceId), BTreeSet<i64>> = BTreeMap::new();
    for entry in container.devices {
        let resource = ResourceName::new(entry.resource_name);
        let nodes = numa_nodes(entry.topology);
        for id in entry.device_ids {
            devices.entry((resource.clone(), DeviceId::new(id))).or_default().extend(&nodes);
        }
    }
    // A kubelet that re-appends a claim's devices on every retry lists them many times over.
    let mut claims = BTreeSet::new();
    for claim in container.dynamic_resources {
        claims.extend(claim.claim_resources.into_iter().map(|device| ClaimDevice {
            claim_uid: claim_uid(&device.cdi_devices),
            record: ClaimRecord::default(),
            claim_namespace: claim.claim_namespace.as_str().into(),
            claim: claim.claim_name.as_str().into(),
            device: DeviceId::of_claim(&device.driver_name, device.device_name),
            driver: device.driver_name.into(),
            pool: device.pool_name.into(),
            share_id: device.share_id.map(Into::into),
        }));
    }
    let held = |((resource, id), numa_nodes)| HeldDevice { resource, id, numa_nodes };
    Container {
        reference: ContainerRef::in_pod(pod, &container.name),
        devices: devices.into_iter().map(held).collect(),
        claims: claims.into_iter().collect(),
        exclusive_cpus: cpus(&container.cpu_ids),
        memory: memory(container.memory),
    }
}

/// The UID of the claim, from `<vendor>/<class>=<claim UID>-<device>` (NVIDIA) or `<driver>/metadata=<claim
/// UID>_<request>`. The list has names of other devices of the same claim too. `None` where they do not agree.
fn claim_uid(cdi_devices: &[v1::CdiDevice]) -> Option<Arc<str>> {
    let of_name = |device: &'_ v1::CdiDevice| -> Option<Arc<str>> {
        let (uid, rest) = device.name.split_once('=')?.1.split_at_checked(UUID_LENGTH)?;
        (is_uuid(uid) && rest.starts_with(['-', '_'])).then(|| uid.into())
    };
    let mut uids = cdi_devices.iter().filter_map(of_name);
    let first = uids.next()?;
    uids.all(|other| other == first).then_some(first)
}

fn numa_nodes(topology: Option<v1::TopologyInfo>) -> BTreeSet<i64> {
    topology.into_iter().flat_map(|topology| topology.nodes).map(|node| node.id).collect()
}

/// A CPU number that is none (negative, absurdly large) is left out.
fn cpus(ids: &[i64]) -> CpuSet {
    ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect()
}

fn memory(blocks: Vec<v1::ContainerMemory>) -> Vec<MemoryBlock> {
    let block = |block: v1::ContainerMemory| MemoryBlock {
        memory_type: block.memory_type.into(),
        numa_nodes: numa_nodes(block.topology),
        bytes: block.size,
    };
    let mut blocks: Vec<MemoryBlock> = blocks.into_iter().map(block).collect();
    blocks.sort();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uid_of_a_claim_is_in_the_names_of_its_cdi_devices() {
        const UID: &str = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a";
        let uid = |names: &[String]| {
            let names: Vec<_> = names.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect();
            claim_uid(&names)
        };
        let own = format!("k8s.gpu.nvidia.com/claim={UID}-gpu-0");
        let metadata = format!("gpu.nvidia.com/metadata={UID}_gpu");
        assert_eq!(uid(&[own.clone(), metadata]).as_deref(), Some(UID));
        assert_eq!(uid(&["k8s.gpu.nvidia.com/device=gpu-0".to_owned(), own.clone()]).as_deref(), Some(UID));
        let other = own.replace("dab5", "0000");
        for names in [vec![], vec![own.clone(), other], vec![own.replace("-gpu-0", "")], vec![own.replace('=', "=é")]]
        {
            assert_eq!(uid(&names), None, "{names:?}");
        }
    }

    fn entry(id: &str, numa: &[i64]) -> v1::ContainerDevices {
        let nodes = numa.iter().map(|id| v1::NumaNode { id: *id }).collect::<Vec<_>>();
        v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: vec![id.into()],
            topology: (!nodes.is_empty()).then_some(v1::TopologyInfo { nodes }),
        }
    }

    fn listed(devices: Vec<v1::ContainerDevices>) -> Allocations {
        let container = v1::ContainerResources { name: "main".into(), devices, ..v1::ContainerResources::default() };
        let pod = v1::PodResources {
            name: "p".into(),
            namespace: "n".into(),
            containers: vec![container],
            ..v1::PodResources::default()
        };
        allocations(v1::ListPodResourcesResponse { pod_resources: vec![pod] })
    }

    #[test]
    fn a_device_on_two_numa_nodes_is_listed_twice_and_comes_out_once() {
        let allocations = listed(vec![entry("GPU-1", &[1]), entry("GPU-1", &[0]), entry("GPU-0", &[])]);
        let devices: Vec<_> = allocations.pods[0].containers[0]
            .devices
            .iter()
            .map(|device| (device.id.as_str().to_owned(), device.numa_nodes.iter().copied().collect::<Vec<_>>()))
            .collect();
        assert_eq!(devices, [("GPU-0".to_owned(), vec![]), ("GPU-1".to_owned(), vec![0, 1])]);
    }

    #[test]
    fn grouped_and_single_entries_mean_the_same() {
        let grouped = v1::ContainerDevices { device_ids: vec!["GPU-1".into(), "GPU-0".into()], ..entry("", &[0]) };
        assert_eq!(listed(vec![grouped]), listed(vec![entry("GPU-0", &[0]), entry("GPU-1", &[0])]));
    }

    #[test]
    fn cpu_numbers_that_are_none_are_left_out() {
        assert_eq!(cpus(&[-1, 3, i64::MAX, 2]).to_string(), "2-3");
    }
}
