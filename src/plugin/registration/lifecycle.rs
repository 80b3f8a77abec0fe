//! The registration of one resource, from listen to end. When a step fails, all of it ends and, after a pause, starts again.
//!
//! | state | waits for | how long | next | back to Waiting |
//! |---|---|---|---|---|
//! | Waiting | `kubelet.sock` (`kubelet_socket`) | 5 ms to 30 s (`backoff`), less where another one appears | | `NoKubelet` |
//! | | no plugin of the resource or its hardware, unless `onConflict: takeover` (`until_free`) | no limit; with `onConflict: waitWhileServed` 1 min without a listed device (`UNSERVED`) | | |
//! | | checked devices, unless `advertised` has some (`until_checked`) | 2 s from the start of the lifecycle (`FIRST_CHECK`) | Serving | |
//! | Serving | the answer to `Register`, while our `server` listens | 15 s (`Deadlines::register`) | Registered | `Socket`, `Register` |
//! | Registered | the list (`open_streams` of `server`) | 10 s (`Deadlines::list`) | | `ListNotOpened` |
//! | | its end, or another plugin (`conflict`) | no limit | In conflict, or back with `onConflict: takeover` | `StreamLost`, `Unlisted`, `TakenOver` |
//! | In conflict | a call of the kubelet (`calls`) | no limit | Registered | `OtherPluginEnded`, `StreamLost` |
//! | from Serving on | | | | `SocketRemoved`, `KubeletSocketRemoved`, `KubeletRestarted` |
//!
//! `stop` ends it in each state: where the layout or the configuration has changed, and with podmeter.
//!
//! | variable | decides | kept |
//! |---|---|---|
//! | `kubelet_socket` | whether the kubelet was restarted: `kubelet.sock` is another file than when we registered | for an attempt |
//! | `server` | whether our socket is still there, the list was opened and has ended, and which calls came | for an attempt |
//! | `registered_at` | whether the registration has lasted (`LASTED`), which resets `backoff` | for an attempt |
//! | `replaced`, `not_serving` | which sockets are no conflict: those at our registration or at a call of the kubelet, which showed that it uses us | for an attempt |
//! | `check` | whether another plugin has the resource, and the kubelet lists our devices (`conflict` has its states) | for an attempt |
//! | `other_has_it` | whether another plugin has the resource: the sockets of all known plugins count then, and a new kubelet is not queried at once | for the lifecycle |
//! | `kubelet_seen` | whether a query waits for a new kubelet (`waiting`) | for the lifecycle |
//! | `advertised` | which listed devices are no other plugin's: ended registrations sent them | for podmeter |
//!
//! What the kubelet does, and what follows:
//!
//! - It opens the list (`ListAndWatch`) right after `Register`, and only then: when the list is not open, only another
//!   registration helps.
//! - When it starts, it removes every socket in the directory and makes `kubelet.sock`: all is registered again.
//! - It uses the plugin that registered last, and leaves the stream of the one before open. When that stream ends, a
//!   kubelet up to 1.36 drops the resource, although it is another plugin's now. So our server is closed before the next
//!   one registers, and in conflict it stays open until the other plugin has ended.
//!
//! In: the inputs of the service, the kubelet's socket and answers. Out: a registration, and the resource's status. Does not
//! use: what is behind the devices.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use super::conflict::{self, ConflictCheck, ConflictState, known_resource};
use super::server::PluginServer;
use crate::backoff::{Backoff, with_jitter};
use crate::domain::model::{DeviceId, Monotonic, ResourceName};
use crate::domain::periods::LIST_SHOWN;
use crate::plugin::allocate::ServiceInputs;
use crate::plugin::config::OnConflict;
use crate::plugin::hash::random;
use crate::plugin::host::sockets::{self, SocketIdentity};
use crate::tasks::changed;
use crate::words;

/// The first and the longest pause between attempts to register.
const RETRIES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(30));
/// A registration that lasted this long was a success: it resets the backoff.
const LASTED: Duration = Duration::from_secs(30);

