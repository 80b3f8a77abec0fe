//! Whether the kubelet still uses a registration. A plugin that registers later replaces ours without a notice: a
//! kubelet up to 1.36 keeps our stream open, and when the other plugin ends it drops the resource without a notice too.
//!
//! In: live sockets, what the kubelet lists, what was granted, the time. Out: a `RegistrationState`. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Offer;
use super::conflict::{REMEDY, is_known_plugin};
use super::grants::{ForeignAllocation, Grants};
use super::live_sockets::LiveSockets;
use super::sockets::{self, Identity};
use crate::model::{Allocations, DeviceId, KubeletState, Monotonic, ResourceName};

/// The kubelet has processed the end of another plugin by then; it takes about 20 ms.
const AFTER_AN_END: Duration = Duration::from_millis(100);
/// The end of another plugin is noticed within this time, on a busy machine too.
const HIDES: Duration = Duration::from_secs(1);
/// Between two answers that must agree.
const SECOND_ANSWER: Duration = Duration::from_millis(500);
/// The same, when another plugin has just ended or registered.
const SECOND_ANSWER_SOON: Duration = Duration::from_millis(200);
/// What a kubelet may take to show our first list. One that has shown it once is not slow.
const TAKEN_IN: Duration = Duration::from_secs(5);
/// From a registration, or from another podmeter's end, until holdings are compared with grants.
const BASELINE: Duration = Duration::from_secs(2);
/// An Allocate that comes this long after the other plugin was noticed was not in progress before.
const NOT_UNDER_WAY: Duration = Duration::from_secs(2);
/// Between two answers while another plugin is registered of which no socket is seen; where one is seen its end is.
const UNSEEN: Duration = Duration::from_millis(600);
const SEEN: Duration = Duration::from_secs(5);

/// Of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// In use, as far as is known.
    Used,
    /// Another plugin has registered the resource since: how that is known.
    Replaced(String),
    /// Another plugin of the resource has ended, and the kubelet may have dropped the resource with it.
    OtherEnded,
    /// The kubelet no longer lists any device of the resource.
    Forgotten,
}

/// What is examined.
#[derive(Debug)]
pub struct CheckInputs<'s> {
    pub live: &'s LiveSockets,
    pub kubelet: &'s KubeletState,
    pub offer: &'s Offer,
    /// The devices that earlier registrations sent to the kubelet.
    pub advertised: &'s BTreeSet<DeviceId>,
    pub grants: &'s mut Grants,
    /// When our stream last had a list.
    pub list_sent_at: Option<Monotonic>,
}

/// How it is known that another plugin has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Replacement {
    Socket(String, Identity),
    /// The number of devices that are not ours.
    Listed(usize),
    Allocated(ForeignAllocation),
}

/// Of one registration.
#[derive(Debug)]
pub struct RegistrationCheck {
    resource: ResourceName,
    /// Live sockets of others, seen last.
    others: LiveSockets,
    /// Live sockets at the registration: up to 1.36 the end of their plugin would end our stream.
    earlier: LiveSockets,
    /// Sockets of known plugins that have not replaced us.
    harmless: LiveSockets,
    replaced: Option<(Replacement, Monotonic)>,
    /// When to query the kubelet again.
    scan_at: Option<Monotonic>,
    /// When another plugin ended, until an answer shows whether that concerns us.
    ended_at: Option<Monotonic>,
    /// One that ended had registered after us.
    later_ended: bool,
    none_since: Option<Monotonic>,
    others_since: Option<Monotonic>,
    /// When the kubelet took our first list.
    sent_at: Option<Monotonic>,
    /// An answer later than that has listed devices of the resource.
    was_listed: bool,
    /// Holdings seen before, and in the first answer after, are accepted.
    baseline_until: Monotonic,
    has_baseline: bool,
    compared: Option<Arc<Allocations>>,
}

impl RegistrationCheck {
    /// `harmless` are the live sockets that were there before the registration, where it replaced their plugins.
    pub fn new(resource: ResourceName, live: &LiveSockets, harmless: LiveSockets, now: Monotonic) -> Self {
        Self {
            resource,
            others: live.clone(),
            earlier: live.clone(),
            harmless,
            replaced: None,
            scan_at: None,
            ended_at: None,
            later_ended: false,
            none_since: None,
            others_since: None,
            sent_at: None,
            was_listed: false,
            baseline_until: now + BASELINE,
            has_baseline: false,
            compared: None,
        }
    }

