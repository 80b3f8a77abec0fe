//! `Waiting` of a lifecycle: until no other plugin has the resource or its hardware, which `conflict` decides, and until the devices
//! are checked.
//!
//! In: the kubelet's answers, the plugin directory, the offer. Out: the conflict, in the resource's status and the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::conflict::{self, ConflictCheck, ConflictState, Observed};
use super::lifecycle::Lifecycle;
use super::server::PluginServer;
use crate::domain::holders::HoldersState;
use crate::domain::model::{KubeletState, Monotonic, ResourceName};
use crate::domain::periods::{KUBELET_START, LIST_SHOWN};
use crate::plugin::config::OnConflict;
use crate::plugin::host::sockets::{self, SocketIdentity};
use crate::plugin::offer::{Offer, OfferedDevice, PluginUnhealthy};
use crate::tasks::changed;

/// The pause between two queries of the kubelet while a plugin ends.
const ENDING_QUERIES: Duration = Duration::from_millis(50);
/// How long the kubelet lists no device before we register, with `onConflict: waitWhileServed`.
const UNSERVED: Duration = Duration::from_mins(1);
/// The longest wait for the kubelet's first answer on what it can allocate. Some kubelets give none.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// The longest wait for the first health of the devices. A kubelet that gets devices before they are checked shows them
/// as unhealthy on every pod that holds one, at each start of podmeter.
const FIRST_CHECK: Duration = Duration::from_secs(2);

impl Lifecycle {
    /// Returns when no other plugin serves the resource or offers its hardware.
    pub(super) async fn until_free(&mut self, check: &mut ConflictCheck) {
        let known =
            |state: &Arc<HoldersState>| state.kubelet.allocatable_at.is_some() || state.kubelet.problem.is_some();
        // No answer is no conflict; an error means that the agent is ending.
        let _ = tokio::time::timeout(FIRST_ANSWER, self.service.plugin.holders.wait_for(known)).await;
        let resource = self.resource();
        let registers_unserved = self.service.config.on_conflict() == OnConflict::WaitWhileServed;
        let (mut logged, mut queried) = (None, None);
        loop {
            self.directory_changes.mark_unchanged();
            self.wait_for_new_kubelet().await;
            let answer = self.service.plugin.kubelet();
            let now = self.now();
            let reason = match self.observe(check, &answer, None, &BTreeMap::new()).await {
                ConflictState::Unserved(text, duration) if registers_unserved && duration >= UNSERVED => {
                    tracing::warn!(%resource, "registering: {text}");
                    break;
                }
                ConflictState::Conflict(text) => Some((text, false)),
                ConflictState::Unserved(text, _) => Some((text, true)),
                ConflictState::Ending => None,
                // `Free`: the others are of a registration.
                _ => break,
            };
            let first = !std::mem::replace(&mut self.other_has_it, true);
            if let Some((text, unserved)) = &reason
                && reason != logged
            {
                tracing::warn!(%resource, "waiting: {text}");
                self.service.status.set_conflict(Some(text), *unserved);
                logged.clone_from(&reason);
            }
            let next_query = match reason {
                None => Some(self.query_ending(&mut queried, now)),
                // The devices of a podmeter that has just ended are listed for a moment longer.
                Some(_) if first => Some(LIST_SHOWN),
                Some(_) => None,
            };
            tokio::select! {
                () = changed(&mut self.directory_changes) => {}
                () = self.service.plugin.kubelet_changed(&answer) => {}
                () = tokio::time::sleep(next_query.unwrap_or_default()), if next_query.is_some() => {
                    // Else `query_ending` has requested the query.
                    if reason.is_some() {
                        self.service.plugin.refresh_allocatable.notify_one();
                    }
                }
            }
        }
        if std::mem::take(&mut self.other_has_it) {
            tracing::info!(%resource, "no other device plugin serves the resource any more");
            self.service.status.set_conflict(None, false);
        }
    }

    /// Checks the kubelet's answer and the sockets. The sockets of `not_serving` belong to plugins that the kubelet does not use.
    pub(super) async fn observe(
        &self,
        check: &mut ConflictCheck,
        answer: &KubeletState,
        server: Option<&PluginServer>,
        not_serving: &BTreeMap<String, SocketIdentity>,
    ) -> ConflictState {
        let mut live = self.live_sockets(not_serving).await;
        live.retain(|name| server.is_none_or(|server| *name != server.name()));
        let is_first = server.is_none() && self.advertised.is_empty();
        let observed = Observed {
            now: self.now(),
            kubelet: answer,
            advertised: &self.advertised,
            sockets: sockets::others(&self.directory),
            live: &live,
            // A registration that was there before the other plugin continues.
            other_resource: is_first.then(|| self.other_resource(answer)).flatten(),
            granted: &server.map(|server| server.calls().borrow().granted.clone()).unwrap_or_default(),
        };
        let offer = Arc::clone(&self.service.offer.borrow());
        check.observe(&offer, &observed)
    }

    /// Queries the kubelet at once, then at intervals: new pods fail until the resource is registered again. Returns
    /// the time to the next query.
    fn query_ending(&self, queried: &mut Option<Monotonic>, now: Monotonic) -> Duration {
        let since = queried.map_or(ENDING_QUERIES, |at| now.since(at));
        if since >= ENDING_QUERIES {
            *queried = Some(now);
            self.service.plugin.refresh_allocatable.notify_one();
            return ENDING_QUERIES;
        }
        ENDING_QUERIES - since
    }

    /// While another plugin has the resource, waits before it queries a kubelet that has just started.
    async fn wait_for_new_kubelet(&mut self) {
        let socket = sockets::kubelet_socket(&self.directory);
        let seen = std::mem::replace(&mut self.kubelet_seen, sockets::identity(&socket));
        if self.other_has_it && seen.is_some() && seen != self.kubelet_seen {
            tokio::time::sleep(KUBELET_START).await;
            self.service.plugin.refresh_allocatable.notify_one();
        }
    }

    /// The plugin of another resource that offers our hardware. Other resources of this process do not count, nor does another
    /// podmeter in a rolling update: neither gives out what is held.
    pub(super) fn other_resource(&self, kubelet: &KubeletState) -> Option<(ResourceName, String)> {
        let sockets = sockets::others(&self.directory);
        let answered = kubelet.allocatable_at?.monotonic;
        let is_own = |resource: &ResourceName| {
            self.service.status.serves(resource, answered)
                || sockets.iter().any(|name| sockets::is_a_podmeters(name, resource))
        };
        let hardware = Arc::clone(&self.service.plugin.holders.borrow().hardware);
        conflict::other_resource(&self.service.offer.borrow(), kubelet, &hardware.inventory, is_own)
    }

    /// Waits until every device has been checked, at most `FIRST_CHECK` after the lifecycle `began`; not where the
    /// kubelet has had the resource before: without it pods are refused.
    pub(super) async fn until_checked(&mut self, began: Monotonic) {
        if !self.advertised.is_empty() {
            return;
        }
        let is_unchecked = |device: &OfferedDevice| device.health.as_ref().is_err_and(PluginUnhealthy::is_unchecked);
        let checked = |offer: &Arc<Offer>| !offer.devices.iter().any(is_unchecked);
        let left = FIRST_CHECK.saturating_sub(self.now().since(began));
        // After that, unchecked devices are sent as they are; an error means that the agent is ending.
        let _ = tokio::time::timeout(left, self.service.offer.wait_for(checked)).await;
    }
}