/// How long the kubelet may take to answer.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// The limit of Register, within which the kubelet dials back for up to ten seconds.
    pub register: Duration,
    /// The limit for opening the list, which the kubelet does right after a registration, and only once.
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
    pub service: ServiceInputs,
    /// Counts the changes of the directory.
    pub directory_changes: watch::Receiver<u64>,
    /// The reason to end, once it has to.
    pub stop: watch::Receiver<Option<&'static str>>,
    /// The devices that ended registrations of the resource, this lifecycle's too, sent to the kubelet.
    pub advertised: BTreeSet<DeviceId>,
    pub deadlines: Deadlines,
    /// Whether another plugin has the resource, or had it a moment ago.
    pub other_has_it: bool,
    /// The kubelet's socket at the last check.
    pub kubelet_seen: Option<SocketIdentity>,
}

/// The result of a lifecycle.
#[derive(Debug)]
pub struct EndedLifecycle {
    pub resource: ResourceName,
    /// The devices that it and those before it sent to the kubelet.
    pub advertised: BTreeSet<DeviceId>,
}

/// Why an attempt or a registration ends.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationEnd {
    #[error("{0} is not there: the kubelet is not running, or --device-plugin-dir is not its directory")]
    NoKubelet(PathBuf),
    #[error("{path}: {error}; the directory must be there and writable, and the path have at most 107 bytes")]
    Socket { path: PathBuf, error: std::io::Error },
    #[error("the kubelet does not register the plugin: {0}")]
    Register(String),
    #[error("the kubelet registered the plugin but did not call ListAndWatch within {}", words::duration(*.0))]
    ListNotOpened(Duration),
    #[error("the kubelet ended the device list")]
    StreamLost,
    #[error("our socket file was removed")]
    SocketRemoved,
    #[error("kubelet.sock was removed: the kubelet is restarting, or its directory was cleared")]
    KubeletSocketRemoved,
    #[error("the kubelet was restarted: kubelet.sock is a new one")]
    KubeletRestarted,
    /// Another plugin took the resource, with `onConflict: takeover`: it is registered again.
    #[error("{0}")]
    TakenOver(String),
    #[error("another device plugin of the resource ended, and a kubelet up to 1.36 drops the resource with it")]
    OtherPluginEnded,
    #[error("the kubelet no longer lists our devices (another plugin of the resource may have ended)")]
    Unlisted,
}

/// How far one attempt came. `close` needs it also when `stop` has cancelled the attempt.
struct Attempt {
    /// The kubelet's socket, from `Serving` on.
    kubelet_socket: Option<SocketIdentity>,
    /// Our server, from `Serving` on.
    server: Option<PluginServer>,
    /// The time of the registration, from `Registered` on.
    registered_at: Option<Monotonic>,
}

impl Lifecycle {
    /// Runs until `stop`, then removes the socket.
    pub async fn run(mut self) -> EndedLifecycle {
        let mut backoff = Backoff::new(RETRIES);
        let mut stop = self.stop.clone();
        let mut logged = String::new();
        let began = self.now();
        let mut tried = None;
        loop {
            let mut attempt = Attempt { kubelet_socket: None, server: None, registered_at: None };
            let end = tokio::select! {
                Err(end) = self.attempt(&mut attempt, began) => Some(end),
                _ = stop.wait_for(Option::is_some) => None,
            };
            let kubelet_socket = attempt.kubelet_socket;
            // A kubelet that has just started refuses us until it listens: the pause does not depend on how long it was away.
            if let Some(socket) = kubelet_socket
                && tried.replace(socket) != Some(socket)
            {
                backoff.reset();
            }
            if self.close(attempt, &mut backoff).await {
                logged.clear();
            }
            let Some(end) = end else { break };
            self.publish_end(&end, &mut logged);
            tokio::select! {
                () = tokio::time::sleep(with_jitter(backoff.pause(), random())) => {}
                () = self.until_other_kubelet(kubelet_socket) => backoff.reset(),
                _ = stop.wait_for(Option::is_some) => break,
            }
        }
        let reason = stop.borrow().unwrap_or("podmeter is ending");
        self.service.status.unregistered(reason, false);
        EndedLifecycle { resource: self.resource(), advertised: self.advertised }
    }

