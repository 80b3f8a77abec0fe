use tokio::sync::watch;

use super::*;
use crate::domain::model::{ClaimAllocation, PodLogs};
use crate::kubelet::trigger::CHECKPOINT;
use crate::kubelet::watch::tests::settings;
use crate::test_data;

#[test]
fn the_first_answer_ever_is_shown_at_once() {
    let mut settle = Settle::default();
    assert_eq!(held(&settle.observe(Monotonic::from_secs(0), allocations_of("a=0"), false)), "a=0");
    assert!(!settle.is_settled());
}

#[test]
fn once_settled_a_missing_pod_is_removed() {
    let mut settle = settled_on(&allocations_of("a=0 b=1"));
    assert_eq!(held(&settle.observe(Monotonic::from_secs(2), allocations_of("b=1"), false)), "b=1");
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
            let accepted = settle.observe(Monotonic::from_millis(100_000 + after), allocations_of(answer), false);
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
    assert_eq!(claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "claim-2"), false)), 1);
    let mut settle = settled_on(&claiming("old", "shared"));
    settle.reconnected();
    assert_eq!(claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "shared"), false)), 2);
    let mut observing = claiming("old", "claim-1");
    let allocation = ClaimAllocation { admin_access: true, ..ClaimAllocation::default() };
    observing.pods[0].containers[0].claims[0].record.allocation = Some(allocation);
    let mut settle = settled_on(&observing);
    settle.reconnected();
    assert_eq!(
        claims(&settle.observe(Monotonic::from_secs(100), claiming("new", "claim-2"), false)),
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
        let accepted = settle.observe(Monotonic::from_secs(100 + seconds), answer, false);
        assert_eq!(held(&accepted).contains("a=0"), seconds < 10, "at {seconds}");
    }
}

const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
/// The UID of a pod from a manifest.
const BARE: &str = "229836ee3ad078911e99a2b8134d6713";

/// The trainer holds a device; the agent is a pod of the API server too, the proxy one from a manifest.
#[tokio::test]
async fn a_restarted_kubelet_that_cannot_reach_the_api_server_ends_no_holder() {
    const ALL: &str = "agent= proxy-node= trainer=0";
    let uid = |pod: &str| if pod.starts_with("proxy") { BARE } else { UID }.into();
    let logged = |pods: &[&str]| {
        let latest = pods.iter().map(|pod| (PodRef::new("team", pod), uid(pod))).collect();
        Arc::new(PodLogs { as_of: Some(Monotonic::default()), latest: Arc::new(latest), ..PodLogs::default() })
    };
    let unread = || Arc::new(PodLogs::default());
    let root = tempfile::tempdir().unwrap();
    let entry = format!(
        r#"{{"PodUID":"{UID}","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{{"-1":["0"]}}}}"#
    );
    let checkpoint = format!(r#"{{"Data":{{"PodDeviceEntries":[{entry}]}},"Checksum":1}}"#);
    std::fs::write(root.path().join(CHECKPOINT), checkpoint).unwrap();
    let (manifests, elsewhere) = ("proxy-node=", "proxy-gpu-1=");
    for (what, logs, answers, is_held) in [
        ("for an hour", logged(&["trainer"]), &[(100, manifests), (3700, manifests)][..], true),
        ("for a day", logged(&["trainer"]), &[(100, manifests), (86_499, manifests)], true),
        ("for longer", logged(&["trainer"]), &[(100, manifests), (86_499, manifests), (86_530, manifests)], false),
        ("of another name", logged(&["trainer", "proxy-gpu-1"]), &[(100, elsewhere), (200, elsewhere)], true),
        ("without log directories", unread(), &[(100, manifests), (3700, manifests)], true),
        ("it lists nothing", unread(), &[(100, ""), (200, "")], true),
        ("the agent comes before", unread(), &[(100, manifests), (200, "agent="), (201, ALL), (202, ALL)], true),
        ("only the agent is left", unread(), &[(100, manifests), (200, "agent="), (230, "agent=")], false),
        ("only the checkpoint still has it", logged(&["agent"]), &[(100, manifests), (130, manifests)], false),
    ] {
        let (publish, receiver) = watch::channel(unread());
        let sources = PodSources { logs: receiver, ..PodSources::default() };
        let mut accepted = AcceptedAllocations::new(&settings(root.path()), sources);
        for second in [0, 1] {
            accepted.observe(Monotonic::from_secs(second), allocations_of(ALL)).await;
        }
        accepted.settle.reconnected();
        publish.send_replace(logs);
        let mut last = String::new();
        for (second, answer) in answers {
            let accepted = accepted.observe(Monotonic::from_secs(*second), allocations_of(answer)).await;
            last = held(&accepted);
        }
        assert_eq!(last, if is_held { "trainer=0" } else { "" }, "{what}");
    }
}

#[test]
fn a_kubelet_that_cannot_reach_the_api_server_lists_all_pods_of_manifests() {
    let mut before = allocations_of("ended=0 proxy=1 trainer=2");
    for (pod, uid) in before.pods.iter_mut().zip([BARE, BARE, UID]) {
        pod.uid = Some(uid.into());
    }
    let mut settle = settled_on(&before);
    settle.reconnected();
    for (second, expected) in [(100, "ended=0 proxy=1 trainer=2"), (101, "proxy=1 trainer=2")] {
        let accepted = settle.observe(Monotonic::from_secs(second), allocations_of("proxy=1"), true);
        assert_eq!(held(&accepted), expected);
    }
    assert!(!settle.is_settled());
    let of_api = allocations_of("agent= proxy=1");
    assert_eq!(held(&settle.observe(Monotonic::from_secs(102), of_api, false)), "proxy=1 trainer=2");
}

#[test]
fn an_unchanged_answer_keeps_the_same_allocations() {
    let mut settle = settled_on(&allocations_of("a=0"));
    let first = settle.observe(Monotonic::from_secs(2), allocations_of("a=0"), false);
    let second = settle.observe(Monotonic::from_secs(3), allocations_of("a=0"), false);
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
    for second in [0, 1] {
        settle.observe(Monotonic::from_secs(second), allocations.clone(), false);
    }
    assert!(settle.is_settled());
    settle
}
