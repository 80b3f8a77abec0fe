//! Decides whether a resource still waits for another plugin. Pure.
//!
//! In: answers of the kubelet, sockets, times. Out: whether the resource is free, or which plugin has it. The kubelet
//! decides: a socket alone shows no registration, and an answer from before a socket's end shows an ended plugin.

use std::collections::BTreeSet;
use std::time::Duration;

use super::conflict::{OtherPlugin, other_plugin, unserved};
use crate::domain::model::{DeviceId, KubeletState, Monotonic, ResourceName};
use crate::domain::periods::LIST_SHOWN;

/// The longest time in which the kubelet may list devices of a plugin whose socket is gone.
const DROPPED: Duration = Duration::from_secs(10);

/// The present state of the other plugins.
pub struct Others<'a> {
    pub now: Monotonic,
    pub kubelet: &'a KubeletState,
    /// The sockets in the directory, without the kubelet's.
    pub sockets: &'a BTreeSet<String>,
    /// The sockets that can matter and accept connections.
    pub live: &'a [String],
    /// The plugin of another resource with the same hardware, in words with a remedy.
    pub other_resource: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
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
pub struct Waiting {
    sockets: BTreeSet<String>,
    live: BTreeSet<String>,
    /// When a socket disappeared, or stopped to accept connections.
    ended: Option<Monotonic>,
    /// The time of the first answer without a device of the resource while the same sockets accept connections.
    unlisted_since: Option<Monotonic>,
}

impl Waiting {
    /// `sent`: the devices that this process has sent the kubelet.
    pub fn observe(&mut self, resource: &ResourceName, sent: &BTreeSet<DeviceId>, others: Others<'_>) -> Wait {
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
