//! The gRPC service of one resource. Every call is answered from memory: the kubelet's main loop waits for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, async_trait};

use super::host::HostFacts;
use super::preferred::{Question, prefer};
use super::sockets::{self, SocketIdentity};
use super::status::ResourceStatus;
use super::{AllocationRefusal, NvidiaConfig, Offer, OfferedDevice, PreStartCheck, ResourceConfig, answer, pre_start};
use crate::clock::Clock;
use crate::domain::model::{DeviceId, HardwareState, KubeletState};
use crate::domain::preference::{FallbackReason, PreferredDevices};
use crate::node::wire::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::node::wire::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
    ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, TopologyInfo,
};

/// Between two lists: changes within this time are sent together.
const COALESCE: Duration = Duration::from_millis(50);
/// After a list was sent: by then the kubelet has processed it, and what it can allocate is queried again.
const TAKEN_IN: Duration = Duration::from_millis(20);
/// For calls under way when a server closes. They are answered from memory.
const CLOSING: Duration = Duration::from_secs(1);

/// What a resource's servers answer from, over all its registrations.
#[derive(Clone, Debug)]
pub struct ServiceState {
    pub config: Arc<ResourceConfig>,
    pub offer: watch::Receiver<Arc<Offer>>,
    pub facts: watch::Receiver<Arc<HostFacts>>,
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    pub status: ResourceStatus,
    pub clock: Clock,
    /// Notified of each allocation that was granted.
    pub allocated: Arc<Notify>,
    /// Notified when the kubelet's allocatable devices may have changed.
    pub refresh_allocatable: Arc<Notify>,
}

/// One listening socket and what serves it. Dropping it ends both and removes the socket.
#[derive(Debug)]
pub struct PluginServer {
    path: PathBuf,
    file: Option<SocketIdentity>,
    closing: watch::Sender<bool>,
    streams: watch::Receiver<Streams>,
    task: JoinHandle<()>,
}

impl ServiceState {
    /// `None`: a resource of another kind, which has no preferences and no checks.
    pub fn nvidia(&self) -> Option<&NvidiaConfig> {
        match &*self.config {
            ResourceConfig::Nvidia(nvidia) => Some(nvidia),
            ResourceConfig::Path(_) | ResourceConfig::Simulated(_) => None,
        }
    }

    /// An empty choice for a resource without preferences.
    fn prefer(&self, question: Question) -> PreferredDevices {
        let Some(nvidia) = self.nvidia() else { return PreferredDevices::default() };
        let (offer, facts) = (Arc::clone(&self.offer.borrow()), Arc::clone(&self.facts.borrow()));
        let hardware = Arc::clone(&self.hardware.borrow());
        let allocations = self.kubelet.borrow().allocations.clone();
        prefer(nvidia, &offer, &facts.topology, &hardware, allocations.as_deref(), question)
    }

    pub fn pre_start_check(&self) -> Option<&PreStartCheck> {
        self.nvidia()?.pre_start_check.as_ref()
    }
}

/// How many are open; `None` before the first.
type Streams = Option<usize>;

impl PluginServer {
    pub fn start(directory: &Path, name: &str, state: ServiceState) -> io::Result<Self> {
        let path = directory.join(name);
        let listener = UnixListener::bind(&path)?;
        let file = sockets::identity(&path);
        let (closing, closed) = watch::channel(false);
        let (streams, open) = watch::channel(None);
        let service = PluginService { state, closing: closed.clone(), streams };
        let task = tokio::spawn(async move {
            let mut closed = closed;
            let router = tonic::transport::Server::builder().add_service(DevicePluginServer::new(service));
            // An error of `wait_for` is the server being dropped.
            let until = async move { drop(closed.wait_for(|closed| *closed).await) };
            if let Err(error) = router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), until).await {
                tracing::warn!(%error, "a device plugin server ended");
            }
        });
        Ok(Self { path, file, closing, streams: open, task })
    }

    pub fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub fn socket_is_there(&self) -> bool {
        sockets::identity(&self.path) == self.file
    }

    /// Until a client has opened the list.
    pub async fn watched(&self) {
        let mut streams = self.streams.clone();
        if streams.wait_for(Streams::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Until there was a stream and none is left, or the server has ended.
    pub async fn stream_lost(&self) {
        let mut streams = self.streams.clone();
        let _ = streams.wait_for(|streams| *streams == Some(0)).await;
    }

    /// Ends the streams, then the connections.
    pub async fn close(mut self) {
        self.closing.send_replace(true);
        if tokio::time::timeout(CLOSING, &mut self.task).await.is_err() {
            tracing::debug!(socket = %self.path.display(), "calls under way were cut off");
        }
    }
}

impl Drop for PluginServer {
    fn drop(&mut self) {
        self.task.abort();
        if self.socket_is_there()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::debug!(socket = %self.path.display(), %error, "our socket cannot be removed");
        }
    }
}

