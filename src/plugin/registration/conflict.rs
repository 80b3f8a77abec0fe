//! Decides whether another plugin has the resource: one machine for an attempt, from its wait to the end of its registration. Pure.
//!
//! The kubelet uses the plugin that registered last, and the one before gets no notice. When either ends, a kubelet up to 1.36 drops
//! the resource, without a notice too. Both show only in what it lists as allocatable: the healthy devices of the plugin that it uses.
//! That list is compared with the offer after each change in the plugin directory and every ten seconds (`kubelet::schedule`).
//!
//! | the first that applies | waiting to register | registered |
//! |---|---|---|
//! | a socket of a known plugin of the resource accepts connections | `Conflict`; `Unserved` once two answers, `LIST_SHOWN` apart, list no device of the resource | `Conflict` |
//! | the kubelet lists IDs that this process never sent, and no podmeter's socket accepts connections: that is a rolling update | `Conflict`; `Ending` for `DROPPED` after a socket that may be its plugin's has ended | `Conflict` |
//! | the kubelet lists our hardware as another resource, of another plugin | as above | – |
//! | a container has a device that we did not grant (`grants`) | – | `Conflict`, until none of our devices is listed |
//! | nothing of this after `Conflict` | `Free` | `Ended` |
//! | none of our healthy devices is listed | `Free` | `Absent`; `Unlisted` once an answer `LIST_SHOWN` later lists none either: one may be from the moment of a change |
//! | nothing of this | `Free` | `Free` |
//!
//! In a registration, an answer counts from `LIST_SHOWN` after the kubelet has opened the list. A call of the kubelet shows that it uses
//! this process, whatever sockets there are: it ends a conflict, and answers count from `LIST_SHOWN` after it.
//!
//! In: answers of the kubelet, names of sockets, the offer, calls. Out: a `ConflictState`.

use super::grants::Grants;
use crate::domain::holders::other_offer;
use crate::domain::model::{DeviceId, Inventory, KubeletState, Monotonic, ResourceName};
use crate::domain::periods::LIST_SHOWN;
use crate::plugin::host::sockets;
use crate::plugin::offer::Offer;
use crate::words::counted;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) const REMEDY: &str = "remove the other plugin, switch this one off with --device-plugin=off, or set onConflict: takeover for the resource";
/// The longest time in which the kubelet may list devices of a plugin whose socket is gone.
const DROPPED: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictState {
    Free,
    /// Another plugin has the resource or its hardware; the text names it, with a remedy.
    Conflict(String),
    /// The kubelet's last answer lists its devices, but the plugin has just ended: query again.
    Ending,
    /// A plugin listens, of which the kubelet has listed no device for this long; in words with a remedy.
    Unserved(String, Duration),
    /// None of our healthy devices is listed. The first answer to a query from this time on decides.
    Absent(Monotonic),
    /// The registration is lost.
    Unlisted,
    /// The other plugin no longer has the resource: a kubelet up to 1.36 has dropped it.
    Ended,
}

#[derive(Debug, Default)]
pub struct ConflictCheck {
    /// The time from which answers count, in a registration.
    registered_from: Option<Monotonic>,
    in_conflict: bool,
    /// The time of the last answer.
    answered: Option<Monotonic>,
    /// The first and the last of the answers in a row that list no device of the resource, or in a registration none of our healthy ones.
    unlisted: Option<(Monotonic, Monotonic)>,
    /// The sockets, and those of them that can matter and accept connections, with true.
    sockets: BTreeSet<(String, bool)>,
    /// When each socket disappeared, or stopped to accept connections.
    ended: BTreeMap<String, Monotonic>,
    grants: Grants,
}

/// What a check uses beside the offer.
pub struct Observed<'a> {
    pub now: Monotonic,
    pub kubelet: &'a KubeletState,
    /// The devices that ended registrations sent to the kubelet.
    pub advertised: &'a BTreeSet<DeviceId>,
    /// The sockets in the directory, without the kubelet's.
    pub sockets: BTreeSet<String>,
    /// The sockets that can matter and accept connections, without ours and those that do not serve.
    pub live: &'a [String],
    /// Another resource, whose plugin offers the same hardware, while it is a reason to wait; in words with a remedy.
    pub other_resource: Option<(ResourceName, String)>,
    /// How often this registration granted each device.
    pub granted: &'a BTreeMap<DeviceId, u64>,
}

