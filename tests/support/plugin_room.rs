//! The plugin room with the kubelet room beside it, as the agent runs them, over one fake kubelet's directories.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::verdicts::verdicts;
use podmeter::clock::Clock;
use podmeter::kubelet::{self as kubelet_watch, PodSources};
use podmeter::model::{
    DeviceReadings, Gpu, GpuUuid, HardwareState, Inventory, KubeletState, PluginResource, PluginState,
};
use podmeter::plugin::paths::Roots;
use podmeter::plugin::{self, Config, ResourceConfig, Surroundings};
use podmeter::tasks::{TaskError, Tasks};
use tokio::sync::watch;

use super::kubelet::{Admission, ContainerSpec, Count, FakeKubelet, PodSpec};

pub const GPU: &str = "nvidia.com/gpu";
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn uuid(index: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

/// GPUs 0 and 1 on NUMA node 0, 2 and 3 on node 1, and so on.
pub fn gpus(count: u32) -> HardwareState {
    let gpu = |index| Gpu {
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
        nvlink_peers: None,
        mig_slices: None,
        memory_bytes: Some(80 << 30),
        mig_enabled: Some(false),
        mig_devices: vec![],
        present: true,
    };
    let gpus = (0..count).map(|index| (GpuUuid::new(uuid(index)), gpu(index))).collect();
    let inventory = Arc::new(Inventory { generation: 1, gpus, ..Inventory::default() });
    HardwareState { source: "simulated", inventory, ..HardwareState::default() }
}

/// Dropping it is like killing it, except that its sockets go.
pub struct Podmeter {
    pub state: watch::Receiver<Arc<PluginState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    hardware: watch::Sender<Arc<HardwareState>>,
    serving: Tasks,
    _watching: Tasks,
}

/// The section `devicePlugin` as a configuration file has it.
pub fn resources(yaml: &str) -> Vec<ResourceConfig> {
    let config: Config = serde_saphyr::from_str(yaml).unwrap();
    config.resolve(|_| panic!("no file is named")).unwrap()
}

impl Podmeter {
    /// Four GPUs and no configuration. `root` stands for `/var/lib/kubelet`.
    pub fn start(root: &Path) -> Self {
        Self::configured(root, "{}", gpus(4))
    }

    pub fn configured(root: &Path, yaml: &str, hardware: HardwareState) -> Self {
        Self::start_in(root, root.join("device-plugins"), yaml, hardware)
    }

    pub fn start_in(root: &Path, directory: PathBuf, yaml: &str, hardware: HardwareState) -> Self {
        let clock = Clock::start();
        let (hardware, readings) = watch::channel(Arc::new(hardware));
        let settings = kubelet_watch::Settings {
            pod_resources_socket: root.join("pod-resources/kubelet.sock"),
            device_plugin_directory: directory.clone(),
            refresh_interval: Box::new(|| Duration::from_secs(3600)),
            deadline: Duration::from_secs(5),
        };
        let mut watching = Tasks::default();
        let kubelet = kubelet_watch::start(settings, PodSources::default(), clock, &mut watching);
        let settings = plugin::Settings {
            directory,
            resources: resources(yaml),
            surroundings: Surroundings {
                roots: Roots { host: root.join("host"), dev: root.join("dev"), sys: root.join("sys") },
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
        Self { state, kubelet: kubelet.states(), hardware, serving, _watching: watching }
    }

    pub async fn until(
        &self,
        resource: &str,
        what: &str,
        condition: impl Fn(&PluginResource) -> bool,
    ) -> PluginResource {
        let mut state = self.state.clone();
        let becomes = state.wait_for(|state| state.resources.get(&resource.into()).is_some_and(&condition));
        match tokio::time::timeout(PATIENCE, becomes).await {
            Ok(state) => state.unwrap().resources[&resource.into()].clone(),
            Err(_) => panic!("never: {what}; now {:#?}", self.state.borrow()),
        }
    }

    pub async fn registered(&self, resource: &str, times: u64) {
        self.until(resource, "registered", |state| state.registered && state.registrations >= times).await;
    }

    pub fn now(&self, resource: &str) -> PluginResource {
        self.state.borrow().resources[&resource.into()].clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut HardwareState)) {
        self.hardware.send_modify(|hardware| change(Arc::make_mut(hardware)));
    }

    /// The driver loses the GPU, or has it again.
    pub fn lose(&self, index: u32, lost: bool) {
        self.change(|hardware| {
            let readings = DeviceReadings { lost, ..DeviceReadings::default() };
            hardware.readings.insert(GpuUuid::new(uuid(index)), Arc::new(readings));
        });
    }

    pub async fn end(mut self) {
        self.stop().await;
    }

    pub async fn stop(&mut self) {
        self.serving.stop();
        let ended = tokio::time::timeout(Duration::from_secs(5), self.serving.ended()).await.expect("ends in time");
        assert!(matches!(ended, TaskError::Ended("device plugin")), "{ended}");
    }
}

pub async fn counts(kubelet: &FakeKubelet, resource: &str, capacity: usize, allocatable: usize) {
    let expected = Count { capacity, allocatable };
    let becomes = kubelet.node_status_becomes(|status| status.get(resource) == Some(&expected)).await;
    assert!(becomes, "{resource}: {expected:?}, not {:?}", kubelet.node_status());
}

pub fn pod(name: &str, gpus: usize) -> PodSpec {
    PodSpec::new("team", name).container(ContainerSpec::new("main").asks(GPU, gpus))
}

pub async fn runs(kubelet: &FakeKubelet, pod: PodSpec) {
    let name = pod.name.clone();
    assert_eq!(kubelet.add_pod(pod).await, Admission::Running, "{name}");
}

/// The kubelet's message.
pub async fn rejected(kubelet: &FakeKubelet, pod: PodSpec) -> String {
    let name = pod.name.clone();
    match kubelet.add_pod(pod).await {
        Admission::Rejected { reason: "UnexpectedAdmissionError", message } => message,
        other => panic!("{name}: {other:?}"),
    }
}

/// Ids of one container of namespace `team`.
pub fn held(kubelet: &FakeKubelet, pod: &str, container: &str) -> Vec<String> {
    kubelet.devices_of("team", pod, container).into_iter().map(|(_, id)| id).collect()
}

/// Ours, sorted.
pub fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let ours = paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("podmeter-"));
    let mut ours: Vec<PathBuf> = ours.collect();
    ours.sort();
    ours
}
