//! The kubelet room against a fake kubelet on real sockets, and against things that are no kubelet.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podmeter::clock::Clock;
use podmeter::kubelet::{CallError, Client, Settings, run};
use podmeter::model::{KubeletState, PodRef, PodResourcesApi};
use support::kubelet::{Claim, ContainerSpec, FakeKubelet, MemoryBlock, Method, Node, Options, PodSpec, node};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tonic::Code;

const DEADLINE: Duration = Duration::from_millis(300);

/// The watch as the agent runs it.
struct Watching {
    state: watch::Receiver<Arc<KubeletState>>,
    allocated: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watching {
    fn start(root: &Path, refresh_interval: Duration) -> Self {
        Self::start_beside(root, &root.join("device-plugins"), refresh_interval)
    }

    fn start_beside(root: &Path, device_plugins: &Path, refresh_interval: Duration) -> Self {
        let allocated = Arc::new(Notify::new());
        let settings = Settings {
            pod_resources_socket: root.join("pod-resources/kubelet.sock"),
            device_plugin_directory: device_plugins.to_owned(),
            refresh_interval: Box::new(move || refresh_interval),
            deadline: DEADLINE,
            allocated: Arc::clone(&allocated),
            look: Arc::default(),
        };
        let (publish, state) = watch::channel(Arc::default());
        Self { state, allocated, task: tokio::spawn(run(settings, Clock::start(), publish)) }
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&KubeletState) -> bool) -> Arc<KubeletState> {
        let becomes = self.state.wait_for(|state| condition(state));
        let Ok(state) = tokio::time::timeout(Duration::from_secs(20), becomes).await else {
            panic!("never: {what}");
        };
        Arc::clone(&state.expect("the watch runs"))
    }

    async fn until_problem(&mut self, words: &[&str]) -> Arc<KubeletState> {
        let state = self.until("a problem", |state| state.problem.is_some()).await;
        let problem = state.problem.as_deref().unwrap_or_default();
        for word in words {
            assert!(problem.contains(word), "{word:?} in {problem:?}");
        }
        state
    }
}

const SOON: Duration = Duration::from_millis(200);
const NEVER: Duration = Duration::from_secs(3600);

fn gpu_pod(name: &str, device: &str) -> PodSpec {
    PodSpec::new("team", name).container(ContainerSpec::new("main").holds("nvidia.com/gpu", device, &[0]))
}

fn held(state: &KubeletState) -> Vec<String> {
    let relation = state.relation.as_deref().into_iter();
    let containers = relation.flat_map(|relation| &relation.pods).flat_map(|pod| &pod.containers);
    let devices = containers.flat_map(|container| {
        container.devices.iter().map(|device| format!("{} {}", container.reference.pod, device.id))
    });
    devices.collect()
}

async fn node_with(pods: &[(&str, &str)]) -> Node {
    let node = node(Options::default()).await;
    node.set_pods(pods.iter().map(|(name, device)| gpu_pod(name, device)).collect());
    node
}

#[tokio::test]
async fn list_allocatable_and_get_say_what_the_kubelet_knows() {
    let node = node(Options { cpu_ids: vec![1, 2, 3], ..Options::default() }).await;
    node.set_claim(Claim::new("team", "claim").device("gpu.nvidia.com", "lab-node", "gpu-1", &["x/y=z"]));
    let container = ContainerSpec::new("main")
        .holds("nvidia.com/gpu", "GPU-1", &[0, 1])
        .claim("claim")
        .cpu_ids(&[2, 3])
        .memory(MemoryBlock::new("hugepages-2Mi", 4 << 20, &[1]));
    node.set_pods(vec![PodSpec::new("team", "p").container(container), PodSpec::new("team", "plain")]);
    let mut client = Client::new(&node.pod_resources_socket(), DEADLINE);

    let relation = client.list().await.unwrap();
    assert_eq!(relation.pods.len(), 2);
    let container = &relation.pods[0].containers[0];
    assert_eq!(container.devices.len(), 1, "two NUMA nodes are one device");
    assert_eq!(container.devices[0].numa_nodes, [0, 1].into());
    assert_eq!(container.exclusive_cpus.to_string(), "2-3");
    assert_eq!((container.memory[0].bytes, &*container.memory[0].memory_type), (4 << 20, "hugepages-2Mi"));
    assert_eq!((&*container.claims[0].claim, container.claims[0].device.as_str()), ("claim", "gpu-1"));

    assert_eq!(client.allocatable().await.unwrap().cpus.to_string(), "1-3");

    assert_eq!(client.get(&PodRef::new("team", "p")).await.unwrap(), relation.pods[0]);
    let unknown = client.get(&PodRef::new("team", "nobody")).await.unwrap_err();
    assert!(matches!(unknown, CallError::Other { code: Code::Unknown, .. }), "{unknown:?}");
}

