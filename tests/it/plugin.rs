//! The device plugin, and the kubelet client beside it, against a fake kubelet on real sockets under both versions
//! of the kubelet.

use std::sync::Arc;

use crate::support::kubelet::{KubeletNode, Options, VERSIONS, asking_pod, node, node_under};
use crate::support::plugin_harness::{GPU, PluginClient, PluginHarness, gpus, plugin_on_node, uuid};
use crate::support::polling::until_published;
use crate::support::stand_in_plugin::StandInPlugin;
use crate::support::test_data::medium_readings;
use podmeter::domain::model::{GpuUuid, KubeletState, Medium};
use podmeter::simulation::kubelet::ListedDevice;
use podmeter::wire::v1beta1;
use prost::Message;
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_is_given_reaches_it_and_the_page() {
    for version in VERSIONS {
        let (node, podmeter) = plugin_on_node(version, "{}", gpus(4), 4).await;
        node.runs(asking_pod("trainer", GPU, 2)).await;
        let held = node.held("trainer");
        assert_eq!(held.len(), 2);
        let entry = node.checkpoint().unwrap().data.pod_device_entries.remove(0);
        let answer = v1beta1::ContainerAllocateResponse::decode(entry.assignment().answer.as_slice()).unwrap();
        let mut visible: Vec<&str> = answer.envs["NVIDIA_VISIBLE_DEVICES"].split(',').collect();
        visible.sort_unstable();
        assert_eq!(visible, held);

        let state = podmeter.now(GPU);
        assert_eq!(state.allocations["ok"], 1);
        assert_eq!(state.allocate_durations.count(), 1);
        let shown = |state: &Arc<KubeletState>| {
            let mut containers = state.allocations.iter().flat_map(|allocations| allocations.containers());
            containers.any(|one| one.devices.len() == 2)
        };
        until_published(&mut podmeter.kubelet.clone(), "the holder", shown).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_unknown_or_unhealthy_are_refused_by_name() {
    let node = node(Options::default()).await;
    let podmeter = PluginHarness::start(node.root.path());
    podmeter.registered(GPU, 1).await;
    podmeter.lose(1, true);
    node.counts(GPU, 4, 3).await;
    let mut client = PluginClient::connect(&node).await;
    let unknown = client.allocate(&[vec!["GPU-unknown".to_owned()]]).await.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert!(unknown.message().contains("GPU-unknown"));
    let unhealthy = client.allocate(&[vec![uuid(0)], vec![uuid(1)]]).await.unwrap_err();
    assert_eq!(unhealthy.code(), Code::FailedPrecondition);
    assert!(unhealthy.message().contains(&uuid(1)) && unhealthy.message().contains("lost"), "{unhealthy}");
    let two = client.allocate(&[vec![uuid(2)], vec![uuid(3)]]).await.unwrap();
    assert_eq!(two.container_responses.len(), 2, "one answer for each container");
    let state = podmeter.now(GPU);
    assert_eq!((state.allocations["unknown_device"], state.allocations["unhealthy"]), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_to_serving_when_the_other_plugin_has_ended() {
    for version in VERSIONS {
        let node = node_under(version).await;
        // The very ids that we would offer.
        let devices = (0..4).map(|index| ListedDevice::new(&uuid(index))).collect();
        let other = StandInPlugin::start(&node.device_plugin_directory(), GPU, devices);
        assert!(other.registered().await);
        node.counts(GPU, 4, 4).await;
        let podmeter = PluginHarness::start(node.root.path());
        let state = podmeter.until(GPU, "a conflict", |state| state.conflict.is_some()).await;
        assert!(state.conflict.unwrap().contains("onConflict"));
        assert_eq!(state.registrations, 0);
        drop(other);
        podmeter.registered(GPU, 1).await;
        assert_eq!(podmeter.now(GPU).conflict, None);
        node.counts(GPU, 4, 4).await;
    }
}

/// One resource of kind `nvidia` with these keys.
fn configured(node: &KubeletNode, keys: &str) -> PluginHarness {
    let yaml = format!("resources: [{{kind: nvidia, {keys}}}]");
    PluginHarness::configured(node.root.path(), &yaml, gpus(4))
}

#[tokio::test(flavor = "multi_thread")]
async fn mps_slots_are_healthy_while_their_daemon_is_there() {
    let node = node(Options::default()).await;
    let podmeter = configured(&node, "sharing: {mps: {replicas: 2}}");
    podmeter.registered(GPU, 1).await;
    node.counts(GPU, 8, 0).await;
    let state = podmeter.now(GPU);
    let reason = state.devices.values().next().unwrap().clone().unwrap();
    assert!(state.mps && reason.contains("nvidia-device-plugin-mps-control-daemon"), "{reason}");
    let own = node.root.path().join("host/run/nvidia/mps/nvidia.com/gpu");
    std::fs::create_dir_all(own.join("pipe")).unwrap();
    for sign in ["pipe/nvidia-cuda-mps-control.pid", "pipe/control", ".started"] {
        std::fs::write(own.join(sign), "86\n").unwrap();
    }
    node.counts(GPU, 8, 8).await;
    let daemons = podmeter.state.borrow().mps_daemons.clone();
    assert_eq!(daemons, (0..4).map(|index| (GpuUuid::from(&*uuid(index)), [86].into())).collect(), "of each GPU");
    std::fs::remove_file(own.join(".started")).unwrap();
    node.counts(GPU, 8, 0).await;
    let transitions = podmeter.now(GPU).health_transitions.clone();
    let counted =
        |to| transitions[to].iter().filter(|(_, count)| **count > 0).map(|(reason, count)| (reason.into(), *count));
    assert_eq!(counted("healthy").collect::<Vec<_>>(), [("mps", 8)]);
    assert_eq!(counted("unhealthy").collect::<Vec<_>>(), [("mps", 8)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_memory_that_no_driver_reports_is_a_problem() {
    let node = node(Options::default()).await;
    let podmeter = configured(&node, "preStartCheck: {minimumFreeMemory: 1Gi}");
    podmeter.registered(GPU, 1).await;
    podmeter.change_gpu(1, |gpu| gpu.memory_bytes = None);
    podmeter.set_readings(1, medium_readings(Medium::default()));
    let state = podmeter.until_state("a problem", |state| !state.problems.is_empty()).await;
    assert_eq!(state.problems.len(), 1);
    assert!(state.problems[0].contains(&format!("has no effect on {}:", uuid(1))), "{:?}", state.problems);
    PluginClient::connect(&node).await.pre_start(&[uuid(2)]).await.unwrap();
}
