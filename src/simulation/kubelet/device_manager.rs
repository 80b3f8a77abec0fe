//! The state of the device manager: which devices there are, which are healthy, and which container has which. Pure:
//! other modules call the plugins and write the checkpoint.

mod selection;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::checkpoint::{SimulatedCheckpoint, SimulatedPodDevices};
use super::spec::GivenDevice;
use crate::domain::model::Monotonic;

pub use selection::DeviceSelection;

/// How long the kubelet keeps the capacity of a resource whose plugin has disconnected.
pub const STOP_GRACE: Duration = Duration::from_secs(300);

/// The most lists that `history` keeps.
const HISTORY: usize = 256;

/// The version of the simulated kubelet. The versions differ in second registrations of a resource, and from 1.37 the
/// Pods API is always served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletVersion {
    /// Up to 1.36: the last registration counts, and the end of any old stream disconnects the current plugin.
    #[default]
    UpTo136,
    /// From 1.37: one client per socket path; a survivor is promoted; a path that is still connected is refused.
    From137,
}

/// One device in a plugin's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDevice {
    pub id: String,
    pub healthy: bool,
    /// The NUMA nodes. `None`: no topology. Empty: a topology without nodes, which hides the device from
    /// GetAllocatableResources.
    pub numa_nodes: Option<Vec<i64>>,
}

impl ListedDevice {
    pub fn new(id: &str) -> Self {
        Self { id: id.to_owned(), healthy: true, numa_nodes: None }
    }

    pub fn on_nodes(mut self, numa_nodes: &[i64]) -> Self {
        self.numa_nodes = Some(numa_nodes.to_vec());
        self
    }
}

/// The devices of one resource that a container was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Device ids by NUMA node; node -1 means "unknown". A device on two nodes is listed under both.
    pub by_node: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer to Allocate, as protobuf.
    pub answer: Vec<u8>,
}

/// The device IDs and the plugin's answer to Allocate as protobuf, by resource.
pub type AllocateAnswers = BTreeMap<String, (Vec<String>, Vec<u8>)>;

/// The key of an assignment: (pod UID, container, resource).
pub type AssignmentKey = (String, String, String);

#[derive(Debug, Default)]
struct ManagedResource {
    /// The last list; of two entries with one ID, the later.
    devices: BTreeMap<String, ListedDevice>,
    healthy: BTreeSet<String>,
    unhealthy: BTreeSet<String>,
    /// When the plugin disconnected.
    stopped: Option<Monotonic>,
}

#[derive(Debug)]
struct Connection {
    resource: String,
    endpoint: String,
    list: Option<Vec<ListedDevice>>,
}

/// The number of a plugin connection, in the order of registration.
pub type Serial = u64;

#[derive(Debug, Default)]
pub struct DeviceManager {
    version: KubeletVersion,
    resources: BTreeMap<String, ManagedResource>,
    assignments: BTreeMap<AssignmentKey, Assignment>,
    connections: BTreeMap<Serial, Connection>,
    /// The plugin that gets the Allocate calls of each resource.
    current: BTreeMap<String, Serial>,
    /// Up to 1.36: the client of each resource that is disconnected when a stream of the resource ends.
    clients: BTreeMap<String, Serial>,
    last_serial: Serial,
    /// The resources whose plugin is called before each start of a container; empty after a restart of the kubelet.
    pub pre_start: BTreeSet<String>,
    /// The devices (resource, ID) that a stream omitted after it had listed them. A kubelet may panic over each.
    pub dropped: Vec<(String, String)>,
    /// The latest lists received from every plugin, whether or not they took effect, with their resources.
    pub history: VecDeque<(String, Vec<ListedDevice>)>,
}

/// How many devices of a resource the node status would show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCount {
    pub capacity: usize,
    pub allocatable: usize,
}

impl DeviceManager {
    pub fn new(version: KubeletVersion) -> Self {
        Self { version, ..Self::default() }
    }

    /// The state of a kubelet after a restart. The connections are closed, and known resources have no devices until
    /// their plugins register again. The numbers of connections continue from those of the `previous` run.
    pub fn restored(checkpoint: &SimulatedCheckpoint, now: Monotonic, previous: &Self) -> Self {
        let (last_serial, dropped) = (previous.last_serial, previous.dropped.clone());
        let history = previous.history.clone();
        let mut manager = Self { last_serial, dropped, history, ..Self::new(previous.version) };
        for entry in &checkpoint.data.pod_device_entries {
            let key = (entry.pod_uid.clone(), entry.container_name.clone(), entry.resource_name.clone());
            manager.assignments.insert(key, entry.assignment());
        }
        for resource in checkpoint.data.registered_devices.keys() {
            manager
                .resources
                .insert(resource.clone(), ManagedResource { stopped: Some(now), ..ManagedResource::default() });
        }
        manager
    }

