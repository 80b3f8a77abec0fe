use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::observations::{
    Agent, Answers, DriverState, Listed, NotObserved, Observations, Observed, SocketState, VERSION,
};
use super::{Offer, Settings, agent, node, scrape};
use crate::client::{self, ClientError, Target};
use crate::clock::Clock;
use crate::hardware::{Driver, Failure, scan_pci_bus};
use crate::kubelet::claim_files::{is_of_nvidia, survey};
use crate::kubelet::{CallError, Client};
use crate::model::{Allocatable, AppliedProfile, HardwareSource, UnixSeconds};
use crate::plugin::{Gpus, NodeView};
use crate::{governance, plugin, processes};

/// For files and sockets of this machine.
const OBSERVATION_DEADLINE: Duration = Duration::from_secs(5);
/// Of `/-/healthy`.
const HEALTHY: &[u8] = b"healthy\n";
/// For the driver to be closed, once it has answered.
const CLOSE: Duration = Duration::from_secs(2);

pub async fn gather(mut settings: Settings, driver: Option<Box<dyn Driver>>, clock: Clock) -> Observations {
    if settings.only_agent {
        let agent = observe_agent(&settings).await;
        return Observations::of_agent(settings, agent, clock.now().unix);
    }
    let directory = settings.device_plugin_directory.clone();
    let registration = plugin::kubelet_socket(&directory);
    let (agent, kubelet, registered, pods_api, plugin_sockets, host) = tokio::join!(
        observe_agent(&settings),
        ask_kubelet(&settings),
        dial(&registration),
        dial(&settings.pods_api_socket),
        within(OBSERVATION_DEADLINE, plugin::live_sockets(&directory, |_| true)),
        observe_host(&settings),
    );
    // A library that hangs while it is loaded delays checks that start a thread: it runs last.
    let driver = observe_driver(driver, &settings, node::driver_is_released(&agent)).await;
    let profile = choose_profile(&mut settings, driver.as_ref().ok());
    let (list, allocatable) = kubelet;
    let Host { writable, module_version, bus, processes, named_pods, claim_files, own, newest_file } = host;
    Observations {
        settings,
        version: VERSION,
        now: clock.now().unix,
        agent,
        list,
        allocatable,
        registration: registered,
        pods_api,
        writable,
        plugin_sockets,
        driver,
        profile,
        module_version,
        bus,
        processes,
        named_pods,

        claim_files,
        own,
        newest_file,
    }
}

/// With the offers of that profile. While it is undecided, those that every profile has.
fn choose_profile(settings: &mut Settings, driver: Option<&DriverState>) -> Option<(AppliedProfile, Option<Gpus>)> {
    let gpus = match driver {
        Some(driver) => Some(Gpus::of(&driver.inventory)),
        None => (settings.hardware == HardwareSource::None).then(Gpus::default),
    };
    let choice = settings.plan.choose(&NodeView { node_name: &settings.node_name, gpus: gpus.clone() });
    let applied = settings.plan.applied(&choice)?;
    settings.offers = Some(settings.plan.entries(&choice).iter().map(Offer::of).collect());
    Some((applied, gpus))
}

async fn within<T>(limit: Duration, look: impl Future<Output = T>) -> Observed<T> {
    tokio::time::timeout(limit, look).await.map_err(|_| NotObserved::Late(limit))
}

async fn ask_kubelet(settings: &Settings) -> (Result<Listed, CallError>, Option<Result<Allocatable, CallError>>) {
    let mut client = Client::new(&settings.pod_resources_socket, settings.kubelet_deadline);
    let allocations = match client.list().await {
        Ok(allocations) => allocations,
        Err(error) => return (Err(error), None),
    };
    let holders =
        allocations.containers().filter(|container| !container.devices.is_empty() || !container.claims.is_empty());
    let listed = Listed {
        pods: allocations.pods.len(),
        holders: holders.count(),
        claimed: allocations.containers().flat_map(|one| &one.claims).filter(|claim| is_of_nvidia(claim)).count(),
    };
    (Ok(listed), Some(client.allocatable().await))
}

/// Connects and hangs up.
async fn dial(socket: &Path) -> SocketState {
    let connected = match within(OBSERVATION_DEADLINE, UnixStream::connect(socket)).await {
        Ok(connected) => connected,
        Err(_) => return SocketState::Late(OBSERVATION_DEADLINE),
    };
    let is_socket = || std::fs::metadata(socket).is_ok_and(|metadata| metadata.file_type().is_socket());
    match connected.map_err(|error| (error.kind(), error)) {
        Ok(_) => SocketState::Listens,
        Err((io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _)) => SocketState::Missing,
        Err((io::ErrorKind::PermissionDenied, _)) => SocketState::Denied,
        // A plain file refuses connections as a dead socket does.
        Err((io::ErrorKind::ConnectionRefused, _)) if !is_socket() => SocketState::NotASocket,
        Err((io::ErrorKind::ConnectionRefused, _)) => SocketState::Refused,
        Err((_, error)) => SocketState::Other(error.to_string()),
    }
}

