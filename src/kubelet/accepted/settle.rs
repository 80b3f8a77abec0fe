//! What an answer removes: nothing before it has settled. The table is in `accepted`.
//!
//! In: answers and their times. Out: the accepted allocations. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{SETTLE, SETTLE_AT_LAST, SETTLE_EMPTY};
use crate::domain::model::{Allocations, ClaimDevice, Container, DeviceId, Monotonic, Pod, PodRef};

/// Decides which allocations to accept after each answer of the kubelet.
#[derive(Debug, Default)]
pub struct Settle {
    /// The last result.
    pub accepted: Option<Arc<Allocations>>,
    state: SettleState,
}

#[derive(Debug, Default)]
enum SettleState {
    /// Connected, no answer yet.
    #[default]
    Fresh,
    Waiting {
        first_answer: Monotonic,
        answer: Allocations,
        answer_since: Monotonic,
    },
    Settled,
}

impl Settle {
    /// The connection was lost or reopened: the next answer may be the first of a kubelet that has just started.
    pub fn reconnected(&mut self) {
        self.state = SettleState::Fresh;
    }

    pub fn is_settled(&self) -> bool {
        matches!(self.state, SettleState::Settled)
    }

    /// What is accepted after `answer`, given at `at`.
    pub fn observe(&mut self, at: Monotonic, answer: Allocations) -> Arc<Allocations> {
        let (first_answer, answer_since) = match &self.state {
            SettleState::Settled => (None, at),
            SettleState::Fresh => (Some(at), at),
            SettleState::Waiting { first_answer, answer: before, answer_since } if *before == answer => {
                (Some(*first_answer), *answer_since)
            }
            SettleState::Waiting { first_answer, .. } => (Some(*first_answer), at),
        };
        let settled = first_answer.is_none_or(|first_answer| {
            let emptied = self.accepted.as_deref().is_some_and(|accepted| lacks_all_holders(&answer, accepted));
            at.since(answer_since) >= if emptied { SETTLE_EMPTY } else { SETTLE }
                || (!emptied && at.since(first_answer) >= SETTLE_AT_LAST)
        });
        let accepted = match (&self.accepted, settled) {
            (Some(accepted), true) if **accepted == answer => Arc::clone(accepted),
            (Some(accepted), false) => {
                let merged = merge(accepted, &answer);
                if **accepted == merged { Arc::clone(accepted) } else { Arc::new(merged) }
            }
            _ => Arc::new(answer.clone()),
        };
        self.state = match first_answer {
            Some(first_answer) if !settled => SettleState::Waiting { first_answer, answer, answer_since },
            _ => SettleState::Settled,
        };
        self.accepted = Some(Arc::clone(&accepted));
        accepted
    }
}

/// Whether `answer` lists no accepted holder, nor another one; where none is accepted, no accepted pod.
fn lacks_all_holders(answer: &Allocations, accepted: &Allocations) -> bool {
    let has_holders = accepted.pods.iter().any(Pod::has_devices);
    let mut expected = accepted.pods.iter().filter(|pod| pod.has_devices() || !has_holders);
    !accepted.pods.is_empty()
        && !answer.pods.iter().any(Pod::has_devices)
        && expected.all(|pod| answer.pod(&pod.reference).is_none())
}

/// All that `answer` lists, and of `accepted` what it does not contradict: a device named under another container has
/// moved, everything else that is merely missing is kept.
fn merge(accepted: &Allocations, answer: &Allocations) -> Allocations {
    let (mut devices, mut claims) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for container in answer.containers() {
        for device in &container.devices {
            devices.entry((&device.resource, &device.id)).or_default().insert(&container.reference);
        }
        for claim in container.claims.iter().filter(|claim| !is_shareable(claim)) {
            claims.entry(claim_key(claim)).or_default().insert(&container.reference);
        }
    }
    let uncontradicted = |container: &Container| {
        let reference = &container.reference;
        let mut kept = container.clone();
        kept.devices.retain(|device| {
            devices.get(&(&device.resource, &device.id)).is_none_or(|holders| holders.contains(reference))
        });
        // A claim may be shared: the same claim under another container takes nothing away, another claim does.
        kept.claims.retain(|device| {
            is_shareable(device)
                || claims.get(&claim_key(device)).is_none_or(|holders| holders.contains(reference))
                || answer.containers().flat_map(|container| &container.claims).any(|other| other.is_same_share(device))
        });
        kept
    };
    let mut pods: BTreeMap<&PodRef, Pod> = answer.pods.iter().map(|pod| (&pod.reference, pod.clone())).collect();
    for before in &accepted.pods {
        match pods.get_mut(&before.reference) {
            None => {
                let containers = before.containers.iter().map(uncontradicted).collect();
                pods.insert(&before.reference, Pod { containers, ..before.clone() });
            }
            // Another pod under the same name: nothing of the old one is kept.
            Some(pod) if pod.uid.is_some() && before.uid.is_some() && pod.uid != before.uid => {}
            // Listed, but perhaps before the kubelet read its devices from the checkpoint.
            Some(pod) => {
                pod.uid = pod.uid.take().or_else(|| before.uid.clone());
                for container in &before.containers {
                    match pod.containers.iter_mut().find(|now| now.reference == container.reference) {
                        Some(now) if now.devices.is_empty() && now.claims.is_empty() => {
                            *now = uncontradicted(container);
                        }
                        Some(_) => {}
                        None => pod.containers.push(uncontradicted(container)),
                    }
                }
                pod.containers.sort_by(|a, b| a.reference.cmp(&b.reference));
            }
        }
    }
    Allocations { pods: pods.into_values().collect() }
}