    pub fn checkpoint(&self) -> SimulatedCheckpoint {
        let entries =
            self.assignments.iter().map(|(key, assignment)| SimulatedPodDevices::new(key, assignment)).collect();
        let healthy = |resource: &ManagedResource| resource.healthy.iter().cloned().collect();
        let registered = self.resources.iter().map(|(name, resource)| (name.clone(), healthy(resource))).collect();
        SimulatedCheckpoint::new(entries, registered)
    }

    /// Adds the connection of a plugin that was dialled and answered its options.
    pub fn connected(&mut self, resource: &str, endpoint: &str) -> Result<Serial, String> {
        let same_path = |connection: &Connection| connection.endpoint == endpoint && connection.resource == resource;
        if self.version == KubeletVersion::From137 && self.connections.values().any(same_path) {
            return Err(format!("device plugin already connected: {endpoint}"));
        }
        self.last_serial += 1;
        let connection = Connection { resource: resource.to_owned(), endpoint: endpoint.to_owned(), list: None };
        self.connections.insert(self.last_serial, connection);
        self.current.insert(resource.to_owned(), self.last_serial);
        self.clients.insert(resource.to_owned(), self.last_serial);
        if let Some(resource) = self.resources.get_mut(resource) {
            resource.stopped = None;
        }
        Ok(self.last_serial)
    }

    /// Applies a failed dial, or a failed query of the options. Up to 1.36 the kubelet then drops the client of the
    /// resource, whose devices stay allocatable: the later end of that stream has no effect.
    pub fn registration_failed(&mut self, resource: &str) {
        if self.version == KubeletVersion::UpTo136 {
            self.clients.remove(resource);
        }
    }

    /// Applies a ListAndWatch message: the whole list replaces the last. Returns whether it took effect.
    pub fn listed(&mut self, serial: Serial, list: Vec<ListedDevice>) -> bool {
        let Some(connection) = self.connections.get_mut(&serial) else { return false };
        let resource = connection.resource.clone();
        let before = connection.list.replace(list.clone()).unwrap_or_default();
        let left_out = before.into_iter().filter(|before| list.iter().all(|device| device.id != before.id));
        self.dropped.extend(left_out.map(|device| (resource.clone(), device.id)));
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((resource.clone(), list.clone()));
        if self.version == KubeletVersion::From137 && self.current.get(&resource) != Some(&serial) {
            return false;
        }
        self.set_devices(&resource, list);
        true
    }

    /// Replaces the devices of a resource, from any source.
    pub fn set_devices(&mut self, name: &str, list: Vec<ListedDevice>) {
        let resource = self.resources.entry(name.to_owned()).or_default();
        resource.healthy.clear();
        resource.unhealthy.clear();
        resource.devices.clear();
        for device in list {
            let set = if device.healthy { &mut resource.healthy } else { &mut resource.unhealthy };
            set.insert(device.id.clone());
            resource.devices.insert(device.id.clone(), device);
        }
    }

    /// Applies the end of a plugin's stream. Returns the connections that the kubelet closes because of it.
    pub fn stream_ended(&mut self, serial: Serial, now: Monotonic) -> Vec<Serial> {
        let Some(connection) = self.connections.remove(&serial) else { return Vec::new() };
        let name = connection.resource;
        match self.version {
            KubeletVersion::UpTo136 => {
                let Some(client) = self.clients.remove(&name) else { return Vec::new() };
                self.current.remove(&name);
                self.connections.remove(&client);
                self.stop(&name, now);
                if client == serial { Vec::new() } else { vec![client] }
            }
            KubeletVersion::From137 => {
                if self.current.get(&name) != Some(&serial) {
                    return Vec::new();
                }
                let survivor = self.connections.iter().rev().find(|(_, connection)| connection.resource == name);
                match survivor.map(|(serial, connection)| (*serial, connection.list.clone())) {
                    Some((serial, list)) => {
                        self.current.insert(name.clone(), serial);
                        self.set_devices(&name, list.unwrap_or_default());
                    }
                    None => {
                        self.current.remove(&name);
                        self.stop(&name, now);
                    }
                }
                Vec::new()
            }
        }
    }

    fn stop(&mut self, name: &str, now: Monotonic) {
        let resource = self.resources.entry(name.to_owned()).or_default();
        resource.unhealthy.append(&mut resource.healthy);
        resource.stopped = Some(now);
    }

    /// Removes resources whose plugin has been away for the grace period. Returns whether there were any.
    pub fn expire(&mut self, now: Monotonic) -> bool {
        let before = self.resources.len();
        self.resources.retain(|_, resource| resource.stopped.is_none_or(|stopped| now.since(stopped) < STOP_GRACE));
        self.resources.len() < before
    }

