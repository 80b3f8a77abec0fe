//! Start, stop and restart of the fake kubelet. It starts its servers, then the device manager, then the pods.
//!
//! In: the shared state and the early window. Out: the servers that run. Does not use: pods, plugins.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::JoinSet;

use super::checkpoint::SimulatedCheckpoint;
use super::device_manager::{DeviceManager, KubeletVersion};
use super::lister::Lister;
use super::pods_api::PodsApi;
use super::registration::Registry;
use super::shared::{self, SharedKubelet};
use super::socket::{self, SocketServer};
use super::state::Boot;
use super::{FakeKubelet, Options, SOCKET};
use crate::simulation::gone;
use crate::wire::v1::pod_resources_lister_server::PodResourcesListerServer;
use crate::wire::v1alpha1::pods_server::PodsServer;
use crate::wire::v1beta1::registration_server::RegistrationServer;

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
        let early_window = self.shared.state.lock().options.early_window;
        self.switch_on(early_window)
    }

    /// Waits until the early window is over; returns at once where the kubelet is stopped.
    pub async fn ready(&self) {
        self.shared.until(|| matches!(self.shared.boot(), Boot::Off | Boot::Ready)).await;
    }

    pub(super) fn switch_on(&self, window: Duration) -> io::Result<()> {
        let shared = &self.shared;
        let path = self.pod_resources_socket();
        let listener = socket::bind_by_rename(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        *shared.limiter.lock() = shared::rate_limit(shared.now());
        shared.state.lock().boot = Boot::Starting;
        let Options { version, gates, .. } = shared.state.lock().options.clone();
        let lister = Lister(Arc::clone(shared));
        let router = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(lister));
        let mut running = self.running.lock();
        running.pod_resources = Some(SocketServer::start(listener, router));
        if version == KubeletVersion::From137 || gates.pods_api {
            running.pods_api = Some(self.serve_pods()?);
        }
        running.boot.spawn(boot(Arc::clone(shared), window));
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
async fn boot(shared: Arc<SharedKubelet>, window: Duration) {
    tokio::time::sleep(window * 3 / 4).await;
    let registration = start_device_manager(&shared)
        .inspect_err(|error| tracing::warn!(%error, "the simulated device manager did not start"));
    tokio::time::sleep(window / 4).await;
    shared.proceed(Boot::Ready);
    std::future::pending::<()>().await;
    drop(registration);
}

/// Reads the checkpoint, deletes the plugins' sockets, then makes the registration socket.
fn start_device_manager(shared: &Arc<SharedKubelet>) -> io::Result<SocketServer> {
    let now = shared.now();
    let known = SimulatedCheckpoint::read(&shared.device_plugins);
    let mut state = shared.state.lock();
    state.devices = DeviceManager::restored(&known.unwrap_or_default(), now, &state.devices);
    drop(state);
    shared.proceed(Boot::Partial);
    for entry in fs::read_dir(&shared.device_plugins)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            gone(fs::remove_file(entry.path()))?;
        }
    }
    let path = shared.device_plugins.join(SOCKET);
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    let registry = RegistrationServer::new(Registry(Arc::clone(shared)));
    Ok(SocketServer::start(listener, tonic::transport::Server::builder().add_service(registry)))
}
