//! The kubelet client against a fake kubelet on real sockets, and against other servers on its socket.

use std::path::Path;
use std::time::Duration;

use crate::support::kubelet::{
    AdmissionOutcome, Claim, ContainerSpec, GPU, Gates, KubeletNode, ListedDevice, Method, Options, PodSpec,
    holding_pod, memory_block, node,
};
use crate::support::polling::PATIENCE;
use crate::support::watched_kubelet::{DEADLINE, WatchedKubelet};
use podmeter::domain::model::{KubeletState, PodRef};
use podmeter::kubelet::{CallError, Client};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tonic::Code;

const SOON: Duration = Duration::from_millis(200);
const NEVER: Duration = Duration::from_secs(3600);

fn held(state: &KubeletState) -> Vec<String> {
    let allocations = state.allocations.as_deref().into_iter();
    let containers = allocations.flat_map(|allocations| &allocations.pods).flat_map(|pod| &pod.containers);
    let devices = containers.flat_map(|container| {
        container.devices.iter().map(|device| format!("{} {}", container.reference.pod, device.id))
    });
    devices.collect()
}

async fn node_with(pods: &[(&str, &str)]) -> KubeletNode {
    let node = node(Options::default()).await;
    node.set_pods(pods.iter().map(|(name, device)| holding_pod(name, GPU, device)).collect());
    node
}

#[tokio::test]
async fn list_allocatable_and_get_return_the_kubelets_state() {
    let node = node(Options { cpu_ids: vec![1, 2, 3], ..Options::default() }).await;
    node.set_claim(Claim::new("team", "claim").device("gpu.nvidia.com", "lab-node", "gpu-1", &["x/y=z"]));
    let container = ContainerSpec::new("main")
        .holds("nvidia.com/gpu", "GPU-1", &[0, 1])
        .claim("claim")
        .cpu_ids(&[2, 3])
        .memory(memory_block("hugepages-2Mi", 4 << 20, &[1]));
    node.set_pods(vec![PodSpec::new("team", "p").container(container), PodSpec::new("team", "plain")]);
    let mut client = Client::new(&node.pod_resources_socket(), DEADLINE);

    let allocations = client.list().await.unwrap();
    assert_eq!(allocations.pods.len(), 2);
    let container = &allocations.pods[0].containers[0];
    assert_eq!(container.devices.len(), 1, "two NUMA nodes are one device");
    assert_eq!(container.devices[0].numa_nodes, [0, 1].into());
    assert_eq!(container.exclusive_cpus.to_string(), "2-3");
    assert_eq!((container.memory[0].bytes, &*container.memory[0].memory_type), (4 << 20, "hugepages-2Mi"));
    assert_eq!((&*container.claims[0].claim, container.claims[0].device.as_str()), ("claim", "gpu-1"));

    assert_eq!(client.allocatable().await.unwrap().cpus.to_string(), "1-3");

    assert_eq!(client.get(&PodRef::new("team", "p")).await.unwrap().as_ref(), Some(&allocations.pods[0]));
    assert_eq!(client.get(&PodRef::new("team", "missing")).await.unwrap(), None, "the kubelet has no such pod");
    node.set_gates(Gates { get: false, ..Gates::default() });
    let disabled = client.get(&PodRef::new("team", "p")).await.unwrap_err();
    assert!(matches!(disabled, CallError::Unimplemented("Get")), "{disabled:?}");
}

#[tokio::test]
async fn a_file_in_the_sockets_place_is_named() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("pod-resources")).unwrap();
    std::fs::write(root.path().join("pod-resources/kubelet.sock"), "x").unwrap();
    let mut watching = WatchedKubelet::start(root.path(), SOON);
    let state = watching.until_problem(&["is not a socket", "--pod-resources-socket"]).await;
    assert!(state.counters.errors["List"]["not_a_socket"] >= 1);
}

