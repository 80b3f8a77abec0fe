//! The situations in which a real kubelet was recorded, built on the fake one: the answers must be the same.

use crate::support::captures;
use crate::support::kubelet::{Claim, ContainerSpec, KubeletVersion, Options, PodPhase, PodSpec, memory_block, node};
use crate::support::lab::{self, GPU, Lab, SAMPLE, one_container};
use crate::support::stand_in_plugin::StandInPlugin;
use podmeter::simulation::kubelet::ListedDevice;
use serde_json::json;

#[tokio::test]
async fn pods_placed_directly() {
    let node = node(Options::default()).await;
    node.set_pods(vec![
        lab::without_devices(),
        PodSpec::new("default", "basic").from_manifest().container(ContainerSpec::new("main").holds(
            SAMPLE,
            "Dev-1",
            &[],
        )),
        PodSpec::new("team-a", "two-ctr")
            .from_manifest()
            .container(ContainerSpec::new("a").holds(GPU, "gpu-0", &[0]))
            .container(ContainerSpec::new("b").holds(GPU, "gpu-1", &[0])),
    ]);
    assert_eq!(captures::sorted_list(node.list().await), captures::list("02_two_containers"));
}

#[tokio::test]
async fn one_pod_with_one_device() {
    let lab = lab::empty(Options::default()).await;
    lab.runs(lab::basic()).await;
    lab.answers_as("01_basic_running").await;
    lab.lists_as("01_basic_running").await;
}

/// A pod whose sandbox cannot start is listed with what it was given.
#[tokio::test]
async fn a_pod_that_cannot_start() {
    let lab = lab::empty(Options::default()).await;
    lab.runs(lab::basic()).await;
    lab.set_phase("default", "basic-lab-node", PodPhase::Pending);
    assert_eq!(captures::list_json(&lab.list().await), captures::json_of("pending_sandbox_failing_list.json"));
}

#[tokio::test]
async fn two_containers() {
    let lab = lab::with_pods().await;
    let container = |name| ContainerSpec::new(name).asks(GPU, 1);
    let pod = PodSpec::new("team-a", "two-ctr").uid("aec2ea74b12e2dd67cd5d81f47b5e446").from_manifest();
    lab.runs(pod.container(container("a")).container(container("b"))).await;
    lab.answers_as("02_two_containers").await;
}

#[tokio::test]
async fn one_container_with_two_devices() {
    let lab = lab::with_pods().await;
    lab.runs(lab::two_devices()).await;
    lab.answers_as("03_one_container_two_devices").await;
    assert_eq!(lab.gpu().allocations(), 1, "one Allocate per container and resource");
}

#[tokio::test]
async fn an_init_container_passes_its_device_on() {
    let lab = lab::with_pods().await;
    let pod = one_container("default", "init-main", 1).uid("e1684a4ea32aac2082c0e2680d8a174a").from_manifest();
    lab.runs(pod.init_container(ContainerSpec::new("init").asks(GPU, 1))).await;
    lab.answers_as("04a_init_running").await;
    lab.finish_container("default", "init-main-lab-node", "init");
    lab.answers_as("04b_init_done_main_running").await;
}

#[tokio::test]
async fn a_sidecar_keeps_its_device() {
    let lab = lab::with_pods().await;
    let pod = one_container("default", "sidecar", 1).uid("d66b122ce6f8368855bb30a942c339c4").from_manifest();
    lab.runs(pod.sidecar(ContainerSpec::new("side").asks(GPU, 1))).await;
    lab.answers_as("05_sidecar").await;
}

#[tokio::test]
async fn a_pod_completes_and_its_device_is_given_again() {
    let lab = lab::with_pods().await;
    let uid = uid_in("06a_before_completion", GPU);
    lab.runs(one_container("default", "completed", 1).uid(&uid).from_manifest()).await;
    lab.answers_as("06a_before_completion").await;
    lab.finish_container("default", "completed-lab-node", "main");
    lab.answers_as("06b_after_completion").await;
    gets_error(&lab, "completed-lab-node", "06b_get_completed.json").await;
    lab.runs(lab::four_devices()).await;
    lab.answers_as("06c_completed_plus_four").await;
    gets_error(&lab, "completed-lab-node", "06c_get_completed.json").await;
    lab.delete_pod("default", "completed-lab-node");
    gets_error(&lab, "completed-lab-node", "06d_get_removed.json").await;
}

