//! The plugin room, and the kubelet room beside it, against a fake kubelet on real sockets under both sets of rules.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::kubelet::{
    Admission, ContainerSpec, Count, FakeKubelet, Node, Options, PodSpec, Rules, connect, node,
};
use crate::support::verdicts::verdicts;
use podmeter::clock::Clock;
use podmeter::kubelet::{self as kubelet_watch, PodSources};
use podmeter::model::{
    DeviceReadings, Gpu, GpuUuid, HardwareState, Inventory, KubeletState, MigDevice, PluginResource, PluginState,
};
use podmeter::plugin::paths::Roots;
use podmeter::plugin::{
    self, MigStrategy, NvidiaConfig, OnConflict, PreStartCheck, Replication, ResourceConfig, Sharing, Surroundings,
};
use podmeter::simulation::kubelet::ListedDevice;
use podmeter::simulation::plugin::StandInPlugin;
use podmeter::tasks::{TaskError, Tasks};
use podmeter::wire::v1beta1;
use podmeter::wire::v1beta1::device_plugin_client::DevicePluginClient;
use prost::Message;
use tokio::sync::watch;
use tonic::Code;
use tonic::transport::Channel;

const GPU: &str = "nvidia.com/gpu";
const PATIENCE: Duration = Duration::from_secs(20);

fn uuid(index: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        uuid: GpuUuid::new(uuid(index)),
        index: Some(index),
        minor: Some(index),
        pci_bus_id: None,
        model: None,
        architecture: None,
        compute_capability: None,
        vbios_version: None,
        serial: None,
        numa_node: Some(index / 2),
        memory_bytes: Some(80 << 30),
        mig_enabled: Some(false),
        mig_devices: vec![],
        nvlink_peers: None,
        mig_slices: None,
        present: true,
    }
}

fn four_gpus() -> HardwareState {
    let gpus = (0..4).map(|index| (GpuUuid::new(uuid(index)), gpu(index))).collect();
    let inventory = Arc::new(Inventory { generation: 1, gpus, ..Inventory::default() });
    HardwareState { source: "simulated", inventory, ..HardwareState::default() }
}

/// Both rooms as the agent runs them, over one kubelet's directories.
struct Podmeter {
    hardware: watch::Sender<Arc<HardwareState>>,
    state: watch::Receiver<Arc<PluginState>>,
    kubelet: watch::Receiver<Arc<KubeletState>>,
    serving: Tasks,
    _watching: Tasks,
}

impl Podmeter {
    fn start(root: &Path, on_conflict: OnConflict) -> Self {
        let nvidia = NvidiaConfig { on_conflict, ..NvidiaConfig::default() };
        Self::start_with(root, vec![ResourceConfig::Nvidia(Box::new(nvidia))])
    }

    fn start_with(root: &Path, resources: Vec<ResourceConfig>) -> Self {
        let clock = Clock::start();
        let (hardware, readings) = watch::channel(Arc::new(four_gpus()));
        let settings = kubelet_watch::Settings {
            pod_resources_socket: root.join("pod-resources/kubelet.sock"),
            device_plugin_directory: root.join("device-plugins"),
            refresh_interval: Box::new(|| Duration::from_secs(3600)),
            deadline: Duration::from_secs(5),
        };
        let mut watching = Tasks::default();
        let kubelet = kubelet_watch::start(settings, PodSources::default(), clock, &mut watching);
        let settings = plugin::Settings {
            directory: root.join("device-plugins"),
            resources,
            surroundings: Surroundings {
                roots: Roots { host: root.join("host"), dev: root.join("host/dev"), sys: root.join("sys") },
                proc: root.join("proc"),
                cdi: vec![root.join("cdi")],
            },
        };
        let neighbours = plugin::Neighbours {
            health: verdicts(readings.clone()),
            hardware: readings,
            kubelet: kubelet.states(),
            allocated: kubelet.allocated(),
            look: kubelet.allocatable(),
        };
        let mut serving = Tasks::default();
        let state = plugin::start(settings, neighbours, clock, &mut serving).states();
        Self { hardware, state, kubelet: kubelet.states(), serving, _watching: watching }
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&PluginResource) -> bool) -> PluginResource {
        let mut state = self.state.clone();
        let becomes = state.wait_for(|state| state.resources.get(&GPU.into()).is_some_and(&condition));
        match tokio::time::timeout(PATIENCE, becomes).await {
            Ok(state) => state.unwrap().resources[&GPU.into()].clone(),
            Err(_) => panic!("never: {what}; now {:#?}", self.state.borrow()),
        }
    }

    async fn until_registered(&mut self, times: u64) {
        self.until("registered", |state| state.registered && state.registrations >= times).await;
    }

    fn change(&self, change: impl FnOnce(&mut HardwareState)) {
        self.hardware.send_modify(|hardware| change(Arc::make_mut(hardware)));
    }

    async fn end(mut self) {
        self.serving.stop();
        let ended = tokio::time::timeout(Duration::from_secs(5), self.serving.ended()).await.expect("ends in time");
        assert!(matches!(ended, TaskError::Ended("device plugin")), "{ended}");
    }
}