    /// The kubelet has opened our list. It may be slow to show it.
    pub fn sent(&mut self, now: Monotonic) {
        self.sent_at = Some(now);
        self.scan_by(now + TAKEN_IN);
    }

    pub fn scan_at(&self) -> Option<Monotonic> {
        self.scan_at
    }

    fn scan_by(&mut self, at: Monotonic) {
        self.scan_at = Some(self.scan_at.map_or(at, |sooner| sooner.min(at)));
    }

    pub fn scanned(&mut self, now: Monotonic) {
        self.scan_at = None;
        // The end of a known plugin is seen by its socket.
        if let Some((Replacement::Listed(_) | Replacement::Allocated(_), _)) = self.replaced {
            let is_seen = self.others.keys().any(|name| !sockets::is_podmeters(name));
            self.scan_at = Some(now + if is_seen { SEEN } else { UNSEEN });
        }
    }

    pub fn examine(&mut self, inputs: CheckInputs<'_>, now: Monotonic) -> RegistrationState {
        if self.sockets(inputs.live, now) {
            return RegistrationState::OtherEnded;
        }
        if let Some(ended) = self.answer(&inputs, now) {
            return ended;
        }
        self.holdings(inputs.kubelet, inputs.grants, now);
        if let Some((_, since)) = self.replaced
            && inputs.grants.granted_at().is_some_and(|at| at > since + NOT_UNDER_WAY)
        {
            self.kubelet_asks_us();
        }
        match &self.replaced {
            Some((replacement, _)) => RegistrationState::Replaced(self.reason(replacement)),
            None => RegistrationState::Used,
        }
    }

    /// Returns whether the plugin that replaced us has ended.
    fn sockets(&mut self, live: &LiveSockets, now: Monotonic) -> bool {
        let has_ended = |(name, identity): (&String, &Identity)| live.get(name) != Some(identity);
        if self.others.iter().any(has_ended) {
            let is_later = |(name, identity): (&String, &Identity)| self.earlier.get(name) != Some(identity);
            self.later_ended |= self.others.iter().any(|other| has_ended(other) && is_later(other));
            self.ended_at = Some(now);
            self.scan_by(now + AFTER_AN_END);
        }
        if live.keys().any(|name| sockets::is_ours(name, &self.resource)) || self.podmeter_ended(live) {
            // What it grants is listed a moment later.
            self.baseline_until = now + BASELINE;
            self.has_baseline = false;
        }
        self.others.clone_from(live);
        if let Some((Replacement::Socket(name, identity), _)) = &self.replaced
            && live.get(name) != Some(identity)
        {
            return true;
        }
        let is_new = |(name, identity): &(&String, &Identity)| {
            is_known_plugin(name, &self.resource) && self.harmless.get(*name) != Some(*identity)
        };
        if let Some((name, identity)) = live.iter().find(is_new) {
            self.replaced_by(Replacement::Socket(name.clone(), *identity), now);
        }
        false
    }

    fn podmeter_ended(&self, live: &LiveSockets) -> bool {
        self.others.keys().any(|name| sockets::is_ours(name, &self.resource) && !live.contains_key(name))
    }

