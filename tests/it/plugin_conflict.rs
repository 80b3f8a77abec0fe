//! Another plugin registers a resource that podmeter serves: podmeter reports it, waits, and registers again when it
//! ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tonic::Code;

use crate::support::kubelet::{
    AdmissionOutcome, KubeletNode, KubeletVersion, Method, Options, VERSIONS, asking_pod, node, node_under,
};
use crate::support::plugin_harness::{GPU, PluginHarness, gpus, plugin_on_node, resources, uuid};
use crate::support::polling::{until_published, until_true};
use crate::support::stand_in_plugin::StandInPlugin;
use podmeter::domain::model::{KubeletState, PluginState};
use podmeter::simulation::kubelet::ListedDevice;

/// The same GPUs as podmeter's.
fn same_ids() -> Vec<ListedDevice> {
    (0..4).map(|index| ListedDevice::new(&uuid(index))).collect()
}

async fn other(node: &KubeletNode, devices: Vec<ListedDevice>, socket: Option<&str>) -> StandInPlugin {
    let other = StandInPlugin::start_on(&node.device_plugin_directory(), GPU, devices, socket);
    assert!(other.registered().await);
    other
}

/// The text of the conflict.
async fn conflict(podmeter: &PluginHarness) -> String {
    let state = podmeter.until(GPU, "a conflict", |state| state.conflict.is_some()).await;
    assert!(!state.registered, "the kubelet allocates through the other plugin");
    state.conflict.unwrap().to_string()
}

/// Ends when a conflict is published.
fn in_conflict(podmeter: &PluginHarness) -> JoinHandle<()> {
    let mut state = podmeter.state.clone();
    tokio::spawn(async move {
        let is_conflict = |state: &Arc<PluginState>| state.resources.values().any(|state| state.conflict.is_some());
        drop(state.wait_for(is_conflict).await);
    })
}

