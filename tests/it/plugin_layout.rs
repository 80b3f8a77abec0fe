//! What a change of MIG layout, or of the configuration, does to the registrations, under both sets of rules.

use crate::support::kubelet::{Admission, ContainerSpec, Count, Node, Options, PodSpec, Rules, node};
use crate::support::room::{Room, gpu, mig_uuid, slices, uuid};
use podmeter::plugin::{MigStrategy, NvidiaConfig, ResourceConfig, SimulatedConfig};

const GPU: &str = "nvidia.com/gpu";
const MIG: &str = "nvidia.com/mig-1g.10gb";
const RULES: [Rules; 2] = [Rules::UpTo136, Rules::From137];

fn mixed() -> Vec<ResourceConfig> {
    let config = NvidiaConfig { mig_strategy: MigStrategy::Mixed, ..NvidiaConfig::default() };
    vec![ResourceConfig::Nvidia(Box::new(config))]
}

async fn with(rules: Rules) -> Node {
    node(Options { rules, ..Options::default() }).await
}

async fn counts(node: &Node, resource: &str, capacity: usize, allocatable: usize) {
    let expected = Count { capacity, allocatable };
    let becomes = node.node_status_becomes(|status| status.get(resource) == Some(&expected)).await;
    assert!(becomes, "{resource}: {expected:?}, not {:?}", node.node_status());
}

fn pod(name: &str, resource: &str) -> PodSpec {
    PodSpec::new("team", name).container(ContainerSpec::new("main").asks(resource, 1))
}

