//! One resource from listen to end. When any step fails, all of it ends and starts again.
//!
//! ```text
//!             kubelet.sock is there,               Register
//!   Waiting ─────────────────────────► Serving ──────────────► Registered
//!    ▲  ▲      no other plugin            │       succeeds          │
//!    │  └──────────── back off ───────────┘                         │
//!    │                 refused                                      │
//!    └──────────────────────────────────────────────────────────────┘
//!      kubelet.sock replaced, our socket gone, stream ended, our IDs gone in two answers,
//!      conflict over; the owner ends it where the layout or the configuration has changed
//! ```
//!
//! In: the service state, the kubelet's socket and answers. Out: a registration, and the resource's status.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::Channel;

use super::conflict::{self, Comparison, Comparisons, SETTLE, conflict};
use super::server::{PluginServer, ServiceState};
use super::sockets::{self, SocketIdentity};
use super::{Offer, OnConflict, PluginUnhealthy};
use crate::backoff::{Backoff, with_jitter};
use crate::domain::model::{DeviceId, KubeletState, Monotonic, ResourceName};
use crate::node::wire::channel_over;
use crate::node::wire::v1beta1::RegisterRequest;
use crate::node::wire::v1beta1::registration_client::RegistrationClient;
use crate::tasks::{changed, within};

const VERSION: &str = "v1beta1";
/// First and longest pause between attempts to register.
const RETRIES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// For the first health of the devices. A kubelet that is sent devices before they are checked shows them as unhealthy
/// on every pod that holds one, at each start of podmeter.
const FIRST_CHECK: Duration = Duration::from_secs(2);
/// For the kubelet's first answer on what it can allocate. Some kubelets have none.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
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
    /// Wakes when the directory changes.
    pub changes: watch::Receiver<u64>,
    /// Why it is to end.
    pub stop: watch::Receiver<Option<&'static str>>,
    /// The devices that earlier lifecycles of the resource sent to the kubelet.
    pub advertised: BTreeSet<DeviceId>,
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
enum Ended {
    #[error("{0} is not there: the kubelet is not running, or --device-plugin-dir is not its directory")]
    NoKubelet(PathBuf),
    #[error("{path}: {error}; the directory must be there and writable, and the path have at most 107 bytes")]
    Socket { path: PathBuf, error: std::io::Error },
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
    #[error("another device plugin of the resource ended, and a kubelet up to 1.36 drops the resource with it")]
    Gone,
}

