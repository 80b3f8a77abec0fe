//! Starts of containers while podmeter is away or its configuration has changed: the kubelet gives the CDI names of its
//! checkpoint again and does not ask the plugin.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::kubelet::{KubeletNode, KubeletVersion, asking_pod, node_under};
use crate::support::plugin_harness::{
    GPU, PluginHarness, gpu, gpus, hardware, mig_devices, mig_uuid, plugin_on_node, resources, uuid,
};
use base64::Engine as _;
use podmeter::domain::model::Gpu;
use podmeter::simulation::kubelet::{SimulatedCheckpoint, SimulatedPodDevices};
use podmeter::wire::v1beta1::{CdiDevice, ContainerAllocateResponse};
use prost::Message as _;

const STRATEGIES: [&str; 5] = ["cdi-cri", "cdi-annotations", "envvar", "volume-mounts", "device-nodes"];
const MIG: &str = "nvidia.com/mig-1g.10gb";

#[tokio::test(flavor = "multi_thread")]
async fn a_container_starts_again_after_sigterm_and_an_uninstall() {
    for strategy in STRATEGIES {
        let (node, podmeter) = with_trainer(strategy).await;
        podmeter.end().await;
        starts(&node, strategy).await;
        // The kubelet has its names from the checkpoint too, and podmeter does not start again.
        node.restart().unwrap();
        node.ready().await;
        starts(&node, strategy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_starts_again_after_sigkill_and_beside_the_next_podmeter() {
    for strategy in STRATEGIES {
        let (node, podmeter) = with_trainer(strategy).await;
        drop(podmeter);
        starts(&node, strategy).await;
        for next in STRATEGIES {
            let podmeter = PluginHarness::configured(node.root.path(), &configuration(next), gpus(4));
            podmeter.registered(GPU, 1).await;
            starts(&node, strategy).await;
            podmeter.end().await;
        }
        starts(&node, strategy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_starts_again_after_sighup_and_the_loss_of_its_gpu() {
    for strategy in STRATEGIES {
        let (node, podmeter) = with_trainer(strategy).await;
        for (at, next) in (2..).zip(STRATEGIES.iter().filter(|next| **next != strategy)) {
            podmeter.plugin.configure(&resources(&configuration(next)).into());
            podmeter.registered(GPU, at).await;
            starts(&node, strategy).await;
        }
        podmeter.plugin.configure(&resources("resources: []").into());
        podmeter.until(GPU, "ended", |state| state.ended.is_some()).await;
        starts(&node, strategy).await;
        podmeter.plugin.configure(&resources(&configuration(strategy)).into());
        podmeter.registered(GPU, 6).await;
        let id = &node.held("trainer")[0];
        let index = (0..4).find(|index| uuid(*index) == *id).unwrap();
        podmeter.change_gpu(index, |gpu| gpu.present = false);
        node.counts(GPU, 4, 3).await;
        starts(&node, strategy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mig_device_stays_described_and_never_has_the_nodes_of_another() {
    let node = node_under(KubeletVersion::UpTo136).await;
    let root = node.root.path();
    for (instance, minor) in [(1, 12), (2, 22)] {
        let directory = root.join(format!("proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}"));
        std::fs::create_dir_all(directory.join("ci0")).unwrap();
        std::fs::write(directory.join("access"), format!("DeviceFileMinor: {minor}\n")).unwrap();
        std::fs::write(directory.join("ci0/access"), format!("DeviceFileMinor: {}\n", minor + 1)).unwrap();
    }
    let partitioned = Gpu { mig_enabled: Some(true), mig_devices: mig_devices("1g.10gb", &[1, 2]), ..gpu(1) };
    let configuration = |mig: &str, list: &str| {
        format!("resources: [{{kind: nvidia, migStrategy: {mig}, deviceListStrategy: {list}}}]")
    };
    let podmeter = PluginHarness::configured(root, &configuration("mixed", "cdi-cri"), hardware([gpu(0), partitioned]));
    podmeter.registered(MIG, 1).await;
    // Otherwise the next configuration may come before, and the registration after it is the first.
    podmeter.registered(GPU, 1).await;
    node.counts(MIG, 2, 2).await;
    node.runs(asking_pod("trainer", MIG, 1)).await;
    let name = names(&node).await.remove(0);
    let nodes = described(root)[&name].clone();
    let number = if name.ends_with(&mig_uuid(1)) { 12 } else { 22 };
    let capabilities = [number, number + 1].map(|number| format!("/dev/nvidia-caps/nvidia-cap{number}"));
    assert_eq!(nodes, [&["/dev/nvidia1".to_owned()], &capabilities[..]].concat());

    podmeter.plugin.configure(&resources(&configuration("none", "envvar")).into());
    podmeter.until(MIG, "ended", |state| state.ended.is_some()).await;
    podmeter.registered(GPU, 2).await;
    assert_eq!(described(root)[&name], nodes);

    podmeter.plugin.configure(&resources(&configuration("none", "cdi-cri")).into());
    podmeter.registered(GPU, 3).await;
    // GPU 1 may be another pod's as a whole.
    podmeter.partition(1, vec![]);
    let about = |problem: &std::sync::Arc<str>| problem.contains(name.rsplit_once('=').unwrap().1);
    podmeter.until_state("the device is gone", |state| state.problems.iter().any(about)).await;
    assert_eq!(described(root)[&name], [""; 0]);
    assert_eq!(names(&node).await, [name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_podmeter_gave_under_the_kind_of_nvidias_plugin_stay_described() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("device-plugins");
    std::fs::create_dir(&directory).unwrap();
    let name = format!("k8s.device-plugin.nvidia.com/gpu={}", uuid(2));
    let answer =
        ContainerAllocateResponse { cdi_devices: vec![CdiDevice { name: name.clone() }], ..Default::default() };
    let trainer = SimulatedPodDevices {
        pod_uid: "uid".to_owned(),
        container_name: "main".to_owned(),
        resource_name: GPU.to_owned(),
        device_ids: [(-1, vec![uuid(2)])].into(),
        alloc_resp: base64::prelude::BASE64_STANDARD.encode(answer.encode_to_vec()),
    };
    SimulatedCheckpoint::new(vec![trainer], BTreeMap::new()).write(&directory).unwrap();
    let podmeter = PluginHarness::configured(root.path(), &configuration("cdi-cri"), gpus(4));
    podmeter.until_state("the host was scanned", |state| state.resources_complete).await;
    let described = described(root.path());
    assert_eq!(described[&name], ["/dev/nvidia2"]);
    assert_eq!(described.len(), 5, "{described:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_check_before_the_start_no_container_starts_while_podmeter_is_away() {
    let yaml = "resources: [{kind: nvidia, preStartCheck: {noProcesses: true}}]";
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, yaml, gpus(1), 1).await;
    node.runs(asking_pod("trainer", GPU, 1)).await;
    podmeter.end().await;
    node.counts(GPU, 1, 0).await;
    let error = node.start_container("team", "trainer", "main").await.unwrap().unwrap_err();
    assert!(error.contains("has been stopped"), "{error}");
}

fn configuration(strategy: &str) -> String {
    format!("resources: [{{kind: nvidia, driverMounts: [], deviceListStrategy: {strategy}}}]")
}

/// A pod `trainer` holds one of four GPUs.
async fn with_trainer(strategy: &str) -> (KubeletNode, PluginHarness) {
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, &configuration(strategy), gpus(4), 4).await;
    node.runs(asking_pod("trainer", GPU, 1)).await;
    starts(&node, strategy).await;
    (node, podmeter)
}

/// The nodes of each CDI device that a runtime finds under `root`. It uses none that two files describe.
fn described(root: &Path) -> BTreeMap<String, Vec<String>> {
    let mut devices = BTreeMap::new();
    for file in std::fs::read_dir(root.join("cdi")).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        let specification: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for device in specification["devices"].as_array().unwrap() {
            let nodes = device["containerEdits"]["deviceNodes"].as_array().into_iter().flatten();
            let nodes = nodes.map(|node| node["path"].as_str().unwrap().to_owned()).collect();
            let name = format!("{}={}", specification["kind"].as_str().unwrap(), device["name"].as_str().unwrap());
            assert_eq!(devices.insert(name, nodes), None, "{device} is conflicting");
        }
    }
    devices
}

/// The CDI names that the kubelet gives `trainer` at its next start.
async fn names(node: &KubeletNode) -> Vec<String> {
    let options = node.start_container("team", "trainer", "main").await.unwrap().unwrap();
    let annotated = options.annotations.into_values().flat_map(|names| {
        let names: Vec<String> = names.split(',').map(str::to_owned).collect();
        names
    });
    options.cdi_devices.into_iter().map(|device| device.name).chain(annotated).collect()
}

/// `trainer` starts, and its CDI device has the nodes of the GPU that it holds.
async fn starts(node: &KubeletNode, strategy: &str) {
    let names = names(node).await;
    assert_eq!(names.len(), usize::from(strategy.starts_with("cdi")), "{strategy}: {names:?}");
    let described = described(node.root.path());
    let id = &node.held("trainer")[0];
    let minor = (0..4).find(|index| uuid(*index) == *id).unwrap();
    for name in names {
        assert_eq!(described.get(&name), Some(&vec![format!("/dev/nvidia{minor}")]), "{strategy}: {described:?}");
    }
}
