//! Another plugin registers a resource that podmeter serves: podmeter detects and reports it, waits, and registers
//! again when it ends.

use crate::support::kubelet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::kubelet::{Node, Options, Rules, node};
use crate::support::plugin_harness::{GPU, PATIENCE, PluginHarness, counts, gpus, pod, runs, uuid};
use podmeter::simulation::kubelet::ListedDevice;
use podmeter::simulation::plugin::{Behaviour, StandInPlugin};

const RULES: [Rules; 2] = [Rules::UpTo136, Rules::From137];
/// For what is promised within a second: the test machine may be busy.
const SOON: Duration = Duration::from_secs(3);
/// For the conflict to be shown.
const SHOWN: Duration = Duration::from_secs(5);
/// Holdings are compared with what was granted from some time after a registration.
const BASELINE: Duration = Duration::from_millis(2500);

async fn with_podmeter(rules: Rules, yaml: &str) -> (Node, PluginHarness) {
    let node = node(Options { rules, ..Options::default() }).await;
    runs(&node, kubelet::PodSpec::new("team", "idle")).await;
    let podmeter = PluginHarness::configured(node.root.path(), yaml, gpus(4));
    podmeter.registered(GPU, 1).await;
    counts(&node, GPU, 4, 4).await;
    (node, podmeter)
}

/// The same GPUs as podmeter's.
fn same_ids() -> Vec<ListedDevice> {
    (0..4).map(|index| ListedDevice::new(&uuid(index))).collect()
}

async fn other(node: &Node, devices: Vec<ListedDevice>, socket: Option<&str>) -> StandInPlugin {
    let behaviour = Behaviour { socket_name: socket.map(str::to_owned), ..Behaviour::default() };
    let other = StandInPlugin::start_with(&node.device_plugin_directory(), GPU, devices, behaviour);
    assert!(other.registered().await);
    other
}

/// The text of the conflict, shown in time.
async fn conflict(podmeter: &PluginHarness) -> String {
    let began = Instant::now();
    let state = podmeter.until(GPU, "a conflict", |state| state.conflict.is_some()).await;
    assert!(began.elapsed() < SHOWN, "shown after {:?}", began.elapsed());
    assert!(!state.registered, "the kubelet allocates through the other plugin");
    state.conflict.unwrap().to_string()
}

