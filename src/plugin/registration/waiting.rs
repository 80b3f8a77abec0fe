//! `Waiting` of a lifecycle: until no other plugin has the resource or its hardware, and until the devices are checked.
//!
//! In: the kubelet's answers, the plugin directory, the offer. Out: the conflict, in the resource's status and the log.
//! `Waiting` decides, and is pure: the kubelet's answer counts, because a socket alone shows no registration, and an answer
//! from before a socket's end shows an ended plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::conflict::{self, OtherPlugin, other_plugin, unserved};
use super::lifecycle::Lifecycle;
use crate::domain::holders::HoldersState;
use crate::domain::model::{DeviceId, KubeletState, Monotonic, ResourceName};
use crate::domain::periods::{KUBELET_START, LIST_SHOWN};
use crate::plugin::config::OnConflict;
use crate::plugin::host::sockets;
use crate::plugin::offer::{Offer, OfferedDevice, PluginUnhealthy};
use crate::tasks::changed;

/// The pause between two queries of the kubelet while a plugin ends.
const ENDING_QUERIES: Duration = Duration::from_millis(50);
/// How long the kubelet lists no device before we register, with `onConflict: waitWhileServed`.
const UNSERVED: Duration = Duration::from_mins(1);
/// The longest wait for the kubelet's first answer on what it can allocate. Some kubelets give none.
const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// The longest time in which the kubelet may list devices of a plugin whose socket is gone.
const DROPPED: Duration = Duration::from_secs(10);
/// The longest wait for the first health of the devices. A kubelet that gets devices before they are checked shows them
/// as unhealthy on every pod that holds one, at each start of podmeter.
const FIRST_CHECK: Duration = Duration::from_secs(2);

