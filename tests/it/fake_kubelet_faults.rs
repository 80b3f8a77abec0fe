//! What goes wrong with a kubelet, by itself or on request.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use crate::support::captures;
use crate::support::kubelet::{AdmissionOutcome, Method, Options, node};
use crate::support::lab::{self, GPU, SAMPLE, one_container};
use crate::support::polling::until_true;
use podmeter::simulation::kubelet::ListedDevice;
use podmeter::wire::v1;
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
async fn a_stopped_kubelet_breaks_connections_and_leaves_stale_sockets() {
    let lab = lab::with_pods().await;
    let mut client = lab.client().await;
    client.list(v1::ListPodResourcesRequest {}).await.unwrap();
    lab.stop();
    // On the broken connection tonic returns UNKNOWN; once it has noticed that, it cannot connect.
    let mut codes = vec![];
    while codes.last() != Some(&Code::Unavailable) {
        codes.push(client.list(v1::ListPodResourcesRequest {}).await.unwrap_err().code());
        assert!(codes.len() < 100, "{codes:?}");
    }
    for socket in [lab.pod_resources_socket(), lab.device_plugin_directory().join("kubelet.sock")] {
        assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
        assert_eq!(refused_with(&socket).await, Some(std::io::ErrorKind::ConnectionRefused));
    }
    let outcome = lab.add_pod(one_container("default", "late", 1)).await;
    assert!(matches!(outcome, AdmissionOutcome::Rejected { reason: "KubeletNotRunning", .. }));
}

async fn refused_with(socket: &Path) -> Option<std::io::ErrorKind> {
    tokio::net::UnixStream::connect(socket).await.err().map(|error| error.kind())
}

/// The order of events in the recorded restarts: empty, then a part, then everything but the devices on offer.
#[tokio::test]
async fn a_restarted_kubelet_is_blind_for_a_moment() {
    let lab = lab::empty(Options { early_window: Duration::from_secs(4), ..Options::default() }).await;
    for pod in [lab::basic(), lab::without_devices(), lab::two_devices()] {
        lab.runs(pod).await;
    }
    let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
    let plugins = lab.device_plugin_directory();
    let before = (inode(&lab.pod_resources_socket()), inode(&plugins.join("kubelet.sock")));
    lab.stop();
    lab.restart().unwrap();

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

/// The pod is there, its device not yet. The kubelet's main loop is blocked; its end releases the caller.
#[tokio::test]
async fn an_allocation_in_flight_is_not_listed() {
    let lab = std::sync::Arc::new(lab::with_pods().await);
    lab.hang(Method::Allocate);
    let admission = tokio::spawn({
        let lab = std::sync::Arc::clone(&lab);
        async move { lab.add_pod(one_container("default", "waiting", 1)).await }
    });
    lab.node_status_becomes(|_| lab.phase("default", "waiting").is_some()).await;
    let pod = lab.get("default", "waiting").await.unwrap();
    assert_eq!(pod.containers[0].devices, []);
    lab.stop();
    let outcome = admission.await.unwrap();
    assert!(matches!(outcome, AdmissionOutcome::Rejected { reason: "KubeletNotRunning", .. }), "{outcome:?}");
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
    until_true("the end of every task", || tasks() == 0);
}
