//! A fake kubelet in a temporary directory, and plain clients for its sockets.

use std::path::Path;
use std::time::Duration;

use podmeter::kubelet::KubeletSettings;
use podmeter::kubelet::claim_files::ClaimDirectories;
use podmeter::wire::v1::pod_resources_lister_client::PodResourcesListerClient;
use podmeter::wire::v1beta1::registration_client::RegistrationClient;
use podmeter::wire::{v1, v1beta1};
use tempfile::TempDir;
use tonic::transport::Channel;

pub use podmeter::simulation::kubelet::channel as connect;
pub use podmeter::simulation::kubelet::{
    AdmissionOutcome, Claim, ContainerSpec, DeviceCount, FakeKubelet, Gates, GivenDevice, KubeletVersion, ListedDevice,
    Method, Options, PodPhase, PodSpec, memory_block,
};

/// A kubelet and its directory in place of `/var/lib/kubelet`, removed with it.
pub struct KubeletNode {
    pub kubelet: FakeKubelet,
    pub root: TempDir,
}

impl std::ops::Deref for KubeletNode {
    type Target = FakeKubelet;

    fn deref(&self) -> &FakeKubelet {
        &self.kubelet
    }
}

pub const GPU: &str = "nvidia.com/gpu";

/// Of kubelets before and from 1.37.
pub const VERSIONS: [KubeletVersion; 2] = [KubeletVersion::UpTo136, KubeletVersion::From137];

pub async fn node_under(version: KubeletVersion) -> KubeletNode {
    node(Options { version, ..Options::default() }).await
}

/// For a client of the kubelet whose directory is `root`.
pub fn client_settings(root: &Path, deadline: Duration) -> KubeletSettings {
    KubeletSettings {
        pod_resources_socket: root.join("pod-resources/kubelet.sock"),
        device_plugin_directory: root.join("device-plugins"),
        claim_directories: ClaimDirectories {
            plugins: root.join("plugins"),
            cdi: root.join("cdi"),
            proc: root.join("proc"),
        },
        node_name: "node".to_owned(),
        deadline,
    }
}

/// A pod of namespace `team` whose container `main` asks for this many devices.
pub fn asking_pod(name: &str, resource: &str, count: usize) -> PodSpec {
    PodSpec::new("team", name).container(ContainerSpec::new("main").asks(resource, count))
}

/// A pod of namespace `team` whose container `main` was given this device before.
pub fn holding_pod(name: &str, resource: &str, device: &str) -> PodSpec {
    PodSpec::new("team", name).container(ContainerSpec::new("main").holds(resource, device, &[0]))
}

pub async fn node(options: Options) -> KubeletNode {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), options).await.unwrap();
    KubeletNode { kubelet, root }
}

impl KubeletNode {
    pub async fn client(&self) -> PodResourcesListerClient<Channel> {
        let channel = connect(&self.pod_resources_socket()).await.unwrap();
        PodResourcesListerClient::new(channel).max_decoding_message_size(1 << 30)
    }

    pub async fn list(&self) -> v1::ListPodResourcesResponse {
        self.client().await.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner()
    }

    pub async fn allocatable(&self) -> v1::AllocatableResourcesResponse {
        let request = v1::AllocatableResourcesRequest {};
        self.client().await.get_allocatable_resources(request).await.unwrap().into_inner()
    }

    pub async fn get(&self, namespace: &str, pod: &str) -> Result<v1::PodResources, tonic::Status> {
        let request = v1::GetPodResourcesRequest { pod_name: pod.to_owned(), pod_namespace: namespace.to_owned() };
        let response = self.client().await.get(request).await?;
        Ok(response.into_inner().pod_resources.expect("an answer without an error has a pod"))
    }

    /// Until the kubelet has so many devices of the resource, and allocates so many.
    pub async fn counts(&self, resource: &str, capacity: usize, allocatable: usize) {
        let expected = DeviceCount { capacity, allocatable };
        let becomes = self.node_status_becomes(|status| status.get(resource) == Some(&expected)).await;
        assert!(becomes, "{resource}: {expected:?}, not {:?}", self.node_status());
    }

    pub async fn runs(&self, pod: PodSpec) {
        let name = pod.name.clone();
        assert_eq!(self.add_pod(pod).await, AdmissionOutcome::Running, "{name}");
    }

    /// The kubelet's message.
    pub async fn rejects(&self, pod: PodSpec, expected: &str) -> String {
        let name = pod.name.clone();
        match self.add_pod(pod).await {
            AdmissionOutcome::Rejected { reason, message } => {
                assert_eq!(reason, expected, "{message}");
                message
            }
            AdmissionOutcome::Running => panic!("{name} was admitted"),
        }
    }

    /// The IDs that container `main` of a pod of namespace `team` has.
    pub fn held(&self, pod: &str) -> Vec<String> {
        self.devices_of("team", pod, "main").into_iter().map(|(_, id)| id).collect()
    }

    pub async fn register(&self, version: &str, endpoint: &str, resource: &str) -> Result<(), tonic::Status> {
        let socket = self.device_plugin_directory().join("kubelet.sock");
        let request = v1beta1::RegisterRequest {
            version: version.to_owned(),
            endpoint: endpoint.to_owned(),
            resource_name: resource.to_owned(),
            options: None,
        };
        RegistrationClient::new(connect(&socket).await.unwrap()).register(request).await.map(drop)
    }
}