impl Lifecycle {
    /// Returns when no other plugin serves the resource or offers its hardware.
    pub(super) async fn until_free(&mut self) {
        let known =
            |state: &Arc<HoldersState>| state.kubelet.allocatable_at.is_some() || state.kubelet.problem.is_some();
        // No answer is no conflict; an error means that the agent is ending.
        let _ = tokio::time::timeout(FIRST_ANSWER, self.service.plugin.holders.wait_for(known)).await;
        let resource = self.resource();
        let registers_unserved = self.service.config.on_conflict() == OnConflict::WaitWhileServed;
        let (mut waiting, mut logged, mut queried) = (Waiting::default(), None, None);
        loop {
            self.directory_changes.mark_unchanged();
            self.wait_for_new_kubelet().await;
            let answer = self.service.plugin.kubelet();
            let others = Others {
                now: self.now(),
                kubelet: &answer,
                sockets: &sockets::others(&self.directory),
                live: &self.live_sockets(&BTreeMap::new()).await,
                // A registration that was there before the other plugin continues.
                other_resource: self.advertised.is_empty().then(|| self.other_resource(&answer)).flatten(),
            };
            let now = others.now;
            let reason = match waiting.observe(&resource, &self.advertised, others) {
                Wait::Free => break,
                Wait::Unserved(text, duration) if registers_unserved && duration >= UNSERVED => {
                    tracing::warn!(%resource, "registering: {text}");
                    break;
                }
                Wait::Conflict(text) => Some((text, false)),
                Wait::Unserved(text, _) => Some((text, true)),
                Wait::Ending => None,
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

    /// The plugin of another resource that offers our hardware, in words with a remedy. Other resources of this process
    /// do not count, nor does another podmeter in a rolling update: neither gives out what is held.
    pub(super) fn other_resource(&self, kubelet: &KubeletState) -> Option<String> {
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

/// The present state of the other plugins.
struct Others<'a> {
    now: Monotonic,
    kubelet: &'a KubeletState,
    /// The sockets in the directory, without the kubelet's.
    sockets: &'a BTreeSet<String>,
    /// The sockets that can matter and accept connections.
    live: &'a [String],
    /// The plugin of another resource with the same hardware, in words with a remedy.
    other_resource: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wait {
    Free,
    /// Another plugin has the resource or its hardware; the text names it, with a remedy.
    Conflict(String),
    /// The kubelet's last answer lists its devices, but the plugin has just ended: query again.
    Ending,
    /// A plugin listens, of which the kubelet has listed no device for this long; in words with a remedy.
    Unserved(String, Duration),
}

/// One wait, from the first observation to the end of the conflict.
#[derive(Debug, Default)]
struct Waiting {
    sockets: BTreeSet<String>,
    live: BTreeSet<String>,
    /// When a socket disappeared, or stopped to accept connections.
    ended: Option<Monotonic>,
    /// The time of the first answer without a device of the resource while the same sockets accept connections.
    unlisted_since: Option<Monotonic>,
}

impl Waiting {
    /// `sent`: the devices that this process has sent the kubelet.
    fn observe(&mut self, resource: &ResourceName, sent: &BTreeSet<DeviceId>, others: Others<'_>) -> Wait {
        let Others { now, kubelet, sockets, live, other_resource } = others;
        let live_before = std::mem::replace(&mut self.live, live.iter().cloned().collect());
        let sockets_before = std::mem::replace(&mut self.sockets, sockets.clone());
        if !live_before.is_subset(&self.live) || !sockets_before.is_subset(&self.sockets) {
            self.ended = Some(now);
        }
        if live_before != self.live {
            self.unlisted_since = None;
        }
        let nothing = BTreeSet::new();
        let listed = kubelet.allocatable.as_ref().map(|answer| answer.devices.get(resource).unwrap_or(&nothing));
        let other = other_plugin(resource, listed.unwrap_or(&nothing), sent, live);
        if let Some(OtherPlugin::Socket(socket)) = &other {
            let empty_at = kubelet.allocatable_at.filter(|_| listed.is_some_and(BTreeSet::is_empty));
            let Some(at) = empty_at.map(|at| at.monotonic) else {
                self.unlisted_since = None;
                return Wait::Conflict(OtherPlugin::Socket(socket.clone()).text(resource));
            };
            let since = *self.unlisted_since.get_or_insert(at);
            return match other_resource {
                Some(text) => Wait::Conflict(text),
                None if at >= since + LIST_SHOWN => Wait::Unserved(unserved(resource, socket), at.since(since)),
                None => Wait::Conflict(OtherPlugin::Socket(socket.clone()).text(resource)),
            };
        }
        match other.map(|other| other.text(resource)).or(other_resource) {
            None => Wait::Free,
            Some(_) if self.ended.is_some_and(|ended| now.since(ended) < DROPPED) => Wait::Ending,
            Some(text) => Wait::Conflict(text),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::test_data::{at_millisecond, offering_kubelet};

    const SOCKET: &str = "nvidia-gpu.sock";

    #[derive(Default)]
    struct ObservedWaiting(Waiting);

    impl ObservedWaiting {
        /// The result at a time in milliseconds. `answer`: the time of the kubelet's answer, and the listed devices.
        fn at(&mut self, now: u64, answer: Option<(u64, &[&str])>, sockets: &[&str], live: &[&str]) -> &'static str {
            let answered = |(at, ids): (u64, &[&str])| KubeletState {
                allocatable_at: Some(at_millisecond(at)),
                ..offering_kubelet("nvidia.com/gpu", ids)
            };
            let kubelet = answer.map(answered).unwrap_or_default();
            let live: Vec<String> = live.iter().map(|name| (*name).to_owned()).collect();
            let others = Others {
                now: Monotonic::from_millis(now),
                kubelet: &kubelet,
                sockets: &sockets.iter().map(|name| (*name).to_owned()).collect(),
                live: &live,
                other_resource: None,
            };
            match self.0.observe(&"nvidia.com/gpu".into(), &BTreeSet::new(), others) {
                Wait::Free => "free",
                Wait::Conflict(_) => "conflict",
                Wait::Ending => "ending",
                Wait::Unserved(text, duration) => {
                    assert!(text.contains(SOCKET) && text.contains("waitWhileServed"), "{text}");
                    assert_eq!(duration, Duration::from_secs(1));
                    "unserved"
                }
            }
        }
    }

    #[test]
    fn a_socket_without_a_listed_device_in_two_answers_serves_nothing() {
        let mut waiting = ObservedWaiting::default();
        let both = [SOCKET];
        assert_eq!(waiting.at(0, None, &both, &both), "conflict", "no answer");
        assert_eq!(waiting.at(1_000, Some((1_000, &[])), &both, &both), "conflict", "one answer");
        assert_eq!(waiting.at(1_500, Some((1_000, &[])), &both, &both), "conflict", "the same answer");
        assert_eq!(waiting.at(2_000, Some((2_000, &[])), &both, &both), "unserved");
        assert_eq!(waiting.at(9_000, Some((2_000, &["GPU-a"])), &both, &both), "conflict", "registered after all");
        assert_eq!(waiting.at(10_000, Some((10_000, &[])), &both, &both), "conflict");
        assert_eq!(
            waiting.at(11_500, Some((10_500, &[])), &[SOCKET, "nvidiaGPU-1.sock"], &[SOCKET, "nvidiaGPU-1.sock"]),
            "conflict",
            "another"
        );
    }

    #[test]
    fn an_answer_from_before_the_end_of_a_socket_is_no_conflict() {
        for socket in [SOCKET, "of-an-unknown-plugin.sock"] {
            let mut waiting = ObservedWaiting::default();
            let live: &[&str] = if socket == SOCKET { &[SOCKET] } else { &[] };
            let devices: &[&str] = &["GPU-a"];
            assert_eq!(waiting.at(0, Some((0, devices)), &[socket], live), "conflict");
            assert_eq!(waiting.at(5_000, Some((0, devices)), &[], &[]), "ending", "{socket}");
            assert_eq!(waiting.at(5_050, Some((5_000, devices)), &[], &[]), "ending", "{socket}");
            assert_eq!(waiting.at(5_100, Some((5_050, &[])), &[], &[]), "free", "{socket}");
        }
        let mut waiting = ObservedWaiting::default();
        assert_eq!(waiting.at(0, Some((0, &["GPU-a"])), &[SOCKET], &[SOCKET]), "conflict");
        assert_eq!(waiting.at(5_000, Some((0, &["GPU-a"])), &[SOCKET], &[]), "ending", "it was killed");
        assert_eq!(waiting.at(15_000, Some((14_000, &["GPU-a"])), &[], &[]), "ending", "its socket was removed");
        assert_eq!(waiting.at(26_000, Some((14_000, &["GPU-a"])), &[], &[]), "conflict", "it is another's");
    }
}