#[tokio::test]
async fn a_finished_container_in_a_running_pod_keeps_its_device() {
    let lab = lab::with_pods().await;
    let container = |name| ContainerSpec::new(name).asks(GPU, 1);
    let pod = PodSpec::new("default", "mixed-done").uid("7a841c7ef323c82965a3213e2748331f").from_manifest();
    lab.runs(pod.container(container("quick")).container(container("long"))).await;
    lab.finish_container("default", "mixed-done-lab-node", "quick");
    lab.answers_as("07_mixed_one_container_done").await;

    // What the pod held stays in the checkpoint until the next write.
    lab.delete_pod("default", "mixed-done-lab-node");
    let message = lab.rejects(one_container("default", "toomany", 5).from_manifest(), "UnexpectedAdmissionError").await;
    assert_eq!(
        message,
        "Allocate failed due to requested number of devices unavailable for lab.example.com/gpu. \
         Requested: 5, Available: 4, which is unexpected"
    );
    lab.answers_as("08_too_many_admission").await;
    gets_error(&lab, "toomany-lab-node", "08_get_toomany.json").await;
    lab.runs(
        PodSpec::new("default", "unknownres")
            .from_manifest()
            .container(ContainerSpec::new("main").asks("example.com/none", 1)),
    )
    .await;
    lab.answers_as("09_unknown_resource").await;
}

#[tokio::test]
async fn a_terminating_static_pod_is_removed_at_once_and_its_device_given_again() {
    let lab = lab::with_pods().await;
    let uid = uid_in("11_terminating", GPU);
    lab.runs(one_container("default", "slowterm", 1).uid(&uid).from_manifest()).await;
    lab.delete_pod("default", "slowterm-lab-node");
    lab.answers_as("11_terminating").await;
    lab.runs(lab::four_devices()).await;
    lab.answers_as("12_overlap_terminating_and_new").await;
}

#[tokio::test]
async fn unhealthy_and_missing_devices_leave_only_the_offer() {
    let lab = lab::with_pods().await;
    lab.runs(lab::two_devices()).await;
    lab.answers_as("13a_healthy").await;
    for id in ["gpu-0", "gpu-3"] {
        lab.gpu().set_health(id, false);
    }
    lab.allocatable_becomes(GPU, 2).await;
    assert_eq!(lab.node_status()[GPU].capacity, 4);
    lab.answers_as("13b_unhealthy_after1s").await;
    lab.rejects(one_container("default", "late", 2).from_manifest(), "UnexpectedAdmissionError").await;
    lab.answers_as("13d_unhealthy_admission").await;
    for id in ["gpu-0", "gpu-3"] {
        lab.gpu().set_health(id, true);
    }
    lab.allocatable_becomes(GPU, 4).await;
    lab.answers_as("13e_healthy_again").await;

    for id in ["gpu-0", "gpu-3"] {
        lab.gpu().remove(id);
    }
    lab.allocatable_becomes(GPU, 2).await;
    assert_eq!(lab.node_status()[GPU].capacity, 2);
    lab.answers_as("14_device_removed_while_in_use").await;
}

#[tokio::test]
async fn a_plugin_is_killed_and_restarts() {
    let mut lab = lab::with_pods().await;
    lab.runs(lab::two_devices()).await;
    lab.stop_sample_plugin().await;
    assert_eq!(lab.node_status()[SAMPLE].capacity, 2);
    lab.answers_as("15a_plugin_killed_1s").await;
    let pod = PodSpec::new("default", "late").from_manifest().container(ContainerSpec::new("main").asks(SAMPLE, 1));
    let message = lab.rejects(pod, "UnexpectedAdmissionError").await;
    assert!(message.contains("no healthy devices present; cannot allocate unhealthy devices"), "{message}");
    lab.answers_as("15b_plugin_dead_new_pod").await;
    lab.advance(podmeter::simulation::kubelet::STOP_GRACE);
    assert_eq!(lab.node_status().get(SAMPLE), None);
    lab.answers_as("15c_plugin_dead_after_5min").await;
    lab.start_sample_plugin().await;
    lab.answers_as("15d_plugin_back").await;
}

/// The recording kubelet had restarted, and the sample plugin had not come back.
#[tokio::test]
async fn a_second_plugin_replaces_the_first_in_silence() {
    let mut lab = restarted_without_sample().await;
    lab.answers_as("21b_restarted_0s").await;
    let devices = ["new-0", "new-1"].map(|id| ListedDevice::new(id).on_nodes(&[0])).to_vec();
    let second = StandInPlugin::start(&lab.device_plugin_directory(), GPU, devices);
    lab.allocatable_becomes(GPU, 2).await;
    lab.answers_as("19a_second_plugin_same_resource").await;
    assert_eq!(lab.gpu().registrations(), 2, "the first got no message");
    drop(second);
    lab.allocatable_becomes(GPU, 0).await;
    lab.answers_as("19b_second_gone").await;
    lab.stop_gpu_plugin().await;
    lab.start_gpu_plugin(lab::gpus()).await;
    lab.answers_as("19c_first_restarted").await;
}

