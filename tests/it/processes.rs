//! From a process id to its container: the Pods API over a real socket, files laid out as a node's, the running binary.

use crate::support::agent;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::kubelet::{ContainerSpec, Gates, KubeletVersion, Options, PodPhase, PodSpec, node};
use crate::support::polling::{PATIENCE, until_published};
use podmeter::clock::Clock;
use podmeter::domain::attribution::OwnersState;
use podmeter::domain::holders::HoldersState;
use podmeter::domain::model::{
    ContainerRef, DeviceReadings, HardwareState, Owner, PodDirectory, PodIdentity, PodLabel, ProcessState,
    UnattributedReason, UnknownOwner,
};
use podmeter::kubelet::{PodSources, pods};
use podmeter::processes::{self, ProcessAttribution, ProcessesInputs, ProcessesSettings};
use podmeter::simulation::kubelet::container_id;
use podmeter::simulation::proc_tree::{ContainerIdentity, ProcTree};
use podmeter::tasks::Tasks;
use tokio::sync::watch;

const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
const MAIN: ContainerIdentity<'_> =
    ContainerIdentity { namespace: "research", pod: "training-0", uid: UID, container: "main" };

fn new_kubelet() -> Options {
    Options { version: KubeletVersion::From137, ..Options::default() }
}

#[tokio::test]
async fn pods_come_change_and_go() {
    let node = node(new_kubelet()).await;
    let mut watching = WatchedPods::start(&node.pods_api_socket());
    watching.until("an empty node", |directory| directory.complete && directory.pods.is_empty()).await;
    node.add_pod(training()).await;
    let started = |directory: &PodDirectory| directory.pods.values().any(|pod| pod.containers.len() == 2);
    let directory = watching.until("the pod runs", started).await;
    let pod = only(&directory);
    assert_eq!(pod.uid.as_str(), UID);
    assert_eq!(pod.labels, [("app".into(), "trainer".into())].into(), "what was not asked for is not kept");
    assert_eq!(pod.containers.get(&container_id(UID, "side").as_str().into()).map(|name| &**name), Some("side"));
    assert!(node.set_phase(MAIN.namespace, MAIN.pod, PodPhase::Succeeded));
    watching.until("it has finished", |directory| only(directory).terminal).await;
    assert!(node.remove_pod(MAIN.namespace, MAIN.pod));
    watching.until("it has gone", |directory| directory.pods.is_empty()).await;
}

#[tokio::test]
async fn without_the_kubelet_its_pods_are_kept_as_incomplete() {
    let node = node(new_kubelet()).await;
    node.add_pod(training()).await;
    let mut watching = WatchedPods::start(&node.pods_api_socket());
    watching.until("the pod", |directory| directory.complete && directory.pods.len() == 1).await;
    node.stop();
    let directory = watching.until("the kubelet is away", |directory| !directory.complete).await;
    assert_eq!(directory.pods.len(), 1);
    assert!(directory.problem.is_some());
    node.restart().unwrap();
    node.ready().await;
    node.remove_pod(MAIN.namespace, MAIN.pod);
    let directory = watching.until("it is back", |directory| directory.complete && directory.pods.is_empty()).await;
    assert_eq!(directory.problem, None);
}

#[tokio::test]
async fn a_kubelet_without_the_api_is_no_problem_until_it_is_replaced() {
    let node = node(Options::default()).await;
    let socket = node.pods_api_socket();
    assert!(!socket.exists(), "not before 1.37");
    let mut watching = WatchedPods::start(&socket);
    assert_eq!(*watching.directories.borrow_and_update().clone(), PodDirectory::default());
    node.set_gates(Gates { pods_api: true, ..Gates::default() });
    node.restart().unwrap();
    let directory = watching.until("the new kubelet's pods", |directory| directory.complete).await;
    assert_eq!(directory.problem, None);
}

/// The resolver on a node's files, with readings and pods that are sent.
struct Resolving {
    tree: ProcTree,
    readings: watch::Sender<Arc<HoldersState>>,
    pods: watch::Sender<Arc<PodDirectory>>,
    states: watch::Receiver<OwnersState>,
    _tasks: Tasks,
    _directory: tempfile::TempDir,
}

