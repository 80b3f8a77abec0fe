//! What Kubernetes' own end-to-end tests require of a device plugin, checked on ours, under kubelets
//! up to 1.36 and from 1.37.
//!
//! | upstream test | here, or why not here |
//! |---|---|
//! | 1 List with and without pods, init containers, sidecars | the kubelet's: `tests/fake_kubelet.rs` |
//! | 2 GetAllocatableResources has devices only with a plugin | `devices_are_allocatable_only_with_a_plugin` |
//! | 3 Get: unknown, terminated, sidecars | the kubelet's: `tests/fake_kubelet.rs` |
//! | 4 List has active pods only | the kubelet's: `tests/fake_kubelet.rs` |
//! | 5 a plugin without topology, across a restart | `without_topology_none_is_shown_before_and_after_a_restart` |
//! | 6 the kubelet's own metrics count | the kubelet's: nothing of ours reads them |
//! | 7 a tight loop of Lists is limited | a client's: `tests/kubelet.rs` |
//! | 8 a device reaches a pod, the API shows it | `tests/plugin.rs` |
//! | 9 a CDI device reaches the container | `a_cdi_device_reaches_the_container` |
//! | 10 assignments outlive every restart | `an_assignment_outlives_every_restart` |
//! | 11 a second pod gets another device | the kubelet's |
//! | 12 a succeeded pod is not admitted again | the kubelet's |
//! | 13 a pod deleted while the kubelet is down | the kubelet's |
//! | 14 a sidecar reuses the init container's device | the kubelet's |
//! | 15 a reboot, the pod before the plugin | the kubelet's |
//! | 16 a restart, the plugin away | the kubelet's |
//! | 17 a failing CRI must not evict pods | the kubelet's: no plugin is involved |
//! | 18 GetDevicePluginOptions fails | `a_registration_whose_options_call_fails_is_tried_again` |
//! | 19 a device becomes unhealthy and healthy again | `tests/plugin.rs` |
//! | 20 a running pod on an unhealthy device | `tests/plugin_properties.rs` |
//! | 21 several devices, several flips | `tests/plugin_properties.rs` |
//! | 22 ListAndWatch fails at once | as 23 |
//! | 23 ListAndWatch fails later | `a_list_that_breaks_later_is_offered_again` |
//! | 24 the plugin is stopped | the kubelet's |
//! | 25 the pod's status follows the device | `the_status_of_a_pod_follows_its_device` |
//! | 26 a rollout with two plugins at once | `a_rollout_keeps_the_capacity` |
//! | 27 the second plugin fails to register | `a_second_plugin_that_cannot_register_leaves_the_first_alone` |
//! | 28 the second plugin is withdrawn | `the_first_plugin_goes_on_when_the_second_is_withdrawn` |
//! | 29 an allocation in flight is not listed | the kubelet's |

use parking_lot::Mutex;

use crate::support::kubelet::{DeviceCount, FakeKubelet, KubeletVersion, Method, Node, PodPhase, node_under};
use crate::support::plugin_harness::{GPU, PluginHarness, counts, gpus, held, pod, rejected, runs, sockets, uuid};
use podmeter::domain::model::HardwareState;
use podmeter::simulation::kubelet::STOP_GRACE;
use tonic::Code;

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
    devices_are_allocatable_only_with_a_plugin
    without_topology_none_is_shown_before_and_after_a_restart
    a_cdi_device_reaches_the_container
    an_assignment_outlives_every_restart
    a_registration_whose_options_call_fails_is_tried_again
    a_list_that_breaks_later_is_offered_again
    the_status_of_a_pod_follows_its_device
    a_rollout_keeps_the_capacity
    a_second_plugin_that_cannot_register_leaves_the_first_alone
    the_first_plugin_goes_on_when_the_second_is_withdrawn
}

/// A kubelet to which our plugin has offered four GPUs.
async fn with_plugin(version: KubeletVersion) -> (Node, PluginHarness) {
    with_hardware(version, gpus(4)).await
}

