//! A small device plugin in place of a vendor's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use super::kubelet::{ListedDevice, Server, channel};
use crate::wire::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use crate::wire::v1beta1::registration_client::RegistrationClient;
use crate::wire::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    DevicePluginOptions, Empty, ListAndWatchResponse, Mount, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest,
};

/// How the plugin answers, from the next call on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// The text that GetDevicePluginOptions fails with.
    pub options_fail: Option<String>,
    /// ListAndWatch ends at once.
    pub list_fails: bool,
    /// Offer GetPreferredAllocation, and prefer these in this order.
    pub prefers: Option<Vec<String>>,
    pub preferred_fails: Option<String>,
    pub allocate: AllocateBehaviour,
    /// Listen on this name at every registration instead of a fresh one.
    pub socket_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllocateBehaviour {
    /// One variable with the device ids, in the requested order.
    #[default]
    Variable,
    /// One mount of `/tmp/<id>` per device, as the Kubernetes sample plugin answers.
    Mounts,
    /// No container response at all.
    Nothing,
    Fail(String),
    Hang,
}

/// The calls that the plugin received, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub registrations: usize,
    pub lists: usize,
    /// Device ids of each Allocate.
    pub allocate: Vec<Vec<String>>,
    /// (available, must include, size) of each GetPreferredAllocation.
    pub preferred: Vec<(Vec<String>, Vec<String>, usize)>,
}

/// Runs until it is dropped, which is like killing it: its socket file stays.
#[derive(Debug)]
pub struct StandInPlugin {
    inner: Arc<Inner>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    resource: String,
    devices: watch::Sender<Vec<ListedDevice>>,
    script: Mutex<(Behaviour, Calls)>,
    registered: watch::Sender<bool>,
    /// The latest attempt whose stream has ended.
    ended: watch::Sender<u64>,
    /// The server that the kubelet talks to.
    server: Mutex<Slot>,
}

#[derive(Debug)]
enum Slot {
    Server(Option<Server>),
    /// Stopped: a registration still in progress must not serve again.
    Closed,
}

impl StandInPlugin {
    /// Serves in `directory` and registers there, again after each disconnect.
    #[must_use]
    pub fn start(directory: &Path, resource: &str, devices: Vec<ListedDevice>) -> Self {
        Self::start_with(directory, resource, devices, Behaviour::default())
    }

    #[must_use]
    pub fn start_with(directory: &Path, resource: &str, devices: Vec<ListedDevice>, behaviour: Behaviour) -> Self {
        let inner = Arc::new(Inner {
            directory: directory.to_owned(),
            resource: resource.to_owned(),
            devices: watch::Sender::new(devices),
            script: Mutex::new((behaviour, Calls::default())),
            registered: watch::Sender::new(false),
            ended: watch::Sender::new(0),
            server: Mutex::new(Slot::Server(None)),
        });
        let task = tokio::spawn(run(Arc::clone(&inner)));
        Self { inner, task }
    }

    /// Until the kubelet has answered a registration. False when it does not within ten seconds.
    pub async fn registered(&self) -> bool {
        let mut registered = self.inner.registered.subscribe();
        let wait = registered.wait_for(|registered| *registered);
        tokio::time::timeout(Duration::from_secs(10), wait).await.is_ok()
    }

    pub fn set_devices(&self, devices: Vec<ListedDevice>) {
        self.inner.devices.send_replace(devices);
    }

    pub fn set_health(&self, id: &str, healthy: bool) {
        self.inner.devices.send_modify(|devices| {
            devices.iter_mut().filter(|device| device.id == id).for_each(|device| device.healthy = healthy);
        });
    }

    /// Leaves the device out of the list, which a good plugin never does.
    pub fn remove(&self, id: &str) {
        self.inner.devices.send_modify(|devices| devices.retain(|device| device.id != id));
    }

    pub fn set_behaviour(&self, behaviour: Behaviour) {
        self.inner.script().0 = behaviour;
    }

    #[must_use]
    pub fn calls(&self) -> Calls {
        self.inner.script().1.clone()
    }

    /// Ends it as SIGKILL would.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for StandInPlugin {
    fn drop(&mut self) {
        self.task.abort();
        *self.inner.server() = Slot::Closed;
    }
}

impl Inner {
    fn script(&self) -> MutexGuard<'_, (Behaviour, Calls)> {
        self.script.lock()
    }

    fn server(&self) -> MutexGuard<'_, Slot> {
        self.server.lock()
    }

    /// Ends the server there was. A stopped plugin stays stopped.
    fn serve(&self, server: Option<Server>) {
        if let Slot::Server(slot) = &mut *self.server() {
            *slot = server;
        }
    }
}

const POLL: Duration = Duration::from_millis(50);

