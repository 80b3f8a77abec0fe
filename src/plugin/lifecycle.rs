//! One resource from listen to end: serve, dial our own socket, register, follow. When any step fails, all of it ends
//! and starts again.
//!
//! In: the service state, the kubelet's socket and state, other live sockets. Out: a registration, and the resource's
//! status.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::conflict::conflict;
use super::live_sockets::{LiveSockets, OwnSockets};
use super::server::{Server, ServiceState};
use super::sockets::{self, Identity};
use super::{Offer, OnConflict, PluginUnhealthy};
use crate::backoff::{Backoff, with_jitter};
use crate::model::{DeviceId, KubeletState, Monotonic, ResourceName};
use crate::wire::channel_over;
use crate::wire::v1beta1::device_plugin_client::DevicePluginClient;
use crate::wire::v1beta1::registration_client::RegistrationClient;
use crate::wire::v1beta1::{Empty, RegisterRequest};

const VERSION: &str = "v1beta1";
/// First and longest pause between attempts to register.
const RETRIES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// Our own server, in this process.
const DIAL_DEADLINE: Duration = Duration::from_secs(5);
/// What a socket's address holds, less the zero at its end.
const LONGEST_PATH: usize = 107;
/// For the first health of the devices. A kubelet that is sent devices before they are checked shows them as unhealthy
/// on every pod that holds one, at each start of podmeter.
const FIRST_CHECK: Duration = Duration::from_secs(2);
/// For the kubelet's first answer on what it can allocate. Some kubelets have none.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// While another plugin has the resource and no socket of it is seen: its end must be seen within a second.
const CONFLICT_CHECK: Duration = Duration::from_millis(600);
/// While others listen: the end of one is seen by itself.
const QUIET_CHECK: Duration = Duration::from_secs(5);
/// The kubelet sees the end of a plugin when we do.
const AFTER_CLOSING: Duration = Duration::from_millis(100);
/// A registration that lasted this long was a good one: the next failure is a first one.
const LASTED: Duration = Duration::from_secs(30);

/// How long the kubelet may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The kubelet dials back within a Register, for up to ten seconds.
    pub register: Duration,
    /// The kubelet opens the list right after a registration, and only once.
    pub list: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { register: Duration::from_secs(15), list: Duration::from_secs(10) }
    }
}

/// A resource's lifecycle and all that it depends on.
#[derive(Debug)]
pub struct Lifecycle {
    pub directory: PathBuf,
    pub state: ServiceState,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// Wakes when the directory changes.
    pub changes: watch::Receiver<u64>,
    /// Sockets of others; `None` until the directory was read.
    pub live: watch::Receiver<Option<Arc<LiveSockets>>>,
    pub own_sockets: OwnSockets,
    /// Why it is to end.
    pub stop: watch::Receiver<Option<&'static str>>,
    /// The devices that earlier lifecycles of the resource sent to the kubelet.
    pub advertised: BTreeSet<DeviceId>,
    /// Earlier answers of the kubelet are about a plugin that has ended since.
    pub answers_from: Monotonic,
    pub deadlines: Deadlines,
}

/// The result of a lifecycle.
#[derive(Debug)]
pub struct EndedLifecycle {
    pub resource: ResourceName,
    /// The devices that it and those before it sent to the kubelet.
    pub advertised: BTreeSet<DeviceId>,
}

/// Why one round ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("{0} is not there: the kubelet is not running, or --device-plugin-dir is not its directory")]
    NoKubelet(PathBuf),
    #[error("{path}: {error}; the directory must be there and writable")]
    Socket { path: PathBuf, error: std::io::Error },
    #[error(
        "{path} has {} bytes, and the path of a socket at most {LONGEST_PATH}: let the kubelet's directory appear at a \
         shorter path (--device-plugin-dir)",
        path.as_os_str().len()
    )]
    PathTooLong { path: PathBuf },
    #[error("our own server does not answer: {0}")]
    Dial(String),
    #[error("the kubelet does not register the plugin: {0}")]
    Register(String),
    #[error("the kubelet registered the plugin but did not ask for its devices within {0:?}")]
    NotListed(Duration),
    #[error("the kubelet ended the device list")]
    StreamLost,
    #[error("our socket file was removed")]
    SocketRemoved,
    #[error("kubelet.sock was removed: the kubelet is restarting, or its directory was cleared")]
    KubeletSocketRemoved,
    #[error("the kubelet was restarted: kubelet.sock is a new one")]
    KubeletRestarted,
    #[error("{0}")]
    Replaced(String),
    #[error("another device plugin of the resource has ended, and a kubelet up to 1.36 drops the resource with it")]
    OtherGone,
    #[error(
        "the kubelet no longer lists any device of the resource, as one up to 1.36 does when another plugin of it ended"
    )]
    Forgotten,
}

