//! Hardware that a container holds is not given out again, under whichever name it is held.

use crate::support::kubelet::{
    KubeletNode, KubeletVersion, ListedDevice, VERSIONS, asking_pod, holding_pod, node_under,
};
use crate::support::plugin_harness::{
    GPU, PluginClient, PluginHarness, gpu, gpus, hardware, mig_devices, resources, time_sliced, uuid,
};
use crate::support::stand_in_plugin::StandInPlugin;
use podmeter::domain::model::{Gpu, PluginResource};

const SHARED: &str = "nvidia.com/gpu.shared";
const TAKEOVER: &str = "resources: [{kind: nvidia, onConflict: takeover}]";

/// As NVIDIA's plugin with `renameByDefault`.
async fn sharing_plugin(node: &KubeletNode) -> StandInPlugin {
    let slots = (0..4).flat_map(|gpu| (0..8).map(move |slot| ListedDevice::new(&format!("{}::{slot}", uuid(gpu)))));
    let socket = Some("nvidia-gpu.shared.sock");
    let plugin = StandInPlugin::start_on(&node.device_plugin_directory(), SHARED, slots.collect(), socket);
    assert!(plugin.registered().await);
    node.counts(SHARED, 32, 32).await;
    plugin
}

/// The GPU of a device ID.
fn gpu_of(id: &str) -> &str {
    id.split("::").next().unwrap()
}

fn start(node: &KubeletNode, yaml: &str) -> PluginHarness {
    PluginHarness::configured(node.root.path(), yaml, gpus(4))
}