#[tokio::test]
async fn a_socket_that_is_missing_is_named_and_picked_up_when_it_comes() {
    let root = tempfile::tempdir().unwrap();
    let mut watching = Watching::start(root.path(), SOON);
    watching.until_problem(&["pod-resources/kubelet.sock", "--kubelet-root"]).await;
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    kubelet.set_pods(vec![gpu_pod("a", "GPU-0")]);
    let state = watching.until("the pod", |state| held(state) == ["a GPU-0"]).await;
    assert_eq!(state.problem, None);
    assert!(state.counters.errors["List"]["unavailable"] >= 1);
}

#[tokio::test]
async fn a_file_in_the_sockets_place_is_named() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("pod-resources")).unwrap();
    std::fs::write(root.path().join("pod-resources/kubelet.sock"), "x").unwrap();
    let mut watching = Watching::start(root.path(), SOON);
    let state = watching.until_problem(&["is not a socket", "--pod-resources-socket"]).await;
    assert!(state.counters.errors["List"]["not_a_socket"] >= 1);
}

#[tokio::test]
async fn a_dead_kubelets_socket_is_named() {
    let node = node_with(&[]).await;
    node.stop();
    let mut watching = Watching::start(node.root.path(), SOON);
    watching.until_problem(&["nobody listens", "kubelet.sock"]).await;
}

async fn listening(root: &Path) -> (UnixListener, PathBuf) {
    std::fs::create_dir(root.join("pod-resources")).unwrap();
    let path = root.join("pod-resources/kubelet.sock");
    (UnixListener::bind(&path).unwrap(), path)
}

#[tokio::test]
async fn a_socket_that_answers_garbage_is_named_and_counted_as_malformed() {
    let root = tempfile::tempdir().unwrap();
    let (listener, _) = listening(root.path()).await;
    let garbage = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nnope").await;
        }
    });
    let mut watching = Watching::start(root.path(), SOON);
    let state = watching.until_problem(&["does not speak PodResources", "kubelet.sock"]).await;
    assert!(state.counters.errors["List"]["malformed"] >= 1, "{:?}", state.counters.errors);
    garbage.abort();
}

#[tokio::test]
async fn a_socket_that_accepts_and_says_nothing_costs_one_deadline() {
    let root = tempfile::tempdir().unwrap();
    let (_listener, _) = listening(root.path()).await;
    let mut watching = Watching::start(root.path(), SOON);
    let state = watching.until_problem(&["did not answer", "300ms"]).await;
    assert!(state.counters.errors["List"]["deadline_exceeded"] >= 1);
}

#[tokio::test]
async fn while_the_kubelet_hangs_the_last_relation_stands_and_grows_old() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let mut watching = Watching::start(node.root.path(), SOON);
    let before = watching.until("the pod", |state| held(state) == ["a GPU-0"]).await;
    node.hang(Method::List);
    let hanging = watching.until_problem(&["did not answer List"]).await;
    assert_eq!(held(&hanging), ["a GPU-0"]);
    assert!(hanging.relation_at >= before.relation_at);
    node.heal();
    let after = watching.until("answers again", |state| state.problem.is_none()).await;
    assert!(after.relation_at > hanging.relation_at);
}

