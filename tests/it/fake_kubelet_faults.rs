//! What goes wrong with a kubelet, by itself or on request.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use crate::support::captures;
use crate::support::kubelet::{
    Admission, Claim, ContainerSpec, Count, Gates, MemoryBlock, Method, Node, Options, Phase, PodSpec, connect, node,
};
use crate::support::lab::{self, GPU, SAMPLE, one_container};
use podmeter::simulation::kubelet::ListedDevice;
use podmeter::simulation::plugin::{AllocateBehaviour, Behaviour, StandInPlugin};
use podmeter::wire::v1;
use prost::Message;
use serde_json::json;
use tonic::Code;

#[tokio::test]
async fn registration_errors_are_those_recorded() {
    let node = node(Options { dial_timeout: Duration::from_millis(120), ..Options::default() }).await;
    let lines = String::from_utf8(captures::bytes("18_registration_errors.jsonl")).unwrap();
    let mut compared = 0;
    for line in lines.lines() {
        let recorded: serde_json::Value = serde_json::from_str(line).unwrap();
        let (version, endpoint, resource) = match recorded["case"].as_str().unwrap() {
            "bad version" => ("v1", "none.sock", GPU),
            "no domain" => ("v1beta1", "none.sock", "gpu"),
            "kubernetes.io domain" => ("v1beta1", "none.sock", "kubernetes.io/gpu"),
            "bad chars" => ("v1beta1", "none.sock", "lab.example.com/g pu"),
            "no such socket" => ("v1beta1", "none.sock", GPU),
            "absolute endpoint" => ("v1beta1", "/tmp/none.sock", GPU),
            "empty" => ("", "", ""),
            other => panic!("unknown case {other}"),
        };
        let error = node.register(version, endpoint, resource).await.unwrap_err();
        assert_eq!(error.code(), Code::Unknown, "{}", recorded["case"]);
        assert_eq!(error.message(), recorded["result"]["details"], "{}", recorded["case"]);
        compared += 1;
    }
    assert_eq!(compared, 7);
    assert!(node.node_status().is_empty());
}

#[tokio::test]
async fn a_plugin_that_refuses_its_options_is_not_registered() {
    let node = node(Options::default()).await;
    let directory = node.device_plugin_directory();
    let behaviour = Behaviour {
        options_fail: Some("no options".to_owned()),
        socket_name: Some("gpu.sock".to_owned()),
        ..Behaviour::default()
    };
    let plugin = StandInPlugin::start_with(&directory, GPU, vec![ListedDevice::new("gpu-0")], behaviour);
    let error = loop {
        // The plugin registers too, on a fresh server each time: until it runs there is nothing to dial.
        if let Err(error) = node.register("v1beta1", "gpu.sock", GPU).await
            && error.message().contains("no options")
        {
            break error;
        }
    };
    assert_eq!(error.message(), "failed to get device plugin options: rpc error: code = Unknown desc = no options");
    assert_eq!(plugin.calls().lists, 0);
    assert!(node.node_status().is_empty());
}

#[tokio::test]
async fn a_list_that_ends_is_never_opened_again() {
    let node = node(Options::default()).await;
    let behaviour = Behaviour { list_fails: true, ..Behaviour::default() };
    let devices = vec![ListedDevice::new("gpu-0")];
    let plugin = StandInPlugin::start_with(&node.device_plugin_directory(), GPU, devices, behaviour);
    let nothing = Count::default();
    assert!(node.node_status_becomes(|counts| counts.get(GPU) == Some(&nothing)).await, "present, with nothing");
    let calls = plugin.calls();
    assert!(calls.lists <= calls.registrations, "more than one list per registration: {calls:?}");
}

/// The counts of the recorded floods, with time standing still.
#[tokio::test]
async fn floods_are_cut_at_the_burst() {
    let node = node(Options { frozen_clock: true, ..Options::default() }).await;
    let recorded = captures::json_of("16_flood_12.json");
    let refused = flood(&node, 12).await;
    assert_eq!(refused.first().map(|(at, _)| *at as u64), recorded["first_error_index"].as_u64());
    let text = format!("RESOURCE_EXHAUSTED: {}", refused[0].1.message());
    assert_eq!(recorded["results"][text].as_u64(), Some(refused.len() as u64));
    assert_eq!(refused[0].1.code(), Code::ResourceExhausted);

    // Other methods drink from the same bucket; a second fills it.
    let error = node.get("default", "any").await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    node.advance(Duration::from_secs(1));
    assert_eq!(node.get("default", "any").await.unwrap_err().code(), Code::Unknown);
}

