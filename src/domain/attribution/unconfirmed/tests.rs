use std::sync::Arc;

use super::*;
use crate::domain::model::{ContainerRef, PodIdentity};
use crate::test_data::{container, pod};

fn listed(uids: &[&str]) -> Allocations {
    let pods = uids.iter().map(|uid| {
        let reference = ContainerRef::new("team", "web-0", "main").with_uid(Some((*uid).into()));
        pod(container(reference, &[("nvidia.com/gpu", "0")]))
    });
    Allocations { pods: pods.collect() }
}

fn directory(pods: &[(&str, bool)]) -> PodDirectory {
    let identity = |(uid, terminal): &(&str, bool)| {
        let identity = PodIdentity {
            pod: PodRef::new("team", "web-0"),
            uid: (*uid).into(),
            runtime_uid: None,
            labels: BTreeMap::new(),
            terminal: *terminal,
            containers: BTreeMap::new(),
        };
        (identity.uid.clone(), Arc::new(identity))
    };
    PodDirectory { complete: true, pods: pods.iter().map(identity).collect(), problem: None }
}

/// Whether the pod with UID `new` is accepted at each of these milliseconds, in which it is listed.
fn believed_at(milliseconds: &[u64], before: &Allocations, directory: &PodDirectory) -> Vec<bool> {
    let mut unconfirmed = Unconfirmed::default();
    let mut at = |millisecond| {
        let mut answer = listed(&["new"]);
        unconfirmed.hold_back(Monotonic::from_millis(millisecond), &mut answer, Some(before), directory);
        assert_eq!(
            unconfirmed.due().is_none(),
            !answer.pods.is_empty() || directory.pods.values().any(|pod| pod.terminal)
        );
        !answer.pods.is_empty()
    };
    milliseconds.iter().map(|millisecond| at(*millisecond)).collect()
}

#[test]
fn a_pod_that_was_rejected_after_its_first_allocate_never_held() {
    let mut unconfirmed = Unconfirmed::default();
    let nothing = PodDirectory::default();
    let mut answer = listed(&["new"]);
    unconfirmed.hold_back(Monotonic::from_millis(0), &mut answer, Some(&listed(&[])), &nothing);
    assert!(answer.pods.is_empty());
    assert_eq!(unconfirmed.due(), Some(Monotonic::from_millis(200)));
    unconfirmed.hold_back(Monotonic::from_millis(200), &mut answer, Some(&listed(&[])), &nothing);
    assert_eq!((answer.pods.len(), unconfirmed.due()), (0, None), "no longer listed");
}

#[test]
fn listed_twice_it_is_accepted() {
    let nothing = PodDirectory::default();
    assert_eq!(believed_at(&[0, 100, 200], &listed(&[]), &nothing), [false, false, true]);
    assert_eq!(
        believed_at(&[0, 100, 200], &listed(&["old"]), &nothing),
        [false, false, true],
        "another pod of the name"
    );
    assert_eq!(believed_at(&[0], &listed(&["new"]), &nothing), [true], "it held before");
}

#[test]
fn the_pods_api_confirms_its_admission() {
    assert_eq!(believed_at(&[0], &listed(&[]), &directory(&[("new", false)])), [true], "admitted");
    assert_eq!(believed_at(&[0, 5000], &listed(&[]), &directory(&[("new", true)])), [false, false], "rejected");
    assert_eq!(believed_at(&[0, 1000, 2000], &listed(&[]), &directory(&[])), [false, false, true], "late");
}
