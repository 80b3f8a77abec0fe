//! What Kubernetes' own end-to-end tests require of a device plugin, checked on ours, under kubelets
//! up to 1.36 and from 1.37.
//!
//! | upstream test | here, or why not here |
//! |---|---|
//! | 1 List with and without pods, init containers, sidecars | the kubelet's: `tests/it/fake_kubelet.rs` |
//! | 2 GetAllocatableResources has devices only with a plugin | the kubelet's: `tests/it/fake_kubelet.rs` |
//! | 3 Get: unknown, terminated, sidecars | the kubelet's: `tests/it/fake_kubelet.rs` |
//! | 4 List has active pods only | the kubelet's: `tests/it/fake_kubelet.rs` |
//! | 5 a plugin without topology, across a restart | `plugin::allocate::service`, and the kubelet's |
//! | 6 the kubelet's own metrics count | the kubelet's: nothing of ours reads them |
//! | 7 a tight loop of Lists is limited | a client's: `tests/it/kubelet.rs` |
//! | 8 a device reaches a pod, the API shows it | `tests/it/plugin.rs` |
//! | 9 a CDI device reaches the container | `tests/it/plugin_cdi.rs` |
//! | 10 assignments outlive every restart | `an_assignment_outlives_every_restart` |
//! | 11 a second pod gets another device | the kubelet's |
//! | 12 a succeeded pod is not admitted again | the kubelet's |
//! | 13 a pod deleted while the kubelet is down | the kubelet's |
//! | 14 a sidecar reuses the init container's device | the kubelet's |
//! | 15 a reboot, the pod before the plugin | the kubelet's |
//! | 16 a restart, the plugin away | the kubelet's |
//! | 17 a failing CRI must not evict pods | the kubelet's: no plugin is involved |
//! | 18 GetDevicePluginOptions fails | `tests/it/plugin_faults.rs`, the row `plugin-refused` |
//! | 19 a device becomes unhealthy and healthy again | `tests/it/plugin_properties.rs` |
//! | 20 a running pod on an unhealthy device | `tests/it/plugin_properties.rs` |
//! | 21 several devices, several flips | `tests/it/plugin_properties.rs` |
//! | 22 ListAndWatch fails at once | the row `plugin-not-listed` |
//! | 23 ListAndWatch fails later | the rows `plugin-stream-lost`, `plugin-refused` |
//! | 24 the plugin is stopped | the kubelet's |
//! | 25 the pod's status follows the device | `tests/it/health.rs` |
//! | 26 a rollout with two plugins at once | `a_rollout_keeps_the_capacity` |
//! | 27 the second plugin fails to register | as `plugin-refused`: the first one is not asked |
//! | 28 the second plugin is withdrawn | `the_first_plugin_goes_on_when_the_second_is_withdrawn` |
//! | 29 an allocation in flight is not listed | the kubelet's |

use parking_lot::Mutex;

use crate::support::kubelet::{DeviceCount, FakeKubelet, KubeletNode, KubeletVersion, PodPhase, asking_pod};
use crate::support::plugin_harness::{GPU, PluginHarness, gpus, plugin_on_node, sockets};