    /// Runs from `Waiting` to the end of the registration, or of the attempt.
    async fn attempt(&mut self, attempt: &mut Attempt, began: Monotonic) -> Result<Infallible, RegistrationEnd> {
        // `Waiting`.
        self.kubelet_socket()?;
        let mut check = ConflictCheck::default();
        if self.service.config.on_conflict() != OnConflict::Takeover {
            self.until_free(&mut check).await;
        }
        self.until_checked(began).await;
        // `Serving`, with the kubelet that is there after the wait.
        let kubelet_socket = *attempt.kubelet_socket.insert(self.kubelet_socket()?);
        // Our registration replaces the plugins that serve now: their sockets no longer count.
        let replaced = match self.service.config.on_conflict() {
            OnConflict::Takeover | OnConflict::WaitWhileServed => self.sockets_of_others(),
            OnConflict::Wait => BTreeMap::new(),
        };
        let name = sockets::fresh_name(&self.resource());
        let server = PluginServer::start(&self.directory, &name, self.service.clone())
            .map_err(|error| RegistrationEnd::Socket { path: self.directory.join(name), error })?;
        let server = attempt.server.insert(server);
        // The kubelet dials our socket within Register, for up to ten seconds; removing the socket ends the wait.
        tokio::select! {
            registered = self.register(server, &mut attempt.registered_at) => registered?,
            end = self.until_sockets_change(server, kubelet_socket) => return Err(end),
        }
        check.used(self.now());
        Err(self.stay_registered(server, kubelet_socket, replaced, check).await)
    }

    /// Registers (`Serving` → `Registered`), and waits until the kubelet has opened the list.
    async fn register(
        &self,
        server: &PluginServer,
        registered_at: &mut Option<Monotonic>,
    ) -> Result<(), RegistrationEnd> {
        let (socket, resource) = (sockets::kubelet_socket(&self.directory), self.resource());
        let registered = server.register(&socket, resource.as_str(), self.deadlines.register).await;
        registered.map_err(RegistrationEnd::Register)?;
        *registered_at = Some(self.now());
        self.service.status.registered();
        let devices = self.service.offer.borrow().devices.len();
        tracing::info!(%resource, devices, "registered with the kubelet");
        let opened = tokio::time::timeout(self.deadlines.list, server.list_opened()).await;
        opened.map_err(|_| RegistrationEnd::ListNotOpened(self.deadlines.list))
    }

    /// Closes the server (any state → `Waiting`), and keeps the devices that it sent. If there was a registration:
    /// resets the backoff if it lasted, and returns true.
    async fn close(&mut self, attempt: Attempt, backoff: &mut Backoff) -> bool {
        if let Some(server) = attempt.server {
            let sent = server.list_was_opened();
            server.close().await;
            let offer = self.service.offer.borrow();
            self.advertised.extend(offer.devices.iter().filter(|_| sent).map(|device| device.id.clone()));
        }
        let Some(at) = attempt.registered_at else { return false };
        if self.now().since(at) >= LASTED {
            backoff.reset();
        }
        true
    }

    /// Logs a reason once, until there is a registration.
    fn publish_end(&self, end: &RegistrationEnd, logged: &mut String) {
        let reason = end.to_string();
        self.service.status.unregistered(&reason, self.other_has_it);
        if let RegistrationEnd::TakenOver(by) = end {
            self.service.status.set_conflict(Some(by), false);
        }
        if *logged != reason {
            tracing::warn!(resource = %self.resource(), "not registered: {reason}");
            *logged = reason;
        }
    }

    /// Runs `Registered` and `In conflict`, with the list open. The sockets of `not_serving` belong to plugins that the
    /// kubelet does not use for the resource.
    async fn stay_registered(
        &mut self,
        server: &PluginServer,
        kubelet_socket: SocketIdentity,
        mut not_serving: BTreeMap<String, SocketIdentity>,
        mut check: ConflictCheck,
    ) -> RegistrationEnd {
        let mut calls = server.calls();
        let mut logged = None;
        loop {
            self.directory_changes.mark_unchanged();
            if let Some(end) = self.sockets_changed(server, kubelet_socket) {
                return end;
            }
            let answer = self.service.plugin.kubelet();
            let mut next_query = None;
            match self.observe(&mut check, &answer, Some(server), &not_serving).await {
                // This is repeated until there is an answer, at most every half of `LIST_SHOWN`.
                ConflictState::Absent(due) => next_query = Some(due.since(self.now()).max(LIST_SHOWN / 2)),
                ConflictState::Unlisted => return RegistrationEnd::Unlisted,
                ConflictState::Conflict(by) if self.service.config.on_conflict() == OnConflict::Takeover => {
                    return RegistrationEnd::TakenOver(by);
                }
                ConflictState::Conflict(by) => {
                    self.other_has_it = true;
                    if logged.as_ref() != Some(&by) {
                        tracing::warn!(resource = %self.resource(), "waiting: {by}");
                        self.service.status.registered_by_another(&by);
                        logged = Some(by);
                    }
                }
                ConflictState::Ended => return RegistrationEnd::OtherPluginEnded,
                // The last two are of the wait.
                ConflictState::Free | ConflictState::Ending | ConflictState::Unserved(..) => {
                    let other = self.other_resource(&answer).map(|(_, text)| text);
                    if std::mem::take(&mut self.other_has_it) || other != logged {
                        self.publish_served(&self.resource(), other.as_deref());
                        logged = other;
                    }
                }
            }
            tokio::select! {
                () = changed(&mut self.directory_changes) => {}
                () = self.service.plugin.kubelet_changed(&answer) => {}
                () = changed(&mut calls) => {
                    not_serving = self.sockets_of_others();
                    check.used(self.now());
                }
                () = tokio::time::sleep(next_query.unwrap_or_default()), if next_query.is_some() => {
                    self.service.plugin.refresh_allocatable.notify_one();
                }
                () = server.stream_lost() => return RegistrationEnd::StreamLost,
            }
        }
    }