#[tokio::test]
async fn an_answer_of_20_mb_is_taken_and_one_over_the_limit_refused() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let settings_deadline = Duration::from_secs(20);
    let mut client = Client::new(&node.pod_resources_socket(), settings_deadline);
    node.answer_bytes(20 << 20);
    let relation = client.list().await.unwrap();
    assert_eq!(relation.pods[0].containers[0].devices.len(), 1, "said a million times, held once");
    node.answer_bytes(70 << 20);
    let error = client.list().await.unwrap_err();
    assert!(matches!(error, CallError::TooLarge { limit, .. } if limit == 64 << 20), "{error:?}");
    node.heal();
    assert_eq!(client.list().await.unwrap(), relation);
}

#[tokio::test]
async fn a_kubelet_restart_frees_nothing_that_is_still_held() {
    let node = node_with(&[("a", "GPU-0"), ("b", "GPU-1")]).await;
    let mut watching = Watching::start(node.root.path(), SOON);
    watching.until("settled", |state| state.settled).await;
    let mut states = watching.state.clone();
    let seen = tokio::spawn(async move {
        let mut seen = vec![];
        while states.changed().await.is_ok() {
            seen.push(held(&states.borrow_and_update()));
        }
        seen
    });
    node.restart().unwrap();
    let restarted = watching.until("unsettled", |state| !state.settled).await;
    assert!(restarted.counters.triggers["reconnect"] >= 1 || restarted.problem.is_some());
    watching.until("settled again", |state| state.settled).await;
    node.delete_pod("team", "b");
    node.finish_termination("team", "b");
    watching.until("b has gone", |state| held(state) == ["a GPU-0"]).await;
    drop(watching);
    let seen = seen.await.unwrap();
    assert!(seen.iter().all(|held| held.contains(&"a GPU-0".to_owned())), "{seen:?}");
}

#[tokio::test]
async fn a_new_kubelet_is_noticed_by_its_socket_alone() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let mut watching = Watching::start(node.root.path(), NEVER);
    watching.until("settled", |state| state.settled).await;
    node.restart().unwrap();
    watching.until("reconnected", |state| state.counters.triggers["reconnect"] >= 1 && state.settled).await;
}

#[tokio::test]
async fn a_written_checkpoint_refreshes_at_once() {
    let node = node_with(&[]).await;
    let mut watching = Watching::start(node.root.path(), NEVER);
    watching.until("settled", |state| state.settled).await;
    node.set_pods(vec![gpu_pod("new", "GPU-3")]);
    let state = watching.until("the new pod", |state| held(state) == ["new GPU-3"]).await;
    assert!(state.counters.triggers["checkpoint"] >= 1);
    assert_eq!(state.counters.triggers["timer"], 1, "the timer is an hour away, but for settling");
}

#[tokio::test]
async fn a_rate_limit_is_counted_apart_and_waited_out() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let mut watching = Watching::start(node.root.path(), SOON);
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
async fn a_kubelet_without_v1_is_asked_in_v1alpha1() {
    let node = node_with(&[("a", "GPU-0")]).await;
    node.unimplemented(&[Method::List, Method::GetAllocatableResources, Method::Get]);
    let mut watching = Watching::start(node.root.path(), SOON);
    let state = watching.until("the pod", |state| held(state) == ["a GPU-0"]).await;
    assert_eq!(state.api, Some(PodResourcesApi::V1alpha1));
    assert_eq!(state.allocatable, None);
}

#[tokio::test]
async fn a_gate_that_is_off_costs_allocatable_and_nothing_else() {
    let node = node_with(&[("a", "GPU-0")]).await;
    let text = "Pod Resources API GetAllocatableResources disabled";
    node.fail(Method::GetAllocatableResources, Code::Unknown, text);
    let mut watching = Watching::start(node.root.path(), Duration::from_secs(1));
    let failures =
        |state: &KubeletState| state.counters.errors.get("GetAllocatableResources").map_or(0, |errors| errors["other"]);
    let state = watching.until("the failure", |state| failures(state) >= 1).await;
    assert_eq!(held(&state), ["a GPU-0"]);
    assert_eq!(state.problem, None);
    let later = watching.until("six looks", |state| state.counters.triggers["timer"] >= 6).await;
    assert!(later.settled);
    assert!((2..=6).contains(&failures(&later)), "asked again, and ever more rarely: {}", failures(&later));
}

