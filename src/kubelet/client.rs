//! The client of the PodResources API, and its messages as types of the model.
//!
//! In: the kubelet's socket. Out: model types, or an error with a remedy. Any grouping of devices is accepted; each device comes
//! out once, sorted. It keeps no answers and does not retry.

mod call_error;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

pub use call_error::CallError;
pub(super) use call_error::{chain, explain};

use crate::domain::model::{
    Allocatable, Allocations, ClaimDevice, ClaimRecord, Container, ContainerRef, CpuSet, DeviceId, HeldDevice,
    MemoryBlock, Pod, PodRef, ResourceName, UUID_LENGTH, is_uuid,
};
use crate::tasks::within;
use crate::wire::v1::pod_resources_lister_client::PodResourcesListerClient;
use crate::wire::{channel_over, v1};

/// Answers of 4.8 MB have been seen on large nodes. A larger answer is refused, not cut.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Talks to the kubelet's PodResources socket. Connects on first use and again after every failure.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
    connection: Option<PodResourcesListerClient<Channel>>,
}

impl Client {
    pub fn new(socket: &Path, deadline: Duration) -> Self {
        Self { socket: socket.to_owned(), deadline, connection: None }
    }

    /// Drops the connection: the socket belongs to a new kubelet.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Who holds what.
    pub async fn list(&mut self) -> Result<Allocations, CallError> {
        let mut client = self.connect().await?;
        let answer = self.finish("List", client.list(v1::ListPodResourcesRequest {})).await?;
        Ok(allocations(answer))
    }

    /// What could be given: healthy devices whether held or not.
    pub async fn allocatable(&mut self) -> Result<Allocatable, CallError> {
        let mut client = self.connect().await?;
        let call = client.get_allocatable_resources(v1::AllocatableResourcesRequest {});
        let answer = self.finish("GetAllocatableResources", call).await?;
        Ok(allocatable(answer))
    }

    /// One pod; `None` when the kubelet has no active pod of that name. Not to be called in a loop over pods: the rate
    /// limit is shared by all clients of the node.
    pub async fn get(&mut self, pod: &PodRef) -> Result<Option<Pod>, CallError> {
        const METHOD: &str = "Get";
        let mut client = self.connect().await?;
        let request =
            v1::GetPodResourcesRequest { pod_name: pod.pod.to_string(), pod_namespace: pod.namespace.to_string() };
        let answer = match self.finish(METHOD, client.get(request)).await {
            // A plain Go error: the code is Unknown, and only the text identifies it.
            Err(CallError::Other { code: Code::Unknown, message, .. })
                if message == format!("pod {} in namespace {} not found", pod.pod, pod.namespace) =>
            {
                return Ok(None);
            }
            Err(CallError::Other { code: Code::Unknown, message, .. }) if message.ends_with("disabled") => {
                return Err(CallError::Unimplemented(METHOD));
            }
            answer => answer?,
        };
        let missing = || CallError::Malformed { socket: self.socket.clone(), reason: "an answer without a pod".into() };
        answer.pod_resources.map(convert_pod).map(Some).ok_or_else(missing)
    }

    async fn connect(&mut self) -> Result<PodResourcesListerClient<Channel>, CallError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let deadline = self.deadline;
        let late = || CallError::DeadlineExceeded { socket: self.socket.clone(), method: "connect", deadline };
        let stream = dial(&self.socket, deadline).await?;
        let handshake = channel_over(stream);
        let channel = within(deadline, handshake).await.ok_or_else(late)?;
        let channel =
            channel.map_err(|error| CallError::Malformed { socket: self.socket.clone(), reason: chain(&error) })?;
        let connection = PodResourcesListerClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    async fn finish<M>(
        &mut self,
        method: &'static str,
        call: impl Future<Output = Result<Response<M>, Status>>,
    ) -> Result<M, CallError> {
        let deadline = self.deadline;
        let outcome = match within(deadline, call).await {
            Some(Ok(answer)) => return Ok(answer.into_inner()),
            Some(Err(status)) => CallError::of_status(&status, method, self.socket.clone()),
            None => CallError::DeadlineExceeded { socket: self.socket.clone(), method, deadline },
        };
        if outcome.lost_connection() {
            self.disconnect();
        }
        Err(outcome)
    }
}

/// Connects to a socket of the kubelet.
pub async fn dial(path: &Path, deadline: Duration) -> Result<UnixStream, CallError> {
    let socket = path.to_owned();
    let Some(connected) = within(deadline, UnixStream::connect(path)).await else {
        return Err(CallError::DeadlineExceeded { socket, method: "connect", deadline });
    };
    connected.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => CallError::SocketMissing(socket),
        io::ErrorKind::PermissionDenied => CallError::PermissionDenied(socket),
        // A plain file refuses connections as a dead socket does.
        io::ErrorKind::ConnectionRefused if !is_socket(path) => CallError::NotASocket(socket),
        io::ErrorKind::ConnectionRefused => CallError::Refused(socket),
        _ => CallError::Unavailable { socket, reason: error.to_string() },
    })
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

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
    let containers = pod.containers.into_iter().map(|container| convert_container(&reference, container));
    let mut containers: Vec<_> = containers.collect();
    containers.sort_by(|a, b| a.reference.cmp(&b.reference));
    Pod { containers, reference, uid: None, exclusive_cpus: cpus(&pod.cpu_ids), memory: memory(pod.memory) }
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
    fn the_containers_of_a_pod_are_sorted() {
        let named = |name: &str| v1::ContainerResources { name: name.to_owned(), ..v1::ContainerResources::default() };
        let containers = vec![named("b"), named("a")];
        let pod = convert_pod(v1::PodResources { containers, ..v1::PodResources::default() });
        assert!(pod.containers.is_sorted_by_key(|container| &container.reference));
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