#[derive(Clone, Debug)]
struct PluginService {
    state: ServiceState,
    closing: watch::Receiver<bool>,
    streams: watch::Sender<Streams>,
}

#[async_trait]
impl DevicePlugin for PluginService {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.state.pre_start_check().is_some(),
            get_preferred_allocation_available: self.state.nvidia().is_some(),
        }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let Self { state, closing, streams } = self.clone();
        streams.send_modify(|open| *open = Some(open.unwrap_or(0) + 1));
        let sending = send_lists(state, closing, sender);
        tokio::spawn(async move {
            sending.await;
            streams.send_modify(|open| *open = open.map(|open| open - 1));
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let state = &self.state;
        let began = state.clock.now().monotonic;
        let requests = request.into_inner().container_requests;
        let (mut container_responses, mut fallbacks) = (vec![], vec![]);
        for request in requests {
            let question = Question {
                available: ids(&request.available_device_i_ds),
                must_include: ids(&request.must_include_device_i_ds),
                size: usize::try_from(request.allocation_size).unwrap_or(0),
            };
            let choice = state.prefer(question);
            fallbacks.extend(choice.fallback.map(FallbackReason::as_str));
            let device_i_ds = choice.ids.iter().map(ToString::to_string).collect();
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        state.status.preferred(&fallbacks, state.clock.now().monotonic.since(began));
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let state = &self.state;
        let began = state.clock.now().monotonic;
        let (offer, facts) = (Arc::clone(&state.offer.borrow()), Arc::clone(&state.facts.borrow()));
        let requests = request.into_inner().container_requests;
        let asked: Vec<Vec<DeviceId>> = requests.iter().map(|container| ids(&container.devices_ids)).collect();
        let answers: Result<_, _> = asked.iter().map(|ids| answer(&state.config, &offer, ids, &facts.node)).collect();
        let result = answers.as_ref().map_or_else(AllocationRefusal::result, |_| "ok");
        let response = answers.map_err(|refusal| refused(&offer, "an allocation was refused", &refusal));
        state.status.allocated(result, state.clock.now().monotonic.since(began));
        if response.is_ok() {
            state.allocated.notify_one();
        }
        response.map(|container_responses| Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let state = &self.state;
        let Some(rules) = state.pre_start_check() else { return Ok(Response::new(PreStartContainerResponse {})) };
        let (offer, hardware) = (Arc::clone(&state.offer.borrow()), Arc::clone(&state.hardware.borrow()));
        let checked = pre_start::check(rules, &offer, &hardware, &ids(&request.into_inner().devices_ids));
        state.status.checked_before_start(checked.as_ref().map_or_else(AllocationRefusal::result, |()| "ok"));
        let answer = checked.map(|()| Response::new(PreStartContainerResponse {}));
        answer.map_err(|refusal| refused(&offer, "a container start was refused", &refusal))
    }
}

/// Sends the list at once and after each change, until the client disconnects or the server closes.
async fn send_lists(
    state: ServiceState,
    mut closing: watch::Receiver<bool>,
    sender: mpsc::Sender<Result<ListAndWatchResponse, Status>>,
) {
    let (mut offers, mut sent) = (state.offer.clone(), None);
    let send = async {
        loop {
            let list = list(&offers.borrow_and_update());
            let is_new = sent.as_ref() != Some(&list);
            if is_new {
                if sender.send(Ok(list.clone())).await.is_err() {
                    return;
                }
                sent = Some(list);
            }
            // The first change after a pause is sent at once; changes within the time are sent together at its end.
            let rest = async {
                if is_new {
                    tokio::time::sleep(TAKEN_IN).await;
                    state.refresh_allocatable.notify_one();
                    tokio::time::sleep(COALESCE - TAKEN_IN).await;
                }
            };
            tokio::select! {
                ((), changed) = async { tokio::join!(rest, offers.changed()) } => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    };
    tokio::select! {
        () = send => {}
        // An error is the server being dropped.
        _ = closing.wait_for(|closing| *closing) => {}
    }
}

/// Every device, in the offer's order.
fn list(offer: &Offer) -> ListAndWatchResponse {
    ListAndWatchResponse { devices: offer.devices.iter().map(device).collect() }
}

fn device(device: &OfferedDevice) -> Device {
    let health = if device.health.is_ok() { "Healthy" } else { "Unhealthy" };
    let nodes: Vec<NumaNode> = device.numa_nodes.iter().map(|id| NumaNode { id: *id }).collect();
    // An empty topology would hide the device from GetAllocatableResources.
    let topology = (!nodes.is_empty()).then_some(TopologyInfo { nodes });
    Device { id: device.id.as_str().to_owned(), health: health.to_owned(), topology }
}

/// Logs a refusal and returns its gRPC status.
fn refused(offer: &Offer, what: &str, refusal: &AllocationRefusal) -> Status {
    tracing::warn!(resource = %offer.resource, %refusal, "{what}");
    let text = refusal.to_string();
    match refusal {
        AllocationRefusal::Unknown(_) => Status::invalid_argument(text),
        _ => Status::failed_precondition(text),
    }
}

fn ids(ids: &[String]) -> Vec<DeviceId> {
    ids.iter().map(|id| DeviceId::new(id.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::domain::model::UnhealthyReason;
    use crate::node::plugin::{OfferedDevice, OfferedHardware, PluginUnhealthy, SimulatedConfig};

    fn offer(devices: usize) -> Arc<Offer> {
        let device = |number| OfferedDevice::new(format!("simulated-{number}").as_str(), OfferedHardware::Nothing);
        Arc::new(Offer { resource: "example.com/toy".into(), devices: (0..devices).map(device).collect() })
    }

    /// What it offers can be changed.
    fn service() -> (watch::Sender<Arc<Offer>>, ServiceState) {
        let (publish_offer, offer) = watch::channel(offer(1));
        let config: SimulatedConfig = serde_json::from_str(r#"{"name":"example.com/toy","devices":1}"#).unwrap();
        let clock = Clock::start();
        let state = ServiceState {
            config: Arc::new(ResourceConfig::Simulated(config)),
            offer,
            facts: watch::channel(Arc::default()).1,
            hardware: watch::channel(Arc::default()).1,
            kubelet: watch::channel(Arc::default()).1,
            status: ResourceStatus::new("example.com/toy".into(), clock, watch::channel(Arc::default()).0),
            clock,
            allocated: Arc::default(),
            refresh_allocatable: Arc::default(),
        };
        (publish_offer, state)
    }

    #[tokio::test]
    async fn a_socket_whose_times_or_mode_were_changed_is_still_ours_and_is_removed_at_the_end() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let server = PluginServer::start(directory.path(), "ours.sock", service().1).unwrap();
        let socket = directory.path().join("ours.sock");
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(server.socket_is_there());
        drop(server);
        assert!(!socket.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_after_a_pause_is_sent_at_once_and_those_that_follow_together() {
        let (publish_offer, state) = service();
        let refresh_allocatable = Arc::clone(&state.refresh_allocatable);
        let (_closing, closing) = watch::channel(false);
        let (sender, mut lists) = mpsc::channel(1);
        let task = tokio::spawn(send_lists(state, closing, sender));
        let mut began = Instant::now();
        // Devices in the next list, and how many milliseconds after the last one it came.
        let mut next = async || {
            let list = lists.recv().await.unwrap().unwrap();
            let waited = began.elapsed().as_millis();
            began = Instant::now();
            (list.devices.len(), waited)
        };
        assert_eq!(next().await, (1, 0));
        tokio::time::sleep(Duration::from_secs(1)).await;
        publish_offer.send_replace(offer(2));
        assert_eq!(next().await, (2, 1000), "at once");
        publish_offer.send_replace(offer(3));
        tokio::time::sleep(Duration::from_millis(10)).await;
        publish_offer.send_replace(offer(4));
        assert_eq!(next().await, (4, 50), "both together");
        publish_offer.send_replace(offer(4));
        tokio::time::sleep(Duration::from_millis(500)).await;
        publish_offer.send_replace(offer(5));
        assert_eq!(next().await, (5, 500), "an equal list is not sent");
        refresh_allocatable.notified().await;
        drop(lists);
        task.await.unwrap();
    }

    #[test]
    fn an_unknown_topology_is_left_out_and_a_known_one_is_sent() {
        let device = |id: &str, nodes: &[i64], health| {
            let numa_nodes = nodes.iter().copied().collect();
            OfferedDevice { numa_nodes, health, ..OfferedDevice::new(id, OfferedHardware::Nothing) }
        };
        let devices = vec![
            device("a", &[], Ok(())),
            device("b", &[0, 1], Err(PluginUnhealthy::device(UnhealthyReason::Lost, "lost"))),
        ];
        let list = list(&Offer { resource: "example.com/x".into(), devices });
        assert_eq!((list.devices[0].health.as_str(), list.devices[0].topology.clone()), ("Healthy", None));
        assert_eq!(list.devices[1].health, "Unhealthy");
        let nodes = &list.devices[1].topology.as_ref().unwrap().nodes;
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
    }
}
