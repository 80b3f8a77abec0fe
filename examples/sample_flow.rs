//! What Kubernetes' sample device plugin shows, with this one: `example.com/resource` is registered with two devices, one
//! pod takes one, a second asks for two and does not fit. Real sockets, a simulated kubelet, devices that exist nowhere.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use podmeter::clock::Clock;
use podmeter::kubelet as kubelet_room;
use podmeter::model::{HardwareState, PluginState};
use podmeter::plugin::paths::Roots;
use podmeter::plugin::{self, Config, Surroundings};
use podmeter::simulation::kubelet::{Admission, ContainerSpec, FakeKubelet, Options, PodSpec};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

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

    let mut rooms = JoinSet::new();
    let mut state = start_podmeter(root.path(), &mut rooms)?;
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

/// The plugin, and beside it what watches the kubelet. They end with `rooms`.
fn start_podmeter(root: &Path, rooms: &mut JoinSet<()>) -> anyhow::Result<watch::Receiver<Arc<PluginState>>> {
    let clock = Clock::start();
    let (allocated, look) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (publish_kubelet, kubelet) = watch::channel(Arc::default());
    let watching = kubelet_room::Settings {
        pod_resources_socket: root.join("pod-resources/kubelet.sock"),
        device_plugin_directory: root.join("device-plugins"),
        refresh_interval: Box::new(|| Duration::from_secs(5)),
        deadline: Duration::from_secs(5),
        allocated: Arc::clone(&allocated),
        look: Arc::clone(&look),
        pods: podmeter::kubelet::PodSources::default(),
    };
    rooms.spawn(kubelet_room::run(watching, clock, publish_kubelet));

    let config: Config = serde_saphyr::from_str(CONFIGURATION)?;
    let settings = plugin::Settings {
        directory: root.join("device-plugins"),
        resources: config.resolve(|file| std::fs::read_to_string(file))?,
        surroundings: Surroundings {
            roots: Roots { host: root.to_owned(), dev: root.join("dev"), sys: root.join("sys") },
            proc: root.join("proc"),
            cdi: vec![root.join("cdi")],
        },
    };
    let no_driver = HardwareState { source: "none", ..HardwareState::default() };
    let (tell_hardware, hardware) = watch::channel(Arc::new(no_driver));
    let (stop, stopped) = watch::channel(false);
    let (publish, state) = watch::channel(Arc::default());
    // What exists nowhere is not judged.
    let (tell_health, health) = watch::channel(Arc::default());
    let neighbours = plugin::Neighbours { hardware, health, kubelet, allocated, look };
    rooms.spawn(async move {
        plugin::run(settings, clock, neighbours, publish, stopped).await;
        drop((tell_hardware, tell_health, stop));
    });
    Ok(state)
}

fn offered(kubelet: &FakeKubelet) -> String {
    match kubelet.node_status().get(RESOURCE) {
        None => format!("no {RESOURCE}"),
        Some(count) => format!("{RESOURCE}: capacity {}, allocatable {}", count.capacity, count.allocatable),
    }
}

/// Adds a pod of one container and writes what becomes of it.
async fn ask(kubelet: &FakeKubelet, pod: &str, count: usize, out: &mut impl Write) -> anyhow::Result<()> {
    let container = ContainerSpec::new("main").asks(RESOURCE, count);
    let admission = kubelet.add_pod(PodSpec::new("default", pod).container(container)).await;
    let answer = match admission {
        Admission::Rejected { reason, message } => format!("{reason}: {message}"),
        Admission::Running => {
            let options = kubelet.start_container("default", pod, "main").await.context("the pod is gone")?;
            let options = options.map_err(anyhow::Error::msg)?;
            let ids = options.envs.get("PODMETER_SIMULATED_DEVICES").context("the answer names no devices")?;
            format!("running, with {} of them in PODMETER_SIMULATED_DEVICES", ids.split(',').count())
        }
    };
    writeln!(out, "pod {pod} asks for {count}: {answer}")?;
    Ok(())
}
