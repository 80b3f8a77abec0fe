//! The description of pods and claims for a simulated kubelet.
//!
//! Out: pods with containers, the devices they request or are given, and claims as List shows them.

use std::collections::BTreeMap;

use crate::wire::v1::{CdiDevice, ClaimResource, ContainerMemory, NumaNode, TopologyInfo};

/// A requested pod. The builder methods read like its manifest.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct PodSpec {
    pub namespace: String,
    pub name: String,
    /// The UID; the kubelet makes one where it is absent.
    pub uid: Option<String>,
    /// Whether it comes from a manifest on the node: its name gets the node's name, and it is removed at once.
    pub static_pod: bool,
    pub labels: BTreeMap<String, String>,
    /// The init containers in start order.
    pub init_containers: Vec<ContainerSpec>,
    pub containers: Vec<ContainerSpec>,
}

#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct ContainerSpec {
    pub name: String,
    /// Whether it is an init container that keeps running.
    pub sidecar: bool,
    /// The requested number of each resource, which the device manager and the plugin allocate.
    pub requests: BTreeMap<String, usize>,
    /// The devices given without an Allocate call.
    pub holds: Vec<GivenDevice>,
    /// The claims of the pod's namespace that this container refers to.
    pub claims: Vec<String>,
    /// The exclusive CPUs.
    pub cpu_ids: Vec<i64>,
    pub memory: Vec<ContainerMemory>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenDevice {
    pub resource: String,
    pub device: String,
    /// The NUMA nodes; empty: no topology is known.
    pub numa_nodes: Vec<i64>,
}

/// A prepared claim of Dynamic Resource Allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub devices: Vec<ClaimResource>,
}

impl PodSpec {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned(), ..Self::default() }
    }

    pub fn from_manifest(mut self) -> Self {
        self.static_pod = true;
        self
    }

    pub fn uid(mut self, uid: &str) -> Self {
        self.uid = Some(uid.to_owned());
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn container(mut self, container: ContainerSpec) -> Self {
        self.containers.push(container);
        self
    }

    pub fn init_container(mut self, container: ContainerSpec) -> Self {
        self.init_containers.push(container);
        self
    }

    pub fn sidecar(mut self, mut container: ContainerSpec) -> Self {
        container.sidecar = true;
        self.init_containers.push(container);
        self
    }

    /// All containers, in the order in which the kubelet admits them.
    pub fn all_containers(&self) -> impl Iterator<Item = (ContainerKind, &ContainerSpec)> {
        let kind =
            |container: &ContainerSpec| if container.sidecar { ContainerKind::Sidecar } else { ContainerKind::Init };
        let first = self.init_containers.iter().map(move |container| (kind(container), container));
        first.chain(self.containers.iter().map(|container| (ContainerKind::App, container)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    Init,
    Sidecar,
    App,
}

impl ContainerSpec {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    pub fn asks(mut self, resource: &str, count: usize) -> Self {
        self.requests.insert(resource.to_owned(), count);
        self
    }

    pub fn holds(mut self, resource: &str, device: &str, numa_nodes: &[i64]) -> Self {
        self.holds.push(GivenDevice {
            resource: resource.to_owned(),
            device: device.to_owned(),
            numa_nodes: numa_nodes.to_vec(),
        });
        self
    }

    pub fn claim(mut self, name: &str) -> Self {
        self.claims.push(name.to_owned());
        self
    }

    pub fn cpu_ids(mut self, ids: &[i64]) -> Self {
        self.cpu_ids = ids.to_vec();
        self
    }

    pub fn memory(mut self, block: ContainerMemory) -> Self {
        self.memory.push(block);
        self
    }
}

/// A block of memory; the type is `memory` or `hugepages-<size>`.
pub fn memory_block(memory_type: &str, size: u64, numa_nodes: &[i64]) -> ContainerMemory {
    let nodes = numa_nodes.iter().map(|id| NumaNode { id: *id }).collect();
    ContainerMemory { memory_type: memory_type.to_owned(), size, topology: Some(TopologyInfo { nodes }) }
}

impl Claim {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned(), devices: Vec::new() }
    }

    pub fn device(mut self, driver: &str, pool: &str, device: &str, cdi_names: &[&str]) -> Self {
        self.devices.push(ClaimResource {
            driver_name: driver.to_owned(),
            pool_name: pool.to_owned(),
            device_name: device.to_owned(),
            cdi_devices: cdi_names.iter().map(|name| CdiDevice { name: (*name).to_owned() }).collect(),
            share_id: None,
        });
        self
    }
}