impl ConflictCheck {
    /// Records that the kubelet uses this plugin now: it has opened the list of a registration, or called. A conflict is over.
    pub fn used(&mut self, now: Monotonic) {
        let mut grants = std::mem::take(&mut self.grants);
        grants.other = None;
        *self = Self { registered_from: Some(now + LIST_SHOWN), grants, ..Self::default() };
    }

    pub fn observe(&mut self, offer: &Offer, observed: &Observed<'_>) -> ConflictState {
        self.record_sockets(observed);
        let (kubelet, resource) = (observed.kubelet, &offer.resource);
        let is_registered = self.registered_from.is_some();
        let counts_from = self.registered_from.unwrap_or_default();
        let answer = kubelet.allocatable.as_ref().zip(kubelet.allocatable_at);
        let answer = answer.filter(|(_, at)| at.monotonic >= counts_from);
        let nothing = BTreeSet::new();
        let listed = answer.and_then(|(listed, _)| listed.devices.get(resource)).unwrap_or(&nothing);
        let mut healthy = offer.devices.iter().filter(|device| device.health.is_ok()).peekable();
        let is_unlisted = match is_registered {
            true => healthy.peek().is_some() && healthy.all(|device| !listed.contains(&device.id)),
            false => listed.is_empty(),
        };
        let at = answer.map(|(_, at)| at.monotonic);
        let is_new = std::mem::replace(&mut self.answered, at) != at;
        match at.filter(|_| is_unlisted) {
            None => self.unlisted = None,
            Some(at) if is_new => self.unlisted = Some((self.unlisted.map_or(at, |(first, _)| first), at)),
            Some(_) => {}
        }
        if is_registered && kubelet.allocations_at.is_some_and(|at| at.monotonic >= counts_from) {
            self.grants.compare(resource, observed);
        }
        self.grants.other.take_if(|_| answer.is_some() && is_unlisted);
        let is_sent = |id: &DeviceId| observed.advertised.contains(id) || is_registered && offer.device(id).is_some();
        let other = other_plugin(resource, listed, is_sent, observed.live);
        let state = if is_registered {
            self.while_registered(resource, other)
        } else {
            self.while_waiting(resource, other, observed)
        };
        self.in_conflict = matches!(state, ConflictState::Conflict(_));
        state
    }

    fn record_sockets(&mut self, observed: &Observed<'_>) {
        let there = observed.sockets.iter().map(|socket| (socket.clone(), false));
        let sockets = there.chain(observed.live.iter().map(|socket| (socket.clone(), true))).collect();
        let before = std::mem::replace(&mut self.sockets, sockets);
        self.ended.extend(before.difference(&self.sockets).map(|(socket, _)| (socket.clone(), observed.now)));
        if self.registered_from.is_none() && before.symmetric_difference(&self.sockets).any(|(_, is_live)| *is_live) {
            (self.unlisted, self.answered) = (None, None);
        }
    }

    fn while_waiting(
        &self,
        resource: &ResourceName,
        other: Option<OtherPlugin>,
        observed: &Observed<'_>,
    ) -> ConflictState {
        let unlisted_for = self.unlisted.map_or(Duration::ZERO, |(first, last)| last.since(first));
        let (its_resource, text) = match (&other, &observed.other_resource) {
            (Some(OtherPlugin::Socket(socket)), None) if unlisted_for >= LIST_SHOWN => {
                return ConflictState::Unserved(unserved(resource, socket), unlisted_for);
            }
            (Some(other @ OtherPlugin::Socket(_)), _) => return ConflictState::Conflict(other.text(resource)),
            (Some(other), _) => (resource, other.text(resource)),
            (None, Some((its_resource, text))) => (its_resource, text.clone()),
            (None, None) => return ConflictState::Free,
        };
        let has_ended = |(socket, at): (&String, &Monotonic)| {
            observed.now.since(*at) < DROPPED && may_be_a_plugins(socket, its_resource)
        };
        if self.ended.iter().any(has_ended) { ConflictState::Ending } else { ConflictState::Conflict(text) }
    }

    fn while_registered(&self, resource: &ResourceName, other: Option<OtherPlugin>) -> ConflictState {
        let other = other.map(|other| other.text(resource)).or_else(|| self.grants.other.clone());
        match (other, self.unlisted) {
            (Some(text), _) => ConflictState::Conflict(text),
            (None, _) if self.in_conflict => ConflictState::Ended,
            (None, None) => ConflictState::Free,
            (None, Some((first, last))) if last >= first + LIST_SHOWN => ConflictState::Unlisted,
            (None, Some((first, _))) => ConflictState::Absent(first + LIST_SHOWN),
        }
    }
}