async fn offered(kubelet: &FakeKubelet, capacity: usize, allocatable: usize) {
    let expected = Count { capacity, allocatable };
    let becomes = kubelet.node_status_becomes(|status| status.get(GPU) == Some(&expected)).await;
    assert!(becomes, "{expected:?}, not {:?}", kubelet.node_status());
}

fn pod(name: &str, gpus: usize) -> PodSpec {
    PodSpec::new("team", name).container(ContainerSpec::new("main").asks(GPU, gpus))
}

fn sockets(node: &Node) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(node.device_plugin_directory()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("podmeter-")).collect()
}

async fn client(node: &Node) -> DevicePluginClient<Channel> {
    let sockets = sockets(node);
    assert_eq!(sockets.len(), 1, "{sockets:?}");
    DevicePluginClient::new(connect(&sockets[0]).await.unwrap())
}

fn allocate(containers: &[&[&str]]) -> v1beta1::AllocateRequest {
    let request = |ids: &&[&str]| v1beta1::ContainerAllocateRequest {
        devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    v1beta1::AllocateRequest { container_requests: containers.iter().map(request).collect() }
}

const RULES: [Rules; 2] = [Rules::UpTo136, Rules::From137];

async fn with(rules: Rules) -> Node {
    node(Options { rules, ..Options::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_is_given_reaches_it_and_the_page() {
    for rules in RULES {
        let node = with(rules).await;
        let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
        podmeter.until_registered(1).await;
        offered(&node, 4, 4).await;
        assert_eq!(node.add_pod(pod("trainer", 2)).await, Admission::Running);
        let held: Vec<String> = node.devices_of("team", "trainer", "main").into_iter().map(|(_, id)| id).collect();
        assert_eq!(held.len(), 2);
        let entry = node.checkpoint().unwrap().data.pod_device_entries.remove(0);
        let answer = v1beta1::ContainerAllocateResponse::decode(entry.assignment().answer.as_slice()).unwrap();
        let mut visible: Vec<&str> = answer.envs["NVIDIA_VISIBLE_DEVICES"].split(',').collect();
        visible.sort_unstable();
        assert_eq!(visible, held);

        let state = podmeter.state.borrow().resources[&GPU.into()].clone();
        assert_eq!(state.allocations["ok"], 1);
        assert_eq!(state.allocate_durations.count(), 1);
        let shown = podmeter.kubelet.wait_for(|state| {
            state
                .allocations
                .as_ref()
                .is_some_and(|allocations| allocations.containers().any(|one| one.devices.len() == 2))
        });
        drop(tokio::time::timeout(PATIENCE, shown).await.expect("the holder is seen").unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_kubelet_is_registered_with_again() {
    for rules in RULES {
        let node = with(rules).await;
        let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
        podmeter.until_registered(1).await;
        for restart in 1..4 {
            node.restart().unwrap();
            node.ready().await;
            podmeter.until_registered(restart + 1).await;
            offered(&node, 4, 4).await;
        }
        assert_eq!(sockets(&node).len(), 1);
        assert_eq!(podmeter.state.borrow().kubelet_restarts, 3);
        assert_eq!(node.add_pod(pod("trainer", 1)).await, Admission::Running);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_socket_is_made_anew() {
    let node = node(Options::default()).await;
    let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
    podmeter.until_registered(1).await;
    std::fs::remove_file(&sockets(&node)[0]).unwrap();
    podmeter.until_registered(2).await;
    offered(&node, 4, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_an_older_kubelet_cuts_is_replaced() {
    let node = with(Rules::UpTo136).await;
    let other = StandInPlugin::start(&node.device_plugin_directory(), GPU, vec![ListedDevice::new("other-0")]);
    assert!(other.registered().await);
    let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Takeover);
    podmeter.until_registered(1).await;
    offered(&node, 4, 4).await;
    // The end of the old stream disconnects the current plugin.
    other.stop();
    podmeter.until_registered(2).await;
    offered(&node, 4, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_ends_registered() {
    for rules in RULES {
        let node = with(rules).await;
        let mut old = Podmeter::start(node.root.path(), OnConflict::Wait);
        old.until_registered(1).await;
        offered(&node, 4, 4).await;
        let mut new = Podmeter::start(node.root.path(), OnConflict::Wait);
        new.until_registered(1).await;
        old.end().await;
        // The older kubelet takes the old one's end for the new one's, and cuts it off once.
        new.until_registered(if rules == Rules::UpTo136 { 2 } else { 1 }).await;
        offered(&node, 4, 4).await;
        assert_eq!(node.add_pod(pod("trainer", 1)).await, Admission::Running);
        assert_eq!(sockets(&node).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_comes_late_is_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let mut podmeter = Podmeter::start(root.path(), OnConflict::Wait);
    let state = podmeter.until("a reason", |state| state.problem.is_some()).await;
    assert!(state.problem.unwrap().contains("kubelet.sock is not there"));
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    podmeter.until_registered(1).await;
    offered(&kubelet, 4, 4).await;
    kubelet.stop();
    podmeter.until("unregistered", |state| !state.registered && state.unregistered_since.is_some()).await;
    kubelet.start_again().unwrap();
    podmeter.until_registered(2).await;
    assert!(podmeter.state.borrow().resources[&GPU.into()].unregistered > Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_are_unknown_or_unhealthy_are_refused_by_name() {
    let node = node(Options::default()).await;
    let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
    podmeter.until_registered(1).await;
    podmeter.change(|hardware| {
        let lost = DeviceReadings { lost: true, ..DeviceReadings::default() };
        hardware.readings.insert(GpuUuid::new(uuid(1)), Arc::new(lost));
    });
    offered(&node, 4, 3).await;
    let mut client = client(&node).await;
    let unknown = client.allocate(allocate(&[&["GPU-nobody"]])).await.unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    assert!(unknown.message().contains("GPU-nobody"));
    let unhealthy = client.allocate(allocate(&[&[&uuid(0)], &[&uuid(1)]])).await.unwrap_err();
    assert_eq!(unhealthy.code(), Code::FailedPrecondition);
    assert!(unhealthy.message().contains(&uuid(1)) && unhealthy.message().contains("lost"), "{unhealthy}");
    let two = client.allocate(allocate(&[&[&uuid(2)], &[&uuid(3)]])).await.unwrap().into_inner();
    assert_eq!(two.container_responses.len(), 2, "one answer for each container");
    let state = podmeter.state.borrow().resources[&GPU.into()].clone();
    assert_eq!((state.allocations["unknown_device"], state.allocations["unhealthy"]), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_goes_stays_listed_unhealthy_and_returns() {
    let node = node(Options::default()).await;
    let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
    podmeter.until_registered(1).await;
    let mut list = client(&node).await.list_and_watch(v1beta1::Empty {}).await.unwrap().into_inner();
    let mut healthy = async || -> Vec<bool> {
        let list = list.message().await.unwrap().expect("the stream goes on");
        assert_eq!(
            list.devices.iter().map(|device| device.id.clone()).collect::<Vec<_>>(),
            (0..4).map(uuid).collect::<Vec<_>>()
        );
        list.devices.iter().map(|device| device.health == "Healthy").collect()
    };
    assert_eq!(healthy().await, [true; 4]);
    podmeter.change(|hardware| {
        Arc::make_mut(&mut hardware.inventory).gpus.remove(&GpuUuid::new(uuid(2)));
    });
    assert_eq!(healthy().await, [true, true, false, true]);
    offered(&node, 4, 3).await;
    podmeter.change(|hardware| *hardware = four_gpus());
    assert_eq!(healthy().await, [true; 4]);
    offered(&node, 4, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_plugin_is_waited_for_and_followed() {
    for rules in RULES {
        let node = with(rules).await;
        // The very ids that we would offer.
        let devices = (0..4).map(|index| ListedDevice::new(&uuid(index))).collect();
        let other = StandInPlugin::start(&node.device_plugin_directory(), GPU, devices);
        assert!(other.registered().await);
        offered(&node, 4, 4).await;
        let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
        let state = podmeter.until("a conflict", |state| state.conflict.is_some()).await;
        assert!(state.conflict.unwrap().contains("onConflict"));
        assert_eq!(state.registrations, 0);
        other.stop();
        podmeter.until_registered(1).await;
        assert_eq!(podmeter.state.borrow().resources[&GPU.into()].conflict, None);
        offered(&node, 4, 4).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ending_podmeter_leaves_nothing_behind() {
    let node = node(Options::default()).await;
    let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
    podmeter.until_registered(1).await;
    offered(&node, 4, 4).await;
    // A client that does not leave by itself.
    let _list = client(&node).await.list_and_watch(v1beta1::Empty {}).await.unwrap();
    podmeter.end().await;
    assert_eq!(sockets(&node), Vec::<PathBuf>::new());
    offered(&node, 4, 0).await;
}

fn nvidia(config: NvidiaConfig) -> Vec<ResourceConfig> {
    vec![ResourceConfig::Nvidia(Box::new(config))]
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_slots_of_different_gpus_are_preferred_and_counted() {
    let node = node(Options::default()).await;
    let sharing = Sharing::TimeSlicing(Replication { replicas: Some(3), ..Replication::default() });
    let config = NvidiaConfig { sharing: Some(sharing), ..NvidiaConfig::default() };
    let mut podmeter = Podmeter::start_with(node.root.path(), nvidia(config));
    podmeter.until_registered(1).await;
    offered(&node, 12, 12).await;
    assert_eq!(node.add_pod(pod("trainer", 4)).await, Admission::Running);
    let held = node.devices_of("team", "trainer", "main");
    let gpus: std::collections::BTreeSet<&str> = held.iter().map(|(_, id)| id.split("::").next().unwrap()).collect();
    assert_eq!((held.len(), gpus.len()), (4, 4), "{held:?}");
    let state = podmeter.state.borrow().resources[&GPU.into()].clone();
    assert_eq!((state.prefers, state.preferred_durations.count()), (true, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn mps_slots_are_healthy_while_their_daemon_is_there() {
    let node = node(Options::default()).await;
    let sharing = Sharing::Mps(Replication { replicas: Some(2), ..Replication::default() });
    let config = NvidiaConfig { sharing: Some(sharing), ..NvidiaConfig::default() };
    let mut podmeter = Podmeter::start_with(node.root.path(), nvidia(config));
    podmeter.until_registered(1).await;
    offered(&node, 8, 0).await;
    let state = podmeter.state.borrow().resources[&GPU.into()].clone();
    let reason = state.devices.values().next().unwrap().clone().unwrap();
    assert!(state.mps && reason.contains("nvidia-device-plugin-mps-control-daemon"), "{reason}");
    let own = node.root.path().join("host/run/nvidia/mps/nvidia.com/gpu");
    std::fs::create_dir_all(own.join("pipe")).unwrap();
    for sign in ["pipe/nvidia-cuda-mps-control.pid", "pipe/control", ".started"] {
        std::fs::write(own.join(sign), "").unwrap();
    }
    offered(&node, 8, 8).await;
    std::fs::remove_file(own.join(".started")).unwrap();
    offered(&node, 8, 0).await;
    let turns = podmeter.state.borrow().resources[&GPU.into()].health_transitions.clone();
    let counted =
        |to| turns[to].iter().filter(|(_, count)| **count > 0).map(|(reason, count)| (reason.as_str(), *count));
    assert_eq!(counted("healthy").collect::<Vec<_>>(), [("mps", 8)]);
    assert_eq!(counted("unhealthy").collect::<Vec<_>>(), [("mps", 8)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_before_a_start_is_made_where_it_is_asked_for() {
    let node = node(Options::default()).await;
    let pre_start_check = Some(PreStartCheck { minimum_free_memory: None, no_processes: false });
    let mut podmeter =
        Podmeter::start_with(node.root.path(), nvidia(NvidiaConfig { pre_start_check, ..NvidiaConfig::default() }));
    podmeter.until_registered(1).await;
    let mut client = client(&node).await;
    let options = client.get_device_plugin_options(v1beta1::Empty {}).await.unwrap().into_inner();
    assert!(options.pre_start_required && options.get_preferred_allocation_available);
    let request = |id: &str| v1beta1::PreStartContainerRequest { devices_ids: vec![id.to_owned()] };
    client.pre_start_container(request(&uuid(1))).await.unwrap();
    podmeter.change(|hardware| {
        let stuck = DeviceReadings { stuck: true, ..DeviceReadings::default() };
        hardware.readings.insert(GpuUuid::new(uuid(1)), Arc::new(stuck));
    });
    offered(&node, 4, 3).await;
    let refused = client.pre_start_container(request(&uuid(1))).await.unwrap_err();
    assert!(refused.message().contains(&uuid(1)) && refused.message().contains("come back"), "{refused}");
    let state = podmeter.state.borrow().resources[&GPU.into()].clone();
    assert_eq!((state.pre_starts["ok"], state.pre_starts["unhealthy"]), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mig_layout_that_goes_leaves_its_devices_unhealthy() {
    let node = node(Options::default()).await;
    let config = NvidiaConfig { mig_strategy: MigStrategy::Mixed, ..NvidiaConfig::default() };
    let podmeter = Podmeter::start_with(node.root.path(), nvidia(config));
    let slice = MigDevice {
        uuid: "MIG-00000000-0000-0000-0000-000000000007".into(),
        index: 0,
        gpu_instance: 1,
        compute_instance: 0,
        profile: "1g.10gb".into(),
        profile_id: None,
        placement_start: None,
        slices: 1,
        memory_bytes: None,
    };
    podmeter.change(|hardware| {
        let gpu = Arc::make_mut(&mut hardware.inventory).gpus.get_mut(&GpuUuid::new(uuid(3))).unwrap();
        (gpu.mig_enabled, gpu.mig_devices) = (Some(true), vec![slice]);
    });
    let counts = |capacity, allocatable| Some(Count { capacity, allocatable });
    let mig = "nvidia.com/mig-1g.10gb";
    assert!(node.node_status_becomes(|status| status.get(mig).copied() == counts(1, 1)).await);
    podmeter.change(|hardware| *hardware = four_gpus());
    assert!(node.node_status_becomes(|status| status.get(mig).copied() == counts(1, 0)).await);
    assert!(node.node_status_becomes(|status| status[GPU].allocatable == 4).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_that_exist_nowhere_are_served_without_a_driver() {
    let node = node(Options::default()).await;
    let text = r#"[{"kind":"simulated","name":"example.com/toy","devices":3}]"#;
    let podmeter = Podmeter::start_with(node.root.path(), serde_json::from_str(text).unwrap());
    podmeter.change(|hardware| *hardware = HardwareState { source: "none", ..HardwareState::default() });
    let toys = |status: &std::collections::BTreeMap<String, Count>| status.get("example.com/toy").copied();
    assert!(node.node_status_becomes(|status| toys(status) == Some(Count { capacity: 3, allocatable: 3 })).await);
    let container = ContainerSpec::new("main").asks("example.com/toy", 2);
    assert_eq!(node.add_pod(PodSpec::new("team", "player").container(container)).await, Admission::Running);
    assert!(podmeter.state.borrow().checked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_answered_whatever_its_authority() {
    let node = node(Options::default()).await;
    let mut podmeter = Podmeter::start(node.root.path(), OnConflict::Wait);
    podmeter.until_registered(1).await;
    let channel = connect(&sockets(&node)[0]).await.unwrap();
    for origin in ["http://localhost", "http://podmeter.sock", "http://10.0.0.1:1"] {
        let mut client = DevicePluginClient::with_origin(channel.clone(), origin.parse().unwrap());
        client.get_device_plugin_options(v1beta1::Empty {}).await.unwrap();
    }
}