async fn with_hardware(version: KubeletVersion, hardware: HardwareState) -> (Node, PluginHarness) {
    let node = node_under(version).await;
    let count = hardware.inventory.gpus.len();
    let podmeter = PluginHarness::configured(node.root.path(), "{}", hardware);
    podmeter.registered(GPU, 1).await;
    counts(&node, GPU, count, count).await;
    (node, podmeter)
}

async fn restarted(node: &Node) {
    node.restart().unwrap();
    node.ready().await;
}

async fn devices_are_allocatable_only_with_a_plugin(version: KubeletVersion) {
    let node = node_under(version).await;
    assert_eq!(node.allocatable().await.devices, []);
    let podmeter = PluginHarness::start(node.root.path());
    podmeter.registered(GPU, 1).await;
    counts(&node, GPU, 4, 4).await;
    let devices = node.allocatable().await.devices;
    assert!(devices.iter().all(|entry| entry.resource_name == GPU && entry.device_ids.len() == 1), "{devices:?}");
    let nodes = |entry: &podmeter::node::wire::v1::ContainerDevices| {
        let topology = entry.topology.clone().expect("known");
        (entry.device_ids[0].clone(), topology.nodes.iter().map(|node| node.id).collect::<Vec<_>>())
    };
    let mut shown: Vec<_> = devices.iter().map(nodes).collect();
    shown.sort();
    assert_eq!(shown, (0..4).map(|index| (uuid(index), vec![i64::from(index / 2)])).collect::<Vec<_>>());
    podmeter.end().await;
    counts(&node, GPU, 4, 0).await;
    assert_eq!(node.allocatable().await.devices, []);
}

async fn without_topology_none_is_shown_before_and_after_a_restart(version: KubeletVersion) {
    let mut hardware = gpus(2);
    let inventory = std::sync::Arc::make_mut(&mut hardware.inventory);
    inventory.gpus.values_mut().for_each(|gpu| gpu.numa_node = None);
    let (node, podmeter) = with_hardware(version, hardware).await;
    runs(&node, pod("trainer", 1)).await;
    let answers = async || {
        let mut allocatable = node.allocatable().await.devices;
        allocatable.sort_by(|one, other| one.device_ids.cmp(&other.device_ids));
        assert!(allocatable.iter().all(|entry| entry.topology.is_none()), "{allocatable:?}");
        let listed = node.list().await;
        let devices = &listed.pod_resources[0].containers[0].devices;
        assert!(devices.len() == 1 && devices[0].topology.is_none(), "{devices:?}");
        (allocatable, listed)
    };
    let before = answers().await;
    assert_eq!(before.0.len(), 2);
    restarted(&node).await;
    podmeter.registered(GPU, 2).await;
    counts(&node, GPU, 2, 2).await;
    assert_eq!(answers().await, before);
}

async fn a_cdi_device_reaches_the_container(version: KubeletVersion) {
    let node = node_under(version).await;
    let yaml = "resources: [{kind: nvidia, deviceListStrategy: cdi-cri}]";
    let podmeter = PluginHarness::configured(node.root.path(), yaml, gpus(4));
    podmeter.registered(GPU, 1).await;
    counts(&node, GPU, 4, 4).await;
    runs(&node, pod("trainer", 1)).await;
    let options = node.start_container("team", "trainer", "main").await.unwrap().unwrap();
    let given = &held(&node, "trainer", "main")[0];
    let names: Vec<&str> = options.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, [format!("podmeter.device-plugin/gpu={given}")]);
    // The runtime finds that name, with the GPU's node, in the specification.
    let file = std::fs::read_dir(node.root.path().join("cdi")).unwrap().next().unwrap().unwrap().path();
    let specification: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(specification["kind"], "podmeter.device-plugin/gpu");
    let devices = specification["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["name"] == given.as_str()).unwrap();
    let index = (0..4).find(|index| uuid(*index) == *given).unwrap();
    assert_eq!(device["containerEdits"]["deviceNodes"][0]["path"], format!("/dev/nvidia{index}"));
}