/// Another plugin that has the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherPlugin {
    /// The socket of a known plugin accepts connections.
    Socket(String),
    /// The kubelet lists this number of devices that this process did not send.
    Listed(usize),
}

impl OtherPlugin {
    /// The conflict in words, with a remedy.
    pub fn text(&self, resource: &ResourceName) -> String {
        match self {
            Self::Socket(socket) => format!("another device plugin serves {resource} on {socket}; {REMEDY}"),
            Self::Listed(count) => {
                format!(
                    "the kubelet lists {} of {resource} that another device plugin advertised; {REMEDY}",
                    counted(*count, "device")
                )
            }
        }
    }
}

/// The other plugin that serves the resource. `None`: none, or another podmeter, in a rolling update.
///
/// `allocatable` are the kubelet's devices of the resource, and `live` the names of the sockets that accept connections. `is_sent`:
/// whether this process has sent the kubelet the device. Before the first registration it has sent none: another plugin may list the
/// same GPU by the same UUID as our offer.
pub fn other_plugin(
    resource: &ResourceName,
    allocatable: &BTreeSet<DeviceId>,
    is_sent: impl Fn(&DeviceId) -> bool,
    live: &[String],
) -> Option<OtherPlugin> {
    if let Some(socket) = live.iter().find(|name| known_resource(name).as_ref() == Some(resource)) {
        return Some(OtherPlugin::Socket(socket.clone()));
    }
    let others = allocatable.iter().filter(|id| !is_sent(id)).count();
    let rolling_update = live.iter().any(|name| sockets::is_a_podmeters(name, resource));
    (others > 0 && !rolling_update).then_some(OtherPlugin::Listed(others))
}

/// A resource that is not `is_own`, whose plugin has devices on the hardware of the offer, and the conflict in words with a remedy.
/// The kubelet accounts for each resource separately, and would give the same hardware to two pods.
pub fn other_resource(
    offer: &Offer,
    kubelet: &KubeletState,
    inventory: &Inventory,
    is_own: impl Fn(&ResourceName) -> bool,
) -> Option<(ResourceName, String)> {
    let present = offer.devices.iter().filter(|device| !device.is_absent());
    let hardware = present.filter_map(|device| device.hardware.device()).collect();
    let (other, count) = other_offer(&hardware, kubelet.allocatable.as_ref()?, inventory, is_own)?;
    Some((other.clone(), other_resource_text(other, count, &offer.resource)))
}

/// The conflict with a plugin that offers the hardware of `resource` as another one, with a remedy.
pub fn other_resource_text(other: &ResourceName, count: usize, resource: &ResourceName) -> String {
    let devices = counted(count, "device");
    format!("the device plugin of {other} offers {devices} on the GPUs of {resource}; {REMEDY}")
}

/// Why the resource has no device although a plugin's socket accepts connections, with a remedy.
pub fn unserved(resource: &ResourceName, socket: &str) -> String {
    format!(
        "the kubelet lists no healthy device of {resource}, although a device plugin listens on {socket}: it is not registered, or all \
         its devices are unhealthy; restart that plugin's pod or remove it, or set onConflict: waitWhileServed or takeover for \
         the resource"
    )
}

/// Whether a socket of this name can matter for the resource: of a known plugin, or of a podmeter, this one or another.
pub fn may_matter(socket: &str, resource: &ResourceName) -> bool {
    known_resource(socket).as_ref() == Some(resource) || sockets::is_a_podmeters(socket, resource)
}

/// Whether a plugin of the resource may have had a socket of this name: one that matters, or of a plugin that is not known.
fn may_be_a_plugins(socket: &str, resource: &ResourceName) -> bool {
    may_matter(socket, resource) || known_resource(socket).is_none() && !sockets::is_any_podmeters(socket)
}

/// The resource behind a socket that another vendor's plugin is known to listen on.
pub fn known_resource(socket: &str) -> Option<ResourceName> {
    let name = socket.strip_suffix(".sock")?;
    // Google Kubernetes Engine's plugin has one socket, with the time of its start; NVIDIA's has one per resource.
    let name = if name.starts_with("nvidiaGPU-") { "gpu" } else { name.strip_prefix("nvidia-")? };
    Some(ResourceName::new(format!("nvidia.com/{name}")))
}

#[cfg(test)]
mod tests;
