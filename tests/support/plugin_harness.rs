//! The device plugin and the kubelet client as the agent runs them, over the directories of one fake kubelet and an
//! inventory that the test changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podmeter::clock::Clock;
use podmeter::domain::model::{
    DeviceReadings, Gpu, GpuUuid, HardwareSource, HardwareState, Inventory, KubeletState, MigDevice, PluginResource,
    PluginState,
};
use podmeter::kubelet::PodSources;
use podmeter::kubelet::holders::{self, HoldersInputs};
use podmeter::plugin::host::path_devices::HostRoots;
use podmeter::plugin::{self, EntryConfig, HostPaths, PluginConfig};
use podmeter::tasks::{TaskError, Tasks};
use podmeter::wire::v1beta1::device_plugin_client::DevicePluginClient;
use podmeter::wire::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerPreferredAllocationRequest,
    PreStartContainerRequest, PreferredAllocationRequest,
};
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::Channel;

use super::device_health::health_of;
pub use super::kubelet::GPU;
use super::kubelet::{FakeKubelet, KubeletNode, KubeletVersion, client_settings, connect, node_under};
use super::polling::until_published;
pub use super::test_data::{self, mig_uuid, uuid};

/// GPUs 0 and 1 on NUMA node 0, 2 and 3 on node 1, and so on.
pub fn gpu(index: u32) -> Gpu {
    Gpu {
        minor: Some(index),
        numa_node: Some(index / 2),
        memory_bytes: Some(80 << 30),
        mig_enabled: Some(false),
        ..Gpu::listed(GpuUuid::new(uuid(index)), index)
    }
}

/// MIG devices with these numbers, as the whole layout of a GPU.
pub fn mig_devices(profile: &str, numbers: &[u32]) -> Vec<MigDevice> {
    (1..).zip(numbers).map(|(instance, number)| test_data::mig(&mig_uuid(*number), instance, profile, 1)).collect()
}

pub fn hardware(gpus: impl IntoIterator<Item = Gpu>) -> HardwareState {
    let inventory = Arc::new(test_data::inventory(gpus));
    HardwareState { source: HardwareSource::Simulated, inventory, ..HardwareState::default() }
}

pub fn gpus(count: u32) -> HardwareState {
    hardware((0..count).map(gpu))
}

/// Dropping it is like killing it, except that its sockets are removed.
pub struct PluginHarness {
    pub hardware: watch::Sender<Arc<HardwareState>>,
    pub plugin: plugin::PluginHandle,
    pub state: watch::Receiver<Arc<PluginState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    plugin_tasks: Tasks,
    _kubelet_tasks: Tasks,
}

/// GPUs whole, MIG devices as a resource for each profile.
pub fn mixed() -> Vec<EntryConfig> {
    resources("resources: [{kind: nvidia, migStrategy: mixed}]")
}

/// Each GPU as so many slots.
pub fn time_sliced(replicas: u32) -> String {
    format!("resources: [{{kind: nvidia, sharing: {{timeSlicing: {{replicas: {replicas}}}}}}}]")
}

/// The plugin beside a kubelet that allocates all its GPUs or slots.
pub async fn plugin_on_node(
    version: KubeletVersion,
    yaml: &str,
    hardware: HardwareState,
    devices: usize,
) -> (KubeletNode, PluginHarness) {
    let node = node_under(version).await;
    let podmeter = PluginHarness::configured(node.root.path(), yaml, hardware);
    podmeter.registered(GPU, 1).await;
    node.counts(GPU, devices, devices).await;
    (node, podmeter)
}

/// The section `devicePlugin` as a configuration file has it.
pub fn resources(yaml: &str) -> Vec<EntryConfig> {
    let config: PluginConfig = serde_saphyr::from_str(yaml).unwrap();
    config.resolve(|_| panic!("no file is named")).unwrap()
}

impl PluginHarness {
    /// Four GPUs and no configuration. `root` is used as `/var/lib/kubelet`.
    pub fn start(root: &Path) -> Self {
        Self::configured(root, "{}", gpus(4))
    }

    /// In effect, the kubelet is called after events only.
    pub fn configured(root: &Path, yaml: &str, hardware: HardwareState) -> Self {
        Self::start_with(root, resources(yaml), hardware, Duration::from_secs(3600))
    }

    /// The kubelet is called every second.
    pub fn refreshing(root: &Path, resources: Vec<EntryConfig>, hardware: HardwareState) -> Self {
        Self::start_with(root, resources, hardware, Duration::from_secs(1))
    }