/// Until the kubelet was asked twice more, after all that it did before.
async fn asked_again(podmeter: &PluginHarness) {
    let mut kubelet = podmeter.kubelet.clone();
    let asked = |kubelet: &KubeletState| kubelet.allocatable_at.map(|at| at.monotonic);
    for _ in 0..2 {
        let before = asked(&kubelet.borrow());
        until_published(&mut kubelet, "another call", |kubelet| asked(kubelet) != before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_ends_with_the_other_plugin_also_where_the_next_register_fails() {
    let (node, podmeter) = plugin_on_node(KubeletVersion::From137, "{}", gpus(4), 4).await;
    let other = other(&node, same_ids(), Some("nvidia-gpu.sock")).await;
    conflict(&podmeter).await;
    node.fail(Method::Register, Code::Unavailable, "not now");
    drop(other);
    let is_refused = |problem: &Arc<str>| problem.contains("not now");
    let state = podmeter.until(GPU, "a refusal", |state| state.problem.as_ref().is_some_and(is_refused)).await;
    assert_eq!(state.conflict, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_registers_later_is_noticed_by_its_devices() {
    for version in VERSIONS {
        let (node, podmeter) = plugin_on_node(version, "{}", gpus(4), 4).await;
        let other = other(&node, vec![ListedDevice::new("slot-0"), ListedDevice::new("slot-1")], None).await;
        let text = conflict(&podmeter).await;
        assert!(text.contains("lists 2 devices"), "{text}");
        drop(other);
        podmeter.registered(GPU, 2).await;
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("ours", GPU, 1)).await;
    }
}

/// Its devices are podmeter's and its socket has an unknown name: the kubelet's lists are equal until it ends.
#[tokio::test(flavor = "multi_thread")]
async fn registered_to_waiting_when_our_ids_are_gone_in_two_answers() {
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, "{}", gpus(4), 4).await;
    let other = other(&node, same_ids(), None).await;
    drop(other);
    podmeter.registered(GPU, 2).await;
    node.counts(GPU, 4, 4).await;
    node.runs(asking_pod("ours", GPU, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_reaches_the_kubelet_during_a_conflict() {
    let (node, podmeter) = plugin_on_node(KubeletVersion::From137, "{}", gpus(4), 4).await;
    let _other = other(&node, same_ids(), Some("nvidia-gpu.sock")).await;
    conflict(&podmeter).await;
    until_true("the first list of both", || node.received(GPU).len() == 2);
    for lost in [true, false] {
        podmeter.lose(3, lost);
        let sent = || node.received(GPU).last().and_then(|list| list.get(&uuid(3)).copied());
        // The other plugin's list decides the node's status: it does not change.
        until_true(&format!("the list with the GPU, lost: {lost}"), || sent() == Some(!lost));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_to_waiting_with_takeover_when_another_plugin_registers() {
    for socket in [Some("nvidia-gpu.sock"), None] {
        let yaml = "resources: [{kind: nvidia, onConflict: takeover}]";
        let (node, podmeter) = plugin_on_node(KubeletVersion::From137, yaml, gpus(4), 4).await;
        let other = other(&node, vec![ListedDevice::new("slot-0")], socket).await;
        podmeter.registered(GPU, 2).await;
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("ours", GPU, 1)).await;
        assert_eq!(other.allocations(), 0);
        asked_again(&podmeter).await;
        assert_eq!((podmeter.now(GPU).registrations, podmeter.now(GPU).conflict), (2, None), "once");
    }
}

/// What pods hold from before the start, and what another podmeter granted, is no other plugin's.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_is_no_conflict() {
    for version in VERSIONS {
        let (node, old) = plugin_on_node(version, "{}", gpus(4), 4).await;
        node.runs(asking_pod("before", GPU, 1)).await;
        let new = PluginHarness::start(node.root.path());
        let conflicts = [in_conflict(&old), in_conflict(&new)];
        new.registered(GPU, 1).await;
        node.runs(asking_pod("during", GPU, 1)).await;
        assert!(!conflicts[0].is_finished(), "{version:?}");
        conflicts[0].abort();
        old.end().await;
        let times = if version == KubeletVersion::UpTo136 { 2 } else { 1 };
        new.registered(GPU, times).await;
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("after", GPU, 1)).await;
        asked_again(&new).await;
        assert!(!conflicts[1].is_finished(), "{version:?}");
        assert_eq!((new.now(GPU).registered, new.now(GPU).registrations), (true, times), "{version:?}");
    }
}

/// A kubelet that starts together with podmeter, and has no API server at first, gives pods the devices of its
/// checkpoint seconds after the registration, and calls no plugin for them.
#[tokio::test(flavor = "multi_thread")]
async fn devices_from_the_kubelets_checkpoint_are_no_conflict() {
    let start_together = async |version: KubeletVersion| {
        // Registrations are accepted after three quarters of it; pods are listed after all of it.
        let early_window = Duration::from_secs(12);
        let node = node(Options { version, early_window, ..Options::default() }).await;
        let before = PluginHarness::start(node.root.path());
        before.registered(GPU, 1).await;
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("first", GPU, 1)).await;
        node.runs(asking_pod("second", GPU, 2)).await;
        before.end().await;
        node.stop();
        let podmeter = PluginHarness::start(node.root.path());
        let conflict = in_conflict(&podmeter);
        let admitted = node.reboot().await.unwrap();
        assert!(admitted.len() == 2 && admitted.values().all(|pod| *pod == AdmissionOutcome::Running), "{admitted:?}");
        podmeter.registered(GPU, 1).await;
        assert_eq!(podmeter.now(GPU).allocations["ok"], 0, "{version:?}");
        node.counts(GPU, 4, 4).await;
        // Health is sent before any Allocate.
        podmeter.lose(3, true);
        node.counts(GPU, 4, 3).await;
        podmeter.lose(3, false);
        node.counts(GPU, 4, 4).await;
        node.runs(asking_pod("third", GPU, 1)).await;
        asked_again(&podmeter).await;
        let all: BTreeSet<String> = ["first", "second", "third"].into_iter().flat_map(|pod| node.held(pod)).collect();
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(!conflict.is_finished(), "{version:?}");
        let state = podmeter.now(GPU);
        assert_eq!((state.registered, state.registrations, state.allocations["ok"]), (true, 1, 1), "{version:?}");
    };
    tokio::join!(start_together(KubeletVersion::UpTo136), start_together(KubeletVersion::From137));
}

/// It listens before podmeter takes over, and registers after that: podmeter detects a device that it did not grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_registers_after_a_takeover_is_a_conflict_at_its_first_allocation() {
    let node = node_under(KubeletVersion::UpTo136).await;
    let other = other(&node, same_ids(), Some("nvidia-gpu.sock")).await;
    let takeover = resources("resources: [{kind: nvidia, onConflict: takeover}]");
    let podmeter = PluginHarness::refreshing(node.root.path(), takeover, gpus(4));
    podmeter.registered(GPU, 1).await;
    node.counts(GPU, 4, 4).await;
    // By then podmeter has the kubelet's first list.
    let mut kubelet = podmeter.kubelet.clone();
    let listed_at = |kubelet: &KubeletState| kubelet.allocations_at.map(|at| at.monotonic);
    let later = listed_at(&kubelet.borrow()).unwrap() + Duration::from_secs(3);
    kubelet.wait_for(|kubelet| kubelet.settled && listed_at(kubelet) > Some(later)).await.unwrap();
    assert!(other.register_again().await);
    node.runs(asking_pod("theirs", GPU, 1)).await;
    assert_eq!(other.allocations(), 1);
    podmeter.registered(GPU, 2).await;
}

/// A socket of a known name alone is no conflict: the kubelet calls podmeter.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_kubelet_ends_a_conflict() {
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, "{}", gpus(4), 4).await;
    let socket = node.device_plugin_directory().join("nvidia-gpu.sock");
    let _listener = tokio::net::UnixListener::bind(socket).unwrap();
    conflict(&podmeter).await;
    node.runs(asking_pod("ours", GPU, 1)).await;
    let state = podmeter.until(GPU, "no conflict", |state| state.conflict.is_none() && state.registered).await;
    assert_eq!((state.registrations, state.allocations["ok"]), (1, 1));
    asked_again(&podmeter).await;
    assert!(podmeter.now(GPU).registered);
}
