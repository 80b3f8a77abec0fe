use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::settings::{HardwareSource, Reloadable, Settings};
use super::{AgentError, DroppedLogLines, HealthConfig, Opened, Profile, Setup, run_on};
use crate::clock::Clock;
use crate::hardware::nvml::NvmlDriver;
use crate::hardware::simulated::SimulatedDriver;
use crate::hardware::{Driver, Failure};
use crate::plugin::{MigStrategy, NvidiaConfig, Replication, ResourceConfig, Sharing};
use crate::simulation::day::Stage;
use crate::simulation::kubelet::ListedDevice;
use crate::simulation::node::{Account, Device, Plan, Resource, SimulatedNode, resources};
use crate::simulation::plugin::StandInPlugin;

/// Slots of each GPU in the time-sliced profile.
const REPLICAS: u32 = 4;
/// On a day of faults, which has no minutes to spare.
const HOLD_DOWN: Duration = Duration::from_secs(10);
/// How often the ground truth is written.
const TRUTH_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct DemoSettings {
    /// Its node is replaced by the simulated one.
    pub agent: Settings,
    pub profile: Profile,
    pub churn: bool,
    pub seed: u64,
    /// Play the scripted day of faults, so many times as fast as it is written.
    pub faults: Option<u32>,
    /// JSON lines of what the simulation really did.
    pub ground_truth: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the simulated node did not start: {0}")]
    Node(#[from] std::io::Error),
    #[error(transparent)]
    Driver(#[from] Failure),
    #[error("{file}: {error}; give --ground-truth a file that can be written")]
    GroundTruth { file: PathBuf, error: std::io::Error },
}

/// A whole node in this process, until a signal: the agent as in production, over a simulated kubelet.
pub async fn demo(settings: DemoSettings, opened: Opened, dropped_lines: DroppedLogLines) -> Result<(), DemoError> {
    let clock = Clock::start();
    let directory = tempfile::Builder::new().prefix("podmeter-demo-").tempdir()?;
    let simulated = SimulatedDriver::new(settings.profile, settings.seed);
    let hardware = settings.agent.hardware;
    let (driver, inventory, controls): (Option<Box<dyn Driver>>, _, _) = match hardware {
        HardwareSource::Simulated => {
            let controls = simulated.controls();
            (Some(Box::new(simulated)), controls.inventory(), Some(controls))
        }
        HardwareSource::Nvml => {
            let mut driver = NvmlDriver::new(settings.agent.nvml.clone());
            let (inventory, _) = driver.open()?.inventory()?;
            (Some(Box::new(driver)), inventory, None)
        }
        HardwareSource::None => (None, simulated.controls().inventory(), None),
    };
    let replicas = (settings.profile == Profile::H100TimeSliced).then_some(REPLICAS);
    let slots = replicas.map(|replicas| replicas as usize);
    let plan = Plan { resources: resources(&inventory, slots), seed: settings.seed, churn: settings.churn };
    let vendor = plan.resources.clone();
    let node = SimulatedNode::start(directory.path(), plan, controls.clone(), clock).await?;
    let stage = controls.map(|controls| Stage { controls, kubelet: Arc::clone(node.kubelet()) });
    // Without devices of its own the agent only watches: somebody else's plugin hands them out.
    let vendor = if hardware == HardwareSource::None { vendor } else { vec![] };
    let plugin_directory = node.kubelet().device_plugin_directory();
    let _vendor: Vec<StandInPlugin> = vendor.iter().map(|resource| stand_in(&plugin_directory, resource)).collect();

    let device_plugin = (hardware != HardwareSource::None).then(|| vec![offered(replicas)]);
    let agent = Settings {
        admin_socket: match settings.agent.admin_socket_required {
            true => settings.agent.admin_socket,
            false => Some(directory.path().join("podmeter.sock")),
        },
        admin_socket_required: true,
        pod_resources_socket: node.kubelet().pod_resources_socket(),
        device_plugin_directory: plugin_directory,
        proc_root: node.proc_root(),
        pods_api_socket: node.kubelet().pods_api_socket(),
        pod_logs_root: node.pod_logs_root(),
        health: health_config(settings.faults),
        hardware_pace: settings.faults.unwrap_or(1),
        reloadable: Reloadable { device_plugin, ..settings.agent.reloadable },
        ..settings.agent
    };
    let truth = settings.ground_truth.map(|file| write_truth(file, node.account())).transpose()?;
    let reload = Box::new(|| Err("the demo has no configuration".to_owned()));
    let workloads = tokio::spawn(node.run());
    let day = stage.zip(settings.faults).map(|(stage, speed)| tokio::spawn(stage.play(speed)));
    let outcome = run_on(Setup { driver, clock, reload, dropped_lines }, agent, opened).await;
    // Ends kubelet, plugins and pods; the directory goes after them.
    for task in [Some(workloads), day, truth].into_iter().flatten() {
        task.abort();
        let _ = task.await;
    }
    Ok(outcome?)
}

/// Defaults; on a day of faults a shorter hold-down, at the day's speed.
fn health_config(faults: Option<u32>) -> HealthConfig {
    let defaults = HealthConfig::default();
    let Some(speed) = faults else { return defaults };
    HealthConfig { hold_down: HOLD_DOWN / speed, stuck_limit: defaults.stuck_limit / speed, ..defaults }
}

/// Whole GPUs and MIG devices, or this many slots of each GPU.
fn offered(replicas: Option<u32>) -> ResourceConfig {
    let sharing = replicas
        .map(|replicas| Sharing::TimeSlicing(Replication { replicas: Some(replicas), ..Replication::default() }));
    let mig_strategy = MigStrategy::Mixed;
    ResourceConfig::Nvidia(Box::new(NvidiaConfig { sharing, mig_strategy, ..NvidiaConfig::default() }))
}

fn stand_in(directory: &Path, resource: &Resource) -> StandInPlugin {
    let device = |device: &Device| {
        let plain = ListedDevice::new(&device.id);
        device.numa_node.map_or(plain.clone(), |node| plain.on_nodes(&[i64::from(node)]))
    };
    StandInPlugin::start(directory, &resource.name, resource.devices.iter().map(device).collect())
}

/// Appends a line `{"unix": …, "holdings": […]}` at each interval.
fn write_truth(file: PathBuf, account: Account) -> Result<JoinHandle<()>, DemoError> {
    let mut output = std::fs::File::create(&file).map_err(|error| DemoError::GroundTruth { file, error })?;
    Ok(tokio::spawn(async move {
        let mut due = tokio::time::interval(TRUTH_INTERVAL);
        loop {
            due.tick().await;
            let (unix, holdings) = account.now();
            let line = serde_json::json!({ "unix": unix, "holdings": holdings });
            if let Err(error) = writeln!(output, "{line}") {
                tracing::error!(%error, "the ground truth is no longer written");
                return;
            }
        }
    }))
}