/// Each as two tests: `<name>::up_to_1_36` and `<name>::from_1_37`.
macro_rules! under_both_versions {
    ($($name:ident)*) => {$(
        mod $name {
            use super::KubeletVersion;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn up_to_1_36() {
                super::$name(KubeletVersion::UpTo136).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn from_1_37() {
                super::$name(KubeletVersion::From137).await;
            }
        }
    )*};
}

under_both_versions! {
    an_assignment_outlives_every_restart
    a_rollout_keeps_the_capacity
    the_first_plugin_goes_on_when_the_second_is_withdrawn
}

async fn restarted(node: &KubeletNode) {
    node.restart().unwrap();
    node.ready().await;
}

/// What the restarted container of `trainer` is given.
async fn visible_devices(node: &KubeletNode) -> Vec<String> {
    let options = node.start_container("team", "trainer", "main").await.unwrap().unwrap();
    let mut visible: Vec<String> = options.envs["NVIDIA_VISIBLE_DEVICES"].split(',').map(str::to_owned).collect();
    visible.sort_unstable();
    visible
}

/// The devices of the only container that the kubelet lists.
async fn listed_devices(node: &KubeletNode) -> Vec<String> {
    let listed = node.list().await.pod_resources.remove(0).containers.remove(0);
    let mut ids: Vec<String> = listed.devices.into_iter().flat_map(|entry| entry.device_ids).collect();
    ids.sort();
    ids
}

async fn an_assignment_outlives_every_restart(version: KubeletVersion) {
    let (node, mut podmeter) = plugin_on_node(version, "{}", gpus(4), 4).await;
    node.runs(asking_pod("trainer", GPU, 2)).await;
    let given = node.held("trainer");
    let restarts: [(&str, bool, bool, bool); 6] = [
        ("container", true, false, false),
        ("kubelet", false, true, false),
        ("container and kubelet", true, true, false),
        ("plugin", false, false, true),
        ("kubelet and plugin", false, true, true),
        ("all", true, true, true),
    ];
    for (what, container, kubelet, plugin) in restarts {
        let registrations = podmeter.now(GPU).registrations;
        if plugin {
            podmeter.stop().await;
            node.counts(GPU, 4, 0).await;
        }
        if kubelet {
            restarted(&node).await;
        }
        if plugin {
            podmeter = PluginHarness::start(node.root.path());
        }
        podmeter.registered(GPU, if plugin { 1 } else { registrations + u64::from(kubelet) }).await;
        node.counts(GPU, 4, 4).await;
        let asked = podmeter.now(GPU).allocations["ok"];
        if container {
            assert_eq!(visible_devices(&node).await, given, "{what}");
        }
        assert_eq!(podmeter.now(GPU).allocations["ok"], asked, "{what}: the kubelet does not ask again");
        assert_eq!(node.phase("team", "trainer"), Some(PodPhase::Running), "{what}");
        assert_eq!(node.held("trainer"), given, "{what}");
        assert_eq!(listed_devices(&node).await, given, "{what}");
    }
    // Only the other two are free.
    assert!(
        node.rejects(asking_pod("big", GPU, 3), "UnexpectedAdmissionError")
            .await
            .contains("Requested: 3, Available: 2")
    );
    node.runs(asking_pod("rest", GPU, 2)).await;
}

/// Does `steps`, and returns the least that the node status showed meanwhile.
async fn lowest(node: &FakeKubelet, steps: impl Future<Output = ()>) -> DeviceCount {
    let lowest = Mutex::new(DeviceCount { capacity: usize::MAX, allocatable: usize::MAX });
    let look = |status: &std::collections::BTreeMap<String, DeviceCount>| {
        let now = status.get(GPU).copied().unwrap_or_default();
        let mut lowest = lowest.lock();
        lowest.capacity = lowest.capacity.min(now.capacity);
        lowest.allocatable = lowest.allocatable.min(now.allocatable);
        false
    };
    tokio::select! {
        _ = node.node_status_becomes(look) => panic!("the steps take too long"),
        () = steps => {}
    }
    look(&node.node_status());
    *lowest.lock()
}

async fn a_rollout_keeps_the_capacity(version: KubeletVersion) {
    let (node, old) = plugin_on_node(version, "{}", gpus(4), 4).await;
    let new = PluginHarness::start(node.root.path());
    let least = lowest(&node, async {
        new.registered(GPU, 1).await;
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("with-both", GPU, 1)).await;
    });
    assert_eq!(least.await, DeviceCount { capacity: 4, allocatable: 4 });
    let least = lowest(&node, async {
        old.end().await;
        // An older kubelet takes the old one's end for the new one's, which registers again.
        new.registered(GPU, if version == KubeletVersion::UpTo136 { 2 } else { 1 }).await;
        // It would still call one whose end it has not seen.
        assert!(node.node_status_becomes(|_| node.connected_plugins(GPU) == 1).await);
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("with-the-new-one", GPU, 1)).await;
    });
    let least = least.await;
    assert_eq!(least.capacity, 4);
    assert!(version == KubeletVersion::UpTo136 || least.allocatable == 4, "{least:?}");
    assert_eq!(sockets(&node.device_plugin_directory()).len(), 1);
}

async fn the_first_plugin_goes_on_when_the_second_is_withdrawn(version: KubeletVersion) {
    let (node, first) = plugin_on_node(version, "{}", gpus(4), 4).await;
    let second = PluginHarness::start(node.root.path());
    second.registered(GPU, 1).await;
    let least = lowest(&node, async {
        second.end().await;
        // An older kubelet drops the first one too, without a notice: the plugin must detect it.
        first.registered(GPU, if version == KubeletVersion::UpTo136 { 2 } else { 1 }).await;
        assert!(node.node_status_becomes(|_| node.connected_plugins(GPU) == 1).await);
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("trainer", GPU, 1)).await;
    });
    let least = least.await;
    assert_eq!(first.now(GPU).registrations, if version == KubeletVersion::UpTo136 { 2 } else { 1 });
    assert_eq!(least.capacity, 4);
    assert!(version == KubeletVersion::UpTo136 || least.allocatable == 4, "{least:?}");
}