impl Resolving {
    fn start(mode: ProcessAttribution) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tree = ProcTree::create(directory.path()).unwrap();
        Self::on(tree, directory, mode)
    }

    fn on(tree: ProcTree, directory: tempfile::TempDir, mode: ProcessAttribution) -> Self {
        let mut tasks = Tasks::default();
        let (socket, logs_root) = (tree.proc_root().join("none"), tree.pod_logs_root());
        let settings = pods::PodsSettings { socket, labels: vec![], logs_root };
        let PodSources { logs, .. } = pods::start(settings, Clock::start(), &mut tasks);
        let (pods, directories) = watch::channel(Arc::default());
        let (readings, holders) = watch::channel(Arc::default());
        let settings = ProcessesSettings {
            mode,
            proc_root: tree.proc_root(),
            pod_labels: PodLabel::all(&["app".to_owned()]).unwrap(),
        };
        let inputs = ProcessesInputs { holders, directory: directories, logs };
        let states = processes::start(settings, inputs, Clock::start(), &mut tasks);
        Self { tree, readings, pods, states, _tasks: tasks, _directory: directory }
    }

    /// Readings with these processes.
    fn read(&self, pids: &[u32]) {
        let readings = DeviceReadings { recent_pids: pids.iter().copied().collect(), ..DeviceReadings::default() };
        let readings = [("GPU-1".into(), Arc::new(readings))].into();
        let hardware = Arc::new(HardwareState { readings, ..HardwareState::default() });
        self.readings.send_replace(Arc::new(HoldersState { hardware, ..HoldersState::default() }));
    }

    /// The next readings with their owners.
    async fn next(&mut self) -> OwnersState {
        tokio::time::timeout(PATIENCE, self.states.changed()).await.expect("the readings are forwarded").unwrap();
        self.states.borrow_and_update().clone()
    }

    /// The owners as they are published with readings, until they are so.
    async fn until(
        &mut self,
        pids: &[u32],
        what: &str,
        condition: impl Fn(&ProcessState) -> bool,
    ) -> Arc<ProcessState> {
        let found = async {
            loop {
                self.read(pids);
                let OwnersState { holders, processes } = self.next().await;
                assert!(Arc::ptr_eq(&holders, &self.readings.borrow()));
                if condition(&processes) {
                    return processes;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("never: {what}"))
    }
}

#[tokio::test]
async fn owners_follow_processes_and_pods() {
    let mut resolving = Resolving::start(ProcessAttribution::Auto);
    resolving.until(&[], "host process ids are seen", |state| state.enabled && state.problem.is_none()).await;
    resolving.tree.add_container(MAIN).unwrap();
    resolving.tree.start(100, 1, MAIN).unwrap();
    resolving.tree.start_on_host(101, 1).unwrap();
    // Of a container engine and a cluster in the pod: the cgroups are outside of the pod's.
    let id = container_id(UID, "nested");
    resolving.tree.start_child(104, 2, 100, &format!("/docker/{id}")).unwrap();
    let unlisted = "/kubepods/burstable/pod00000000-0000-4000-8000-000000000001";
    resolving.tree.start_child(105, 2, 104, &format!("{unlisted}/{id}")).unwrap();
    let pod = "229836ee3ad078911e99a2b8134d6713";
    let daemons = ContainerIdentity { uid: pod, pod: "mps-daemon", ..MAIN };
    resolving.tree.add_container(daemons).unwrap();
    resolving.tree.start_mps(107, 106, 86, daemons).unwrap();
    let pids = [100, 101, 102, 104, 105, 106, 107];
    let main =
        Owner::Container(ContainerRef::new(MAIN.namespace, MAIN.pod, MAIN.container).with_uid(Some(MAIN.uid.into())));
    let named = |state: &ProcessState| *state.owner(100) == main && state.owner(107).pod().is_some();
    let state = resolving.until(&pids, "the containers", named).await;
    assert_eq!(*state.owner(101), Owner::Host);
    assert_eq!([state.owner(104), state.owner(105)], [&main, &main]);
    let mps_daemon = |pid| state.processes[&pid].mps_daemon;
    assert_eq!([100, 106, 107].map(mps_daemon), [None, None, Some(86)], "what the control daemon has started");
    assert_eq!(state.owner(107).pod().map(|pod| pod.pod), Some(daemons.pod.into()));
    assert_eq!(*state.owner(102), Owner::Unknown(UnknownOwner::Gone));
    assert_eq!(*state.owner(103), Owner::Unknown(UnknownOwner::NotResolved), "it is in no readings");
    assert!(state.collector.as_ref().is_some_and(|collector| collector.success));
    let gone = PodDirectory { complete: true, ..PodDirectory::default() };
    resolving.pods.send_replace(Arc::new(gone));
    resolving
        .until(&pids, "the pod has ended", |state| {
            state.owner(100).unattributed_reason() == Some(UnattributedReason::TerminatedPod)
        })
        .await;
    resolving.until(&[101], "only what is read", |state| state.processes.len() == 1).await;
}

#[tokio::test]
async fn process_ids_of_another_namespace_are_never_used() {
    let mut resolving = Resolving::start(ProcessAttribution::On);
    resolving.until(&[], "enabled", |state| state.enabled).await;
    for (mode, has_problem) in
        [(ProcessAttribution::On, true), (ProcessAttribution::Auto, true), (ProcessAttribution::Off, false)]
    {
        let directory = tempfile::tempdir().unwrap();
        let tree = ProcTree::create(directory.path()).unwrap();
        tree.end(2).unwrap();
        tree.add_container(MAIN).unwrap();
        tree.start(100, 1, MAIN).unwrap();
        let mut resolving = Resolving::on(tree, directory, mode);
        let state = resolving.until(&[100], "pods have their UIDs", |state| !state.pods.is_empty()).await;
        assert!(!state.enabled && state.processes.is_empty() && state.collector.is_none(), "{mode:?}");
        assert_eq!(
            state.problem.as_ref().is_some_and(|problem| problem.contains("hostPID: true")),
            has_problem,
            "{mode:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_shows_who_pods_are() {
    let node = node(new_kubelet()).await;
    node.add_pod(training()).await;
    let directory = tempfile::tempdir().unwrap();
    let tree = ProcTree::create(directory.path()).unwrap();
    let (proc_root, pod_logs) = (tree.proc_root(), tree.pod_logs_root());
    let (proc_root, pod_logs) = (proc_root.to_str().unwrap(), pod_logs.to_str().unwrap());
    let flags = ["--hardware", "none", "--device-plugin", "off", "--proc-root", proc_root, "--pod-logs-root", pod_logs];

    let all = [&flags[..], &["--pod-label", "app", "--pod-label", "absent"]].concat();
    let running = agent::agent(node.root.path(), &all, &[]);
    let labels = [r#"namespace="research""#, r#"uid="8f5d2c1e-90ab-4cde-8123-456789abcdef""#, r#"label_app="trainer""#];
    let page = running.until("the pod", |page| page.value("podmeter_pod_info", &labels) == Some(1.0));
    assert!(!page.0.contains("label_absent") && !page.0.contains("\"vision\""));
    assert_eq!(page.value("podmeter_process_attribution_enabled", &[]), Some(1.0));
    assert_eq!(page.value("podmeter_collector_success", &[r#"collector="processes""#]), Some(1.0));

    let node_page = running.get("/api/v1/node");
    assert_eq!(node_page.status, 200);
    assert!(node_page.body.contains(UID), "{}", node_page.body);
}

/// Replaces the file by a pipe: without a writer, the kernel holds its reader as a process in an uninterruptible sleep
/// does. Returns what the file contained.
fn make_reads_hang(file: &Path) -> Vec<u8> {
    let content = std::fs::read(file).unwrap();
    std::fs::remove_file(file).unwrap();
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, file, fifo, mode, 0).unwrap();
    content
}

/// The next read finds a file again.
fn end_hanging_read(file: &Path, content: &[u8]) {
    let mut pipe = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, content).unwrap();
    pipe.write_all(content).unwrap();
}

#[tokio::test(start_paused = true)]
async fn readings_with_a_new_process_wait_for_its_owner_and_owners_alone_wake_nobody() {
    let mut resolving = Resolving::start(ProcessAttribution::Auto);
    resolving.tree.start_on_host(1000, 5).unwrap();
    resolving.tree.start_on_host(1001, 5).unwrap();
    resolving.until(&[1000], "the first is known", |state| state.processes.contains_key(&1000)).await;
    resolving.read(&[1000, 1001]);
    assert!(resolving.next().await.processes.processes.contains_key(&1001), "with the first readings that have it");
    let scanned = |state: &OwnersState| state.processes.collector.clone().unwrap().last_success;
    let before = scanned(&resolving.states.borrow());
    while scanned(&resolving.states.borrow()) == before {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!resolving.states.has_changed().unwrap(), "a later scan");
}

#[tokio::test(start_paused = true)]
async fn a_read_that_hangs_withdraws_the_owners_until_it_returns_and_holds_back_no_readings() {
    let mut resolving = Resolving::start(ProcessAttribution::Auto);
    resolving.tree.add_container(MAIN).unwrap();
    resolving.tree.start(1000, 5, MAIN).unwrap();
    resolving.tree.start(1001, 5, MAIN).unwrap();
    let is_known = |state: &ProcessState| state.processes.contains_key(&1000);
    resolving.until(&[1000], "the first is known", is_known).await;

    let stat = resolving.tree.proc_root().join("1001/stat");
    let line = make_reads_hang(&stat);
    let is_stuck = |state: &ProcessState| state.collector.as_ref().is_some_and(|collector| collector.stuck);
    resolving.read(&[1000, 1001]);
    // Time does not advance by itself while a read is in progress.
    while !resolving.states.has_changed().unwrap() {
        tokio::time::advance(Duration::from_millis(10)).await;
        tokio::task::yield_now().await;
    }
    assert!(is_known(&resolving.next().await.processes), "the owners that are known");
    for _ in 0..9 {
        resolving.read(&[1000, 1001]);
        assert!(!is_stuck(&resolving.next().await.processes), "at once, without a wait");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    while !is_stuck(&resolving.states.borrow().processes) {
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    resolving.read(&[1000, 1001]);
    let state = resolving.next().await.processes;
    assert!(state.processes.is_empty() && state.problem.as_ref().unwrap().contains("reading /proc hangs"));

    end_hanging_read(&stat, &line);
    let is_back = |state: &ProcessState| !is_stuck(state) && is_known(state);
    while !is_back(&resolving.states.borrow().processes) {
        tokio::time::advance(Duration::from_millis(100)).await;
        tokio::task::yield_now().await;
    }
}

fn training() -> PodSpec {
    let pod = PodSpec::new(MAIN.namespace, MAIN.pod).uid(UID).label("app", "trainer").label("team", "vision");
    pod.container(ContainerSpec::new("main")).container(ContainerSpec::new("side"))
}

/// What the agent would run against this kubelet.
struct WatchedPods {
    directories: watch::Receiver<Arc<PodDirectory>>,
    _tasks: Tasks,
}

impl WatchedPods {
    fn start(socket: &Path) -> Self {
        let settings = pods::PodsSettings {
            socket: socket.to_owned(),
            labels: vec!["app".into()],
            logs_root: socket.with_file_name("no-pod-logs"),
        };
        let mut tasks = Tasks::default();
        let PodSources { directory: directories, .. } = pods::start(settings, Clock::start(), &mut tasks);
        Self { directories, _tasks: tasks }
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&PodDirectory) -> bool) -> Arc<PodDirectory> {
        until_published(&mut self.directories, what, |directory| condition(directory)).await
    }
}

fn only(directory: &PodDirectory) -> &PodIdentity {
    assert_eq!(directory.pods.len(), 1);
    directory.pods.values().next().unwrap()
}