    /// What the kubelet can allocate. Two answers, some time apart, decide.
    fn answer(&mut self, inputs: &CheckInputs<'_>, now: Monotonic) -> Option<RegistrationState> {
        let sent_at = self.sent_at?;
        let answered_at = inputs.kubelet.allocatable_at?.monotonic;
        let allocatable = inputs.kubelet.allocatable.as_ref()?;
        // An answer from before the end of another plugin does not show its effect.
        if answered_at <= sent_at || self.ended_at.is_some_and(|at| answered_at <= at + AFTER_AN_END / 2) {
            return None;
        }
        let nothing = BTreeSet::new();
        let listed = allocatable.devices.get(&self.resource).unwrap_or(&nothing);
        let is_ours = |id: &DeviceId| {
            inputs.advertised.contains(id) || inputs.offer.devices.binary_search_by(|device| device.id.cmp(id)).is_ok()
        };
        let others = listed.iter().filter(|id| !is_ours(id)).count();
        self.was_listed |= !listed.is_empty();
        let has_healthy = inputs.offer.devices.iter().any(|device| device.health.is_ok());
        if listed.is_empty() && (has_healthy || self.replaced.is_some()) {
            self.others_since = None;
            return self.none_listed(sent_at, answered_at);
        }
        self.none_since = None;
        let in_update = inputs.live.keys().any(|name| sockets::is_ours(name, &self.resource));
        if others > 0 && !in_update {
            if self.agrees(answered_at, |check| &mut check.others_since, SECOND_ANSWER_SOON) {
                self.replaced_by(Replacement::Listed(others), now);
            }
            return None;
        }
        self.others_since = None;
        if let Some((Replacement::Listed(_), _)) = self.replaced {
            return Some(RegistrationState::OtherEnded);
        }
        let ended_at = self.ended_at.take()?;
        // Up to 1.36 a list of ours after the other's end is shown, although nothing of it can be allocated.
        let is_hidden = inputs.list_sent_at.is_some_and(|at| at + HIDES > ended_at && at <= answered_at);
        (std::mem::take(&mut self.later_ended) && is_hidden).then_some(RegistrationState::OtherEnded)
    }

    fn none_listed(&mut self, sent_at: Monotonic, answered_at: Monotonic) -> Option<RegistrationState> {
        match &self.replaced {
            // It has no healthy device; its socket is there.
            Some((Replacement::Socket(..), _)) => return None,
            Some(_) => return Some(RegistrationState::OtherEnded),
            None => {}
        }
        if !self.was_listed && answered_at.since(sent_at) < TAKEN_IN {
            self.scan_by(sent_at + TAKEN_IN);
            return None;
        }
        let apart = if self.ended_at.is_some() { SECOND_ANSWER_SOON } else { SECOND_ANSWER };
        self.agrees(answered_at, |check| &mut check.none_since, apart).then_some(RegistrationState::Forgotten)
    }

    /// Whether an equal answer came long enough ago.
    fn agrees(
        &mut self,
        answered_at: Monotonic,
        since: impl Fn(&mut Self) -> &mut Option<Monotonic>,
        apart: Duration,
    ) -> bool {
        let Some(first) = *since(self) else {
            *since(self) = Some(answered_at);
            self.scan_at = Some(answered_at + apart);
            return false;
        };
        answered_at.since(first) >= apart
    }

    fn holdings(&mut self, kubelet: &KubeletState, grants: &mut Grants, now: Monotonic) {
        let (Some(allocations), Some(at)) = (&kubelet.allocations, kubelet.allocations_at) else { return };
        let is_baseline = !self.has_baseline;
        let is_late = at.monotonic >= self.baseline_until;
        let is_same = self.compared.as_ref().is_some_and(|compared| Arc::ptr_eq(compared, allocations));
        if !is_same {
            self.compared = Some(Arc::clone(allocations));
            let foreign = grants.compare(&self.resource, allocations);
            if let (Some(foreign), false) = (foreign, is_baseline) {
                self.replaced_by(Replacement::Allocated(foreign), now);
            }
        }
        self.has_baseline |= is_late;
    }

    /// The first replacement stays: its end is awaited.
    fn replaced_by(&mut self, replacement: Replacement, now: Monotonic) {
        if self.replaced.is_none() {
            self.replaced = Some((replacement, now));
            self.scanned(now);
        }
    }

    fn kubelet_asks_us(&mut self) {
        self.others_since = None;
        if let Some((Replacement::Socket(name, identity), _)) = self.replaced.take() {
            self.harmless.insert(name, identity);
        }
    }

    fn reason(&self, replacement: &Replacement) -> String {
        let resource = &self.resource;
        match replacement {
            Replacement::Socket(name, _) => format!(
                "another device plugin serves {resource} on {name} and registered after podmeter: the kubelet allocates \
                 through it; {REMEDY}"
            ),
            Replacement::Listed(count) => format!(
                "the kubelet lists {count} devices of {resource} that another device plugin advertised after podmeter \
                 registered; {REMEDY}"
            ),
            Replacement::Allocated(ForeignAllocation { device, container }) => format!(
                "the kubelet gave {device} to {container} without asking podmeter: another device plugin registered \
                 {resource} after it; {REMEDY}"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