#[tokio::test]
async fn a_restart_with_the_plugins_down_keeps_the_assignments() {
    let mut lab = lab::with_pods().await;
    lab.runs(lab::two_devices()).await;
    (lab.gpu, lab.sample) = (None, None);
    lab.restart().unwrap();
    lab.ready().await;
    lab.answers_as("23_restart_no_plugin").await;
}

#[tokio::test]
async fn exclusive_cpus_and_memory() {
    let bytes = 12_121_759_744;
    let options = Options { cpu_ids: vec![1], memory: vec![memory_block("memory", bytes, &[0])], ..Options::default() };
    let mut lab = lab::empty(options).await;
    lab.lists_as("30a_static_empty").await;
    lab.offers_as("30a_static_empty").await;
    lab.runs(lab::without_devices()).await;
    let exclusive = |name| {
        let main = ContainerSpec::new("main").asks(GPU, 1).cpu_ids(&[1]);
        PodSpec::new("default", name).from_manifest().container(main.memory(memory_block("memory", 128 << 20, &[0])))
    };
    lab.runs(exclusive("guaranteed").uid("78ad0babba9802b606e5b758a8fb499c")).await;
    lab.answers_as("30b_static_guaranteed").await;

    lab.stop_sample_plugin().await;
    lab.restart().unwrap();
    lab.ready().await;
    lab.allocatable_becomes(GPU, 4).await;
    lab.answers_as("30d_static_after_restart").await;
    lab.start_sample_plugin().await;
    lab.stop_gpu_plugin().await;
    lab.start_gpu_plugin(mixed_nodes()).await;
    lab.answers_as("31a_numa_mixed_alloc").await;
}

#[tokio::test]
async fn a_device_on_two_numa_nodes_is_listed_twice() {
    let mut lab = restarted_without_sample().await;
    lab.delete_pod("team-a", "two-dev-lab-node");
    lab.delete_pod("default", "basic-lab-node");
    lab.stop_gpu_plugin().await;
    lab.start_gpu_plugin(mixed_nodes()).await;
    lab.runs(lab::four_devices()).await;
    lab.answers_as("31b_numa_mixed_list").await;
}

#[tokio::test]
async fn api_pods_keep_their_names_and_stay_while_they_terminate() {
    let lab = lab::empty(Options::default()).await;
    lab.runs(lab::without_devices()).await;
    lab.runs(one_container("team-a", "two-dev", 2)).await;
    lab.runs(one_container("default", "slowterm", 1)).await;
    lab.offers_as("41_api_pods").await;
    lab.lists_as("41_api_pods").await;
    lab.delete_pod("default", "slowterm");
    lab.lists_as("41_api_pods").await;
    lab.remove_pod("default", "slowterm");
    lab.runs(one_container("default", "completed", 1)).await;
    lab.finish_container("default", "completed", "main");
    lab.lists_as("43_api_completed").await;
    gets_error(&lab, "completed", "43_get_completed_api_pod.json").await;
}

#[tokio::test]
async fn claims_are_listed_whole_with_growing_cdi_names() {
    let mut lab = lab::empty(Options::default()).await;
    lab.runs(lab::without_devices()).await;
    let uid = "3758b8d4-0655-48b2-8fe5-812a6a22d30c";
    lab.runs(one_container("team-a", "two-dev", 2).uid(uid)).await;
    let cdi = |request| format!("test-driver.cdi.k8s.io/test=claim-9a227d50-5389-4d02-9c20-91412cc5ae3a-{request}");
    lab.set_claim(
        Claim::new("default", "shared-claim")
            .device("test-driver.cdi.k8s.io", "lab-node", "device-00", &[&cdi("one")])
            .device("test-driver.cdi.k8s.io", "lab-node", "device-01", &[&cdi("two")]),
    );
    let claimant = |name| ContainerSpec::new(name).claim("shared-claim");
    let pod = PodSpec::new("default", "dra-pod").container(claimant("both")).container(claimant("onlyone"));
    lab.runs(pod.container(ContainerSpec::new("none"))).await;
    lab.lists_as("50_dra").await;
    lab.remembers_as("50_dra");
    let pod = captures::pod_json(&lab.get("default", "dra-pod").await.unwrap());
    assert_eq!(json!({ "pod_resources": pod }), captures::json_of("50_dra_get.json"));

    lab.runs(PodSpec::new("default", "netpod").container(ContainerSpec::new("web"))).await;
    lab.stop_gpu_plugin().await;
    lab.advance(podmeter::simulation::kubelet::STOP_GRACE);
    lab.answers_as("45_node_plugin_killed_5min").await;

    // One claim that is not prepared: nothing at all for that container.
    lab.remove_claim("default", "shared-claim");
    let pod = lab.get("default", "dra-pod").await.unwrap();
    assert!(pod.containers.iter().all(|container| container.dynamic_resources.is_empty()));
}