#[tokio::test]
async fn names_of_any_bytes_come_through_unchanged() {
    let names = ["quote\"", "back\\slash", "line\nfeed", "nul\0", "ünïcödé-🦀", "", " ", "{}", "<b>&amp;</b>"];
    let node = node(Options::default()).await;
    node.set_pods(names.iter().map(|name| gpu_pod(name, &format!("GPU-{name}"))).collect());
    let mut client = Client::new(&node.pod_resources_socket(), DEADLINE);
    let relation = client.list().await.unwrap();
    let mut listed: Vec<String> = relation.pods.iter().map(|pod| pod.reference.pod.to_string()).collect();
    let mut expected: Vec<String> = names.iter().map(ToString::to_string).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn the_kubelet_is_asked_at_most_twice_a_second_on_average() {
    let node = node_with(&[]).await;
    let mut watching = Watching::start(node.root.path(), Duration::from_millis(10));
    watching.until("the first answer", |state| state.relation.is_some()).await;
    let started = tokio::time::Instant::now();
    for round in 0..200 {
        node.set_pods(vec![gpu_pod(&format!("p{round}"), "GPU-0")]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let state = watching.until("the last pod", |state| held(state) == ["p199 GPU-0"]).await;
    let calls: u64 = state.counters.durations.values().map(podmeter::model::DurationHistogram::count).sum();
    let allowed = started.elapsed().as_secs_f64() * 2.0 + 6.0;
    let calls = calls as f64;
    assert!(calls <= allowed, "{calls} calls, {allowed} allowed");
}

#[tokio::test]
async fn a_burst_of_checkpoints_is_one_look_and_not_a_backlog() {
    let node = node_with(&[]).await;
    let mut watching = Watching::start(node.root.path(), NEVER);
    watching.until("settled", |state| state.settled).await;
    let lists = |state: &KubeletState| state.counters.durations["List"].count();
    let before = lists(&watching.state.borrow());
    for round in 0..100 {
        node.set_pods(vec![gpu_pod(&format!("p{round}"), "GPU-0")]);
    }
    let state = watching.until("the last pod", |state| held(state) == ["p99 GPU-0"]).await;
    assert!(lists(&state) - before <= 3, "{} looks", lists(&state) - before);
    assert!(state.counters.triggers["checkpoint"] >= 2, "each is counted");
}

#[tokio::test]
async fn what_a_kubelet_does_not_know_is_asked_once() {
    let node = node_with(&[("a", "GPU-0")]).await;
    node.unimplemented(&[Method::GetAllocatableResources]);
    let mut watching = Watching::start(node.root.path(), SOON);
    let asked = |state: &KubeletState| {
        state.counters.errors.get("GetAllocatableResources").map(|errors| errors["unimplemented"])
    };
    watching.until("asked", |state| asked(state) == Some(1)).await;
    let timers = watching.state.borrow().counters.triggers["timer"];
    let later = watching.until("three looks more", |state| state.counters.triggers["timer"] >= timers + 12).await;
    assert_eq!(asked(&later), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_we_granted_ourselves_is_looked_for_without_the_checkpoint() {
    let node = node(Options::default()).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let mut watching = Watching::start_beside(node.root.path(), elsewhere.path(), NEVER);
    watching.until("a settled answer", |state| state.settled).await;
    node.set_pods(vec![gpu_pod("fresh", "GPU-1")]);
    watching.allocated.notify_one();
    let state = watching.until("the new holder", |state| held(state) == ["fresh GPU-1"]).await;
    assert!(state.counters.triggers["allocate"] >= 1, "{:?}", state.counters.triggers);
    assert_eq!(state.counters.triggers["checkpoint"], 0);
}