/// (index, error) of each refused List.
async fn flood(node: &Node, calls: usize) -> Vec<(usize, tonic::Status)> {
    let mut client = node.client().await;
    let mut refused = Vec::new();
    for index in 0..calls {
        if let Err(status) = client.list(v1::ListPodResourcesRequest {}).await {
            refused.push((index, status));
        }
    }
    refused
}

#[tokio::test]
async fn modes_of_directories_and_files_are_those_recorded() {
    let lab = lab::with_pods().await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&lab.root.path().join("pod-resources")), 0o750);
    assert_eq!(mode(&lab.root.path().join("device-plugins")), 0o755);
    assert_eq!(mode(&lab.pod_resources_socket()), 0o755);
    assert_eq!(mode(&lab.device_plugin_directory().join("kubelet_internal_checkpoint")), 0o600);
    lab.refuse_permission(true).unwrap();
    assert_eq!(mode(&lab.root.path().join("pod-resources")), 0);
    lab.refuse_permission(false).unwrap();
    assert_eq!(mode(&lab.root.path().join("pod-resources")), 0o750);
}

#[tokio::test]
async fn a_stopped_kubelet_breaks_connections_and_leaves_stale_sockets() {
    let lab = lab::with_pods().await;
    let mut client = lab.client().await;
    client.list(v1::ListPodResourcesRequest {}).await.unwrap();
    lab.stop();
    // On the broken connection tonic returns UNKNOWN; from then on it cannot connect.
    client.list(v1::ListPodResourcesRequest {}).await.unwrap_err();
    assert_eq!(client.list(v1::ListPodResourcesRequest {}).await.unwrap_err().code(), Code::Unavailable);
    for socket in [lab.pod_resources_socket(), lab.device_plugin_directory().join("kubelet.sock")] {
        assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
        assert_eq!(refused_with(&socket).await, Some(std::io::ErrorKind::ConnectionRefused));
    }
    let outcome = lab.add_pod(one_container("default", "late", 1)).await;
    assert!(matches!(outcome, Admission::Rejected { reason: "KubeletNotRunning", .. }));
}

async fn refused_with(socket: &Path) -> Option<std::io::ErrorKind> {
    tokio::net::UnixStream::connect(socket).await.err().map(|error| error.kind())
}

/// The order of events in the recorded restarts: empty, then a part, then everything but the devices on offer.
#[tokio::test]
async fn a_restarted_kubelet_is_blind_for_a_moment() {
    let lab = lab::empty(Options { early_window: Duration::from_millis(600), ..Options::default() }).await;
    for pod in [lab::basic(), lab::without_devices(), lab::two_devices()] {
        lab.runs(pod).await;
    }
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let plugins = lab.device_plugin_directory();
    let before = (inode(&lab.pod_resources_socket()), inode(&plugins.join("kubelet.sock")));
    lab.stop();
    lab.start_again().unwrap();

    assert_eq!(lab.list().await, v1::ListPodResourcesResponse::default());
    assert_eq!(lab.allocatable().await, v1::AllocatableResourcesResponse::default());
    assert_ne!(inode(&lab.pod_resources_socket()), before.0);
    assert_eq!(inode(&plugins.join("kubelet.sock")), before.1, "replaced later");

    let mut sizes = vec![];
    while sizes.last() != Some(&3) {
        lab.advance(Duration::from_secs(1));
        let size = lab.list().await.pod_resources.len();
        if sizes.last() != Some(&size) {
            sizes.push(size);
        }
    }
    assert_eq!(sizes, [0, 2, 3]);
    lab.ready().await;
    lab.lists_as("21c_restarted_2s").await;
    lab.allocatable_becomes(GPU, 4).await;
    lab.allocatable_becomes(SAMPLE, 2).await;
    lab.offers_as("03_one_container_two_devices").await;
}

#[tokio::test]
async fn a_restart_purges_sockets_but_nothing_else() {
    let node = node(Options::default()).await;
    let directory = node.device_plugin_directory();
    std::fs::create_dir(directory.join("sub")).unwrap();
    let sockets = ["stale.sock", "sub/kept.sock"].map(|name| directory.join(name));
    let _listeners = sockets.each_ref().map(|path| std::os::unix::net::UnixListener::bind(path).unwrap());
    std::fs::write(directory.join("note.txt"), "kept").unwrap();
    node.restart().unwrap();
    node.ready().await;
    assert!(!sockets[0].exists());
    assert!(sockets[1].exists());
    assert!(directory.join("note.txt").exists());
    assert!(directory.join("kubelet.sock").exists());
}

