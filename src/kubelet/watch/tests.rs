use std::path::Path;

use super::super::trigger::CHECKPOINT;
use super::*;
use crate::domain::model::{DeviceId, PodIdentity};
use crate::domain::periods::KUBELET_START;
use crate::test_data::{allocations, container, identity, main_of, pod};

#[tokio::test(start_paused = true)]
async fn the_end_of_a_holder_is_queried_at_once_though_the_call_budget_is_used_up() {
    let mut watch = watch_of_two_holders().await;
    watch.pods_changed(directory(&[("a", false), ("b", false)])).await;
    assert!(!watch.next_call().0.is_zero(), "nothing has ended");
    watch.pods_changed(directory(&[("b", false)])).await;
    assert!(matches!(watch.next_call(), (Duration::ZERO, NextCall::EndedPods)));
}

/// Its admission took longer than its confirmation is waited for.
#[tokio::test(start_paused = true)]
async fn a_holder_that_the_pods_api_first_lists_as_failed_is_queried() {
    let mut watch = watch_of_two_holders().await;
    watch.pods_changed(directory(&[("a", false)])).await;
    watch.pods_changed(directory(&[("a", false), ("b", true)])).await;
    assert_eq!(watch.ended, [PodRef::new("team", "b")].into());
    watch.ended.clear();
    watch.pods_changed(directory(&[("a", false), ("b", true)])).await;
    assert!(watch.ended.is_empty(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_starts_is_called_after_two_seconds() {
    let mut watch = watch_of_two_holders().await;
    watch.apply_trigger(Trigger::Reconnect);
    assert_eq!(watch.next_call().0, KUBELET_START);
    tokio::time::advance(KUBELET_START).await;
    assert!(matches!(watch.next_call(), (Duration::ZERO, NextCall::Refresh(None))));
}

/// The socket is made while another event already calls for a refresh.
#[tokio::test(start_paused = true)]
async fn a_kubelet_that_starts_is_not_called_for_an_event_from_before_its_start() {
    let (root, mut tasks) = (tempfile::tempdir().unwrap(), Tasks::default());
    std::fs::create_dir(root.path().join("pod-resources")).unwrap();
    let interval = Box::new(|| Duration::from_secs(3600));
    let mut states = start(settings(root.path()), interval, PodSources::default(), Clock::start(), &mut tasks).states;
    states.changed().await.unwrap();
    std::fs::write(root.path().join(CHECKPOINT), "{}").unwrap();
    std::fs::write(root.path().join("pod-resources/kubelet.sock"), "").unwrap();
    let started = tokio::time::Instant::now();
    states.changed().await.unwrap();
    let state = states.borrow().clone();
    assert_eq!((state.counters.triggers["checkpoint"], state.counters.triggers["reconnect"]), (1, 1));
    assert!(started.elapsed() >= KUBELET_START, "in paused time: {:?}", started.elapsed());
}

#[tokio::test]
async fn an_unreadable_checkpoint_is_read_again_and_a_read_one_once_for_each_kubelet() {
    let root = tempfile::tempdir().unwrap();
    let mut watch = watch_of(root.path(), PodSources::default());
    let holding = |id| {
        const ENTRY: &str = r#"{"PodUID":"u","ContainerName":"c","ResourceName":"x.io/y","DeviceIDs":{"-1":["@"]}}"#;
        format!(r#"{{"Data":{{"PodDeviceEntries":[{}]}}}}"#, ENTRY.replace('@', id))
    };
    for (content, is_connected_anew, expected) in [
        ("{".to_owned(), false, None),
        (holding("a"), false, Some("a")),
        (holding("bb"), false, Some("a")),
        (holding("bb"), true, Some("bb")),
        ("{".to_owned(), true, Some("bb")),
    ] {
        std::fs::write(root.path().join(CHECKPOINT), &content).unwrap();
        if is_connected_anew {
            watch.apply_trigger(Trigger::Reconnect);
        }
        watch.read_checkpoint().await;
        let registered = watch.state.checkpoint.as_deref().and_then(|devices| devices.values().flatten().next());
        assert_eq!(registered.map(DeviceId::as_str), expected, "{content}");
        let held = watch.state.held_in_checkpoint.iter().next();
        assert_eq!(held.map(|(_, id)| id.as_str()), expected, "{content}");
    }
}

fn directory(pods: &[(&str, bool)]) -> Arc<PodDirectory> {
    let identity = |(name, terminal): &(&str, bool)| PodIdentity { terminal: *terminal, ..identity(name, name) };
    let pods = pods.iter().map(|pod| (pod.0.into(), Arc::new(identity(pod))));
    Arc::new(PodDirectory { complete: true, pods: pods.collect(), problem: None })
}

/// Of a kubelet whose sockets and checkpoint are in this directory.
pub fn settings(root: &Path) -> KubeletSettings {
    KubeletSettings {
        pod_resources_socket: root.join("pod-resources/kubelet.sock"),
        device_plugin_directory: root.to_owned(),
        claim_directories: ClaimDirectories { plugins: PathBuf::new(), cdi: PathBuf::new(), proc: PathBuf::new() },
        node_name: "node".to_owned(),
        deadline: Duration::from_secs(5),
    }
}

fn watch_of(root: &Path, pods: PodSources) -> KubeletWatch {
    let publish = watch::channel(Arc::default()).0;
    KubeletWatch::new(settings(root), Box::new(|| Duration::from_secs(3600)), pods, Clock::start(), publish)
}

/// Pods a and b hold devices; the call budget is used up.
async fn watch_of_two_holders() -> KubeletWatch {
    let identified = watch::channel(directory(&[("a", false), ("b", false)])).1;
    let pods = PodSources { directory: identified, ..PodSources::default() };
    let mut watch = watch_of(Path::new(""), pods);
    let held =
        ["a", "b"].map(|name| pod(container(main_of(name).with_uid(Some(name.into())), &[("nvidia.com/gpu", name)])));
    let now = watch.clock.now().monotonic;
    watch.accepted.observe(now, allocations(held)).await;
    (0..4).for_each(|_| watch.schedule.call_began(now));
    watch
}
