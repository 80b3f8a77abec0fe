//! The agent on a simulated node, for `podmeter demo`.
//!
//! In: settings and a profile. Out: a running node until a signal. The agent's modules do not know that the node is simulated.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::settings::{AgentSettings, Reloadable};
use super::{AgentError, DroppedLogLines, HealthConfig, OnListening, Setup, SimulatedProfile, run_on};
use crate::clock::Clock;
use crate::domain::model::{HardwareSource, Inventory};
use crate::hardware::nvml::NvmlDriver;
use crate::hardware::simulated::SimulatedDriver;
use crate::hardware::{Driver, Failure, HardwareSettings};
use crate::kubelet::KubeletSettings;
use crate::kubelet::claim_files::ClaimDirectories;
use crate::kubelet::pods::PodsSettings;
use crate::plugin::{EntryConfig, HostPaths, MigStrategy, NvidiaConfig, PluginSettings, Replication, SharingConfig};
use crate::processes::ProcessesSettings;
use crate::simulation::Truth;
use crate::simulation::day::Stage;
use crate::simulation::dra_driver::claims_of_the_demo;
use crate::simulation::node::{NodePlan, SimulatedNode, resources};
use crate::tasks::Tasks;

/// On a day of faults, which is to be short.
const HOLD_DOWN: Duration = Duration::from_secs(10);
/// How often the ground truth is written.
const TRUTH_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct DemoSettings {
    /// Its node is replaced by the simulated one.
    pub agent: AgentSettings,
    pub profile: SimulatedProfile,
    pub churn: bool,
    pub seed: u64,
    /// Speed-up factor of the scripted day of faults; `None`: no faults.
    pub faults: Option<u32>,
    /// File for JSON lines with what the simulation did.
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

/// Runs the agent over a simulated kubelet in this process, until a signal.
pub async fn demo(
    settings: DemoSettings,
    opened: OnListening,
    dropped_lines: DroppedLogLines,
) -> Result<(), DemoError> {
    let clock = Clock::start();
    let directory = tempfile::Builder::new().prefix("podmeter-demo-").tempdir()?;
    let (driver, inventory, simulated) = gpus(&settings)?;
    let slots = settings.profile.replicas.map(|replicas| replicas as usize);
    let by_claims = settings.profile.is_claimed;
    let offered = if by_claims { vec![] } else { resources(&inventory, slots) };
    let plan = NodePlan {
        resources: offered,
        claims: if by_claims { claims_of_the_demo(&inventory) } else { vec![] },
        seed: settings.seed,
        churn: settings.churn,
    };
    let node = SimulatedNode::start(directory.path(), plan, simulated.clone(), clock).await?;

    let mut tasks = Tasks::default();
    if let Some(file) = settings.ground_truth.clone() {
        let output = File::create(&file).map_err(|error| DemoError::GroundTruth { file, error })?;
        tasks.spawn("ground truth", write_truth(output, Arc::clone(&node.truth), clock));
    }
    if let (Some(driver), Some(speed)) = (simulated, settings.faults) {
        tasks.spawn("faults", Stage { driver, kubelet: Arc::clone(&node.kubelet) }.play(speed));
    }
    let agent = settings.on(&node, directory.path());
    tasks.spawn("workloads", node.run());
    let reload = Box::new(|| Err("the demo has no configuration".to_owned()));
    let setup = Setup { driver: Some(driver), clock, reload, dropped_lines };
    let outcome = run_on(setup, agent, opened, &mut tasks).await;
    // Ends the kubelet, its plugins and its pods; their directory is removed after them.
    tasks.abort().await;
    Ok(outcome?)
}

/// The driver, its devices, and the same driver where it is simulated.
type DemoGpus = (Box<dyn Driver>, Inventory, Option<SimulatedDriver>);

fn gpus(settings: &DemoSettings) -> Result<DemoGpus, Failure> {
    if settings.agent.hardware == HardwareSource::Nvml {
        let mut driver = NvmlDriver::new(settings.agent.nvml.clone(), None);
        let (inventory, _) = driver.open()?.inventory()?;
        return Ok((Box::new(driver), inventory, None));
    }
    let simulated = SimulatedDriver::new(settings.profile, settings.seed);
    Ok((Box::new(simulated.clone()), simulated.inventory(), Some(simulated)))
}

impl DemoSettings {
    /// The settings of the agent on the simulated node.
    fn on(self, node: &SimulatedNode, directory: &Path) -> AgentSettings {
        // A driver and a plugin must not give the same devices.
        let device_plugin = (!self.profile.is_claimed).then(|| vec![offered(self.profile.replicas)].into());
        let (plugins, proc_root) = (node.kubelet.dra_plugin_directory(), node.files.proc_root());
        let logs_root = node.files.pod_logs_root();
        // A simulated driver's calls cost nothing: the counters move from the first second on.
        let devices = match self.agent.hardware {
            HardwareSource::Simulated => self.agent.devices.all_watched(),
            _ => self.agent.devices,
        };
        AgentSettings {
            admin_socket: match self.agent.admin_socket_required {
                true => self.agent.admin_socket,
                false => Some(directory.join("podmeter.sock")),
            },
            admin_socket_required: true,
            kubelet: KubeletSettings {
                pod_resources_socket: node.kubelet.pod_resources_socket(),
                device_plugin_directory: node.kubelet.device_plugin_directory(),
                claim_directories: ClaimDirectories { plugins, cdi: directory.join("cdi"), proc: proc_root.clone() },
                ..self.agent.kubelet
            },
            plugin: PluginSettings {
                directory: node.kubelet.device_plugin_directory(),
                host_paths: HostPaths { proc: proc_root.clone(), ..self.agent.plugin.host_paths },
                ..self.agent.plugin
            },
            devices: HardwareSettings { proc_root: proc_root.clone(), ..devices }.sped_up(self.faults.unwrap_or(1)),
            pods: PodsSettings { socket: node.kubelet.pods_api_socket(), logs_root, ..self.agent.pods },
            processes: ProcessesSettings { proc_root, ..self.agent.processes },
            health: health_config(self.faults),
            reloadable: Reloadable { device_plugin, ..self.agent.reloadable },
            ..self.agent
        }
    }
}

/// On a day of faults with a shorter hold-down, at the speed of the day.
fn health_config(faults: Option<u32>) -> HealthConfig {
    let defaults = HealthConfig::default();
    let Some(speed) = faults else { return defaults };
    HealthConfig { hold_down: HOLD_DOWN / speed, stuck_limit: defaults.stuck_limit / speed, ..defaults }
}

/// Whole GPUs and MIG devices, or this many slots of each GPU.
fn offered(replicas: Option<u32>) -> EntryConfig {
    let sharing = match replicas {
        Some(_) => SharingConfig::TimeSlicing(Replication { replicas, ..Replication::default() }),
        None => SharingConfig::None,
    };
    let mig_strategy = MigStrategy::Mixed;
    EntryConfig::Nvidia(Box::new(NvidiaConfig { sharing, mig_strategy, ..NvidiaConfig::default() }))
}

/// Appends a line `{"unix": …, "holdings": […]}` at each interval, until one cannot be written.
async fn write_truth(mut output: File, truth: Arc<Mutex<Truth>>, clock: Clock) {
    let mut due = tokio::time::interval(TRUTH_INTERVAL);
    loop {
        due.tick().await;
        let now = clock.now();
        let holdings = truth.lock().at(now.monotonic);
        let line = serde_json::json!({ "unix": now.unix, "holdings": holdings });
        if let Err(error) = writeln!(output, "{line}") {
            tracing::error!(%error, "the ground truth cannot be written");
            return;
        }
    }
}