#[tokio::test]
async fn a_corrupt_checkpoint_leaves_no_allocations() {
    let lab = lab::with_pods().await;
    std::fs::write(lab.device_plugin_directory().join("kubelet_internal_checkpoint"), "{").unwrap();
    lab.restart().unwrap();
    lab.ready().await;
    assert_eq!(lab.list().await.pod_resources.len(), 2);
    assert_eq!(lab.devices_of("default", "basic-lab-node", "main"), []);
}

#[tokio::test]
async fn calls_hang_fail_and_heal() {
    let node = node(Options::default()).await;
    let mut client = node.client().await;
    node.hang(Method::List);
    let mut hanging = tokio::spawn({
        let mut client = client.clone();
        async move { client.list(v1::ListPodResourcesRequest {}).await }
    });
    client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(20), &mut hanging).await.is_err());
    node.heal();
    hanging.await.unwrap().unwrap();

    node.fail(Method::List, Code::Internal, "broken");
    let error = client.list(v1::ListPodResourcesRequest {}).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Internal, "broken"));
    node.heal();
    client.list(v1::ListPodResourcesRequest {}).await.unwrap();
}

#[tokio::test]
async fn dropping_the_kubelet_ends_hanging_calls() {
    let node = node(Options::default()).await;
    node.hang(Method::List);
    let mut client = node.client().await;
    let hanging = tokio::spawn(async move { client.list(v1::ListPodResourcesRequest {}).await });
    // The same server answers another method after a call that was sent before it.
    node.allocatable().await;
    drop(node.kubelet);
    hanging.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn older_kubelets_lack_methods_and_gates() {
    let gates = Gates { get: false, allocatable: false, dynamic_resources: false, ..Gates::default() };
    let node = node(Options { gates, ..Options::default() }).await;
    let mut client = node.client().await;
    let error = node.get("default", "any").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "PodResources API Get method disabled"));
    let error = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::Unknown);
    assert_eq!(error.message(), "Pod Resources API GetAllocatableResources disabled");
    node.unimplemented(&[Method::GetAllocatableResources, Method::Get]);
    let error = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    client.list(v1::ListPodResourcesRequest {}).await.unwrap();
}

#[tokio::test]
async fn answers_grow_past_a_client_s_limit() {
    let lab = lab::with_pods().await;
    lab.answer_bytes(20_000_000);
    let channel = connect(&lab.pod_resources_socket()).await.unwrap();
    let mut careful = v1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let error = careful.list(v1::ListPodResourcesRequest {}).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    let size = lab.list().await.encoded_len();
    assert!((20_000_000..21_000_000).contains(&size), "{size}");
}

#[tokio::test]
async fn a_topology_without_nodes_hides_a_device_from_the_offer_alone() {
    let mut lab = lab::empty(Options::default()).await;
    lab.stop_gpu_plugin().await;
    lab.start_gpu_plugin(vec![ListedDevice::new("odd").on_nodes(&[]), ListedDevice::new("plain")]).await;
    lab.runs(one_container("default", "pod", 2)).await;
    let offered = lab.allocatable().await.devices;
    assert!(offered.iter().any(|entry| entry.device_ids == ["plain"]));
    assert!(!offered.iter().any(|entry| entry.device_ids == ["odd"]));
    let listed = captures::sorted_list(lab.list().await);
    let entries = &listed.pod_resources[0].containers[0].devices;
    assert_eq!(entries.iter().map(|entry| entry.device_ids.join("")).collect::<Vec<_>>(), ["odd", "plain"]);
    assert!(entries.iter().all(|entry| entry.topology.is_none()));
}

#[tokio::test]
async fn preferences_count_as_far_as_they_may() {
    let mut lab = lab::empty(Options::default()).await;
    lab.stop_gpu_plugin().await;
    lab.start_gpu_plugin(lab::gpus()).await;
    lab.runs(one_container("default", "first", 1)).await;
    let strange = ["ghost", "gpu-0", "gpu-3"].map(str::to_owned).to_vec();
    lab.gpu().set_behaviour(Behaviour { prefers: Some(strange), ..Behaviour::default() });
    lab.runs(one_container("default", "second", 2)).await;
    let held = lab.devices_of("default", "second", "main");
    assert!(held.contains(&(GPU.to_owned(), "gpu-3".to_owned())), "{held:?}");
    assert!(!held.contains(&(GPU.to_owned(), "gpu-0".to_owned())), "busy: {held:?}");

    // Nothing is left to choose: the plugin is not called.
    let asked = lab.gpu().calls().preferred.len();
    lab.runs(one_container("default", "third", 1)).await;
    assert_eq!(lab.gpu().calls().preferred.len(), asked);
}

