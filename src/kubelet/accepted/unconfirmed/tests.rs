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
        let unread = CheckpointAllocations::default();
        unconfirmed.hold_back(Monotonic::from_millis(millisecond), &mut answer, Some(before), directory, &unread);
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
    let (nothing, unread) = (PodDirectory::default(), CheckpointAllocations::default());
    let mut answer = listed(&["new"]);
    unconfirmed.hold_back(Monotonic::from_millis(0), &mut answer, Some(&listed(&[])), &nothing, &unread);
    assert!(answer.pods.is_empty());
    assert_eq!(unconfirmed.due(), Some(Monotonic::from_millis(200)));
    unconfirmed.hold_back(Monotonic::from_millis(200), &mut answer, Some(&listed(&[])), &nothing, &unread);
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
    assert_eq!(believed_at(&[0, 5000, 10_000], &listed(&[]), &directory(&[])), [false, false, true], "late");
}

/// Each answer with the checkpoint that is read after it: its version, and whether it has the device.
fn accepted_with(answers: &[(u64, &[&str], u64, bool)]) -> Vec<bool> {
    let (mut unconfirmed, nothing) = (Unconfirmed::default(), PodDirectory::default());
    let answered = |(millisecond, uids, version, has_device): &(u64, &[&str], u64, bool)| {
        let mut checkpoint = CheckpointAllocations {
            version: Some(FileStamp { bytes: *version, ..FileStamp::default() }),
            devices: Some(Arc::default()),
            ..CheckpointAllocations::default()
        };
        if *has_device {
            checkpoint.pods.insert(("main".into(), "nvidia.com/gpu".into(), "0".into()), None);
        }
        let mut answer = listed(uids);
        unconfirmed.hold_back(Monotonic::from_millis(*millisecond), &mut answer, None, &nothing, &checkpoint);
        unconfirmed.answered(checkpoint.version);
        !answer.pods.is_empty()
    };
    answers.iter().map(answered).collect()
}

#[test]
fn it_is_accepted_once_the_kubelet_has_written_its_devices() {
    let (none, new): (&[&str], &[&str]) = (&[], &["new"]);
    let before = [(0, none, 1, false), (0, none, 1, false)];
    for (what, answers, expected) in [
        (
            "written before it was listed",
            [(10, new, 2, true), (100, new, 2, true), (210, new, 2, true)],
            [false, false, true],
        ),
        ("written later", [(10, new, 1, false), (3000, new, 1, false), (3010, new, 2, true)], [false, false, true]),
        (
            "written for another pod",
            [(10, new, 1, true), (3000, new, 1, true), (3010, new, 2, true)],
            [false, false, true],
        ),
        (
            "written without it",
            [(10, new, 1, false), (3000, new, 2, false), (10_010, new, 2, false)],
            [false, false, true],
        ),
        ("rejected", [(10, new, 1, false), (3000, new, 1, false), (3010, none, 1, false)], [false, false, false]),
    ] {
        let answers: Vec<_> = before.into_iter().chain(answers).collect();
        assert_eq!(accepted_with(&answers)[2..], expected, "{what}");
    }
}

/// The checkpoint is read after the answer.
#[test]
fn what_was_written_between_an_answer_and_its_checkpoint_counts() {
    let (none, new): (&[&str], &[&str]) = (&[], &["new"]);
    let answers = [(0, none, 1, false), (0, none, 2, true), (10, new, 2, true), (210, new, 2, true)];
    assert_eq!(accepted_with(&answers), [false, false, false, true]);
}
