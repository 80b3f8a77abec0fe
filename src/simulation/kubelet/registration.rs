//! The kubelet's part of the device plugin API: Register, the dial back, and one ListAndWatch per plugin.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, async_trait};

use super::device_manager::{ListedDevice, Serial};
use super::faults::Method;
use super::shared::{Plugin, SharedKubelet};
use super::state::Boot;
use crate::wire::v1beta1::device_plugin_client::DevicePluginClient;
use crate::wire::v1beta1::registration_server::Registration;
use crate::wire::v1beta1::{Device, Empty, NumaNode, RegisterRequest, TopologyInfo};

const VERSION: &str = "v1beta1";

#[derive(Clone, Debug)]
pub struct Registry(pub Arc<SharedKubelet>);

#[async_trait]
impl Registration for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.fault(Method::Register).await?;
        let request = request.into_inner();
        validate(&request).map_err(Status::unknown)?;
        let connected = self.connect(&request).await;
        if connected.is_err() {
            self.0.state.lock().devices.registration_failed(&request.resource_name);
        }
        connected.map_err(Status::unknown)?;
        Ok(Response::new(Empty {}))
    }
}

impl Registry {
    /// Dials the plugin. The options in the request are ignored, as in the kubelet.
    async fn connect(&self, request: &RegisterRequest) -> Result<(), String> {
        let shared = &self.0;
        let path = shared.device_plugins.join(&request.endpoint);
        let timeout = shared.state.lock().options.dial_timeout;
        let channel = dial(&path, timeout).await?;
        let mut client = DevicePluginClient::new(channel);
        let failed = |status| format!("failed to get device plugin options: {}", in_go(&status));
        shared.fault(Method::GetDevicePluginOptions).await.map_err(failed)?;
        let options = client.get_device_plugin_options(Empty {}).await.map_err(failed)?.into_inner();

        // The locks span both steps: the watch must find its plugin when its stream ends at once.
        let mut plugins = shared.plugins.lock();
        let mut state = shared.state.lock();
        if state.boot == Boot::Off {
            return Err("the kubelet is stopped".to_owned());
        }
        let (prefers, pre_start) = (options.get_preferred_allocation_available, options.pre_start_required);
        let serial = state.devices.connected(&request.resource_name, &path.to_string_lossy())?;
        if pre_start {
            state.devices.pre_start.insert(request.resource_name.clone());
        } else {
            state.devices.pre_start.remove(&request.resource_name);
        }
        drop(state);
        let watch = JoinSet::from_iter([watch(Arc::clone(shared), serial, client.clone())]);
        plugins.insert(serial, Plugin { client, prefers, _watch: watch });
        Ok(())
    }
}

/// Follows one plugin's list until its stream ends. It is never opened a second time.
async fn watch(shared: Arc<SharedKubelet>, serial: Serial, mut client: DevicePluginClient<Channel>) {
    let breaks = shared.fault(Method::ListAndWatch).await.is_err();
    if let Ok(stream) = client.list_and_watch(Empty {}).await
        && !breaks
    {
        let mut stream = stream.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            let list = message.devices.into_iter().map(ListedDevice::from).collect();
            let mut state = shared.state.lock();
            if state.devices.listed(serial, list) {
                shared.write_checkpoint(&state);
            }
            drop(state);
            shared.changed();
        }
    }
    shared.stream_ended(serial);
}

impl From<Device> for ListedDevice {
    fn from(device: Device) -> Self {
        let nodes = |topology: TopologyInfo| topology.nodes.iter().map(|node| node.id).collect();
        Self { id: device.id, healthy: device.health == "Healthy", numa_nodes: device.topology.map(nodes) }
    }
}

impl ListedDevice {
    pub fn to_wire(&self) -> Device {
        let topology = |nodes: &Vec<i64>| TopologyInfo { nodes: nodes.iter().map(|id| NumaNode { id: *id }).collect() };
        Device {
            id: self.id.clone(),
            health: if self.healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
            topology: self.numa_nodes.as_ref().map(topology),
        }
    }
}

/// Dials until it succeeds, or until the time limit.
async fn dial(path: &Path, timeout: Duration) -> Result<Channel, String> {
    let connect = async {
        loop {
            match super::socket::channel(path).await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let dialled = tokio::time::timeout(timeout, connect).await;
    dialled.map_err(|_| "failed to dial device plugin: context deadline exceeded".to_owned())
}

fn validate(request: &RegisterRequest) -> Result<(), String> {
    if request.version != VERSION {
        let version = &request.version;
        return Err(format!(
            "requested API version \"{version}\" is not supported by kubelet. Supported version is [\"{VERSION}\"]"
        ));
    }
    match is_extended_resource(&request.resource_name) {
        true => Ok(()),
        false => Err(format!("the ResourceName \"{}\" is invalid", request.resource_name)),
    }
}

/// Whether the name is valid by the kubelet's rules, as far as the recorded errors show them.
fn is_extended_resource(resource: &str) -> bool {
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let parts = resource.split_once('/');
    parts.is_some_and(|(domain, name)| is_plain(domain) && !domain.ends_with("kubernetes.io") && is_plain(name))
}

/// A gRPC error as Go prints it.
pub fn in_go(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}