impl Lifecycle {
    /// Runs until `stop`. The socket is removed then.
    pub async fn run(mut self) -> EndedLifecycle {
        let mut backoff = Backoff::new(RETRIES);
        let mut stop = self.stop.clone();
        let mut logged = String::new();
        let began = self.now();
        if !self.advertised.is_empty() {
            tokio::time::sleep(AFTER_CLOSING).await;
        }
        loop {
            let mut server = None;
            let mut registered_at = None;
            let kubelet = Identity::of(&sockets::kubelet_socket(&self.directory));
            let ended = tokio::select! {
                ended = self.round(kubelet, began, &mut server, &mut registered_at) => Some(ended),
                _ = stop.wait_for(Option::is_some) => None,
            };
            // Ours goes first: an older kubelet that sees it go later would take it for the new one.
            if let Some(server) = server {
                let name = server.name();
                server.close().await;
                self.own_sockets.remove(&name);
            }
            if let Some(at) = registered_at {
                self.advertised.extend(self.state.offer.borrow().devices.iter().map(|device| device.id.clone()));
                logged.clear();
                if self.now().since(at) >= LASTED {
                    backoff.reset();
                }
            }
            let Some(ended) = ended else { break };
            let reason = ended.to_string();
            self.state.status.unregistered(&reason);
            if let Ended::Replaced(by) = &ended {
                self.state.status.conflict(Some(by));
            }
            if logged != reason {
                tracing::warn!(resource = %self.resource(), "not registered: {reason}");
                logged = reason;
            }
            let pause = match ended {
                // It must not be confused with the end of the next registration.
                Ended::OtherGone => {
                    backoff.reset();
                    self.answers_from = self.now();
                    AFTER_CLOSING
                }
                _ => with_jitter(backoff.pause(), sockets::random()),
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.other_kubelet(kubelet) => backoff.reset(),
                _ = stop.wait_for(Option::is_some) => break,
            }
        }
        let reason = stop.borrow().unwrap_or("podmeter is ending");
        self.state.status.unregistered(reason);
        EndedLifecycle { resource: self.resource(), advertised: self.advertised }
    }

    async fn round(
        &mut self,
        kubelet: Option<Identity>,
        began: Monotonic,
        server: &mut Option<Server>,
        registered_at: &mut Option<Monotonic>,
    ) -> Ended {
        let kubelet_socket = sockets::kubelet_socket(&self.directory);
        if kubelet.is_none() {
            return Ended::NoKubelet(kubelet_socket);
        }
        if self.state.config.on_conflict() == OnConflict::Wait {
            self.until_free().await;
        }
        self.until_checked(began).await;
        let resource = self.resource();
        // Plugins that serve already are replaced; one that registers later replaces us.
        let harmless = match self.state.config.on_conflict() {
            OnConflict::Takeover => self.live_sockets().as_ref().clone(),
            OnConflict::Wait => LiveSockets::new(),
        };
        let name = sockets::fresh_name(&resource);
        self.own_sockets.insert(&name);
        let server = match Server::start(&self.directory, &name, self.state.clone()) {
            Ok(started) => server.insert(started),
            Err(error) => {
                self.own_sockets.remove(&name);
                let path = self.directory.join(name);
                let is_long = path.as_os_str().len() > LONGEST_PATH;
                return if is_long { Ended::PathTooLong { path } } else { Ended::Socket { path, error } };
            }
        };
        if let Err(error) = dial(server.path()).await {
            return Ended::Dial(error);
        }
        // A kubelet that has purged our socket would dial it for ten seconds.
        let outcome = tokio::select! {
            outcome = register(&kubelet_socket, name, resource.as_str(), self.deadlines.register) => outcome,
            ended = until_displaced(&mut self.changes, &kubelet_socket, kubelet, server) => return ended,
        };
        if let Err(error) = outcome {
            return Ended::Register(error);
        }
        *registered_at = Some(self.now());
        self.state.status.registered();
        tracing::info!(%resource, devices = self.state.offer.borrow().devices.len(), "registered with the kubelet");
        self.follow(server, kubelet, harmless).await
    }