/// The second plugin goes, and the first carries on: devices stay healthy throughout.
#[tokio::test]
async fn from_1_37_a_surviving_plugin_is_promoted() {
    let mut lab = lab::empty(Options { version: KubeletVersion::From137, ..Options::default() }).await;
    let devices = ["new-0", "new-1"].map(ListedDevice::new).to_vec();
    let second = StandInPlugin::start(&lab.device_plugin_directory(), GPU, devices.clone());
    lab.allocatable_becomes(GPU, 2).await;
    drop(second);
    lab.allocatable_becomes(GPU, 4).await;
    assert_eq!(lab.gpu().registrations(), 1);

    let _second = StandInPlugin::start(&lab.device_plugin_directory(), GPU, devices);
    lab.allocatable_becomes(GPU, 2).await;
    lab.gpu = None;
    lab.runs(one_container("default", "pod", 2)).await;
    assert_eq!(lab.devices_of("default", "pod", "main"), [(GPU.into(), "new-0".into()), (GPU.into(), "new-1".into())]);
}

/// Up to 1.36 the end of the first plugin's stream disconnects the second, which has to register again.
#[tokio::test]
async fn up_to_1_36_the_old_stream_takes_the_new_plugin_with_it() {
    let mut lab = lab::empty(Options::default()).await;
    let second = StandInPlugin::start(&lab.device_plugin_directory(), GPU, vec![ListedDevice::new("new-0")]);
    lab.allocatable_becomes(GPU, 1).await;
    assert_eq!(second.registrations(), 1);
    lab.gpu = None;
    lab.node_status_becomes(|_| second.registrations() == 2).await;
    lab.allocatable_becomes(GPU, 1).await;
    assert_eq!(second.registrations(), 2);
}

/// From 1.37 a socket path that the kubelet still tracks is refused.
#[tokio::test]
async fn from_1_37_a_path_that_is_connected_is_refused() {
    let node = node(Options { version: KubeletVersion::From137, ..Options::default() }).await;
    let directory = node.device_plugin_directory();
    let plugin = StandInPlugin::start_on(&directory, GPU, vec![ListedDevice::new("gpu-0")], Some("fixed.sock"));
    assert!(plugin.registered().await);
    let error = node.register("v1beta1", "fixed.sock", GPU).await.unwrap_err();
    let path = directory.join("fixed.sock");
    assert_eq!(error.message(), format!("device plugin already connected: {}", path.display()));
}

fn mixed_nodes() -> Vec<ListedDevice> {
    vec![
        ListedDevice::new("gpu-0").on_nodes(&[0]),
        ListedDevice::new("gpu-1"),
        ListedDevice::new("gpu-2").on_nodes(&[0, 1]),
        ListedDevice::new("gpu-3").on_nodes(&[1]),
    ]
}

async fn restarted_without_sample() -> Lab {
    let mut lab = lab::with_pods().await;
    lab.runs(lab::two_devices()).await;
    lab.stop_sample_plugin().await;
    lab.restart().unwrap();
    lab.ready().await;
    lab.allocatable_becomes(GPU, 4).await;
    lab
}

fn uid_in(capture: &str, resource: &str) -> String {
    let checkpoint = captures::json_of(&format!("{capture}.checkpoint.json"));
    let entries = checkpoint["Data"]["PodDeviceEntries"].as_array().unwrap().iter();
    let mut of_resource = entries.filter(|entry| entry["ResourceName"] == resource);
    of_resource.next().unwrap()["PodUID"].as_str().unwrap().to_owned()
}

async fn gets_error(lab: &Lab, pod: &str, capture: &str) {
    let error = lab.get("default", pod).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unknown);
    let recorded = captures::json_of(capture);
    assert_eq!(json!({"grpc_code": "UNKNOWN", "grpc_details": error.message()}), recorded);
}