/// An observer, or a claim of a part: others may have the same device.
fn is_shareable(claim: &ClaimDevice) -> bool {
    claim.is_observer() || claim.consumed().next().is_some()
}

/// The identity of a DRA device in its driver, independent of claims.
fn claim_key(device: &ClaimDevice) -> (&str, &str, &DeviceId, Option<&str>) {
    (&device.driver, &device.pool, &device.device, device.share_id.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ClaimAllocation;
    use crate::test_data;

    /// Pods with their devices: `a=0,1 b=`.
    fn allocations_of(pods: &str) -> Allocations {
        test_data::allocations(pods.split_whitespace().map(|pod| {
            let (name, devices) = pod.split_once('=').unwrap();
            let devices = devices.split(',').filter(|id| !id.is_empty()).map(|id| ("nvidia.com/gpu", id));
            test_data::holder(name, &devices.collect::<Vec<_>>())
        }))
    }

    /// The holders: `a=0 a=1`.
    fn held(allocations: &Allocations) -> String {
        let of = |container: &'_ Container| {
            let pod = container.reference.pod.clone();
            container.devices.iter().map(move |device| format!("{pod}={}", device.id)).collect::<Vec<_>>()
        };
        allocations.containers().flat_map(of).collect::<Vec<_>>().join(" ")
    }

    fn settled_on(allocations: &Allocations) -> Settle {
        let mut settle = Settle::default();
        settle.observe(Monotonic::from_secs(0), allocations.clone());
        settle.observe(Monotonic::from_secs(1), allocations.clone());
        assert!(settle.is_settled());
        settle
    }

    #[test]
    fn the_first_answer_ever_is_shown_at_once() {
        let mut settle = Settle::default();
        assert_eq!(held(&settle.observe(Monotonic::from_secs(0), allocations_of("a=0"))), "a=0");
        assert!(!settle.is_settled());
    }

    #[test]
    fn once_settled_a_missing_pod_is_removed() {
        let mut settle = settled_on(&allocations_of("a=0 b=1"));
        assert_eq!(held(&settle.observe(Monotonic::from_secs(2), allocations_of("b=1"))), "b=1");
    }

    #[test]
    fn after_a_reconnect_an_answer_adds_at_once_and_removes_once_it_has_settled() {
        for (what, before, answer, expected) in [
            ("nothing for half a minute", "a=0", "", &[(0, "a=0"), (900, "a=0"), (29_999, "a=0"), (30_000, "")][..]),
            ("only those of manifests", "a=0 m=", "m=", &[(0, "a=0"), (29_999, "a=0"), (30_000, "")]),
            ("a part for a second", "a=0 b=1", "b=1", &[(0, "a=0 b=1"), (900, "a=0 b=1"), (1_000, "b=1")]),
            ("a new pod is shown", "a=0", "b=1", &[(0, "a=0 b=1")]),
            ("a device under another pod has moved", "a=0,1", "b=1", &[(0, "a=0 b=1")]),
            ("a pod without its devices keeps them", "a=0", "a=", &[(0, "a=0"), (1_000, "")]),
        ] {
            let mut settle = settled_on(&allocations_of(before));
            settle.reconnected();
            for (after, expected) in expected {
                let accepted = settle.observe(Monotonic::from_millis(100_000 + after), allocations_of(answer));
                assert_eq!(held(&accepted), *expected, "{what}: after {after} ms");
            }
        }
    }

    #[test]
    fn a_claimed_device_listed_under_another_claim_has_moved_and_a_shared_claim_has_not() {
        let claiming = |pod: &str, claim: &str| {
            let mut claiming = allocations_of(&format!("{pod}="));
            let device = test_data::claim("gpu.nvidia.com", "gpu-0");
            claiming.pods[0].containers[0].claims = vec![ClaimDevice { claim: claim.into(), ..device }];
            claiming
        };
        let claims = |allocations: &Allocations| {
            allocations.containers().filter(|container| !container.claims.is_empty()).count()
        };
        let mut settle = settled_on(&claiming("old", "claim-1"));
        settle.reconnected();
        assert_eq!(claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "claim-2"))), 1);
        let mut settle = settled_on(&claiming("old", "shared"));
        settle.reconnected();
        assert_eq!(claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "shared"))), 2);
        let mut observing = claiming("old", "claim-1");
        let allocation = ClaimAllocation { admin_access: true, ..ClaimAllocation::default() };
        observing.pods[0].containers[0].claims[0].record.allocation = Some(allocation);
        let mut settle = settled_on(&observing);
        settle.reconnected();
        assert_eq!(
            claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "claim-2"))),
            2,
            "an observer stays"
        );
    }

    #[test]
    fn answers_that_always_differ_settle_at_last() {
        let mut settle = settled_on(&allocations_of("a=0"));
        settle.reconnected();
        for seconds in 0..=10 {
            let answer = allocations_of(&format!("pod-{seconds}=1"));
            let accepted = settle.observe(Monotonic::from_secs(100 + seconds), answer);
            assert_eq!(held(&accepted).contains("a=0"), seconds < 10, "at {seconds}");
        }
    }

    #[test]
    fn an_unchanged_answer_keeps_the_same_allocations() {
        let mut settle = settled_on(&allocations_of("a=0"));
        let first = settle.observe(Monotonic::from_secs(2), allocations_of("a=0"));
        let second = settle.observe(Monotonic::from_secs(3), allocations_of("a=0"));
        assert!(Arc::ptr_eq(&first, &second));
    }
}
