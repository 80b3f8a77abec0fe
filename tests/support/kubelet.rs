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
pub struct Node {
    pub kubelet: FakeKubelet,
    pub root: TempDir,
}

impl std::ops::Deref for Node {
    type Target = FakeKubelet;

    fn deref(&self) -> &FakeKubelet {
        &self.kubelet
    }
}

/// Of kubelets before and from 1.37.
pub const VERSIONS: [KubeletVersion; 2] = [KubeletVersion::UpTo136, KubeletVersion::From137];

pub async fn node_under(version: KubeletVersion) -> Node {
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
        deadline,
    }
}

/// A running pod of namespace `team-a` that was given this device.
pub fn holding_pod(name: &str, device: &str) -> PodSpec {
    PodSpec::new("team-a", name).container(ContainerSpec::new("main").holds("nvidia.com/gpu", device, &[0]))
}

pub async fn node(options: Options) -> Node {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), options).await.unwrap();
    Node { kubelet, root }
}

impl Node {
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