/// After the end of the other plugin.
async fn registered_soon(podmeter: &PluginHarness, times: u64) {
    let began = Instant::now();
    podmeter.registered(GPU, times).await;
    assert!(began.elapsed() < SOON, "registered again after {:?}", began.elapsed());
    assert_eq!(podmeter.now(GPU).conflict, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_registers_later_is_noticed_by_its_socket() {
    for rules in RULES {
        let (node, podmeter) = with_podmeter(rules, "{}").await;
        let other = other(&node, same_ids(), Some("nvidia-gpu.sock")).await;
        let text = conflict(&podmeter).await;
        assert!(text.contains("nvidia-gpu.sock") && text.contains("onConflict"), "{text}");
        runs(&node, pod("theirs", 1)).await;
        assert_eq!(other.calls().allocate.len(), 1);
        assert_eq!(podmeter.now(GPU).registrations, 1, "it is left alone");
        other.stop();
        registered_soon(&podmeter, 2).await;
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("ours", 1)).await;
        assert_eq!(podmeter.now(GPU).allocations["ok"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_registers_later_is_noticed_by_its_devices() {
    for rules in RULES {
        let (node, podmeter) = with_podmeter(rules, "{}").await;
        let other = other(&node, vec![ListedDevice::new("slot-0"), ListedDevice::new("slot-1")], None).await;
        let text = conflict(&podmeter).await;
        assert!(text.contains("lists 2 devices"), "{text}");
        other.stop();
        registered_soon(&podmeter, 2).await;
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("ours", 1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_registers_later_is_noticed_by_an_allocation() {
    let (node, podmeter) = with_podmeter(Rules::UpTo136, "{}").await;
    runs(&node, pod("ours", 1)).await;
    tokio::time::sleep(BASELINE).await;
    let other = other(&node, same_ids(), None).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(podmeter.now(GPU).conflict, None, "it does not differ from podmeter's own registration yet");
    runs(&node, pod("theirs", 1)).await;
    let text = conflict(&podmeter).await;
    assert!(text.contains("team/theirs"), "{text}");
    other.stop();
    registered_soon(&podmeter, 2).await;
    counts(&node, GPU, 4, 4).await;
    runs(&node, pod("ours-again", 1)).await;
    assert_eq!(podmeter.now(GPU).allocations["ok"], 2);
}

/// A kubelet from 1.37 goes back to podmeter by itself: the next allocation shows it.
#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_through_podmeter_ends_a_conflict() {
    let (node, podmeter) = with_podmeter(Rules::From137, "{}").await;
    runs(&node, pod("ours", 1)).await;
    tokio::time::sleep(BASELINE).await;
    let other = other(&node, same_ids(), None).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    runs(&node, pod("theirs", 1)).await;
    conflict(&podmeter).await;
    other.stop();
    tokio::time::sleep(BASELINE).await;
    runs(&node, pod("ours-again", 1)).await;
    podmeter.until(GPU, "no conflict", |state| state.registered && state.conflict.is_none()).await;
    assert_eq!(podmeter.now(GPU).allocations["ok"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_an_undetected_plugin_is_detected() {
    let (node, podmeter) = with_podmeter(Rules::UpTo136, "{}").await;
    let other = other(&node, same_ids(), None).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    other.stop();
    registered_soon(&podmeter, 2).await;
    counts(&node, GPU, 4, 4).await;
    runs(&node, pod("ours", 1)).await;
}

/// A list of ours after the other's end makes the devices allocatable, and the kubelet rejects their allocation.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_sent_while_the_other_plugin_ends_does_not_hide_its_end() {
    let (node, podmeter) = with_podmeter(Rules::UpTo136, "{}").await;
    let other = other(&node, same_ids(), None).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    other.stop();
    podmeter.lose(3, true);
    registered_soon(&podmeter, 2).await;
    counts(&node, GPU, 4, 3).await;
    runs(&node, pod("ours", 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_another_plugin_is_registered_no_list_is_sent() {
    let (node, podmeter) = with_podmeter(Rules::UpTo136, "{}").await;
    let other = other(&node, vec![ListedDevice::new("slot-0")], Some("nvidia-gpu.sock")).await;
    conflict(&podmeter).await;
    counts(&node, GPU, 1, 1).await;
    let before = node.received(GPU).len();
    podmeter.lose(3, true);
    podmeter.until(GPU, "a lost GPU", |state| state.count() == (3, 1)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(node.received(GPU).len(), before);
    assert_eq!(node.allocatable_ids(GPU), ["slot-0".to_owned()].into());
    other.stop();
    registered_soon(&podmeter, 2).await;
    counts(&node, GPU, 4, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_takeover_a_plugin_that_registers_later_is_replaced() {
    for socket in [Some("nvidia-gpu.sock"), None] {
        let yaml = "resources: [{kind: nvidia, onConflict: takeover}]";
        let (node, podmeter) = with_podmeter(Rules::From137, yaml).await;
        let other = other(&node, vec![ListedDevice::new("slot-0")], socket).await;
        podmeter.registered(GPU, 2).await;
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("ours", 1)).await;
        assert_eq!(other.calls().allocate.len(), 0);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!((podmeter.now(GPU).registrations, podmeter.now(GPU).conflict), (2, None), "once");
    }
}

/// What pods hold from before the start, and what another podmeter granted, is no other plugin's.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_and_a_rolling_update_are_no_conflict() {
    for rules in RULES {
        let (node, old) = with_podmeter(rules, "{}").await;
        runs(&node, pod("before", 1)).await;
        tokio::time::sleep(BASELINE).await;
        let new = PluginHarness::start(node.root.path());
        let in_conflict = Arc::new(AtomicBool::new(false));
        let mut watchers = tokio::task::JoinSet::new();
        for podmeter in [&old, &new] {
            let (mut state, in_conflict) = (podmeter.state.clone(), Arc::clone(&in_conflict));
            watchers.spawn(async move {
                let now = |state: &Arc<podmeter::model::PluginState>| {
                    state.resources.get(&GPU.into()).is_some_and(|state| state.conflict.is_some())
                };
                if state.wait_for(now).await.is_ok() {
                    in_conflict.store(true, Ordering::SeqCst);
                }
            });
        }
        new.registered(GPU, 1).await;
        tokio::time::sleep(BASELINE).await;
        runs(&node, pod("during", 1)).await;
        old.end().await;
        new.registered(GPU, if rules == Rules::UpTo136 { 2 } else { 1 }).await;
        counts(&node, GPU, 4, 4).await;
        runs(&node, pod("after", 1)).await;
        tokio::time::sleep(BASELINE).await;
        runs(&node, pod("later", 1)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!in_conflict.load(Ordering::SeqCst), "{rules:?}");
        let times = if rules == Rules::UpTo136 { 2 } else { 1 };
        assert_eq!((new.now(GPU).registered, new.now(GPU).registrations), (true, times), "{rules:?}");
    }
    assert!(SHOWN < PATIENCE);
}
