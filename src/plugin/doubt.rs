//! Whether the kubelet still has our registration. One up to 1.36 takes the end of another plugin of the same resource
//! for the end of ours, offers nothing from then on, and tells us nothing: our stream stays open.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Offer;
use crate::model::{KubeletState, Monotonic};

/// The kubelet has taken in the other's end by then.
const AFTER_AN_END: Duration = Duration::from_millis(100);
/// Between the answer that makes us doubt and the one that decides: a list on its way has arrived meanwhile.
const SECOND_ANSWER: Duration = Duration::from_millis(500);
/// What a kubelet may take to show our first list. One that has shown it once is not slow.
const TAKEN_IN: Duration = Duration::from_secs(5);

/// Of one registration.
#[derive(Debug, Default)]
pub struct Doubt {
    /// Sockets of other podmeters for the resource, seen last.
    others: BTreeSet<String>,
    /// When to ask the kubelet anew.
    look_at: Option<Monotonic>,
    since: Option<Monotonic>,
    /// When the kubelet took our first list.
    sent_at: Option<Monotonic>,
    /// An answer later than that has listed devices of the resource.
    was_listed: bool,
}

impl Doubt {
    /// Tells which other podmeters are there. The end of one is a reason to look.
    pub fn others(&mut self, others: BTreeSet<String>, now: Monotonic) {
        if !self.others.is_subset(&others) {
            self.look_at = Some(now + AFTER_AN_END);
        }
        self.others = others;
    }

    /// The kubelet has opened our list. It may be slow to show it.
    pub fn sent(&mut self, now: Monotonic) {
        self.sent_at = Some(now);
        self.look_by(now + TAKEN_IN);
    }

    pub fn look_at(&self) -> Option<Monotonic> {
        self.look_at
    }

    fn look_by(&mut self, at: Monotonic) {
        self.look_at = Some(self.look_at.map_or(at, |sooner| sooner.min(at)));
    }

    pub fn looked(&mut self) {
        self.look_at = None;
    }

    /// True when two answers, both later than our first list and some time apart, list no device of a resource of which
    /// we offer healthy ones. It must have listed some of them before, or have had time to. A kubelet that lists somebody else's has not forgotten: that is a conflict.
    pub fn is_forgotten(&mut self, kubelet: &KubeletState, offer: &Offer) -> bool {
        let Some(sent_at) = self.sent_at else { return false };
        let answered_at = kubelet.allocatable_at.map(|at| at.monotonic).filter(|at| *at > sent_at);
        let (Some(allocatable), Some(answered_at)) = (&kubelet.allocatable, answered_at) else { return false };
        let lists_some = allocatable.devices.get(&offer.resource).is_some_and(|devices| !devices.is_empty());
        self.was_listed |= lists_some;
        if lists_some || offer.devices.iter().all(|device| device.health.is_err()) {
            self.since = None;
            return false;
        }
        if !self.was_listed && answered_at.since(sent_at) < TAKEN_IN {
            self.look_by(sent_at + TAKEN_IN);
            return false;
        }
        let Some(since) = self.since else {
            self.since = Some(answered_at);
            self.look_at = Some(answered_at + SECOND_ANSWER);
            return false;
        };
        answered_at.since(since) >= SECOND_ANSWER
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Allocatable, Moment, UnhealthyReason};
    use crate::plugin::{Hardware, OfferedDevice, Withheld};

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(milliseconds))
    }

    fn answer(milliseconds: u64, ids: &[&str]) -> KubeletState {
        let mut allocatable = Allocatable::default();
        allocatable.devices.insert("a.b/c".into(), ids.iter().map(|id| (*id).into()).collect());
        let moment = Moment { monotonic: at(milliseconds), ..Moment::default() };
        KubeletState {
            allocatable: Some(Arc::new(allocatable)),
            allocatable_at: Some(moment),
            ..KubeletState::default()
        }
    }

    fn offer(health: Result<(), Withheld>) -> Offer {
        let device = OfferedDevice { id: "x".into(), numa_nodes: BTreeSet::new(), health, hardware: Hardware::Nothing };
        Offer { resource: "a.b/c".into(), devices: vec![device] }
    }

    #[test]
    fn two_empty_answers_some_time_apart_decide() {
        let mut doubt = Doubt::default();
        let offer = offer(Ok(()));
        let ask = |doubt: &mut Doubt, state: &KubeletState| doubt.is_forgotten(state, &offer);
        assert!(!ask(&mut doubt, &answer(950, &["other"])), "no list was sent");
        doubt.sent(at(1000));
        assert!(!ask(&mut doubt, &KubeletState::default()), "nothing was said");
        assert!(!ask(&mut doubt, &answer(900, &[])), "before the list");
        assert_eq!(doubt.look_at(), Some(at(6000)));
        assert!(!ask(&mut doubt, &answer(1000, &["x"])), "it may have been asked before the list");
        assert!(!ask(&mut doubt, &answer(1001, &["x"])));
        doubt.looked();
        assert!(!ask(&mut doubt, &answer(1002, &[])));
        assert_eq!(doubt.look_at(), Some(at(1502)));
        assert!(!ask(&mut doubt, &answer(1400, &[])), "too soon");
        assert!(!ask(&mut doubt, &answer(1600, &["other"])), "somebody's is listed: the doubt is over");
        assert!(!ask(&mut doubt, &answer(1700, &[])));
        assert!(ask(&mut doubt, &answer(2200, &[])));
    }

    #[test]
    fn a_kubelet_slow_to_take_in_the_first_list_has_not_forgotten_it() {
        let mut doubt = Doubt::default();
        let offer = offer(Ok(()));
        doubt.sent(at(1000));
        for milliseconds in [1001, 1600, 3000, 5999] {
            assert!(!doubt.is_forgotten(&answer(milliseconds, &[]), &offer), "{milliseconds}");
        }
        assert_eq!(doubt.look_at(), Some(at(6000)), "it is asked when it must have taken it in");
        assert!(!doubt.is_forgotten(&answer(6001, &[]), &offer), "one answer decides nothing");
        assert_eq!(doubt.look_at(), Some(at(6501)));
        assert!(doubt.is_forgotten(&answer(6501, &[]), &offer), "it has had its time");
    }

    #[test]
    fn a_resource_without_healthy_devices_is_rightly_not_listed() {
        let mut doubt = Doubt::default();
        let offer = offer(Err(Withheld::judged(UnhealthyReason::Lost, "lost")));
        doubt.sent(at(1000));
        for milliseconds in [1100, 2000, 7000, 8000] {
            assert!(!doubt.is_forgotten(&answer(milliseconds, &[]), &offer));
        }
    }

    #[test]
    fn the_end_of_another_podmeter_is_a_reason_to_look() {
        let mut doubt = Doubt::default();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        doubt.others(names(&["one"]), at(0));
        doubt.others(names(&["one", "two"]), at(10));
        assert_eq!(doubt.look_at(), None);
        doubt.others(names(&["two"]), at(20));
        assert_eq!(doubt.look_at(), Some(at(120)));
    }
}
