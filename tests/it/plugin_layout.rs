//! What a change of MIG layout, or of the configuration, does to the registrations, under both versions of the kubelet.

use crate::support::kubelet::{KubeletNode, KubeletVersion, VERSIONS, asking_pod, node_under};
use crate::support::plugin_harness::{GPU, PluginHarness, gpu, hardware, mig_devices, mig_uuid, mixed, sockets, uuid};
use podmeter::domain::model::{Gpu, PluginState};
use podmeter::plugin::{EntryConfig, SimulatedConfig};

const MIG: &str = "nvidia.com/mig-1g.10gb";

fn start(node: &KubeletNode, resources: Vec<EntryConfig>, gpus: impl IntoIterator<Item = Gpu>) -> PluginHarness {
    PluginHarness::refreshing(node.root.path(), resources, hardware(gpus))
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_ends_when_the_layout_has_changed_and_no_pod_holds_the_old_one() {
    for version in VERSIONS {
        let node = node_under(version).await;
        let harness = start(&node, mixed(), (0..2).map(gpu));
        harness.registered(GPU, 1).await;
        harness.partition(1, mig_devices("1g.10gb", &[1, 2]));
        harness.registered(MIG, 1).await;
        node.counts(MIG, 2, 2).await;
        // The whole GPU has no holder: its resource is registered again without it.
        harness.registered(GPU, 2).await;
        node.counts(GPU, 1, 1).await;

        node.runs(asking_pod("trainer", MIG, 1)).await;
        let held = node.held("trainer").remove(0);
        harness.partition(1, mig_devices("1g.10gb", &[3, 4, 5]));
        // The old ones become unhealthy and the new ones are listed at once.
        node.counts(MIG, 5, 3).await;
        assert_eq!(node.allocatable_ids(MIG), [3, 4, 5].map(mig_uuid).into());
        let mut kubelet = harness.kubelet.clone();
        for _ in 0..3 {
            kubelet.changed().await.unwrap();
        }
        let state = harness.now(MIG);
        assert_eq!((state.registrations, state.count()), (1, (3, 2)), "{held} is held");

        assert!(node.remove_pod("team", "trainer"));
        harness.registered(MIG, 2).await;
        node.counts(MIG, 3, 3).await;
        assert_eq!(node.dropped_devices(), []);
        assert_eq!(sockets(&node.device_plugin_directory()).len(), 2, "one for each resource");
        node.runs(asking_pod("next", MIG, 1)).await;
        assert_eq!(harness.now(MIG).allocations["ok"], 2, "counted on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_whose_last_device_was_deleted_ends_and_begins_with_the_next() {
    for version in VERSIONS {
        let node = node_under(version).await;
        let harness = start(&node, mixed(), [gpu(0)]);
        harness.registered(GPU, 1).await;
        harness.partition(0, mig_devices("1g.10gb", &[1]));
        harness.registered(MIG, 1).await;
        let gpu_is = |state: &PluginState| state.resources[&GPU.into()].clone();
        let state = harness.until_state("the end", |state| gpu_is(state).ended.is_some()).await;
        let ended = gpu_is(&state);
        assert!(!ended.registered && ended.unregistered_since.is_none() && ended.devices.is_empty(), "{ended:#?}");
        node.counts(GPU, 1, 0).await;
        assert_eq!(sockets(&node.device_plugin_directory()).len(), 1);
        harness.partition(0, vec![]);
        harness.registered(GPU, 2).await;
        node.counts(GPU, 1, 1).await;
        harness.until_state("the end", |state| state.resources[&MIG.into()].ended.is_some()).await;
        assert_eq!(harness.now(GPU).ended, None);
    }
}

fn toys(name: &str, devices: u32) -> EntryConfig {
    let text = format!(r#"{{"name":"{name}","devices":{devices}}}"#);
    EntryConfig::Simulated(serde_json::from_str::<SimulatedConfig>(&text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_offered_is_reported_while_it_is_so() {
    let node = node_under(KubeletVersion::From137).await;
    let resources = [mixed(), vec![toys(GPU, 2)]].concat();
    let harness = start(&node, resources, [gpu(0)]);
    harness.registered(GPU, 1).await;
    let only_problem =
        |what: &'static str| move |state: &PluginState| state.problems.len() == 1 && state.problems[0].contains(what);
    harness.until_state("a collision", only_problem("two entries")).await;
    node.counts(GPU, 1, 1).await;
    assert_eq!(node.allocatable_ids(GPU), [uuid(0)].into(), "the first entry's");
    harness.plugin.configure(&mixed().into());
    harness.until_state("no problem", |state| state.problems.is_empty()).await;
    harness.change_gpu(0, |gpu| gpu.mig_enabled = Some(true));
    harness.until_state("a bare GPU", only_problem("no MIG devices")).await;
    harness.partition(0, mig_devices("1g.10gb", &[1]));
    harness.until_state("no problem", |state| state.problems.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registered_ends_when_the_configuration_has_changed() {
    for version in VERSIONS {
        let node = node_under(version).await;
        let (kept, gone, changed, new) =
            ("example.com/kept", "example.com/gone", "example.com/changed", "example.com/new");
        let harness = start(&node, vec![toys(kept, 1), toys(gone, 1), toys(changed, 1)], []);
        for name in [kept, gone, changed] {
            harness.registered(name, 1).await;
            node.counts(name, 1, 1).await;
        }
        harness.plugin.configure(&vec![toys(changed, 3), toys(kept, 1), toys(new, 2)].into());
        harness.registered(changed, 2).await;
        harness.registered(new, 1).await;
        harness.until_state("the end", |state| state.resources[&gone.into()].ended.is_some()).await;
        for (name, capacity, allocatable) in [(kept, 1, 1), (gone, 1, 0), (changed, 3, 3), (new, 2, 2)] {
            node.counts(name, capacity, allocatable).await;
        }
        assert_eq!(harness.now(kept).registrations, 1, "not touched");
        assert_eq!(sockets(&node.device_plugin_directory()).len(), 3);
        // Fewer devices, and then one entry back: neither removes a device from a running registration.
        harness.plugin.configure(&vec![toys(changed, 1), toys(kept, 1), toys(gone, 1)].into());
        harness.registered(changed, 3).await;
        harness.registered(gone, 2).await;
        for (name, capacity, allocatable) in [(kept, 1, 1), (gone, 1, 1), (changed, 1, 1), (new, 2, 0)] {
            node.counts(name, capacity, allocatable).await;
        }
        assert_eq!(node.dropped_devices(), []);
    }
}