    fn start_with(
        root: &Path,
        resources: Vec<EntryConfig>,
        hardware: HardwareState,
        refresh_interval: Duration,
    ) -> Self {
        let clock = Clock::start();
        let (hardware, readings) = watch::channel(Arc::new(hardware));
        let settings = client_settings(root, Duration::from_secs(5));
        let mut kubelet_tasks = Tasks::default();
        let kubelet = podmeter::kubelet::start(
            settings,
            Box::new(move || refresh_interval),
            PodSources::default(),
            clock,
            &mut kubelet_tasks,
        );
        let settings = plugin::PluginSettings {
            directory: root.join("device-plugins"),
            node_name: "node".to_owned(),
            host_paths: HostPaths {
                roots: HostRoots { host: root.join("host"), dev: root.join("host/dev"), sys: root.join("sys") },
                proc: root.join("proc"),
                cdi: vec![root.join("cdi")],
            },
        };
        let (publish, states) = watch::channel(Arc::default());
        let inputs = HoldersInputs {
            hardware: readings.clone(),
            kubelet: kubelet.states.clone(),
            plugin: states,
            may_be_offered: Box::new(|_| false),
            served: BTreeSet::new(),
            demand: None,
        };
        let inputs = plugin::PluginInputs {
            health: health_of(readings),
            holders: holders::start(inputs, clock, &mut kubelet_tasks),
            allocated: kubelet.allocated.clone(),
            refresh_allocatable: kubelet.refresh_allocatable.clone(),
        };
        let mut plugin_tasks = Tasks::default();
        let plugin = plugin::start(settings, resources.into(), inputs, publish, clock, &mut plugin_tasks);
        let (state, kubelet) = (plugin.states.clone(), kubelet.states.clone());
        Self { hardware, plugin, state, kubelet, plugin_tasks, _kubelet_tasks: kubelet_tasks }
    }

    pub async fn until_state(&self, what: &str, condition: impl Fn(&PluginState) -> bool) -> Arc<PluginState> {
        until_published(&mut self.state.clone(), what, |state| condition(state)).await
    }

    pub async fn until(
        &self,
        resource: &str,
        what: &str,
        condition: impl Fn(&PluginResource) -> bool,
    ) -> PluginResource {
        let is = |state: &PluginState| state.resources.get(&resource.into()).is_some_and(&condition);
        self.until_state(what, is).await.resources[&resource.into()].clone()
    }

    pub async fn registered(&self, resource: &str, times: u64) {
        let what = format!("{resource} registered {times} times");
        self.until(resource, &what, |state| state.registered && state.registrations >= times).await;
    }

    pub fn now(&self, resource: &str) -> PluginResource {
        self.state.borrow().resources[&resource.into()].clone()
    }

    pub fn change(&self, change: impl FnOnce(&mut HardwareState)) {
        self.hardware.send_modify(|hardware| change(Arc::make_mut(hardware)));
    }

    pub fn change_gpu(&self, index: u32, change: impl FnOnce(&mut Gpu)) {
        self.change(|hardware| {
            let inventory = Arc::make_mut(&mut hardware.inventory);
            inventory.generation += 1;
            change(inventory.gpus.get_mut(&GpuUuid::new(uuid(index))).unwrap());
        });
    }

    /// Without MIG devices, MIG is off: a whole GPU again.
    pub fn partition(&self, index: u32, mig_devices: Vec<MigDevice>) {
        self.change_gpu(index, |gpu| {
            gpu.mig_enabled = Some(!mig_devices.is_empty());
            gpu.mig_devices = mig_devices;
        });
    }

    pub fn set_readings(&self, index: u32, readings: DeviceReadings) {
        self.change(|hardware| {
            hardware.readings.insert(GpuUuid::new(uuid(index)), Arc::new(readings));
        });
    }

    /// The driver loses the GPU, or has it again.
    pub fn lose(&self, index: u32, lost: bool) {
        self.set_readings(index, DeviceReadings { lost, ..DeviceReadings::default() });
    }

    pub async fn end(mut self) {
        self.stop().await;
    }

    pub async fn stop(&mut self) {
        self.plugin_tasks.stop();
        self.ended().await;
    }

    pub async fn ended(&mut self) {
        let ended =
            tokio::time::timeout(super::polling::PATIENCE, self.plugin_tasks.ended()).await.expect("ends in time");
        assert!(matches!(ended, TaskError::Ended("device plugin")), "{ended}");
    }
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

/// Our plugin's own socket, called as the kubelet calls it.
pub struct PluginClient(pub DevicePluginClient<Channel>);

impl PluginClient {
    pub async fn connect(node: &FakeKubelet) -> Self {
        let sockets = sockets(&node.device_plugin_directory());
        assert_eq!(sockets.len(), 1, "{sockets:?}");
        Self(DevicePluginClient::new(connect(&sockets[0]).await.unwrap()))
    }

    pub async fn allocate(&mut self, containers: &[Vec<String>]) -> Result<AllocateResponse, Status> {
        let request = |ids: &Vec<String>| ContainerAllocateRequest { devices_ids: ids.clone() };
        let request = AllocateRequest { container_requests: containers.iter().map(request).collect() };
        self.0.allocate(request).await.map(tonic::Response::into_inner)
    }

    pub async fn preferred(&mut self, available: &[String], must: &[String], size: i32) -> Vec<String> {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: available.to_vec(),
            must_include_device_i_ds: must.to_vec(),
            allocation_size: size,
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let mut answer = self.0.get_preferred_allocation(request).await.unwrap().into_inner();
        assert_eq!(answer.container_responses.len(), 1);
        answer.container_responses.remove(0).device_i_ds
    }

    pub async fn pre_start(&mut self, ids: &[String]) -> Result<(), Status> {
        self.0.pre_start_container(PreStartContainerRequest { devices_ids: ids.to_vec() }).await.map(drop)
    }
}