#[tokio::test]
async fn a_plugin_s_errors_fail_the_pod_and_free_its_devices() {
    let lab = lab::with_pods().await;
    let cases = [
        (AllocateBehaviour::Fail("no".to_owned()), "rpc error: code = Unknown desc = no"),
        (AllocateBehaviour::Nothing, "no containers return in allocation response"),
    ];
    for (allocate, text) in cases {
        lab.gpu().set_behaviour(Behaviour { allocate, ..Behaviour::default() });
        let message = lab.rejects(one_container("default", "unlucky", 1), "UnexpectedAdmissionError").await;
        assert!(message.contains(text), "{message}");
        assert_eq!(lab.phase("default", "unlucky"), Some(Phase::Failed));
    }
    assert_eq!(lab.list().await.pod_resources.len(), 2);
}

/// The pod is there, its device not yet. The kubelet's main loop is blocked; its end releases the caller.
#[tokio::test]
async fn an_allocation_in_flight_is_not_listed() {
    let lab = std::sync::Arc::new(lab::with_pods().await);
    lab.gpu().set_behaviour(Behaviour { allocate: AllocateBehaviour::Hang, ..Behaviour::default() });
    let admission = tokio::spawn({
        let lab = std::sync::Arc::clone(&lab);
        async move { lab.add_pod(one_container("default", "waiting", 1)).await }
    });
    lab.node_status_becomes(|_| lab.phase("default", "waiting").is_some()).await;
    let pod = lab.get("default", "waiting").await.unwrap();
    assert_eq!(pod.containers[0].devices, []);
    lab.stop();
    let outcome = admission.await.unwrap();
    assert!(matches!(outcome, Admission::Rejected { reason: "KubeletNotRunning", .. }), "{outcome:?}");
}

/// Connections, streams, servers, a hanging call: nothing of them outlives their owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_on_after_a_drop() {
    let lab = lab::with_pods().await;
    lab.hang(Method::List);
    let mut client = lab.client().await;
    let hanging = tokio::spawn(async move { client.list(v1::ListPodResourcesRequest {}).await });
    lab.restart().unwrap();
    drop(lab);
    hanging.await.unwrap().unwrap_err();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let gone = async {
        while tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), gone).await.is_ok(), "{} tasks are left", tasks());
}

#[tokio::test]
async fn pod_level_resources_and_share_ids_are_shown() {
    let node = node(Options::default()).await;
    node.set_claim(Claim::new("default", "slice").device("gpu.nvidia.com", "lab-node", "gpu-0", &[]).share_id("s-1"));
    let main = ContainerSpec::new("main").cpu_ids(&[2]).claim("slice");
    let memory = vec![MemoryBlock::new("hugepages-2Mi", 4 << 20, &[0, 1])];
    node.set_pods(vec![PodSpec::new("default", "pod").container(main).pod_level(&[2, 3], memory)]);
    let pod = captures::pod_json(&node.get("default", "pod").await.unwrap());
    assert_eq!(
        pod,
        json!({
            "name": "pod",
            "namespace": "default",
            "containers": [{
                "name": "main",
                "cpu_ids": ["2"],
                "dynamic_resources": [{
                    "claim_name": "slice",
                    "claim_namespace": "default",
                    "claim_resources": [{
                        "driver_name": "gpu.nvidia.com",
                        "pool_name": "lab-node",
                        "device_name": "gpu-0",
                        "share_id": "s-1",
                    }],
                }],
            }],
            "cpu_ids": ["2", "3"],
            "memory": [{"memory_type": "hugepages-2Mi", "size": "4194304", "topology": {"nodes": [{}, {"ID": "1"}]}}],
        })
    );
}

#[tokio::test]
async fn every_list_has_another_order_but_a_seed_fixes_them_all() {
    async fn orders() -> Vec<Vec<String>> {
        let node = node(Options { seed: 42, ..Options::default() }).await;
        let pod = |index| PodSpec::new("default", &format!("pod-{index}")).container(ContainerSpec::new("main"));
        node.set_pods((0..12).map(pod).collect());
        let mut orders = Vec::new();
        for _ in 0..3 {
            orders.push(node.list().await.pod_resources.into_iter().map(|pod| pod.name).collect());
        }
        orders
    }
    let first = orders().await;
    assert_ne!(first[0], first[1]);
    assert_eq!(first, orders().await);
}