async fn listening(root: &Path) -> UnixListener {
    std::fs::create_dir(root.join("pod-resources")).unwrap();
    UnixListener::bind(root.join("pod-resources/kubelet.sock")).unwrap()
}

#[tokio::test]
async fn a_socket_that_answers_garbage_is_named_and_counted_as_malformed() {
    let root = tempfile::tempdir().unwrap();
    let listener = listening(root.path()).await;
    let garbage = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nnope").await;
        }
    });
    let mut watching = WatchedKubelet::start(root.path(), SOON);
    let state = watching.until_problem(&["does not serve PodResources", "kubelet.sock"]).await;
    assert!(state.counters.errors["List"]["malformed"] >= 1, "{:?}", state.counters.errors);
    garbage.abort();
}

#[tokio::test]
async fn a_kubelet_restart_frees_nothing_that_is_still_held() {
    let node = node_with(&[]).await;
    node.set_claim(Claim::new("team", "all").device("gpu.nvidia.com", "node", "gpu-2", &["x/y=z"]));
    let container = ContainerSpec::new("main").holds("nvidia.com/gpu", "GPU-0", &[0]).claim("all");
    node.set_pods(vec![PodSpec::new("team", "a").container(container), holding_pod("b", GPU, "GPU-1")]);
    let checkpoint = node.root.path().join("plugins/gpu.nvidia.com/checkpoint.json");
    std::fs::create_dir_all(checkpoint.parent().unwrap()).unwrap();
    let result = json!({"driver": "gpu.nvidia.com", "pool": "node", "device": "gpu-2", "adminAccess": true});
    let claims = json!({"uid": {"status": {"allocation": {"devices": {"results": [result]}}}}});
    std::fs::write(&checkpoint, json!({"v2": {"preparedClaims": claims}}).to_string()).unwrap();
    let observers = |state: &KubeletState| {
        let containers = state.allocations.iter().flat_map(|allocations| allocations.containers());
        containers.flat_map(|container| &container.claims).filter(|claim| claim.is_observer()).count()
    };
    let mut watching = WatchedKubelet::start(node.root.path(), SOON);
    watching.until("settled", |state| state.settled && observers(state) == 1).await;
    std::fs::write(&checkpoint, "{").unwrap();
    let mut states = watching.state.clone();
    let seen = tokio::spawn(async move {
        let mut seen = vec![];
        while states.changed().await.is_ok() {
            let state = states.borrow_and_update();
            seen.push((held(&state), observers(&state)));
        }
        seen
    });
    node.restart().unwrap();
    let restarted = watching.until("unsettled", |state| !state.settled).await;
    assert!(restarted.counters.triggers["reconnect"] >= 1 || restarted.problem.is_some());
    watching.until("settled again", |state| state.settled).await;
    node.delete_pod("team", "b");
    node.remove_pod("team", "b");
    watching.until("b has gone", |state| held(state) == ["a GPU-0"]).await;
    drop(watching);
    let seen = seen.await.unwrap();
    assert!(seen.iter().all(|(held, _)| held.contains(&"a GPU-0".to_owned())), "{seen:?}");
    assert!(seen.iter().all(|(_, observers)| *observers == 1), "its claim's file is unreadable: {seen:?}");
}

#[tokio::test]
async fn a_new_kubelet_is_detected_by_its_socket_alone() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let mut watching = WatchedKubelet::start(node.root.path(), NEVER);
    watching.until("settled", |state| state.settled).await;
    node.restart().unwrap();
    watching.until("reconnected", |state| state.counters.triggers["reconnect"] >= 1 && state.settled).await;
}

#[tokio::test]
async fn a_rate_limit_is_counted_apart_and_waited_out() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let mut watching = WatchedKubelet::start(node.root.path(), SOON);
    watching.until("the pod", |state| held(state) == ["a GPU-0"]).await;
    node.fail(Method::List, Code::ResourceExhausted, "rejected by rate limit");
    let state = watching.until_problem(&["rate limit"]).await;
    assert!(state.counters.errors["List"]["rate_limited"] >= 1);
    assert_eq!(state.counters.errors["List"]["unavailable"], 0);
    assert_eq!(held(&state), ["a GPU-0"]);
    node.heal();
    watching.until("answers again", |state| state.problem.is_none()).await;
}