/// Until the kubelet is sent so many devices that are healthy, of all.
async fn offers(podmeter: &PluginHarness, healthy: usize, all: usize) -> PluginResource {
    podmeter.until(GPU, "the offer", |state| state.registered && state.count() == (healthy, all - healthy)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_offers_the_gpus_as_another_resource_is_a_conflict() {
    for version in VERSIONS {
        let node = node_under(version).await;
        let other = sharing_plugin(&node).await;
        node.runs(asking_pod("theirs", SHARED, 1)).await;
        let podmeter = start(&node, "{}");
        let state = podmeter.until(GPU, "a conflict", |state| state.conflict.is_some()).await;
        let text = state.conflict.unwrap();
        assert!(text.contains(SHARED) && text.contains("offers 32 devices on the GPUs of nvidia.com/gpu;"), "{text}");
        assert_eq!((state.registered, state.registrations), (false, 0));
        // As if it was killed: its socket stays.
        drop(other);
        podmeter.registered(GPU, 1).await;
        // Its pod still holds a slot.
        let state = offers(&podmeter, 3, 4).await;
        assert_eq!(state.conflict, None);
        node.counts(GPU, 4, 3).await;
    }
}

/// The other plugin offers all GPUs whole, under the name for which podmeter only waits.
#[tokio::test(flavor = "multi_thread")]
async fn mig_devices_of_gpus_that_another_plugin_offers_whole_are_not_registered() {
    let node = node_under(KubeletVersion::UpTo136).await;
    let whole = (0..4).map(|gpu| ListedDevice::new(&uuid(gpu))).collect();
    let other = StandInPlugin::start_on(&node.device_plugin_directory(), GPU, whole, Some("nvidia-gpu.sock"));
    assert!(other.registered().await);
    node.counts(GPU, 4, 4).await;
    let partitioned =
        |index| Gpu { mig_enabled: Some(true), mig_devices: mig_devices("1g.10gb", &[index + 1]), ..gpu(index) };
    let gpus = hardware([gpu(0), gpu(1), partitioned(2), partitioned(3)]);
    let podmeter = PluginHarness::configured(node.root.path(), "resources: [{kind: nvidia, migStrategy: mixed}]", gpus);
    for resource in [GPU, "nvidia.com/mig-1g.10gb"] {
        let state = podmeter.until(resource, "a conflict", |state| state.conflict.is_some()).await;
        assert_eq!((state.registered, state.registrations), (false, 0), "{resource}");
    }
    drop(other);
    podmeter.registered("nvidia.com/mig-1g.10gb", 1).await;
}

/// Their plugin lives, or has ended with its pods left: two pods that ask for GPUs get those that nobody holds.
#[tokio::test(flavor = "multi_thread")]
async fn gpus_that_pods_of_another_resource_hold_are_not_given_out() {
    for (lives, yaml) in [(true, TAKEOVER), (false, "{}")] {
        let node = node_under(KubeletVersion::UpTo136).await;
        let other = sharing_plugin(&node).await;
        for (name, slot) in [("a", format!("{}::3", uuid(0))), ("b", format!("{}::0", uuid(2)))] {
            node.runs(holding_pod(name, SHARED, &slot)).await;
        }
        let _other = lives.then_some(other);
        let podmeter = start(&node, yaml);
        let state = offers(&podmeter, 2, 4).await;
        let reason = |gpu: u32| state.devices[&uuid(gpu).as_str().into()].clone().unwrap();
        assert_eq!(&*reason(0), format!("held by team/a as {SHARED} {}::3", uuid(0)));
        assert_eq!(&*reason(2), format!("held by team/b as {SHARED} {}::0", uuid(2)));
        node.counts(GPU, 4, 2).await;
        let refusal = PluginClient::connect(&node).await.allocate(&[vec![uuid(2)]]).await.unwrap_err();
        assert!(refusal.message().contains("is held by team/b as"), "{refusal}");
        assert_eq!(podmeter.now(GPU).allocations["held"], 1);
        node.runs(asking_pod("two", GPU, 2)).await;
        assert_eq!(node.held("two"), [uuid(1), uuid(3)]);
        assert!(node.remove_pod("team", "a"));
        node.counts(GPU, 4, 3).await;
        node.runs(asking_pod("one", GPU, 1)).await;
        assert_eq!(node.held("one"), [uuid(0)]);
    }
}

/// From whole GPUs to slots, by SIGHUP and by a restart: the GPUs change one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_sharing_waits_for_each_gpu_until_it_is_free() {
    for restart in [false, true] {
        let node = node_under(KubeletVersion::UpTo136).await;
        let mut podmeter = start(&node, "{}");
        node.counts(GPU, 4, 4).await;
        for name in ["a", "b", "c"] {
            node.runs(asking_pod(name, GPU, 1)).await;
        }
        let of_c = node.held("c").remove(0);
        if restart {
            podmeter.end().await;
            podmeter = start(&node, &time_sliced(4));
        } else {
            podmeter.plugin.configure(&resources(&time_sliced(4)).into());
        }
        let state = offers(&podmeter, 4, 16).await;
        let waits = format!("held by team/c as {GPU} {of_c}");
        assert_eq!(state.devices[&format!("{of_c}::0").as_str().into()].as_deref(), Some(&*waits));
        node.counts(GPU, 16, 4).await;
        for name in ["d", "e"] {
            node.runs(asking_pod(name, GPU, 1)).await;
            let slot = node.held(name).remove(0);
            assert!(["a", "b", "c"].iter().all(|whole| node.held(whole)[0] != gpu_of(&slot)), "{slot}");
        }
        assert!(node.remove_pod("team", "c"));
        offers(&podmeter, 8, 16).await;
    }
}

/// Six pods on two GPUs with four slots each; then the GPUs are whole again, or have two slots.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_no_gpu_beside_holders_of_slots_that_are_no_longer_offered() {
    for (yaml, healthy, all) in [("{}".to_owned(), 2, 4), (time_sliced(2), 4, 8)] {
        let node = node_under(KubeletVersion::UpTo136).await;
        for pod in 0..6 {
            let slot = format!("{}::{}", uuid(2 + pod / 3), 1 + pod % 3);
            node.runs(holding_pod(&format!("old-{pod}"), GPU, &slot)).await;
        }
        let podmeter = start(&node, &yaml);
        // Of the two slots, number 1 is held by the earlier pods, and stays as it is.
        let still_held = if all == 8 { 2 } else { 0 };
        offers(&podmeter, healthy + still_held, all).await;
        node.counts(GPU, all, healthy + still_held).await;
        let mut client = PluginClient::connect(&node).await;
        let id = if all == 8 { format!("{}::0", uuid(2)) } else { uuid(2) };
        let refusal = client.allocate(&[vec![id]]).await.unwrap_err();
        assert!(refusal.message().contains("is held by team/old-"), "{refusal}");
        node.runs(asking_pod("new", GPU, 1)).await;
        let new = node.held("new").remove(0);
        assert!([uuid(0), uuid(1)].iter().any(|free| free == gpu_of(&new)), "{new}");
    }
}

/// Before the kubelet's first list nothing is known of what is held.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_offered_before_the_holders_are_known() {
    let node = node_under(KubeletVersion::UpTo136).await;
    node.runs(holding_pod("a", SHARED, &format!("{}::1", uuid(0)))).await;
    let podmeter = PluginHarness::refreshing(node.root.path(), resources("{}"), gpus(4));
    podmeter.registered(GPU, 1).await;
    node.counts(GPU, 4, 3).await;
    assert_eq!(node.received(GPU)[0].get(&uuid(0)), Some(&false), "in the first list already");
}
