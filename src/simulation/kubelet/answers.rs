//! What the PodResources API answers to a given state: the rules of each call, without gRPC.

use std::collections::BTreeMap;

use super::Options;
use super::spec::{Claim, ContainerKind, ContainerSpec};
use super::state::{Boot, FakeKubeletState, SimulatedPod};
use crate::wire::v1;

impl FakeKubeletState {
    pub fn list(&mut self) -> v1::ListPodResourcesResponse {
        self.free_devices_of_gone_pods();
        let mut random = self.random.clone();
        let pods = self.visible().filter(|pod| pod.phase.is_active());
        let mut pod_resources: Vec<_> = pods.map(|pod| self.resources_of(pod)).collect();
        random.shuffle(&mut pod_resources);
        for container in pod_resources.iter_mut().flat_map(|pod| &mut pod.containers) {
            random.shuffle(&mut container.devices);
        }
        self.random = random;
        v1::ListPodResourcesResponse { pod_resources }
    }

    /// The pod, if it is active.
    pub fn get(&self, namespace: &str, name: &str) -> Option<v1::PodResources> {
        let of_name = self.visible().filter(|pod| pod.spec.namespace == namespace && pod.name == name);
        // The kubelet returns the latest pod of a name.
        let pod = of_name.last()?;
        pod.phase.is_active().then(|| self.resources_of(pod))
    }

    pub fn allocatable(&mut self) -> v1::AllocatableResourcesResponse {
        if matches!(self.boot, Boot::Off | Boot::Starting) {
            return v1::AllocatableResourcesResponse::default();
        }
        let mut devices = Vec::new();
        for (resource, device) in self.devices.allocatable() {
            match &device.numa_nodes {
                None => devices.push(entry(resource, &device.id, None)),
                // A topology without nodes yields no entry, as in the kubelet's loop.
                Some(nodes) => devices.extend(nodes.iter().map(|node| entry(resource, &device.id, Some(*node)))),
            }
        }
        self.random.shuffle(&mut devices);
        let Options { cpu_ids, memory, .. } = self.options.clone();
        v1::AllocatableResourcesResponse { devices, cpu_ids, memory }
    }

    fn visible(&self) -> impl Iterator<Item = &SimulatedPod> {
        let count = match self.boot {
            Boot::Off | Boot::Starting => 0,
            Boot::Partial => self.pods.len().div_ceil(2),
            Boot::Ready => self.pods.len(),
        };
        self.pods.iter().take(count)
    }

    fn resources_of(&self, pod: &SimulatedPod) -> v1::PodResources {
        let shown = pod.spec.all_containers().filter(|(kind, _)| *kind != ContainerKind::Init);
        v1::PodResources {
            name: pod.name.clone(),
            namespace: pod.spec.namespace.clone(),
            containers: shown.map(|(_, container)| self.container(pod, container)).collect(),
            cpu_ids: vec![],
            memory: vec![],
        }
    }

    fn container(&self, pod: &SimulatedPod, container: &ContainerSpec) -> v1::ContainerResources {
        let devices = self.devices.devices_of(&pod.uid, &container.name);
        v1::ContainerResources {
            name: container.name.clone(),
            devices: devices.map(|(resource, device, node)| entry(resource, device, node)).collect(),
            cpu_ids: container.cpu_ids.clone(),
            memory: container.memory.clone(),
            dynamic_resources: self.dynamic_resources(&pod.spec.namespace, container),
        }
    }

    /// The container's claims; one unknown claim empties the list.
    fn dynamic_resources(&self, namespace: &str, container: &ContainerSpec) -> Vec<v1::DynamicResource> {
        let claims = container.claims.iter().map(|name| self.claims.get(&(namespace.to_owned(), name.clone())));
        claims.map(|claim| claim.map(dynamic_resource)).collect::<Option<Vec<_>>>().unwrap_or_default()
    }
}

/// All devices of the claim, whichever of its requests the container uses. Each device also has the CDI names of the
/// driver's earlier devices, as in 1.36.2.
fn dynamic_resource(claim: &Claim) -> v1::DynamicResource {
    let mut so_far: BTreeMap<&str, Vec<v1::CdiDevice>> = BTreeMap::new();
    let claim_resources = claim.devices.iter().map(|device| {
        let cdi_devices = so_far.entry(&device.driver_name).or_default();
        cdi_devices.extend_from_slice(&device.cdi_devices);
        v1::ClaimResource { cdi_devices: cdi_devices.clone(), ..device.clone() }
    });
    v1::DynamicResource {
        claim_resources: claim_resources.collect(),
        claim_name: claim.name.clone(),
        claim_namespace: claim.namespace.clone(),
    }
}

fn entry(resource: &str, device: &str, node: Option<i64>) -> v1::ContainerDevices {
    v1::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![device.to_owned()],
        topology: node.map(|id| v1::TopologyInfo { nodes: vec![v1::NumaNode { id }] }),
    }
}