#[tokio::test]
async fn a_disabled_gate_affects_allocatable_only() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let text = "Pod Resources API GetAllocatableResources disabled";
    node.fail(Method::GetAllocatableResources, Code::Unknown, text);
    let mut watching = WatchedKubelet::start(node.root.path(), Duration::from_secs(1));
    let failures =
        |state: &KubeletState| state.counters.errors.get("GetAllocatableResources").map_or(0, |errors| errors["other"]);
    let state = watching.until("the failure", |state| failures(state) >= 1).await;
    assert_eq!(held(&state), ["a GPU-0"]);
    assert_eq!(state.problem, None);
    let later = watching.until("six reads", |state| state.counters.triggers["timer"] >= 6).await;
    assert!(later.settled);
    assert!((2..=6).contains(&failures(&later)), "asked again, and ever more rarely: {}", failures(&later));
}

#[tokio::test]
async fn the_kubelet_is_called_at_most_twice_a_second_on_average() {
    let node = node_with(&[]).await;
    let mut watching = WatchedKubelet::start(node.root.path(), Duration::from_millis(10));
    watching.until("the first answer", |state| state.allocations.is_some()).await;
    let started = tokio::time::Instant::now();
    for round in 0..200 {
        node.set_pods(vec![holding_pod(&format!("p{round}"), GPU, "GPU-0")]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let state = watching.until("the last pod", |state| held(state) == ["p199 GPU-0"]).await;
    let calls: u64 = state.counters.durations.values().map(podmeter::domain::model::DurationHistogram::count).sum();
    let allowed = started.elapsed().as_secs_f64() * 2.0 + 6.0;
    let calls = calls as f64;
    assert!(calls <= allowed, "{calls} calls, {allowed} allowed");
}

#[tokio::test]
async fn a_method_that_a_kubelet_lacks_is_called_once() {
    let node = node_with(&[("a", "GPU-0")]).await;
    node.fail(Method::GetAllocatableResources, Code::Unimplemented, "unknown method");
    let mut watching = WatchedKubelet::start(node.root.path(), SOON);
    let asked = |state: &KubeletState| {
        state.counters.errors.get("GetAllocatableResources").map(|errors| errors["unimplemented"])
    };
    watching.until("asked", |state| asked(state) == Some(1)).await;
    let timers = watching.state.borrow().counters.triggers["timer"];
    let later = watching.until("three more reads", |state| state.counters.triggers["timer"] >= timers + 12).await;
    assert_eq!(asked(&later), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_grant_is_queried_without_the_checkpoint() {
    let node = node(Options::default()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let mut watching = WatchedKubelet::start_beside(node.root.path(), elsewhere.path(), NEVER);
    watching.until("a settled answer", |state| state.settled).await;
    node.set_pods(vec![holding_pod("fresh", GPU, "GPU-1")]);
    watching.allocated.notify_one();
    let state = watching.until("the new holder", |state| held(state) == ["fresh GPU-1"]).await;
    assert!(state.counters.triggers["allocate"] >= 1, "{:?}", state.counters.triggers);
    assert_eq!(state.counters.triggers["checkpoint"], 0);
}

async fn settled(node: &KubeletNode, pods_api: bool) -> WatchedKubelet {
    let start = if pods_api { WatchedKubelet::start_with_pods_api } else { WatchedKubelet::start };
    let mut watching = start(node.root.path(), NEVER);
    watching.until_settled().await;
    watching
}

fn lists(state: &KubeletState) -> u64 {
    state.counters.durations["List"].count()
}

/// Everything that is held in any state published until the kubelet has been called so many times more.
async fn held_over_lists(watching: &mut WatchedKubelet, count: usize) -> Vec<String> {
    let mut all = held(&watching.state.borrow_and_update());
    for _ in 0..count {
        let before = lists(&watching.state.borrow());
        watching.allocated.notify_one();
        while lists(&watching.state.borrow()) == before {
            tokio::time::timeout(PATIENCE, watching.state.changed()).await.expect("called").expect("the watch runs");
            all.extend(held(&watching.state.borrow_and_update()));
        }
    }
    all
}

/// The kubelet lists what a container has of one resource while the plugin of another is asked, however long that takes.
#[tokio::test]
async fn a_pod_rejected_after_a_slow_allocate_was_never_a_holder() {
    for pods_api in [false, true] {
        let gates = Gates { pods_api, ..Gates::default() };
        let node = node(Options { gates, ..Options::default() }).await;
        let device = |id: &str| vec![ListedDevice { id: id.into(), healthy: true, numa_nodes: None }];
        node.set_devices("nvidia.com/gpu", device("GPU-0"));
        node.set_devices("slow.example.com/nic", device("nic-0"));
        let mut watching = settled(&node, pods_api).await;
        for (name, nics) in [("before", 1), ("rejected", 2), ("after", 1)] {
            let container = ContainerSpec::new("main").asks("nvidia.com/gpu", 1).asks("slow.example.com/nic", nics);
            let pod = PodSpec::new("team", name).container(container);
            node.hang(Method::NextResource);
            let in_admission = async {
                while node.devices_of("team", name, "main").is_empty() {
                    tokio::task::yield_now().await;
                }
                let shown = held_over_lists(&mut watching, 5).await;
                node.heal();
                shown
            };
            let (outcome, shown) = tokio::join!(node.add_pod(pod), in_admission);
            assert_eq!(matches!(outcome, AdmissionOutcome::Rejected { .. }), nics > 1, "{outcome:?}");
            assert_eq!(shown, [] as [&str; 0], "{name} during its admission, Pods API: {pods_api}");
            if nics == 1 {
                watching.until("a holder", |state| held(state).contains(&format!("{name} GPU-0"))).await;
            } else {
                let shown = held_over_lists(&mut watching, 2).await;
                assert_eq!(shown, [] as [&str; 0], "Pods API: {pods_api}");
            }
            // The next pod gets the same device for a container of the same name.
            assert!(node.remove_pod("team", name));
            held_over_lists(&mut watching, 2).await;
            assert_eq!(held(&watching.state.borrow()), [] as [&str; 0]);
        }
    }
}

#[tokio::test]
async fn the_end_of_a_pod_in_the_pods_api_is_the_end_of_what_it_held() {
    for get in [true, false] {
        let gates = Gates { pods_api: true, get };
        let node = node(Options { gates, ..Options::default() }).await;
        node.set_pods(vec![
            holding_pod("a", GPU, "GPU-0"),
            holding_pod("b", GPU, "GPU-1"),
            holding_pod("c", GPU, "GPU-2"),
        ]);
        let mut watching = WatchedKubelet::start_with_pods_api(node.root.path(), NEVER);
        watching.until_settled().await;
        assert!(node.delete_pod("team", "a"));
        held_over_lists(&mut watching, 2).await;
        let terminating = held(&watching.state.borrow());
        assert!(terminating.contains(&"a GPU-0".to_owned()), "its container still runs");
        assert!(node.remove_pod("team", "a"));
        watching.until("a has let go", |state| held(state) == ["b GPU-1", "c GPU-2"]).await;
        assert!(node.finish_container("team", "b", "main"));
        let state = watching.until("b has let go", |state| held(state) == ["c GPU-2"]).await;

        assert_eq!(state.counters.triggers["pods_api"], 2);
        let asked = state.counters.durations["Get"].count();
        assert_eq!(asked, if get { 2 } else { 1 }, "a kubelet without Get is asked once");
        assert_eq!(
            state.counters.errors["Get"].values().sum::<u64>(),
            u64::from(!get),
            "a pod that is gone is no error"
        );
    }
}
