use super::super::*;
use crate::test_data::{allocations, container, identity, main_of, pod};

fn listed(uids: &[&str]) -> Allocations {
    allocations(uids.iter().map(|uid| {
        let reference = main_of("web-0").with_uid(Some((*uid).into()));
        pod(container(reference, &[("nvidia.com/gpu", "0")]))
    }))
}

fn directory(pods: &[(&str, bool)]) -> PodDirectory {
    let identity = |(uid, terminal): &(&str, bool)| {
        let identity = PodIdentity { terminal: *terminal, ..identity("web-0", uid) };
        (identity.uid.clone(), Arc::new(identity))
    };
    PodDirectory { complete: true, pods: pods.iter().map(identity).collect(), problem: None }
}

/// Takes the unconfirmed pods from the answer, which is whole.
fn take_unconfirmed(
    pods: &mut ListedPods,
    millisecond: u64,
    (accepted, answer): (&Allocations, &mut Allocations),
    directory: &PodDirectory,
    checkpoint: &CheckpointAllocations,
) {
    let sources = OtherSources { checkpoint, directory, from_pod_logs: &BTreeMap::new() };
    pods.track(Monotonic::from_millis(millisecond), answer, Some(accepted), (true, true), &sources);
}

/// A checkpoint that names the pod of the device. Without `devices` it confirms no admission.
fn only_uid(uid: &str) -> CheckpointAllocations {
    let pods = [(("main".into(), "nvidia.com/gpu".into(), "0".into()), Some(uid.into()))].into();
    CheckpointAllocations { pods, ..CheckpointAllocations::default() }
}

/// Whether the pod with UID `new` is accepted at each of these milliseconds, in which it is listed.
fn accepted_at(milliseconds: &[u64], before: &Allocations, directory: &PodDirectory) -> Vec<bool> {
    let mut pods = ListedPods::default();
    let mut at = |millisecond| {
        let mut answer = listed(&["new"]);
        take_unconfirmed(&mut pods, millisecond, (before, &mut answer), directory, &only_uid("new"));
        assert_eq!(
            pods.unconfirmed_due().is_none(),
            !answer.pods.is_empty() || directory.pods.values().any(|pod| pod.terminal)
        );
        !answer.pods.is_empty()
    };
    milliseconds.iter().map(|millisecond| at(*millisecond)).collect()
}

#[test]
fn a_pod_that_the_pods_api_has_as_ended_is_not_accepted_from_a_part_of_the_pods() {
    for (has_ended, expected) in [(false, 1), (true, 0)] {
        let (checkpoint, directory) = (only_uid("new"), directory(&[("new", has_ended)]));
        let sources = OtherSources { checkpoint: &checkpoint, directory: &directory, from_pod_logs: &BTreeMap::new() };
        let mut answer = listed(&["new"]);
        ListedPods::default().track(Monotonic::default(), &mut answer, None, (false, true), &sources);
        assert_eq!(answer.pods.len(), expected);
    }
}

#[test]
fn a_pod_that_was_rejected_after_its_first_allocate_never_held() {
    let (mut pods, none) = (ListedPods::default(), listed(&[]));
    let (nothing, checkpoint) = (PodDirectory::default(), only_uid("new"));
    let mut answer = listed(&["new"]);
    take_unconfirmed(&mut pods, 0, (&none, &mut answer), &nothing, &checkpoint);
    assert!(answer.pods.is_empty());
    assert_eq!(pods.unconfirmed_due(), Some(Monotonic::from_millis(200)));
    take_unconfirmed(&mut pods, 200, (&none, &mut answer), &nothing, &checkpoint);
    assert_eq!((answer.pods.len(), pods.unconfirmed_due()), (0, None), "no longer listed");
}

#[test]
fn only_a_new_answer_accepts_it() {
    let (nothing, checkpoint) = (PodDirectory::default(), only_uid("new"));
    let sources = OtherSources { checkpoint: &checkpoint, directory: &nothing, from_pod_logs: &BTreeMap::new() };
    let (mut pods, none) = (ListedPods::default(), listed(&[]));
    let mut at = |millisecond, is_new| {
        let mut answer = listed(&["new"]);
        pods.track(Monotonic::from_millis(millisecond), &mut answer, Some(&none), (true, is_new), &sources);
        answer.pods.len()
    };
    assert_eq!((at(0, true), at(300, false), at(11_000, false), at(11_001, true)), (0, 0, 0, 1));
}

#[test]
fn listed_twice_it_is_accepted() {
    let nothing = PodDirectory::default();
    assert_eq!(accepted_at(&[0, 100, 200], &listed(&[]), &nothing), [false, false, true]);
    assert_eq!(
        accepted_at(&[0, 100, 200], &listed(&["old"]), &nothing),
        [false, false, true],
        "another pod of the name"
    );
    assert_eq!(accepted_at(&[0], &listed(&["new"]), &nothing), [true], "it held before");
}

#[test]
fn the_pods_api_confirms_its_admission() {
    assert_eq!(accepted_at(&[0], &listed(&[]), &directory(&[("new", false)])), [true], "admitted");
    assert_eq!(accepted_at(&[0, 5000], &listed(&[]), &directory(&[("new", true)])), [false, false], "rejected");
    assert_eq!(accepted_at(&[0, 5000, 10_000], &listed(&[]), &directory(&[])), [false, false, true], "late");
}

/// Each answer with the checkpoint that is read after it: its version, and whether it has the device.
fn accepted_with(answers: &[(u64, &[&str], u64, bool)]) -> Vec<bool> {
    let (mut pods, nothing) = (ListedPods::default(), PodDirectory::default());
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
        take_unconfirmed(&mut pods, *millisecond, (&listed(&[]), &mut answer), &nothing, &checkpoint);
        pods.answered(checkpoint.version);
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
