use super::super::*;
use crate::domain::model::{DeviceId, ResourceName};
use crate::test_data::{self, identity};

const GPU: &str = "nvidia.com/gpu";

const UNKNOWN: (Option<String>, Option<String>) = (None, None);

#[test]
fn a_pod_recreated_under_its_name_is_another() {
    let mut node = ListedNode::default();
    node.write(&[("0", "old")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("old"));
    node.write(&[("0", "new")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("new"), "without a List in between");
}

#[test]
fn a_pod_listed_before_its_checkpoint_is_written_is_not_taken_for_its_predecessor() {
    let mut node = ListedNode::default();
    node.write(&[("0", "old")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("old"));
    node.list(&[]);
    assert_eq!(node.list(&[("web-0", &["0"])]), UNKNOWN, "the checkpoint is that of the old pod");
    node.write(&[("0", "new")]);
    assert_eq!(node.list(&[("web-0", &["0"])]).0.as_deref(), Some("new"));
}

#[test]
fn a_pod_from_a_manifest_returns_with_its_uid() {
    let mut node = ListedNode::default();
    node.write(&[("0", "hash")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("hash"));
    node.list(&[]);
    node.write(&[("0", "hash")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("hash"), "allocated anew");
}

#[test]
fn the_log_directory_of_a_pod_that_has_left_does_not_name_the_next_one() {
    let mut node = ListedNode::default();
    node.log_directory("web-0", "old");
    assert_eq!(node.list(&[("web-0", &["0"])]), both("old"));
    node.list(&[]);
    assert_eq!(node.list(&[("web-0", &["0"])]), UNKNOWN, "the old directory is still there");
    node.log_directory("web-0", "new");
    let (uid, reference) = node.list(&[("web-0", &["0"])]);
    assert_eq!((uid.as_deref(), reference), (Some("new"), None), "learned later: it is still the same pod");
    node.log_directory("web-0", "newer");
    assert_eq!(node.list(&[("web-0", &["0"])]), both("newer"), "and this is another");
}

#[test]
fn the_checkpoint_comes_before_the_pods_api_and_that_before_log_directories() {
    let mut node = ListedNode::default();
    node.log_directory("web-0", "logged");
    assert_eq!(node.list(&[("web-0", &["0"])]).0.as_deref(), Some("logged"));
    node.pods_api(&[("web-0", "served")]);
    assert_eq!(node.list(&[("web-0", &["0"])]).0.as_deref(), Some("served"));
    node.write(&[("0", "allocated")]);
    node.pods_api(&[("web-0", "served"), ("web-0", "allocated")]);
    assert_eq!(node.list(&[("web-0", &["0"])]).0.as_deref(), Some("allocated"), "force-deleted, and still running");
}

#[test]
fn a_lesser_source_does_not_overrule_a_better_one() {
    let mut node = ListedNode::default();
    node.write(&[("0", "allocated")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("allocated"));
    // Its log directory is not there yet, its predecessor's is; and the checkpoint cannot be read for a moment.
    node.checkpoint = CheckpointAllocations::default();
    node.log_directory("web-0", "old");
    assert_eq!(node.list(&[("web-0", &["0"])]), both("allocated"));
}

#[test]
fn of_two_pods_of_one_name_in_the_pods_api_none_is_guessed() {
    let mut node = ListedNode::default();
    node.pods_api(&[("web-0", "old"), ("web-0", "new")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), UNKNOWN);
}

#[test]
fn a_pod_found_after_its_predecessor_has_left_the_pods_api_is_another() {
    let mut node = ListedNode::default();
    node.pods_api(&[("web-0", "old")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("old"));
    node.pods_api(&[]);
    assert_eq!(node.list(&[("web-0", &["0"])]), (None, Some("old".to_owned())), "which of both is listed is unknown");
    node.pods_api(&[("web-0", "old")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("old"), "it was the old one");
    node.pods_api(&[]);
    node.list(&[("web-0", &["0"])]);
    node.pods_api(&[("web-0", "new")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("new"));
}

#[test]
fn a_kubelet_that_lists_a_part_of_its_pods_has_lost_none() {
    let mut node = ListedNode::default();
    node.write(&[("0", "a")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), both("a"));
    node.list_part(&[], false);
    assert_eq!(node.list_part(&[("web-0", &["0"])], false), both("a"));
}

#[test]
fn another_pods_device_is_not_taken_for_this_ones() {
    let mut node = ListedNode::default();
    node.write(&[("0", "a")]);
    node.pods_api(&[("api", "a")]);
    assert_eq!(node.list(&[("web-0", &["0"])]), UNKNOWN);
}

/// Pods of namespace `team`, each with a container `main` and these devices.
fn answer(pods: &[(&str, &[&str])]) -> Allocations {
    test_data::allocations(pods.iter().map(|(name, devices)| {
        let devices: Vec<(&str, &str)> = devices.iter().map(|id| (GPU, *id)).collect();
        test_data::holder(name, &devices)
    }))
}

/// What is known of UIDs, and the pods as they were identified up to now.
#[derive(Default)]
struct ListedNode {
    pods: ListedPods,
    checkpoint: CheckpointAllocations,
    directory: PodDirectory,
    logged: BTreeMap<PodRef, Arc<PodIdentity>>,
    second: u64,
}

impl ListedNode {
    /// The kubelet writes its checkpoint: device to UID.
    fn write(&mut self, devices: &[(&str, &str)]) {
        let inode = self.checkpoint.version.unwrap_or_default().file.1 + 1;
        let pod = |(device, uid): &(&str, &str)| {
            ((Arc::from("main"), ResourceName::from(GPU), DeviceId::from(*device)), Some(PodUid::from(*uid)))
        };
        let pods = devices.iter().map(pod).collect();
        let version = Some(FileStamp { file: (0, inode), ..FileStamp::default() });
        self.checkpoint = CheckpointAllocations { version, pods, devices: None };
    }

    fn pods_api(&mut self, pods: &[(&str, &str)]) {
        let pods = pods.iter().map(|(name, uid)| (PodUid::from(*uid), Arc::new(identity(name, uid))));
        self.directory = PodDirectory { complete: true, pods: pods.collect(), problem: None };
    }

    fn log_directory(&mut self, name: &str, uid: &str) {
        self.logged.insert(PodRef::new("team", name), Arc::new(identity(name, uid)));
    }

    /// (UID of the pod, UID in the references to its containers), of the first pod that is listed.
    fn list(&mut self, pods: &[(&str, &[&str])]) -> (Option<String>, Option<String>) {
        self.list_part(pods, true)
    }

    fn list_part(&mut self, pods: &[(&str, &[&str])], is_whole: bool) -> (Option<String>, Option<String>) {
        self.second += 1;
        let mut answer = answer(pods);
        let sources =
            OtherSources { checkpoint: &self.checkpoint, directory: &self.directory, from_pod_logs: &self.logged };
        self.pods.track(Monotonic::from_secs(self.second), &mut answer, None, (is_whole, true), &sources);
        let text = |uid: &Option<PodUid>| uid.as_ref().map(|uid| uid.as_str().to_owned());
        // Whether it is unconfirmed is of no matter here.
        let Some(pod) = answer.pods.first().or_else(|| self.pods.unconfirmed().next()) else { return (None, None) };
        (text(&pod.uid), text(&pod.containers[0].reference.pod_uid))
    }
}

fn both(uid: &str) -> (Option<String>, Option<String>) {
    (Some(uid.to_owned()), Some(uid.to_owned()))
}
