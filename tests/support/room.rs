//! The plugin room and the kubelet room as the agent runs them, over one fake kubelet's directories and an inventory that
//! the test changes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::verdicts::verdicts;
use podmeter::clock::Clock;
use podmeter::kubelet as kubelet_room;
use podmeter::model::{
    Gpu, GpuUuid, HardwareState, Inventory, KubeletState, MigDevice, PluginResource, PluginState, ResourceName,
};
use podmeter::plugin::paths::Roots;
use podmeter::plugin::{self, ResourceConfig, Surroundings};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(20);

pub fn uuid(index: u32) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

pub fn mig_uuid(number: u32) -> String {
    format!("MIG-00000000-0000-0000-0000-{number:012}")
}

pub fn gpu(index: u32) -> Gpu {
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
        nvlink_peers: None,
        mig_slices: None,
        memory_bytes: Some(80 << 30),
        mig_enabled: Some(false),
        mig_devices: vec![],
        present: true,
    }
}

/// Slices under these numbers, as the whole of a GPU's layout.
pub fn slices(profile: &str, numbers: &[u32]) -> Vec<MigDevice> {
    let slice = |(gpu_instance, number): (u32, &u32)| MigDevice {
        uuid: mig_uuid(*number).as_str().into(),
        index: gpu_instance - 1,
        gpu_instance,
        compute_instance: 0,
        profile: profile.into(),
        profile_id: None,
        placement_start: None,
        slices: 1,
        memory_bytes: None,
    };
    (1..).zip(numbers).map(slice).collect()
}

pub fn hardware(gpus: impl IntoIterator<Item = Gpu>) -> HardwareState {
    let gpus = gpus.into_iter().map(|gpu| (gpu.uuid.clone(), gpu)).collect();
    let inventory = Arc::new(Inventory { generation: 1, gpus, ..Inventory::default() });
    HardwareState { source: "simulated", inventory, ..HardwareState::default() }
}

pub struct Room {
    pub hardware: watch::Sender<Arc<HardwareState>>,
    pub resources: watch::Sender<Vec<ResourceConfig>>,
    pub state: watch::Receiver<Arc<PluginState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Room {
    /// The kubelet is asked every second.
    pub fn start(root: &Path, resources: Vec<ResourceConfig>, gpus: impl IntoIterator<Item = Gpu>) -> Self {
        let clock = Clock::start();
        let (hardware, readings) = watch::channel(Arc::new(hardware(gpus)));
        let (resources, configured) = watch::channel(resources);
        let (publish, state) = watch::channel(Arc::default());
        let (publish_kubelet, kubelet) = watch::channel(Arc::default());
        let (stop, stopped) = watch::channel(false);
        let (allocated, look) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let watching = kubelet_room::Settings {
            pod_resources_socket: root.join("pod-resources/kubelet.sock"),
            device_plugin_directory: root.join("device-plugins"),
            refresh_interval: Box::new(|| Duration::from_secs(1)),
            deadline: Duration::from_secs(5),
            allocated: Arc::clone(&allocated),
            look: Arc::clone(&look),
            pods: podmeter::kubelet::PodSources::default(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(kubelet_room::run(watching, clock, publish_kubelet));
        let settings = plugin::Settings {
            directory: root.join("device-plugins"),
            resources: vec![],
            surroundings: Surroundings {
                roots: Roots { host: root.join("host"), dev: root.join("dev"), sys: root.join("sys") },
                proc: root.join("proc"),
                cdi: vec![root.join("cdi")],
            },
        };
        let (health, kubelet_states) = (verdicts(readings.clone()), kubelet.clone());
        let neighbours = plugin::Neighbours { hardware: readings, health, kubelet: kubelet_states, allocated, look };
        tasks.spawn(plugin::run_reloading(settings, configured, clock, neighbours, publish, stopped));
        Self { hardware, resources, state, kubelet, stop, tasks }
    }

    pub async fn until(&self, what: &str, condition: impl Fn(&PluginState) -> bool) -> Arc<PluginState> {
        let mut state = self.state.clone();
        let becomes = state.wait_for(|state| condition(state));
        match tokio::time::timeout(PATIENCE, becomes).await {
            Ok(state) => Arc::clone(&state.unwrap()),
            Err(_) => panic!("never: {what}; now {:#?}", self.state.borrow()),
        }
    }

    pub async fn registered(&self, resource: &str, times: u64) {
        let name = ResourceName::from(resource);
        let is_registered = |state: &PluginResource| state.registered && state.registrations >= times;
        let what = format!("{resource} registered {times} times");
        self.until(&what, |state| state.resources.get(&name).is_some_and(is_registered)).await;
    }

    pub fn resource(&self, name: &str) -> PluginResource {
        self.state.borrow().resources[&name.into()].clone()
    }

    pub fn change_gpu(&self, index: u32, change: impl FnOnce(&mut Gpu)) {
        self.hardware.send_modify(|hardware| {
            let inventory = Arc::make_mut(&mut Arc::make_mut(hardware).inventory);
            inventory.generation += 1;
            change(inventory.gpus.get_mut(&GpuUuid::new(uuid(index))).unwrap());
        });
    }

    /// Empty `slices` and MIG off: a whole GPU again.
    pub fn partition(&self, index: u32, slices: Vec<MigDevice>) {
        self.change_gpu(index, |gpu| {
            gpu.mig_enabled = Some(!slices.is_empty());
            gpu.mig_devices = slices;
        });
    }
}