/// What the restarted container of `trainer` is given.
async fn visible_devices(node: &Node) -> Vec<String> {
    let options = node.start_container("team", "trainer", "main").await.unwrap().unwrap();
    let mut visible: Vec<String> = options.envs["NVIDIA_VISIBLE_DEVICES"].split(',').map(str::to_owned).collect();
    visible.sort_unstable();
    visible
}

/// The devices of the only container that the kubelet lists.
async fn listed_devices(node: &Node) -> Vec<String> {
    let listed = node.list().await.pod_resources.remove(0).containers.remove(0);
    let mut ids: Vec<String> = listed.devices.into_iter().flat_map(|entry| entry.device_ids).collect();
    ids.sort();
    ids
}

async fn an_assignment_outlives_every_restart(version: KubeletVersion) {
    let (node, mut podmeter) = with_plugin(version).await;
    runs(&node, pod("trainer", 2)).await;
    let given = held(&node, "trainer", "main");
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
            counts(&node, GPU, 4, 0).await;
        }
        if kubelet {
            restarted(&node).await;
        }
        if plugin {
            podmeter = PluginHarness::start(node.root.path());
        }
        podmeter.registered(GPU, if plugin { 1 } else { registrations + u64::from(kubelet) }).await;
        counts(&node, GPU, 4, 4).await;
        let asked = podmeter.now(GPU).allocations["ok"];
        if container {
            assert_eq!(visible_devices(&node).await, given, "{what}");
        }
        assert_eq!(podmeter.now(GPU).allocations["ok"], asked, "{what}: the kubelet does not ask again");
        assert_eq!(node.phase("team", "trainer"), Some(PodPhase::Running), "{what}");
        assert_eq!(held(&node, "trainer", "main"), given, "{what}");
        assert_eq!(listed_devices(&node).await, given, "{what}");
    }
    // Only the other two are free.
    assert!(rejected(&node, pod("big", 3)).await.contains("Requested: 3, Available: 2"));
    runs(&node, pod("rest", 2)).await;
}

async fn a_registration_whose_options_call_fails_is_tried_again(version: KubeletVersion) {
    let node = node_under(version).await;
    node.fail(Method::GetDevicePluginOptions, Code::Unknown, "no options today");
    let podmeter = PluginHarness::start(node.root.path());
    let text = "failed to get device plugin options: rpc error: code = Unknown desc = no options today";
    let fails = |problem: Option<&str>| problem.is_some_and(|problem| problem.contains(text));
    podmeter.until(GPU, "the kubelet's text", |state| fails(state.problem.as_deref())).await;
    assert_eq!(node.node_status().get(GPU), None);
    assert_eq!(podmeter.now(GPU).registrations, 0);
    node.heal();
    podmeter.registered(GPU, 1).await;
    counts(&node, GPU, 4, 4).await;
}

async fn a_list_that_breaks_later_is_offered_again(version: KubeletVersion) {
    let (node, podmeter) = with_plugin(version).await;
    runs(&node, pod("trainer", 1)).await;
    node.fail(Method::Register, Code::Unknown, "not now");
    assert!(node.lose_stream(GPU));
    counts(&node, GPU, 4, 0).await;
    let refused = |problem: Option<&str>| problem.is_some_and(|problem| problem.contains("not now"));
    podmeter.until(GPU, "refused", |state| !state.registered && refused(state.problem.as_deref())).await;
    counts(&node, GPU, 4, 0).await;
    assert_eq!(held(&node, "trainer", "main").len(), 1);
    node.advance(STOP_GRACE);
    assert_eq!(node.node_status().get(GPU), None);
    node.heal();
    podmeter.registered(GPU, 2).await;
    counts(&node, GPU, 4, 4).await;
    assert!(rejected(&node, pod("big", 4)).await.contains("Requested: 4, Available: 3"));
}