async fn observe_agent(settings: &Settings) -> Agent {
    let mut agent = find_agent(settings).await;
    scrape_listeners(&mut agent).await;
    agent
}

/// At the given target; else at the default socket, then at the listeners.
async fn find_agent(settings: &Settings) -> Agent {
    let Some(target) = &settings.agent else { return ask_listeners(settings).await.unwrap_or(Agent::NotConfigured) };
    match client::get(target, "/-/healthy").await {
        Ok(_) => ask_agent(target.clone()).await,
        Err(error) if error.is_no_agent() => {
            let elsewhere = if settings.agent_is_named { None } else { ask_listeners(settings).await };
            elsewhere.unwrap_or_else(|| Agent::Absent(target.clone()))
        }
        Err(ClientError::Forbidden { .. }) => {
            let elsewhere = if settings.agent_is_named { None } else { ask_listeners(settings).await };
            elsewhere.unwrap_or_else(|| Agent::Denied(target.clone()))
        }
        Err(error) => {
            let to_do = match error {
                ClientError::Tls { .. } | ClientError::Unauthorized { .. } => "correct the options of the connection",
                _ => agent::RESTART,
            };
            Agent::Unresponsive { problem: error.to_string(), to_do }
        }
    }
}

/// A server that does not answer as an agent is another program.
async fn ask_listeners(settings: &Settings) -> Option<Agent> {
    for target in &settings.listeners {
        if client::get(target, "/-/healthy").await.is_ok_and(|body| body == HEALTHY) {
            return Some(ask_agent(target.clone()).await);
        }
    }
    None
}

async fn ask_agent(target: Target) -> Agent {
    let (record, node, ready) =
        tokio::join!(json(&target, "/api/v1/record"), json(&target, "/api/v1/node"), client::get(&target, "/-/ready"));
    let ready = ready.map(drop).map_err(|error| match error {
        ClientError::Refused { text, .. } => text,
        error => error.to_string(),
    });
    Agent::Answers(Box::new(Answers { target, record, node, ready, pages: vec![], guarded: vec![] }))
}

async fn scrape_listeners(agent: &mut Agent) {
    let Agent::Answers(answers) = agent else { return };
    let (open, guarded) = listeners(&answers.target, answers.record.as_ref().ok());
    answers.guarded = guarded;
    for target in open {
        let page = client::get(&target, "/metrics").await.map_err(|error| error.to_string());
        let page = page.and_then(|body| String::from_utf8(body).map_err(|_| "it is not UTF-8".to_owned()));
        answers.pages.push((target, page.and_then(|page| scrape::check(&page))));
    }
}

/// Open listeners, and those that require authentication; over a URL only the given target is
/// known.
fn listeners(target: &Target, record: Option<&Value>) -> (Vec<Target>, Vec<String>) {
    if let Target::Url(_) = target {
        return (vec![target.clone()], vec![]);
    }
    let listeners = record.and_then(|record| record["listeners"].as_array()).into_iter().flatten();
    let public = listeners.filter(|listener| listener["admin"] != true && listener["probes"] != true);
    let (guarded, open): (Vec<_>, Vec<_>) = public.partition(|listener| listener["guarded"] == true);
    let open = open.into_iter().filter_map(|listener| Target::of_listener(listener["address"].as_str()?));
    let guarded = guarded.into_iter().filter_map(|listener| Some(listener["address"].as_str()?.to_owned()));
    (open.collect(), guarded.collect())
}

async fn json(target: &Target, path: &str) -> Result<Value, String> {
    let body = client::get(target, path).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&body).map_err(|error| format!("{target} answers {path} without JSON: {error}"))
}