impl Lifecycle {
    /// Runs until `stop`. The socket is removed then.
    pub async fn run(mut self) -> EndedLifecycle {
        let mut backoff = Backoff::new(RETRIES);
        let mut stop = self.stop.clone();
        let mut logged = String::new();
        let began = self.now();
        loop {
            let mut server = None;
            let mut registered_at = None;
            let kubelet = sockets::identity(&sockets::kubelet_socket(&self.directory));
            let ended = tokio::select! {
                ended = self.round(kubelet, began, &mut server, &mut registered_at) => Some(ended),
                _ = stop.wait_for(Option::is_some) => None,
            };
            // Ours goes first: an older kubelet that sees it go later would take it for the new one.
            if let Some(server) = server {
                server.close().await;
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
            tokio::select! {
                () = tokio::time::sleep(with_jitter(backoff.pause(), sockets::random())) => {}
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
        kubelet: Option<SocketIdentity>,
        began: Monotonic,
        server: &mut Option<PluginServer>,
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
        let before = sockets::identities(&self.directory);
        let name = sockets::fresh_name(&resource);
        let server = match PluginServer::start(&self.directory, &name, self.state.clone()) {
            Ok(started) => server.insert(started),
            Err(error) => return Ended::Socket { path: self.directory.join(name), error },
        };
        // A kubelet that has purged our socket would dial it for ten seconds.
        let outcome = tokio::select! {
            outcome = register(&kubelet_socket, name, resource.as_str(), self.deadlines.register) => outcome,
            ended = self.until_displaced(server, kubelet) => return ended,
        };
        if let Err(error) = outcome {
            return Ended::Register(error);
        }
        *registered_at = Some(self.now());
        self.state.status.registered();
        tracing::info!(%resource, devices = self.state.offer.borrow().devices.len(), "registered with the kubelet");
        self.follow(server, kubelet, &before).await
    }

    /// Returns when no other plugin serves the resource.
    async fn until_free(&mut self) {
        let known = |state: &Arc<KubeletState>| state.allocatable_at.is_some() || state.problem.is_some();
        // No answer is no conflict; an error is the agent ending.
        let _ = tokio::time::timeout(FIRST_ANSWER, self.state.kubelet.wait_for(known)).await;
        let mut waits_for: Option<String> = None;
        loop {
            self.changes.mark_unchanged();
            let kubelet = Arc::clone(&self.state.kubelet.borrow_and_update());
            let nothing = BTreeSet::new();
            let resource = self.resource();
            let listed = kubelet.allocatable.as_ref().and_then(|answer| answer.devices.get(&resource));
            let live = self.live_sockets(&BTreeMap::new()).await;
            let Some(reason) = conflict(&resource, listed.unwrap_or(&nothing), &self.advertised, &live) else {
                if waits_for.is_some() {
                    tracing::info!(%resource, "no other device plugin serves the resource any more");
                    self.state.status.conflict(None);
                }
                return;
            };
            let is_first = waits_for.is_none();
            if waits_for.as_ref() != Some(&reason) {
                tracing::warn!(%resource, "waiting: {reason}");
                self.state.status.conflict(Some(&reason));
                waits_for = Some(reason);
            }
            if is_first {
                // A podmeter that has just ended is listed for a moment.
                tokio::time::sleep(SETTLE).await;
                self.state.refresh_allocatable.notify_one();
            }
            tokio::select! {
                () = changed(&mut self.changes) => {}
                () = changed(&mut self.state.kubelet) => {}
            }
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

    /// Until it ends. The sockets of known plugins that were there `before` count only where it must not replace them.
    async fn follow(
        &mut self,
        server: &PluginServer,
        kubelet: Option<SocketIdentity>,
        before: &BTreeMap<String, SocketIdentity>,
    ) -> Ended {
        let takes_over = self.state.config.on_conflict() == OnConflict::Takeover;
        tokio::select! {
            ended = self.until_displaced(server, kubelet) => return ended,
            listed = tokio::time::timeout(self.deadlines.list, server.watched()) => if listed.is_err() {
                return Ended::NotListed(self.deadlines.list);
            },
        }
        let mut comparisons = Comparisons::new(self.now());
        let mut shown = None;
        loop {
            self.changes.mark_unchanged();
            if let Some(ended) = self.displaced(server, kubelet) {
                return ended;
            }
            let harmless = if takes_over { before } else { &BTreeMap::new() };
            let live = self.live_sockets(harmless).await;
            let live: Vec<String> = live.into_iter().filter(|name| *name != server.name()).collect();
            let answer = Arc::clone(&self.state.kubelet.borrow_and_update());
            let offer = Arc::clone(&self.state.offer.borrow());
            let comparison = comparisons.compare(&offer, &self.advertised, &answer, &live);
            match &comparison {
                Comparison::Gone => return Ended::Gone,
                Comparison::Equal | Comparison::Absent(_) if shown.is_some() => return Ended::Gone,
                Comparison::Equal | Comparison::Absent(_) => {}
                Comparison::Conflict(by) if takes_over => return Ended::Replaced(by.clone()),
                // Its stream is left open: up to 1.36 the end of ours would end the other plugin's registration.
                Comparison::Conflict(by) => {
                    if shown.as_ref() != Some(by) {
                        tracing::warn!(resource = %offer.resource, "waiting: {by}");
                        self.state.status.replaced(by);
                        shown = Some(by.clone());
                    }
                }
            }
            // A query that is under way or that fails is repeated after the pause too.
            let again = match comparison {
                Comparison::Absent(since) => Some((since + SETTLE).since(self.now()).max(SETTLE / 2)),
                _ => None,
            };
            tokio::select! {
                () = changed(&mut self.changes) => {}
                () = changed(&mut self.state.kubelet) => {}
                () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => self.state.refresh_allocatable.notify_one(),
                () = server.stream_lost() => return Ended::StreamLost,
            }
        }
    }

    /// Names of live sockets of known plugins and of other podmeters of the resource.
    async fn live_sockets(&self, harmless: &BTreeMap<String, SocketIdentity>) -> Vec<String> {
        let resource = self.resource();
        let is_wanted = |name: &str| {
            conflict::is_of(name, &resource)
                && harmless.get(name).is_none_or(|known| sockets::identity(&self.directory.join(name)) != Some(*known))
        };
        sockets::live(&self.directory, is_wanted).await
    }

    /// Whether the kubelet is another one, or our socket no longer exists.
    fn displaced(&self, server: &PluginServer, kubelet: Option<SocketIdentity>) -> Option<Ended> {
        match sockets::identity(&sockets::kubelet_socket(&self.directory)) {
            None => Some(Ended::KubeletSocketRemoved),
            now if now != kubelet => Some(Ended::KubeletRestarted),
            _ if !server.socket_is_there() => Some(Ended::SocketRemoved),
            _ => None,
        }
    }

    async fn until_displaced(&self, server: &PluginServer, kubelet: Option<SocketIdentity>) -> Ended {
        let mut changes = self.changes.clone();
        loop {
            if let Some(ended) = self.displaced(server, kubelet) {
                return ended;
            }
            changed(&mut changes).await;
        }
    }

    /// Until another kubelet's socket is there.
    async fn other_kubelet(&mut self, than: Option<SocketIdentity>) {
        let socket = sockets::kubelet_socket(&self.directory);
        loop {
            let now = sockets::identity(&socket);
            if now.is_some() && now != than {
                return;
            }
            changed(&mut self.changes).await;
        }
    }

    fn now(&self) -> Monotonic {
        self.state.clock.now().monotonic
    }

    fn resource(&self) -> ResourceName {
        self.state.offer.borrow().resource.clone()
    }
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
    within(deadline, call).await.unwrap_or_else(|| Err(format!("no answer within {deadline:?}"))).map(drop)
}

async fn channel(socket: &Path) -> Result<Channel, String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| format!("{}: {error}", socket.display()))?;
    channel_over(stream).await.map_err(|error| error.to_string())
}
