use super::*;
use crate::domain::model::PodIdentity;
use crate::domain::periods::KUBELET_START;
use crate::test_data::{allocations, container, identity, main_of, pod};

fn directory(pods: &[(&str, bool)]) -> Arc<PodDirectory> {
    let identity = |(name, terminal): &(&str, bool)| PodIdentity { terminal: *terminal, ..identity(name, name) };
    let pods = pods.iter().map(|pod| (pod.0.into(), Arc::new(identity(pod))));
    Arc::new(PodDirectory { complete: true, pods: pods.collect(), problem: None })
}

/// Pods a and b hold devices; the call budget is used up.
async fn watch_of_two_holders() -> KubeletWatch {
    let settings = KubeletSettings {
        pod_resources_socket: PathBuf::new(),
        device_plugin_directory: PathBuf::new(),
        claim_directories: ClaimDirectories { plugins: PathBuf::new(), cdi: PathBuf::new(), proc: PathBuf::new() },
        deadline: Duration::from_secs(5),
    };
    let clock = Clock::start();
    let identified = watch::channel(directory(&[("a", false), ("b", false)])).1;
    let pods = PodSources { directory: identified, ..PodSources::default() };
    let publish = watch::channel(Arc::default()).0;
    let mut watch = KubeletWatch::new(settings, Box::new(|| Duration::from_secs(3600)), pods, clock, publish);
    let held =
        ["a", "b"].map(|name| pod(container(main_of(name).with_uid(Some(name.into())), &[("nvidia.com/gpu", name)])));
    watch.accepted.observe(clock.now().monotonic, allocations(held)).await;
    let now = clock.now().monotonic;
    (0..4).for_each(|_| watch.schedule.call_began(now));
    watch
}

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