/// On its own thread: one that hangs is abandoned.
async fn observe_driver(
    driver: Option<Box<dyn Driver>>,
    settings: &Settings,
    driver_is_released: Option<&'static str>,
) -> Observed<DriverState> {
    let Some(mut driver) = driver else {
        return Err(NotObserved::Skipped(format!("--hardware {}: no driver is opened", settings.hardware.as_str())));
    };
    if let Some(reason) = driver_is_released {
        return Err(NotObserved::Skipped(reason.to_owned()));
    }
    let (answer, answered) = oneshot::channel();
    let (close, closed) = oneshot::channel::<()>();
    let ask = move || {
        let session = match driver.open() {
            Ok(session) => session,
            Err(failure) => {
                let _ = answer.send(Err(refused(failure)));
                return;
            }
        };
        let listed = session.inventory().map_err(refused).map(|(inventory, problems)| DriverState {
            inventory,
            problems: problems.iter().map(|problem| format!("{}: {}", problem.call, problem.code)).collect(),
        });
        // No task waits for it; it is closed anyway.
        let _ = answer.send(listed);
        drop(session);
        drop(close);
    };
    if let Err(error) = std::thread::Builder::new().name("doctor-driver".to_owned()).spawn(ask) {
        return Err(NotObserved::Failed(format!("no thread could be started to open the driver: {error}")));
    }
    let listed = within(settings.driver_deadline, answered).await?;
    // Not while the library is being unloaded, so that the process ends in order.
    let _ = within(CLOSE, closed).await;
    let broke = || NotObserved::Failed("the thread that opened the driver panicked; please report this".to_owned());
    listed.unwrap_or_else(|_| Err(broke()))
}

fn refused(failure: Failure) -> NotObserved {
    NotObserved::Refused { problem: failure.reason, remedy: failure.remedy }
}

struct Host {
    writable: Observed<Result<(), String>>,
    module_version: Observed<Option<String>>,
    bus: Observed<crate::model::NodeDevices>,
    processes: Observed<processes::Survey>,
    named_pods: Observed<usize>,
    claim_files: Observed<Vec<(PathBuf, Result<(), String>)>>,
    own: Observed<governance::OwnProcess>,
    newest_file: Observed<Option<(PathBuf, UnixSeconds)>>,
}

/// File systems hang, each on its own.
async fn observe_host(settings: &Settings) -> Host {
    let Settings { device_plugin_directory, proc_root, sys_root, pod_logs_root, .. } = settings.clone();
    let (directory, module) = (device_plugin_directory.clone(), proc_root.join("driver/nvidia/version"));
    let files = vec![
        settings.pod_resources_socket.clone(),
        plugin::kubelet_socket(&device_plugin_directory),
        device_plugin_directory.join("kubelet_internal_checkpoint"),
    ];
    let (named, proc, claims) = (pod_logs_root, proc_root.clone(), settings.claim_directories.clone());
    let (writable, module_version, bus, processes, named_pods, claim_files, own, newest_file) = tokio::join!(
        blocking(move || Ok(writable(&directory))),
        blocking(move || Ok(std::fs::read_to_string(module).ok().and_then(|text| module_version(&text)))),
        blocking(move || scan_pci_bus(&sys_root).ok_or_else(|| format!("{}: no PCI bus found", sys_root.display()))),
        blocking(move || processes::survey(&proc).map_err(|error| format!("{}: {error}", proc.display()))),
        blocking(move || processes::named_pods(&named).map_err(|error| error.to_string())),
        blocking(move || Ok(survey(&claims).to_vec())),
        blocking(|| Ok(governance::read_own_process(Path::new("/proc/self")))),
        blocking(move || Ok(newest(files))),
    );
    Host { writable, module_version, bus, processes, named_pods, claim_files, own, newest_file }
}

async fn blocking<T: Send + 'static>(look: impl FnOnce() -> Result<T, String> + Send + 'static) -> Observed<T> {
    let looked = within(OBSERVATION_DEADLINE, tokio::task::spawn_blocking(look)).await?;
    looked.unwrap_or_else(|broke| Err(broke.to_string())).map_err(NotObserved::Failed)
}

/// Queries the kernel; creates nothing.
fn writable(directory: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(directory).map_err(|error| error.to_string())?;
    if !metadata.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    use rustix::fs::Access;
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| io::Error::from(error).to_string())
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  …`: the first word of numbers and dots.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("NVRM version"))?;
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    line.split_whitespace().find(is_version).map(str::to_owned)
}

fn newest(files: Vec<PathBuf>) -> Option<(PathBuf, UnixSeconds)> {
    let stamped = files.into_iter().filter_map(|path| {
        let metadata = std::fs::metadata(&path).ok()?;
        Some((path, UnixSeconds(metadata.mtime() as f64)))
    });
    stamped.max_by(|(_, one), (_, other)| one.0.total_cmp(&other.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_version_is_found_in_every_flavour() {
        for text in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:12:38 UTC 2025\nGCC version:  gcc 12.2.0\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n",
        ] {
            assert_eq!(module_version(text).as_deref(), Some("570.124.06"));
        }
        assert_eq!(module_version("GCC version: 12.2.0"), None);
    }
}