fn sockets(node: &Node) -> usize {
    let entries = std::fs::read_dir(node.device_plugin_directory()).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("podmeter-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_layout_is_a_new_registration_once_nobody_holds_the_old_one() {
    for rules in RULES {
        let node = with(rules).await;
        let room = Room::start(node.root.path(), mixed(), (0..2).map(gpu));
        room.registered(GPU, 1).await;
        room.partition(1, slices("1g.10gb", &[1, 2]));
        room.registered(MIG, 1).await;
        counts(&node, MIG, 2, 2).await;
        // The whole GPU is nobody's: its resource begins anew without it.
        room.registered(GPU, 2).await;
        counts(&node, GPU, 1, 1).await;

        assert_eq!(node.add_pod(pod("trainer", MIG)).await, Admission::Running);
        let held = node.devices_of("team", "trainer", "main").remove(0).1;
        room.partition(1, slices("1g.10gb", &[3, 4, 5]));
        // The old ones turn unhealthy and the new ones come at once.
        counts(&node, MIG, 5, 3).await;
        assert_eq!(node.allocatable_ids(MIG), [3, 4, 5].map(mig_uuid).into());
        let mut kubelet = room.kubelet.clone();
        for _ in 0..3 {
            kubelet.changed().await.unwrap();
        }
        let state = room.resource(MIG);
        assert_eq!((state.registrations, state.count()), (1, (3, 2)), "{held} is held");

        assert!(node.force_delete_pod("team", "trainer"));
        room.registered(MIG, 2).await;
        counts(&node, MIG, 3, 3).await;
        assert_eq!(node.dropped_devices(), []);
        assert_eq!(sockets(&node), 2, "one for each resource");
        assert_eq!(node.add_pod(pod("next", MIG)).await, Admission::Running);
        assert_eq!(room.resource(MIG).allocations["ok"], 2, "counted on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_whose_last_device_was_unmade_ends_and_begins_with_the_next() {
    for rules in RULES {
        let node = with(rules).await;
        let room = Room::start(node.root.path(), mixed(), [gpu(0)]);
        room.registered(GPU, 1).await;
        room.partition(0, slices("1g.10gb", &[1]));
        room.registered(MIG, 1).await;
        let gpu_is = |state: &podmeter::model::PluginState| state.resources[&GPU.into()].clone();
        let state = room.until("the end", |state| gpu_is(state).ended.is_some()).await;
        let ended = gpu_is(&state);
        assert!(!ended.registered && ended.unregistered_since.is_none() && ended.devices.is_empty(), "{ended:#?}");
        counts(&node, GPU, 1, 0).await;
        assert_eq!(sockets(&node), 1);
        room.partition(0, vec![]);
        room.registered(GPU, 2).await;
        counts(&node, GPU, 1, 1).await;
        room.until("the end", |state| state.resources[&MIG.into()].ended.is_some()).await;
        assert_eq!(room.resource(GPU).ended, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_keeps_its_place() {
    let node = with(Rules::UpTo136).await;
    let room = Room::start(node.root.path(), mixed(), [gpu(0), gpu(1)]);
    room.partition(1, slices("1g.10gb", &[1, 2]));
    room.registered(MIG, 1).await;
    room.registered(GPU, 1).await;
    room.change_gpu(1, |gpu| (gpu.present, gpu.mig_devices) = (false, vec![]));
    room.change_gpu(0, |gpu| gpu.present = false);
    counts(&node, MIG, 2, 0).await;
    let mut kubelet = room.kubelet.clone();
    for _ in 0..3 {
        kubelet.changed().await.unwrap();
    }
    assert_eq!(room.resource(MIG).count(), (0, 2));
    assert!(room.resource(GPU).devices.keys().any(|id| id.as_str() == uuid(0)));
    room.change_gpu(1, |gpu| (gpu.present, gpu.mig_devices) = (true, slices("1g.10gb", &[1, 2])));
    counts(&node, MIG, 2, 2).await;
    assert_eq!(room.resource(MIG).registrations, 1);
}

fn toys(name: &str, devices: u32) -> ResourceConfig {
    let text = format!(r#"{{"name":"{name}","devices":{devices}}}"#);
    ResourceConfig::Simulated(serde_json::from_str::<SimulatedConfig>(&text).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_offered_is_said_while_it_is_so() {
    let node = with(Rules::From137).await;
    let resources = [mixed(), vec![toys(GPU, 2)]].concat();
    let room = Room::start(node.root.path(), resources, [gpu(0)]);
    room.registered(GPU, 1).await;
    let says = |what: &'static str| {
        move |state: &podmeter::model::PluginState| state.problems.len() == 1 && state.problems[0].contains(what)
    };
    room.until("a collision", says("two entries")).await;
    counts(&node, GPU, 1, 1).await;
    assert_eq!(node.allocatable_ids(GPU), [uuid(0)].into(), "the first entry's");
    room.plugin.configure(&mixed());
    room.until("no problem", |state| state.problems.is_empty()).await;
    room.change_gpu(0, |gpu| gpu.mig_enabled = Some(true));
    room.until("a bare GPU", says("no MIG devices")).await;
    room.partition(0, slices("1g.10gb", &[1]));
    room.until("no problem", |state| state.problems.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_configuration_ends_begins_and_restarts_what_it_changes() {
    for rules in RULES {
        let node = with(rules).await;
        let (kept, gone, changed, new) =
            ("example.com/kept", "example.com/gone", "example.com/changed", "example.com/new");
        let room = Room::start(node.root.path(), vec![toys(kept, 1), toys(gone, 1), toys(changed, 1)], []);
        for name in [kept, gone, changed] {
            room.registered(name, 1).await;
            counts(&node, name, 1, 1).await;
        }
        room.plugin.configure(&vec![toys(changed, 3), toys(kept, 1), toys(new, 2)]);
        room.registered(changed, 2).await;
        room.registered(new, 1).await;
        room.until("the end", |state| state.resources[&gone.into()].ended.is_some()).await;
        for (name, capacity, allocatable) in [(kept, 1, 1), (gone, 1, 0), (changed, 3, 3), (new, 2, 2)] {
            counts(&node, name, capacity, allocatable).await;
        }
        assert_eq!(room.resource(kept).registrations, 1, "not touched");
        assert_eq!(sockets(&node), 3);
        // Fewer devices, and then one entry back: neither takes a device from a living registration.
        room.plugin.configure(&vec![toys(changed, 1), toys(kept, 1), toys(gone, 1)]);
        room.registered(changed, 3).await;
        room.registered(gone, 2).await;
        for (name, capacity, allocatable) in [(kept, 1, 1), (gone, 1, 1), (changed, 1, 1), (new, 2, 0)] {
            counts(&node, name, capacity, allocatable).await;
        }
        assert_eq!(node.dropped_devices(), []);
    }
}
