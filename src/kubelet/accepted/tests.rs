use super::*;
use crate::domain::model::ClaimAllocation;
use crate::test_data;

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
    let claims =
        |allocations: &Allocations| allocations.containers().filter(|container| !container.claims.is_empty()).count();
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
    assert_eq!(claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "claim-2"))), 2, "an observer stays");
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
