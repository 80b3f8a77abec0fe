//! A restarted kubelet admits again the pods that run. It has the devices of running containers in its checkpoint, and
//! checks those of an ended init container: a pod whose plugin is not registered by then is killed, for good.

use std::time::Duration;

use crate::support::kubelet::{ContainerSpec, GPU, KubeletNode, ListedDevice, Options, PodPhase, asking_pod, node};
use crate::support::plugin_harness::PluginHarness;
use crate::support::stand_in_plugin::StandInPlugin;

/// A kubelet that is interrupted between bind and listen for longer than a plugin takes to notice its socket.
async fn slow_kubelet() -> KubeletNode {
    node(Options { bind_to_listen: Duration::from_millis(60), ..Options::default() }).await
}

/// Restarts the kubelet beside a pod with an ended init container. Returns the pod's phase after the admission.
async fn after_a_restart(node: &KubeletNode, gpus: usize) -> Option<PodPhase> {
    node.counts(GPU, gpus, gpus).await;
    let trainer = asking_pod("trainer", GPU, 1).init_container(ContainerSpec::new("init").asks(GPU, 1));
    node.runs(trainer).await;
    node.restart().unwrap();
    // In paused time.
    tokio::time::sleep(Duration::from_secs(10)).await;
    node.counts(GPU, gpus, gpus).await;
    node.phase("team", "trainer")
}

async fn beside_a_plugin_that_retries(after: Duration) -> Option<PodPhase> {
    let node = slow_kubelet().await;
    let devices = vec![ListedDevice::new("gpu-0")];
    let _plugin = StandInPlugin::start_retrying(&node.device_plugin_directory(), GPU, devices, after);
    after_a_restart(&node, 1).await
}

#[tokio::test(start_paused = true)]
async fn podmeter_is_registered_before_running_pods_are_admitted_again() {
    let node = slow_kubelet().await;
    let podmeter = PluginHarness::start(node.root.path());
    assert_eq!(after_a_restart(&node, 4).await, Some(PodPhase::Running));
    assert_eq!(podmeter.now(GPU).registrations, 2);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_refused_and_retries_after_a_second_loses_the_running_pod() {
    assert_eq!(beside_a_plugin_that_retries(Duration::from_millis(50)).await, Some(PodPhase::Running));
    assert_eq!(beside_a_plugin_that_retries(Duration::from_secs(1)).await, Some(PodPhase::Succeeded));
}