    /// Frees the devices of pods that are no longer active.
    pub fn keep_only(&mut self, active: &BTreeSet<&str>) {
        self.assignments.retain(|(pod, _, _), _| active.contains(pod.as_str()));
    }

    pub fn counts(&self) -> BTreeMap<String, DeviceCount> {
        let count = |resource: &ManagedResource| DeviceCount {
            capacity: resource.healthy.union(&resource.unhealthy).count(),
            allocatable: resource.healthy.len(),
        };
        self.resources.iter().map(|(name, resource)| (name.clone(), count(resource))).collect()
    }

    /// The healthy devices, held or not, with the topology of the last list.
    pub fn allocatable(&self) -> impl Iterator<Item = (&str, &ListedDevice)> {
        self.resources.iter().flat_map(|(name, resource)| {
            let healthy = resource.healthy.iter().filter_map(|id| resource.devices.get(id));
            healthy.map(move |device| (name.as_str(), device))
        })
    }

    /// Each device of the resource and whether it can be allocated; none can before its new plugin has listed it.
    pub fn usable(&self, resource: &str) -> impl Iterator<Item = (&str, bool)> {
        let resources = self.resources.get(resource).into_iter();
        resources.flat_map(|resource| resource.devices.keys().map(|id| (id.as_str(), resource.healthy.contains(id))))
    }

    /// The plugin that gets Allocate calls.
    pub fn plugin(&self, resource: &str) -> Option<Serial> {
        self.current.get(resource).copied()
    }

    /// Whether the plugin that Allocate called has ended and none has registered since. An earlier plugin whose stream is
    /// still open may list devices all the same, and none of them can be allocated.
    pub fn is_stopped(&self, resource: &str) -> bool {
        self.resources.get(resource).is_some_and(|resource| resource.stopped.is_some())
    }

    /// How many plugins are connected for the resource.
    pub fn connections(&self, resource: &str) -> usize {
        self.connections.values().filter(|connection| connection.resource == resource).count()
    }

    /// Applies an answer to Allocate: List shows the devices from now on.
    pub fn assign(&mut self, key: AssignmentKey, devices: &[String], answer: Vec<u8>) {
        let known = self.resources.get(&key.2);
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in devices {
            let nodes = known.and_then(|resource| resource.devices.get(id)?.numa_nodes.clone());
            for node in nodes.filter(|nodes| !nodes.is_empty()).unwrap_or_else(|| vec![NO_NODE]) {
                by_node.entry(node).or_default().push(id.clone());
            }
        }
        self.assignments.insert(key, Assignment { by_node, answer });
    }

    /// Gives devices without calling a plugin.
    pub fn give(&mut self, pod_uid: &str, container: &str, holding: &GivenDevice) {
        let key = (pod_uid.to_owned(), container.to_owned(), holding.resource.clone());
        let assignment = self.assignments.entry(key).or_default();
        let nodes = if holding.numa_nodes.is_empty() { &[NO_NODE] } else { holding.numa_nodes.as_slice() };
        for node in nodes {
            assignment.by_node.entry(*node).or_default().push(holding.device.clone());
        }
    }

    /// The devices of one container as (resource, device, NUMA node).
    pub fn devices_of(&self, pod_uid: &str, container: &str) -> impl Iterator<Item = (&str, &str, Option<i64>)> {
        self.assignments_of(pod_uid, container).flat_map(|(resource, assignment)| {
            assignment.by_node.iter().flat_map(move |(node, ids)| {
                let node = (*node != NO_NODE).then_some(*node);
                ids.iter().map(move |id| (resource, id.as_str(), node))
            })
        })
    }

    /// The devices that one container was given, and the answers.
    pub fn answers_of(&self, pod_uid: &str, container: &str) -> AllocateAnswers {
        let ids = |assignment: &Assignment| assignment.by_node.values().flatten().cloned().collect();
        let assignments = self.assignments_of(pod_uid, container);
        assignments.map(|(resource, one)| (resource.to_owned(), (ids(one), one.answer.clone()))).collect()
    }

    fn assignments_of(&self, pod_uid: &str, container: &str) -> impl Iterator<Item = (&str, &Assignment)> {
        let of_container = move |key: &AssignmentKey| key.0 == pod_uid && key.1 == container;
        let assignments = self.assignments.iter().filter(move |(key, _)| of_container(key));
        assignments.map(|((_, _, resource), assignment)| (resource.as_str(), assignment))
    }

    /// Frees the devices of a pod.
    pub fn free(&mut self, pod_uid: &str) {
        self.assignments.retain(|(pod, _, _), _| pod != pod_uid);
    }
}

/// The kubelet's mark for "no NUMA node".
const NO_NODE: i64 = -1;

#[cfg(test)]
mod tests;
