//! The plugin room and the kubelet room as the agent runs them, over one fake kubelet's directories and an inventory that
//! the test changes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::verdicts::verdicts;
use podmeter::clock::Clock;
use podmeter::kubelet::{self as kubelet_watch, PodSources};
use podmeter::model::{
    Gpu, GpuUuid, HardwareState, Inventory, KubeletState, MigDevice, PluginResource, PluginState, ResourceName,
};
use podmeter::plugin::paths::Roots;
use podmeter::plugin::{self, ResourceConfig, Surroundings};
use podmeter::tasks::Tasks;
use tokio::sync::watch;

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
    pub plugin: plugin::Handle,
    pub state: watch::Receiver<Arc<PluginState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    _tasks: Tasks,
}

impl Room {
    /// The kubelet is asked every second.
    pub fn start(root: &Path, resources: Vec<ResourceConfig>, gpus: impl IntoIterator<Item = Gpu>) -> Self {
        let clock = Clock::start();
        let (hardware, readings) = watch::channel(Arc::new(hardware(gpus)));
        let watching = kubelet_watch::Settings {
            pod_resources_socket: root.join("pod-resources/kubelet.sock"),
            device_plugin_directory: root.join("device-plugins"),
            refresh_interval: Box::new(|| Duration::from_secs(1)),
            deadline: Duration::from_secs(5),
        };
        let mut tasks = Tasks::default();
        let kubelet = kubelet_watch::start(watching, PodSources::default(), clock, &mut tasks);
        let settings = plugin::Settings {
            directory: root.join("device-plugins"),
            resources,
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
        let plugin = plugin::start(settings, neighbours, clock, &mut tasks);
        Self { hardware, state: plugin.states(), plugin, kubelet: kubelet.states(), _tasks: tasks }
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
