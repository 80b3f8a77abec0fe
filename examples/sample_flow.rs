//! What Kubernetes' sample device plugin shows, with this one: `example.com/resource` is registered with two devices,
//! one pod takes one, a second requests two and does not fit. Real sockets, a simulated kubelet, simulated devices.
//!
//! ```text
//! the kubelet offers no example.com/resource
//! podmeter has registered example.com/resource with 2 devices
//! the kubelet offers example.com/resource: capacity 2, allocatable 2
//! pod first requests 1: running, with 1 of them in PODMETER_SIMULATED_DEVICES
//! pod second requests 2: UnexpectedAdmissionError: Allocate failed due to requested number of devices unavailable for example.com/resource. Requested: 2, Available: 1, which is unexpected
//! pod first has ended
//! pod third requests 2: running, with 2 of them in PODMETER_SIMULATED_DEVICES
//! ```

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use podmeter::clock::Clock;
use podmeter::domain::model::{HardwareState, PluginState};
use podmeter::kubelet::holders::{self, HoldersInputs};
use podmeter::kubelet::{self, PodSources};
use podmeter::plugin::host::path_devices::HostRoots;
use podmeter::plugin::{self, HostPaths, PluginConfig};
use podmeter::simulation::kubelet::{AdmissionOutcome, ContainerSpec, FakeKubelet, Options, PodSpec};
use podmeter::tasks::Tasks;
use tokio::sync::watch;

const RESOURCE: &str = "example.com/resource";
/// The section `devicePlugin` of the configuration file.
const CONFIGURATION: &str = "resources: [{kind: simulated, name: example.com/resource, devices: 2}]";
const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    flow(&mut std::io::stdout()).await
}

/// Writes each step and what the kubelet answered.
pub async fn flow(out: &mut impl Write) -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await?;
    writeln!(out, "the kubelet offers {}", offered(&kubelet))?;

    let mut tasks = Tasks::default();
    let mut state = start_podmeter(root.path(), &mut tasks)?;
    let registered = |state: &Arc<PluginState>| state.resources.values().any(|resource| resource.registered);
    let state =
        tokio::time::timeout(PATIENCE, state.wait_for(registered)).await.context("not registered in time")??;
    let devices: usize = state.resources.values().map(|resource| resource.devices.len()).sum();
    drop(state);
    writeln!(out, "podmeter has registered {RESOURCE} with {devices} devices")?;
    let has_both = kubelet.node_status_becomes(|status| status.get(RESOURCE).is_some_and(|is| is.allocatable == 2));
    ensure!(has_both.await, "the kubelet never offers both devices");
    writeln!(out, "the kubelet offers {}", offered(&kubelet))?;

    ask(&kubelet, "first", 1, out).await?;
    ask(&kubelet, "second", 2, out).await?;
    kubelet.finish_container("default", "first", "main");
    writeln!(out, "pod first has ended")?;
    ask(&kubelet, "third", 2, out).await
}

/// The plugin, and beside it what watches the kubelet. They end with `tasks`.
fn start_podmeter(root: &Path, tasks: &mut Tasks) -> anyhow::Result<watch::Receiver<Arc<PluginState>>> {
    let clock = Clock::start();
    let watching = kubelet::KubeletSettings {
        pod_resources_socket: root.join("pod-resources/kubelet.sock"),
        device_plugin_directory: root.join("device-plugins"),
        claim_directories: kubelet::claim_files::ClaimDirectories {
            plugins: root.join("plugins"),
            cdi: root.join("cdi"),
            proc: root.join("proc"),
        },
        node_name: "node".to_owned(),
        deadline: Duration::from_secs(5),
    };
    let kubelet_handle =
        kubelet::start(watching, Box::new(|| Duration::from_secs(5)), PodSources::default(), clock, tasks);

    let config: PluginConfig = serde_saphyr::from_str(CONFIGURATION)?;
    let plan = config.resolve(|file| std::fs::read_to_string(file))?.into();
    let settings = plugin::PluginSettings {
        directory: root.join("device-plugins"),
        node_name: "node".to_owned(),
        host_paths: HostPaths {
            roots: HostRoots { host: root.to_owned(), dev: root.join("dev"), sys: root.join("sys") },
            proc: root.join("proc"),
            cdi: vec![root.join("cdi")],
        },
    };
    let no_driver = HardwareState::default();
    let (publish_hardware, hardware) = watch::channel(Arc::new(no_driver));
    // A simulated device has no health.
    let (publish_health, health) = watch::channel(Arc::default());
    tasks.spawn("hardware and health", async move {
        std::future::pending::<()>().await;
        drop((publish_hardware, publish_health));
    });
    let (publish, plugin_states) = watch::channel(Arc::default());
    let inputs = HoldersInputs {
        hardware,
        kubelet: kubelet_handle.states.clone(),
        plugin: plugin_states,
        may_be_offered: Box::new(|_| false),
        served: BTreeSet::new(),
        demand: None,
    };
    let inputs = plugin::PluginInputs {
        holders: holders::start(inputs, clock, tasks),
        health,
        allocated: kubelet_handle.allocated.clone(),
        refresh_allocatable: kubelet_handle.refresh_allocatable.clone(),
    };
    Ok(plugin::start(settings, plan, inputs, publish, clock, tasks).states)
}

fn offered(kubelet: &FakeKubelet) -> String {
    match kubelet.node_status().get(RESOURCE) {
        None => format!("no {RESOURCE}"),
        Some(count) => format!("{RESOURCE}: capacity {}, allocatable {}", count.capacity, count.allocatable),
    }
}

/// Adds a pod of one container and writes the outcome.
async fn ask(kubelet: &FakeKubelet, pod: &str, count: usize, out: &mut impl Write) -> anyhow::Result<()> {
    let container = ContainerSpec::new("main").asks(RESOURCE, count);
    let admission = kubelet.add_pod(PodSpec::new("default", pod).container(container)).await;
    let answer = match admission {
        AdmissionOutcome::Rejected { reason, message } => format!("{reason}: {message}"),
        AdmissionOutcome::Running => {
            let options = kubelet.start_container("default", pod, "main").await.context("the pod is gone")?;
            let options = options.map_err(anyhow::Error::msg)?;
            let ids = options.envs.get("PODMETER_SIMULATED_DEVICES").context("the answer names no devices")?;
            format!("running, with {} of them in PODMETER_SIMULATED_DEVICES", ids.split(',').count())
        }
    };
    writeln!(out, "pod {pod} requests {count}: {answer}")?;
    Ok(())
}
