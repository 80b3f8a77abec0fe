//! One configuration file on nodes with different GPUs: the real binary over a fake driver library and a fake kubelet.

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::agent;
use crate::support::fake_nvml::FakeNvml;
use crate::support::sick_node::SickNode;
use podmeter::simulation::kubelet::DeviceCount;
use serde_json::{Value, json};

const EVERYWHERE: (&str, usize) = ("example.com/everywhere", 1);

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_different_gpus_offer_different_resources_from_one_file() {
    let inference = SickNode::start(t4s(2), FILE).await;
    offers(&inference, &[EVERYWHERE, ("nvidia.com/gpu.shared", 8), ("example.com/inference", 2)]).await;
    until_applied(&inference, "profile", Some("inference"));
    assert_eq!(applied(&inference), json!({"decision": "profile", "name": "inference"}));
    assert!(inference.running.get("/").body.contains("Profile inference of the configuration applies"));
    let log = inference.running.until_logged("this profile applies");
    assert!(log.contains("2 GPUs (Tesla T4)"), "{log}");

    let training = SickNode::start(a100s(3), FILE).await;
    offers(&training, &[EVERYWHERE, ("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 4)]).await;
    until_applied(&training, "profile", Some("training"));

    let mixed = json!({"gpus": [{"name": "Tesla T4"}, {"name": "NVIDIA A100-SXM4-80GB"}]});
    let mixed = SickNode::start(mixed, FILE).await;
    offers(&mixed, &[EVERYWHERE, ("nvidia.com/gpu", 2)]).await;
    until_applied(&mixed, "common", None);
}

#[tokio::test(flavor = "multi_thread")]
async fn until_the_driver_is_read_only_what_no_profile_changes_is_registered() {
    const DRIVER_NOT_LOADED: u32 = 9;
    let mut machine = t4s(1);
    machine["init"] = json!(DRIVER_NOT_LOADED);
    let node = SickNode::start(machine, FILE).await;
    offers(&node, &[EVERYWHERE]).await;
    until_applied(&node, "undecided", None);
    node.driver.update(|state| state["init"] = json!(0));
    offers(&node, &[EVERYWHERE, ("nvidia.com/gpu.shared", 4), ("example.com/inference", 2)]).await;
    until_applied(&node, "profile", Some("inference"));
    assert_eq!(node.kubelet.listed("nvidia.com/gpu"), None, "registered before the driver was read");
    assert_eq!(node.kubelet.dropped_devices(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_does_not_change_the_profile() {
    let node = SickNode::start(a100s(2), FILE).await;
    offers(&node, &[EVERYWHERE, ("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.10gb", 2)]).await;
    node.driver.update(|state| state["gpus"][0]["lost"] = json!(true));
    offers(&node, &[EVERYWHERE, ("nvidia.com/mig-1g.10gb", 2)]).await;
    until_applied(&node, "profile", Some("training"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_profiles_and_a_bad_file_changes_nothing() {
    let node = SickNode::start(t4s(1), FILE).await;
    offers(&node, &[EVERYWHERE, ("nvidia.com/gpu.shared", 4), ("example.com/inference", 2)]).await;
    let reload = |text: &str| {
        std::fs::write(node.kubelet.root.path().join("podmeter.yaml"), text).unwrap();
        node.running.signal("HUP");
    };
    reload(&FILE.replace("replicas: 4", "replicas: 3"));
    offers(&node, &[EVERYWHERE, ("nvidia.com/gpu.shared", 3), ("example.com/inference", 2)]).await;
    let registrations = |resource: &str| {
        node.running.metrics().value("podmeter_plugin_registrations_total", &[&format!("resource=\"{resource}\"")])
    };
    assert_eq!(registrations("example.com/everywhere"), Some(1.0), "unchanged entries continue");
    assert_eq!(registrations("example.com/inference"), Some(1.0));
    assert!(!node.running.log().contains("need a restart"), "{}", node.running.log());

    reload(&FILE.replace("name: training", "name: inference"));
    node.until_page("the outcome", |page| page.value("podmeter_config_last_reload_successful", &[]) == Some(0.0));
    assert!(node.running.log().contains("profiles[1].name"), "{}", node.running.log());
    offers(&node, &[EVERYWHERE, ("nvidia.com/gpu.shared", 3), ("example.com/inference", 2)]).await;

    reload(FILE.split("profiles:").next().unwrap());
    offers(&node, &[EVERYWHERE, ("nvidia.com/gpu", 1)]).await;
    node.until_page("no profiles", |page| page.count("podmeter_plugin_profile_info", &[]) == 0);
    assert_eq!(applied(&node), Value::Null);
    assert_eq!(node.kubelet.dropped_devices(), []);
}

#[test]
fn the_doctor_names_the_profile_and_check_config_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("podmeter.yaml");
    let config = file.to_str().unwrap();
    let driver = FakeNvml::start(t4s(2));
    std::fs::write(&file, FILE).unwrap();
    let arguments = ["doctor", "--config", config, "--admin-socket", "none", "-o", "json", "--node-name", "gpu-1"];
    let output = Command::new(agent::binary()).args(arguments).envs(driver.env()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let found = &checks.iter().find(|check| check["id"] == "plugin_profile").expect("the check")["found"];
    assert_eq!(found, "profile inference applies to node gpu-1 with 2 GPUs (Tesla T4)");

    assert_eq!(agent::ended(&["check-config", config]).0, 0);
    std::fs::write(&file, "devicePlugin: off\nprofiles: [{name: p}]\n").unwrap();
    let (code, output) = agent::ended(&["check-config", config]);
    assert!(code == 2 && output.contains("devicePlugin: {resources: []}"), "{output}");
}

/// For a pool of shared T4 GPUs, a pool of partitioned A100 GPUs, and all other nodes.
const FILE: &str = "
health: {holdDown: 300ms}
devicePlugin:
  resources:
    - {kind: nvidia, preferred: packed}
    - {kind: simulated, name: example.com/everywhere, devices: 1}
profiles:
  - name: inference
    match: {gpuModel: '*T4'}
    devicePlugin:
      resources:
        - {kind: nvidia, sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}
        - {kind: simulated, name: example.com/inference, devices: 2}
  - name: training
    match: {gpuModel: NVIDIA A100*, gpuCount: {min: 2}}
    devicePlugin: {resources: [{kind: nvidia, migStrategy: mixed}]}
";

fn t4s(count: usize) -> Value {
    json!({ "gpus": vec![json!({"name": "Tesla T4"}); count] })
}

/// One whole, the others with two MIG devices.
fn a100s(count: usize) -> Value {
    let mig = |gpu: usize| {
        let instance = |position: usize| json!({"profile": "1g.10gb", "uuid": format!("MIG-00000000-0000-0000-{gpu:04}-{position:012}")});
        json!({"enabled": true, "instances": [instance(0), instance(1)]})
    };
    let gpu = |gpu: usize| {
        let mut state = json!({"name": "NVIDIA A100-SXM4-80GB"});
        if gpu > 0 {
            state["mig"] = mig(gpu);
        }
        state
    };
    json!({ "gpus": (0..count).map(gpu).collect::<Vec<_>>() })
}

/// Until the kubelet has these resources and allocates all of their devices; of no other resource it allocates any.
async fn offers(node: &SickNode, expected: &[(&str, usize)]) {
    let expected: BTreeMap<&str, usize> = expected.iter().copied().collect();
    let is_so = |status: &BTreeMap<String, DeviceCount>| {
        let allocatable = status.iter().filter(|(_, count)| count.allocatable > 0);
        allocatable.map(|(name, count)| (name.as_str(), count.allocatable)).collect::<BTreeMap<_, _>>() == expected
    };
    let becomes = node.kubelet.node_status_becomes(is_so).await;
    assert!(becomes, "{expected:?}, not {:?}\n{}", node.kubelet.node_status(), node.running.log());
}

fn applied(node: &SickNode) -> Value {
    node.running.node()["plugin"]["profile"].clone()
}

fn until_applied(node: &SickNode, decision: &str, profile: Option<&str>) {
    let decision = format!("decision=\"{decision}\"");
    let profile = profile.map(|name| format!("profile=\"{name}\"")).unwrap_or_default();
    node.until_page("the profile", |page| {
        page.value("podmeter_plugin_profile_info", &[&decision, &profile]) == Some(1.0)
            && page.count("podmeter_plugin_profile_info", &[]) == 1
    });
}