    /// Returns when no other plugin serves the resource.
    async fn until_free(&mut self) {
        let known = |state: &Arc<KubeletState>| state.allocatable_at.is_some() || state.problem.is_some();
        // No answer is no conflict; an error is the agent ending.
        let _ = tokio::time::timeout(FIRST_ANSWER, self.kubelet.wait_for(known)).await;
        let mut waited = false;
        let mut looked_at = self.now();
        let mut live_before = None;
        // An error is the agent ending.
        let _ = self.live.wait_for(Option::is_some).await;
        loop {
            let live: Vec<String> = self.live_sockets().keys().cloned().collect();
            let Some(reason) = self.conflict(&live) else {
                if waited {
                    tracing::info!(resource = %self.resource(), "no other device plugin serves the resource any more");
                    self.state.status.conflict(None);
                }
                return;
            };
            if !waited {
                tracing::warn!(resource = %self.resource(), "waiting: {reason}");
                self.state.status.conflict(Some(&reason));
                waited = true;
            }
            let now = self.now();
            let interval = if live.is_empty() { CONFLICT_CHECK } else { QUIET_CHECK };
            if now.since(looked_at) >= interval || live_before.as_ref() != Some(&live) {
                self.state.look.notify_one();
                looked_at = now;
            }
            tokio::select! {
                changed = self.kubelet.changed() => if changed.is_err() { std::future::pending().await },
                () = tokio::time::sleep((looked_at + interval).since(now)) => {}
                changed = self.live.changed() => match changed {
                    Ok(()) => tokio::time::sleep(AFTER_CLOSING).await,
                    Err(_) => std::future::pending().await,
                },
            }
            live_before = Some(live);
        }
    }

    /// Until every device has been checked, for some time after the lifecycle `began`. A kubelet that had the resource
    /// before gets it at once.
    async fn until_checked(&mut self, began: Monotonic) {
        if !self.advertised.is_empty() {
            return;
        }
        let is_unchecked =
            |health: &Result<(), PluginUnhealthy>| health.as_ref().is_err_and(PluginUnhealthy::is_unchecked);
        let checked = |offer: &Arc<Offer>| !offer.devices.iter().any(|device| is_unchecked(&device.health));
        let left = FIRST_CHECK.saturating_sub(self.now().since(began));
        // Unchecked devices are then sent as they are; an error means that the agent is ending.
        let _ = tokio::time::timeout(left, self.state.offer.wait_for(checked)).await;
    }

    /// Which other plugin has the resource now.
    fn conflict(&mut self, live: &[String]) -> Option<String> {
        let resource = self.resource();
        let state = Arc::clone(&self.kubelet.borrow_and_update());
        let nothing = BTreeSet::new();
        let is_new = state.allocatable_at.is_some_and(|at| at.monotonic > self.answers_from);
        let allocatable = state.allocatable.as_ref().filter(|_| is_new);
        let listed = allocatable.and_then(|allocatable| allocatable.devices.get(&resource));
        conflict(&resource, listed.unwrap_or(&nothing), &self.advertised, live)
    }

    /// Until another kubelet's socket is there.
    async fn other_kubelet(&mut self, than: Option<Identity>) {
        let socket = sockets::kubelet_socket(&self.directory);
        loop {
            let now = Identity::of(&socket);
            if now.is_some() && now != than {
                return;
            }
            if self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) fn now(&self) -> Monotonic {
        self.state.clock.now().monotonic
    }

    pub(super) fn live_sockets(&mut self) -> Arc<LiveSockets> {
        self.live.borrow_and_update().clone().unwrap_or_default()
    }

    pub(super) fn resource(&self) -> ResourceName {
        self.state.offer.borrow().resource.clone()
    }
}

/// Whether the kubelet is another one, or our socket no longer exists.
pub(super) fn displaced(kubelet_socket: &Path, kubelet: Option<Identity>, server: &Server) -> Option<Ended> {
    match Identity::of(kubelet_socket) {
        None => Some(Ended::KubeletSocketRemoved),
        now if now != kubelet => Some(Ended::KubeletRestarted),
        _ if !server.socket_is_there() => Some(Ended::SocketRemoved),
        _ => None,
    }
}

async fn until_displaced(
    changes: &mut watch::Receiver<u64>,
    kubelet_socket: &Path,
    kubelet: Option<Identity>,
    server: &Server,
) -> Ended {
    loop {
        if let Some(ended) = displaced(kubelet_socket, kubelet, server) {
            return ended;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn dial(socket: &Path) -> Result<(), String> {
    let call = async {
        let mut client = DevicePluginClient::new(channel(socket).await?);
        client.get_device_plugin_options(Empty {}).await.map_err(|status| status.message().to_owned())
    };
    within(DIAL_DEADLINE, call).await.map(drop)
}

async fn register(kubelet: &Path, endpoint: String, resource: &str, deadline: Duration) -> Result<(), String> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint,
        resource_name: resource.to_owned(),
        // The kubelet dials the plugin itself.
        options: None,
    };
    let call = async {
        let mut client = RegistrationClient::new(channel(kubelet).await?);
        client.register(request).await.map_err(|status| status.message().to_owned())
    };
    within(deadline, call).await.map(drop)
}

async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let late = |_| Err(format!("no answer within {deadline:?}"));
    tokio::time::timeout(deadline, call).await.unwrap_or_else(late)
}

async fn channel(socket: &Path) -> Result<Channel, String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| format!("{}: {error}", socket.display()))?;
    channel_over(stream).await.map_err(|error| error.to_string())
}
