//! Start, stop and restart of the fake kubelet. It starts its servers, then the device manager, then the pods; a restarted
//! one then admits again the pods that ran before.
//!
//! In: the shared state, its times, the pods that ran. Out: the servers that run. Does not use: plugins.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixSocket;
use tokio::task::JoinSet;

use super::admission::{AdmittedContainers, admit_again};
use super::checkpoint::SimulatedCheckpoint;
use super::device_manager::{DeviceManager, KubeletVersion};
use super::pods_api::PodsApi;
use super::registration::Registry;
use super::shared::{self, SharedKubelet};
use super::socket::{self, SocketServer};
use super::state::{Boot, PodPhase, SimulatedPod};
use super::{FakeKubelet, Options, SOCKET};
use crate::simulation::gone;
use crate::wire::v1::pod_resources_lister_server::PodResourcesListerServer;
use crate::wire::v1alpha1::pods_server::PodsServer;
use crate::wire::v1beta1::registration_server::RegistrationServer;

/// As Go's programs have it on most nodes.
const BACKLOG: u32 = 4096;

#[derive(Debug, Default)]
pub struct RunningServers {
    pod_resources: Option<SocketServer>,
    pods_api: Option<SocketServer>,
    boot: JoinSet<()>,
}

impl FakeKubelet {
    /// Breaks all connections and leaves its sockets behind as stale files. Pods, claims and options stay; the device
    /// manager's allocations are read from the checkpoint at the next start.
    pub fn stop(&self) {
        drop(std::mem::take(&mut *self.running.lock()));
        self.shared.state.lock().boot = Boot::Off;
        self.shared.plugins.lock().clear();
        self.shared.changed();
    }

    /// Begins to serve again. Returns at the beginning of the early window.
    pub fn restart(&self) -> io::Result<()> {
        self.stop();
        let state = self.shared.state.lock();
        let early_window = state.options.early_window;
        let running = state.pods.iter().filter(|pod| pod.phase == PodPhase::Running).cloned().collect();
        drop(state);
        self.switch_on(early_window, running)
    }

    /// Waits until the early window is over; returns at once where the kubelet is stopped.
    pub async fn ready(&self) {
        self.shared.until(|| matches!(self.shared.boot(), Boot::Off | Boot::Ready)).await;
    }

    /// Starts. The pods of `running` have running containers, and are admitted again.
    pub(super) fn switch_on(&self, window: Duration, running: Vec<SimulatedPod>) -> io::Result<()> {
        let shared = &self.shared;
        let path = self.pod_resources_socket();
        let listener = socket::bind_by_rename(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        *shared.limiter.lock() = shared::rate_limit(shared.now());
        shared.state.lock().boot = Boot::Starting;
        let Options { version, gates, .. } = shared.state.lock().options.clone();
        let lister = PodResourcesListerServer::from_arc(Arc::clone(shared));
        let router = tonic::transport::Server::builder().add_service(lister);
        let mut servers = self.running.lock();
        servers.pod_resources = Some(SocketServer::start(listener, router));
        if version == KubeletVersion::From137 || gates.pods_api {
            servers.pods_api = Some(self.serve_pods()?);
        }
        servers.boot.spawn(boot(Arc::clone(shared), window, running));
        Ok(())
    }

    fn serve_pods(&self) -> io::Result<SocketServer> {
        let path = self.pods_api_socket();
        let directory = path.parent().expect("it is below the root");
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o750))?;
        let listener = socket::bind_by_rename(&path)?;
        let api = PodsServer::new(PodsApi(Arc::clone(&self.shared)));
        Ok(SocketServer::start(listener, tonic::transport::Server::builder().add_service(api)))
    }
}

/// The second half of a start: the device manager, then the pods. Keeps the registration server until the kubelet ends.
async fn boot(shared: Arc<SharedKubelet>, window: Duration, running: Vec<SimulatedPod>) {
    tokio::time::sleep(window * 3 / 4).await;
    let admission = tokio::time::Instant::now() + shared.state.lock().options.admission_after;
    let registration = start_device_manager(&shared)
        .await
        .inspect_err(|error| tracing::warn!(%error, "the simulated device manager did not start"));
    tokio::time::sleep(window / 4).await;
    shared.proceed(Boot::Ready);
    tokio::time::sleep_until(admission).await;
    admit_again(&shared, &running, AdmittedContainers::Ended).await;
    std::future::pending::<()>().await;
    drop(registration);
}

/// Reads the checkpoint, deletes the plugins' sockets, then makes the registration socket.
async fn start_device_manager(shared: &Arc<SharedKubelet>) -> io::Result<SocketServer> {
    let now = shared.now();
    let known = SimulatedCheckpoint::read(&shared.device_plugins);
    let bind_to_listen = {
        let mut state = shared.state.lock();
        state.devices = DeviceManager::restored(&known.unwrap_or_default(), now, &state.devices);
        state.options.bind_to_listen
    };
    shared.proceed(Boot::Partial);
    for entry in fs::read_dir(&shared.device_plugins)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            gone(fs::remove_file(entry.path()))?;
        }
    }
    let path = shared.device_plugins.join(SOCKET);
    let bound = UnixSocket::new_stream()?;
    bound.bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    tokio::time::sleep(bind_to_listen).await;
    let listener = bound.listen(BACKLOG)?;
    let registry = RegistrationServer::new(Registry(Arc::clone(shared)));
    Ok(SocketServer::start(listener, tonic::transport::Server::builder().add_service(registry)))
}
