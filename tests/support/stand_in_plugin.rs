//! A small device plugin in place of a vendor's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use podmeter::simulation::kubelet::{ListedDevice, SocketServer, channel};
use podmeter::wire::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use podmeter::wire::v1beta1::registration_client::RegistrationClient;
use podmeter::wire::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};

/// A running plugin. Dropping it is like killing it: its socket file stays.
#[derive(Debug)]
pub struct StandInPlugin {
    inner: Arc<StandInState>,
    _task: JoinSet<()>,
}

#[derive(Debug, Default)]
struct StandInState {
    directory: PathBuf,
    resource: String,
    /// The name of the socket at every registration; `None`: a new name each time.
    socket_name: Option<String>,
    /// The pause after a failed registration with a new kubelet.
    retry: Duration,
    devices: watch::Sender<Vec<ListedDevice>>,
    registrations: AtomicUsize,
    allocations: AtomicUsize,
    registered: watch::Sender<bool>,
    /// The latest attempt whose stream has ended.
    ended: watch::Sender<u64>,
}

impl StandInPlugin {
    /// Serves in `directory` and registers there, again after each disconnect. It prefers devices in their order.
    pub fn start(directory: &Path, resource: &str, devices: Vec<ListedDevice>) -> Self {
        Self::start_on(directory, resource, devices, None)
    }

    pub fn start_on(directory: &Path, resource: &str, devices: Vec<ListedDevice>, socket_name: Option<&str>) -> Self {
        Self::start_with(StandInState {
            directory: directory.to_owned(),
            resource: resource.to_owned(),
            socket_name: socket_name.map(str::to_owned),
            retry: POLL,
            devices: watch::Sender::new(devices),
            ..StandInState::default()
        })
    }

    /// Like `start`, but waits for `retry` when a kubelet that has just started refuses it.
    pub fn start_retrying(directory: &Path, resource: &str, devices: Vec<ListedDevice>, retry: Duration) -> Self {
        Self::start_with(StandInState {
            directory: directory.to_owned(),
            resource: resource.to_owned(),
            retry,
            devices: watch::Sender::new(devices),
            ..StandInState::default()
        })
    }

    fn start_with(state: StandInState) -> Self {
        let inner = Arc::new(state);
        Self { _task: JoinSet::from_iter([run(Arc::clone(&inner))]), inner }
    }

    /// Waits until the kubelet has answered a registration. Returns false when it does not within ten seconds.
    pub async fn registered(&self) -> bool {
        let mut registered = self.inner.registered.subscribe();
        let wait = registered.wait_for(|registered| *registered);
        tokio::time::timeout(Duration::from_secs(10), wait).await.is_ok()
    }

    pub fn set_health(&self, id: &str, healthy: bool) {
        self.inner.devices.send_modify(|devices| {
            devices.iter_mut().filter(|device| device.id == id).for_each(|device| device.healthy = healthy);
        });
    }

    /// Removes the device from the list, which a correct plugin never does.
    pub fn remove(&self, id: &str) {
        self.inner.devices.send_modify(|devices| devices.retain(|device| device.id != id));
    }

    /// The number of calls of Register so far.
    pub fn registrations(&self) -> usize {
        self.inner.registrations.load(Ordering::Relaxed)
    }

    /// Calls Register once more, with the socket that listens. Returns false when the kubelet does not accept it.
    pub async fn register_again(&self) -> bool {
        let Some(endpoint) = self.inner.socket_name.clone() else { return false };
        call_register(&self.inner, endpoint).await.is_ok()
    }

    /// The number of calls of Allocate so far.
    pub fn allocations(&self) -> usize {
        self.inner.allocations.load(Ordering::Relaxed)
    }
}

const POLL: Duration = Duration::from_millis(50);