async fn the_status_of_a_pod_follows_its_device(version: KubeletVersion) {
    let (node, podmeter) = with_hardware(version, gpus(1)).await;
    runs(&node, pod("trainer", 1)).await;
    let status = |healthy| vec![("main".to_owned(), GPU.to_owned(), uuid(0), healthy)];
    // Its image is still being pulled, then it runs.
    for phase in [PodPhase::Pending, PodPhase::Running] {
        node.set_phase("team", "trainer", phase);
        assert_eq!(node.allocated_resources_status("team", "trainer"), status(true));
        podmeter.lose(0, true);
        counts(&node, GPU, 1, 0).await;
        assert_eq!(node.allocated_resources_status("team", "trainer"), status(false));
        podmeter.lose(0, false);
        counts(&node, GPU, 1, 1).await;
    }
    // A plugin that ends sends no update of its devices.
    podmeter.end().await;
    counts(&node, GPU, 1, 0).await;
    assert_eq!(node.allocated_resources_status("team", "trainer"), status(true));
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
    let (node, old) = with_plugin(version).await;
    let new = PluginHarness::start(node.root.path());
    let least = lowest(&node, async {
        new.registered(GPU, 1).await;
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("with-both", 1)).await;
    });
    assert_eq!(least.await, DeviceCount { capacity: 4, allocatable: 4 });
    let least = lowest(&node, async {
        old.end().await;
        // An older kubelet takes the old one's end for the new one's, which registers again.
        new.registered(GPU, if version == KubeletVersion::UpTo136 { 2 } else { 1 }).await;
        // It would still call one whose end it has not seen.
        assert!(node.node_status_becomes(|_| node.connected_plugins(GPU) == 1).await);
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("with-the-new-one", 1)).await;
    });
    let least = least.await;
    assert_eq!(least.capacity, 4);
    assert!(version == KubeletVersion::UpTo136 || least.allocatable == 4, "{least:?}");
    assert_eq!(sockets(&node.device_plugin_directory()).len(), 1);
}

async fn a_second_plugin_that_cannot_register_leaves_the_first_alone(version: KubeletVersion) {
    let (node, first) = with_plugin(version).await;
    node.fail(Method::Register, Code::Unknown, "not you");
    let second = PluginHarness::start(node.root.path());
    let least = lowest(&node, async {
        let refused = |problem: Option<&str>| problem.is_some_and(|problem| problem.contains("not you"));
        second.until(GPU, "refused", |state| refused(state.problem.as_deref())).await;
        runs(&node, pod("trainer", 1)).await;
    });
    assert_eq!(least.await, DeviceCount { capacity: 4, allocatable: 4 });
    node.heal();
    second.registered(GPU, 1).await;
    counts(&node, GPU, 4, 4).await;
    assert_eq!((first.now(GPU).registered, first.now(GPU).registrations), (true, 1));
}

async fn the_first_plugin_goes_on_when_the_second_is_withdrawn(version: KubeletVersion) {
    let (node, first) = with_plugin(version).await;
    let second = PluginHarness::start(node.root.path());
    second.registered(GPU, 1).await;
    let least = lowest(&node, async {
        second.end().await;
        // An older kubelet drops the first one too, without a notice: the plugin must detect it.
        first.registered(GPU, if version == KubeletVersion::UpTo136 { 2 } else { 1 }).await;
        assert!(node.node_status_becomes(|_| node.connected_plugins(GPU) == 1).await);
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("trainer", 1)).await;
    });
    let least = least.await;
    assert_eq!(first.now(GPU).registrations, if version == KubeletVersion::UpTo136 { 2 } else { 1 });
    assert_eq!(least.capacity, 4);
    assert!(version == KubeletVersion::UpTo136 || least.allocatable == 4, "{least:?}");
}