    /// Publishes that the kubelet uses this plugin; the plugin of another resource may offer the same hardware.
    fn publish_served(&self, resource: &ResourceName, other_resource: Option<&str>) {
        match other_resource {
            Some(other) => tracing::warn!(%resource, "what containers hold is not given out again, but: {other}"),
            None => tracing::info!(%resource, "no conflict with another device plugin any more"),
        }
        self.service.status.served(other_resource);
    }

    /// The sockets of other plugins, without those of podmeters.
    fn sockets_of_others(&self) -> BTreeMap<String, SocketIdentity> {
        let resource = self.resource();
        let sockets = sockets::identities(&self.directory).into_iter();
        sockets.filter(|(name, _)| !sockets::is_a_podmeters(name, &resource)).collect()
    }

    /// The names of live sockets of the resource's known plugins and of podmeters, without those of `not_serving`.
    /// While another plugin has the resource or its hardware, of all known plugins: a killed one leaves its socket.
    pub(super) async fn live_sockets(&self, not_serving: &BTreeMap<String, SocketIdentity>) -> Vec<String> {
        let resource = self.resource();
        let is_wanted = |name: &str| {
            (conflict::may_matter(name, &resource) || self.other_has_it && known_resource(name).is_some())
                && not_serving
                    .get(name)
                    .is_none_or(|known| sockets::identity(&self.directory.join(name)) != Some(*known))
        };
        sockets::live(&self.directory, is_wanted).await
    }

    /// Whether the kubelet's socket is another one, or ours was removed.
    fn sockets_changed(&self, server: &PluginServer, kubelet_socket: SocketIdentity) -> Option<RegistrationEnd> {
        match sockets::identity(&sockets::kubelet_socket(&self.directory)) {
            None => Some(RegistrationEnd::KubeletSocketRemoved),
            Some(now) if now != kubelet_socket => Some(RegistrationEnd::KubeletRestarted),
            _ if !server.socket_is_there() => Some(RegistrationEnd::SocketRemoved),
            _ => None,
        }
    }

    async fn until_sockets_change(&self, server: &PluginServer, kubelet_socket: SocketIdentity) -> RegistrationEnd {
        let mut changes = self.directory_changes.clone();
        loop {
            if let Some(end) = self.sockets_changed(server, kubelet_socket) {
                return end;
            }
            changed(&mut changes).await;
        }
    }

    /// Waits until there is another kubelet's socket.
    async fn until_other_kubelet(&mut self, than: Option<SocketIdentity>) {
        let socket = sockets::kubelet_socket(&self.directory);
        loop {
            let now = sockets::identity(&socket);
            if now.is_some() && now != than {
                return;
            }
            changed(&mut self.directory_changes).await;
        }
    }

    fn kubelet_socket(&self) -> Result<SocketIdentity, RegistrationEnd> {
        let socket = sockets::kubelet_socket(&self.directory);
        sockets::identity(&socket).ok_or(RegistrationEnd::NoKubelet(socket))
    }

    pub(super) fn now(&self) -> Monotonic {
        self.service.clock.now().monotonic
    }

    pub(super) fn resource(&self) -> ResourceName {
        self.service.offer.borrow().resource.clone()
    }
}