/// Serves and registers, again when another kubelet has started or the stream has ended.
async fn run(inner: Arc<StandInState>) {
    // The server ends with this task.
    let mut server = None;
    let mut left = None;
    for attempt in 1_u64.. {
        let kubelet = inner.directory.join("kubelet.sock");
        let socket = identity(&kubelet);
        let ended = inner.ended.subscribe();
        match register(&inner, attempt, &mut server).await {
            Ok(()) => {
                inner.registered.send_replace(true);
                until_lost(&kubelet, socket, attempt, ended).await;
                inner.registered.send_replace(false);
                left = socket;
                tokio::time::sleep(POLL).await;
            }
            Err(error) => {
                tracing::debug!(error, resource = inner.resource, "stand-in plugin not registered");
                tokio::time::sleep(if socket == left { POLL } else { inner.retry }).await;
            }
        }
    }
}

async fn register(inner: &Arc<StandInState>, attempt: u64, server: &mut Option<SocketServer>) -> Result<(), String> {
    let name = inner.resource.replace(['/', '.'], "-");
    let fresh = || format!("{name}-{:p}-{attempt}.sock", Arc::as_ptr(inner));
    let endpoint = inner.socket_name.clone().unwrap_or_else(fresh);
    // The old server and its stream go first.
    drop(server.take());
    let path = inner.directory.join(&endpoint);
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|error| error.to_string())?;
    let service = DevicePluginServer::new(StandInService { inner: Arc::clone(inner), attempt });
    *server = Some(SocketServer::start(listener, tonic::transport::Server::builder().add_service(service)));

    call_register(inner, endpoint).await
}

async fn call_register(inner: &StandInState, endpoint: String) -> Result<(), String> {
    let channel = channel(&inner.directory.join("kubelet.sock")).await.map_err(|error| error.to_string())?;
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint,
        resource_name: inner.resource.clone(),
        options: None,
    };
    inner.registrations.fetch_add(1, Ordering::Relaxed);
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map(drop).map_err(|status| status.message().to_owned())
}

async fn until_lost(kubelet: &Path, registered_at: SocketFile, attempt: u64, mut ended: watch::Receiver<u64>) {
    while identity(kubelet) == registered_at {
        if tokio::time::timeout(POLL, ended.wait_for(|ended| *ended >= attempt)).await.is_ok() {
            return;
        }
    }
}

/// The inode and the time of creation; `None`: there is no file.
type SocketFile = Option<(u64, i64, i64)>;

fn identity(path: &Path) -> SocketFile {
    fs::metadata(path).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()))
}

#[derive(Clone, Debug)]
struct StandInService {
    inner: Arc<StandInState>,
    attempt: u64,
}

#[async_trait]
impl DevicePlugin for StandInService {
    type ListAndWatchStream = ReceiverStream<Result<ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        let options = DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };
        Ok(Response::new(options))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let Self { inner, attempt } = self.clone();
        tokio::spawn(async move {
            send_lists(&inner, sender).await;
            inner.ended.send_modify(|ended| *ended = attempt.max(*ended));
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let ids = || self.inner.devices.borrow().iter().map(|device| device.id.clone()).collect();
        let requests = request.into_inner().container_requests.into_iter();
        let responses = requests.map(|_| ContainerPreferredAllocationResponse { device_i_ds: ids() });
        Ok(Response::new(PreferredAllocationResponse { container_responses: responses.collect() }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        self.inner.allocations.fetch_add(1, Ordering::Relaxed);
        let requests = request.into_inner().container_requests;
        let container_responses = vec![ContainerAllocateResponse::default(); requests.len()];
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Sends the list at once and after every change, until the kubelet disconnects.
async fn send_lists(inner: &StandInState, sender: mpsc::Sender<Result<ListAndWatchResponse, Status>>) {
    let mut devices = inner.devices.subscribe();
    loop {
        let list = devices.borrow_and_update().iter().map(ListedDevice::to_wire).collect();
        if sender.send(Ok(ListAndWatchResponse { devices: list })).await.is_err() {
            return;
        }
        tokio::select! {
            changed = devices.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
        }
    }
}