/// Serves and registers, again when the kubelet is another one or has ended the stream.
async fn run(inner: Arc<Inner>) {
    for attempt in 1_u64.. {
        let kubelet = inner.directory.join("kubelet.sock");
        let inode = inode(&kubelet);
        let ended = inner.ended.subscribe();
        match register(&inner, &kubelet, attempt).await {
            Ok(()) => {
                inner.registered.send_replace(true);
                until_lost(&kubelet, inode, attempt, ended).await;
                inner.registered.send_replace(false);
            }
            Err(error) => tracing::debug!(error, resource = inner.resource, "stand-in plugin not registered"),
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn register(inner: &Arc<Inner>, kubelet: &Path, attempt: u64) -> Result<(), String> {
    let name = inner.resource.replace(['/', '.'], "-");
    let fresh = || format!("{name}-{:p}-{attempt}.sock", Arc::as_ptr(inner));
    let endpoint = inner.script().0.socket_name.clone().unwrap_or_else(fresh);
    // The old server and its stream go first.
    inner.serve(None);
    let path = inner.directory.join(&endpoint);
    remove(&path).map_err(|error| error.to_string())?;
    let listener = UnixListener::bind(&path).map_err(|error| error.to_string())?;
    let service = DevicePluginServer::new(Service { inner: Arc::clone(inner), attempt });
    inner.serve(Some(Server::start(listener, tonic::transport::Server::builder().add_service(service))));

    let channel = channel(kubelet).await.map_err(|error| error.to_string())?;
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint,
        resource_name: inner.resource.clone(),
        options: None,
    };
    inner.script().1.registrations += 1;
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map(drop).map_err(|status| status.message().to_owned())
}

async fn until_lost(kubelet: &Path, registered_at: Option<u64>, attempt: u64, mut ended: watch::Receiver<u64>) {
    while inode(kubelet) == registered_at {
        if tokio::time::timeout(POLL, ended.wait_for(|ended| *ended >= attempt)).await.is_ok() {
            return;
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[derive(Clone, Debug)]
struct Service {
    inner: Arc<Inner>,
    attempt: u64,
}

#[async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        let behaviour = &self.inner.script().0;
        match &behaviour.options_fail {
            Some(text) => Err(Status::unknown(text.clone())),
            None => Ok(Response::new(DevicePluginOptions {
                pre_start_required: false,
                get_preferred_allocation_available: behaviour.prefers.is_some() || behaviour.preferred_fails.is_some(),
            })),
        }
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut script = self.inner.script();
        script.1.lists += 1;
        if script.0.list_fails {
            return Err(Status::unknown("no list today"));
        }
        let (sender, receiver) = mpsc::channel(1);
        let task = tokio::spawn(send_lists(Arc::clone(&self.inner), sender));
        Ok(Response::new(Box::pin(Owned { stream: ReceiverStream::new(receiver), task, service: self.clone() })))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut script = self.inner.script();
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let (mut available, mut must) = (container.available_device_i_ds, container.must_include_device_i_ds);
            available.sort();
            must.sort();
            script.1.preferred.push((available, must, usize::try_from(container.allocation_size).unwrap_or(0)));
            let device_i_ds = script.0.prefers.clone().unwrap_or_default();
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        match &script.0.preferred_fails {
            Some(text) => Err(Status::unknown(text.clone())),
            None => Ok(Response::new(PreferredAllocationResponse { container_responses })),
        }
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let behaviour = {
            let mut script = self.inner.script();
            script.1.allocate.extend(requests.iter().map(|container| container.devices_ids.clone()));
            script.0.allocate.clone()
        };
        let known: BTreeSet<String> = self.inner.devices.borrow().iter().map(|device| device.id.clone()).collect();
        if let Some(id) = requests.iter().flat_map(|container| &container.devices_ids).find(|id| !known.contains(*id)) {
            return Err(Status::invalid_argument(format!("unknown device {id}")));
        }
        let answer = |answer: fn(&Inner, &[String]) -> ContainerAllocateResponse| AllocateResponse {
            container_responses: requests.iter().map(|container| answer(&self.inner, &container.devices_ids)).collect(),
        };
        match behaviour {
            AllocateBehaviour::Variable => Ok(Response::new(answer(variable))),
            AllocateBehaviour::Mounts => Ok(Response::new(answer(mounts))),
            AllocateBehaviour::Nothing => Ok(Response::new(AllocateResponse::default())),
            AllocateBehaviour::Fail(text) => Err(Status::unknown(text)),
            AllocateBehaviour::Hang => std::future::pending().await,
        }
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Sends the list at once and after every change, until the kubelet disconnects.
async fn send_lists(inner: Arc<Inner>, sender: mpsc::Sender<Result<ListAndWatchResponse, Status>>) {
    let mut devices = inner.devices.subscribe();
    loop {
        let list = devices.borrow_and_update().iter().map(ListedDevice::to_wire).collect();
        if sender.send(Ok(ListAndWatchResponse { devices: list })).await.is_err() {
            break;
        }
        tokio::select! {
            changed = devices.changed() => if changed.is_err() { break },
            () = sender.closed() => break,
        }
    }
}

/// `LAB_DEVICES_GPU=<id>,<id>` for `lab.example.com/gpu`.
fn variable(inner: &Inner, devices: &[String]) -> ContainerAllocateResponse {
    let name = inner.resource.rsplit('/').next().unwrap_or_default();
    let name = name.to_uppercase().replace(['.', '-'], "_");
    let variables = BTreeMap::from([(format!("LAB_DEVICES_{name}"), devices.join(","))]);
    ContainerAllocateResponse { envs: variables.into_iter().collect(), ..Default::default() }
}

fn mounts(_: &Inner, devices: &[String]) -> ContainerAllocateResponse {
    let mount =
        |id: &String| Mount { container_path: format!("/tmp/{id}"), host_path: format!("/tmp/{id}"), read_only: false };
    ContainerAllocateResponse { mounts: devices.iter().map(mount).collect(), ..Default::default() }
}

/// A stream that, when the kubelet drops it, ends the task that feeds it and records that.
struct Owned {
    stream: ReceiverStream<Result<ListAndWatchResponse, Status>>,
    task: JoinHandle<()>,
    service: Service,
}

impl Stream for Owned {
    type Item = Result<ListAndWatchResponse, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        Pin::new(&mut self.stream).poll_next(context)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.task.abort();
        let attempt = self.service.attempt;
        self.service.inner.ended.send_modify(|ended| *ended = attempt.max(*ended));
    }
}
