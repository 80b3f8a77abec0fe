//! What the doctor observes of this machine and of an agent, each with a deadline.
//!
//! In: where to observe it. Out: `Observations`. Does not use: the checks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::DoctorSettings;
use super::observe_agent::{ObservedAgent, observe_agent};
use super::report::Finding;
use crate::agent::AgentSettings;
use crate::clock::Clock;
use crate::domain::model::{
    Allocatable, AppliedProfile, HardwareSource, Inventory, Monotonic, NodeDevices, UnixSeconds,
};
use crate::hardware::{Failure, HardwareSettings, scan_pci_bus};
use crate::kubelet::claim_files::{check_files, is_of_nvidia};
use crate::kubelet::{CallError, Client, KubeletSettings, dial, pod_logs};
use crate::plugin::{EntryConfig, NodeGpus, NodeView};
use crate::processes::ProcessCounts;
use crate::{plugin, processes};

/// The limit of an observation of files and sockets of this machine.
const OBSERVATION_DEADLINE: Duration = Duration::from_secs(5);

/// Everything that was observed, at about one moment.
#[derive(Debug)]
pub struct Observations {
    pub settings: DoctorSettings,
    /// The version of this podmeter.
    pub version: &'static str,
    pub now: UnixSeconds,
    pub agent: ObservedAgent,
    /// The machine; `None`: only the agent is checked.
    pub machine: Option<ObservedMachine>,
}

/// What was observed, or why not.
pub type Observed<T> = Result<T, NotObserved>;

/// Why something was not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotObserved {
    /// It was not observed, for this reason.
    Skipped(String),
    /// It could not be observed: the problem, and its remedy where it is known.
    Failed(String, Option<&'static str>),
}

impl NotObserved {
    fn late(limit: Duration) -> Self {
        Self::failed(format!("did not answer within {} s", limit.as_secs_f64()))
    }

    fn failed(problem: impl ToString) -> Self {
        Self::Failed(problem.to_string(), None)
    }

    pub fn finding(&self, remedy: &str) -> Finding {
        match self {
            Self::Skipped(reason) => Finding::skipped(reason),
            Self::Failed(problem, own) => Finding::failed(problem, own.unwrap_or(remedy)),
        }
    }
}

/// What was observed of the machine on which the doctor runs.
#[derive(Debug)]
pub struct ObservedMachine {
    pub list: Result<ListSummary, CallError>,
    /// The allocatable devices; `None`: not called, because `List` had no answer.
    pub allocatable: Option<Result<Allocatable, CallError>>,
    pub registration: Result<(), CallError>,
    pub pods_api: Result<(), CallError>,
    /// Whether a socket can be created in the device-plugin directory.
    pub writable: Observed<()>,
    /// Other sockets in the device-plugin directory that a process listens on.
    pub plugin_sockets: Observed<Vec<String>>,
    pub driver: Observed<DriverState>,
    /// The profile that applies, and the GPUs by which it was chosen; `None` without profiles.
    pub profile: Option<(AppliedProfile, Option<NodeGpus>)>,
    /// The entries of this profile, which the plugin would offer. While it is undecided, those that every profile has;
    /// `None` while the plugin is off.
    pub offers: Option<Vec<EntryConfig>>,
    /// The version of the kernel module; `None` where it is not loaded, or not visible to this process.
    pub module_version: Observed<Option<String>>,
    /// The GPUs on the PCI bus.
    pub bus: Observed<NodeDevices>,
    pub processes: Observed<ProcessCounts>,
    /// The number of pods in the names of log directories.
    pub named_pods: Observed<usize>,
    /// The files of NVIDIA's DRA driver, and why each cannot be read.
    pub claim_files: Observed<Vec<(PathBuf, Result<(), String>)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListSummary {
    pub pods: usize,
    /// The number of containers that hold a device or a claim.
    pub holders: usize,
    /// The number of devices in claims of NVIDIA's DRA driver.
    pub claimed: usize,
}

/// What the driver reported when it was opened.
#[derive(Clone, Debug, Default)]
pub struct DriverState {
    pub inventory: Inventory,
    /// The calls that a GPU refused, as `call: code`.
    pub problems: Vec<String>,
}

pub async fn observe(settings: DoctorSettings, clock: Clock) -> Observations {
    let (agent, machine) = if settings.remote.is_some() {
        (observe_agent(&settings).await, None)
    } else {
        let (agent, machine) = observe_machine(&settings, clock).await;
        (agent, Some(machine))
    };
    Observations { settings, version: env!("CARGO_PKG_VERSION"), now: clock.now().unix, agent, machine }
}

/// Observes the machine. Each check of a file system has a separate blocking thread, because any of them may hang.
async fn observe_machine(settings: &DoctorSettings, clock: Clock) -> (ObservedAgent, ObservedMachine) {
    let AgentSettings { kubelet, devices, pods, .. } = settings.node.clone();
    let KubeletSettings { device_plugin_directory, claim_directories, .. } = kubelet;
    let HardwareSettings { proc_root, sys_root, ignored_gpus, .. } = devices;
    let (pod_logs_root, plugins) = (pods.logs_root, device_plugin_directory.clone());
    let registration = plugin::kubelet_socket(&device_plugin_directory);
    let (module, proc) = (proc_root.join("driver/nvidia/version"), proc_root.clone());
    let (
        agent,
        kubelet,
        registration,
        pods_api,
        plugin_sockets,
        writable,
        module_version,
        bus,
        processes,
        named_pods,
        claim_files,
    ) = tokio::join!(
        observe_agent(settings),
        ask_kubelet(settings),
        dial(&registration, OBSERVATION_DEADLINE),
        dial(&settings.node.pods.socket, OBSERVATION_DEADLINE),
        within(OBSERVATION_DEADLINE, plugin::live_sockets(&device_plugin_directory, |_| true)),
        blocking(move || writable(&plugins)),
        blocking(move || Ok(std::fs::read_to_string(module).ok().and_then(|text| module_version(&text)))),
        blocking(move || {
            scan_pci_bus(&sys_root, &ignored_gpus).ok_or_else(|| format!("{}: no PCI bus found", sys_root.display()))
        }),
        blocking(move || processes::count_processes(&proc).map_err(|error| format!("{}: {error}", proc.display()))),
        blocking(move || {
            let logs = pod_logs::read(&pod_logs_root, Monotonic::default());
            logs.problem.map_or(Ok(logs.pods.len()), |problem| Err(problem.to_string()))
        }),
        blocking(move || Ok(check_files(&claim_directories).to_vec())),
    );
    // The driver comes last, because a library that hangs while it is loaded delays checks that start a thread.
    let driver = observe_driver(settings, why_not_opened(&agent), clock).await;
    let (profile, offers) = choose_profile(settings, driver.as_ref().ok());
    let (list, allocatable) = kubelet;
    let (registration, pods_api) = (registration.map(drop), pods_api.map(drop));
    let machine = ObservedMachine {
        list,
        allocatable,
        registration,
        pods_api,
        writable,
        plugin_sockets,
        driver,
        profile,
        offers,
        module_version,
        bus,
        processes,
        named_pods,
        claim_files,
    };
    (agent, machine)
}

type Chosen = (Option<(AppliedProfile, Option<NodeGpus>)>, Option<Vec<EntryConfig>>);

fn choose_profile(settings: &DoctorSettings, driver: Option<&DriverState>) -> Chosen {
    let Some(plan) = &settings.node.reloadable.device_plugin else { return (None, None) };
    let gpus = match driver {
        Some(driver) => Some(NodeGpus::from_inventory(&driver.inventory)),
        None => (settings.node.hardware == HardwareSource::None).then(NodeGpus::default),
    };
    let candidates = plan.candidates(&NodeView { node_name: &settings.node.node_name, gpus: gpus.clone() });
    (plan.applied(&candidates).map(|applied| (applied, gpus)), Some(plan.entries(&candidates)))
}

async fn within<T>(limit: Duration, observation: impl Future<Output = T>) -> Observed<T> {
    tokio::time::timeout(limit, observation).await.map_err(|_| NotObserved::late(limit))
}

async fn blocking<T: Send + 'static>(observation: impl FnOnce() -> Result<T, String> + Send + 'static) -> Observed<T> {
    let observed = within(OBSERVATION_DEADLINE, spawn_blocking(observation)).await?;
    observed.map_err(NotObserved::failed)?.map_err(NotObserved::failed)
}

async fn ask_kubelet(
    settings: &DoctorSettings,
) -> (Result<ListSummary, CallError>, Option<Result<Allocatable, CallError>>) {
    let kubelet = &settings.node.kubelet;
    let mut client = Client::new(&kubelet.pod_resources_socket, kubelet.deadline);
    let allocations = match client.list().await {
        Ok(allocations) => allocations,
        Err(error) => return (Err(error), None),
    };
    let holders =
        allocations.containers().filter(|container| !container.devices.is_empty() || !container.claims.is_empty());
    let listed = ListSummary {
        pods: allocations.pods.len(),
        holders: holders.count(),
        claimed: allocations.containers().flat_map(|one| &one.claims).filter(|claim| is_of_nvidia(claim)).count(),
    };
    (Ok(listed), Some(client.allocatable().await))
}

/// Why the driver is not opened: an agent has released it on request, or may have.
fn why_not_opened(agent: &ObservedAgent) -> Option<&'static str> {
    match agent {
        ObservedAgent::NotConfigured => None,
        ObservedAgent::Silent(error) if error.is_no_agent() => None,
        ObservedAgent::Silent(_) => {
            Some("an agent exists that cannot be asked whether the driver is released on request")
        }
        ObservedAgent::Responding(answers) => {
            let released = answers.node.as_ref().ok().and_then(|node| node.pointer("/hardware/released"));
            let is_released = released.is_some_and(|released| !released.is_null());
            is_released.then_some("the agent has released the driver on request")
        }
    }
}

/// Opens the driver on a separate thread, which is abandoned if it hangs.
async fn observe_driver(
    settings: &DoctorSettings,
    why_not_opened: Option<&'static str>,
    clock: Clock,
) -> Observed<DriverState> {
    const HUNG: &str = "the driver hangs: see dmesg, reset the GPU or drain the node";
    let node = &settings.node;
    let no_driver = || NotObserved::Skipped(format!("--hardware {}: no driver is opened", node.hardware.into_str()));
    let driver = node.driver(clock).filter(|_| node.hardware == HardwareSource::Nvml);
    let mut driver = driver.ok_or_else(no_driver)?;
    if let Some(reason) = why_not_opened {
        return Err(NotObserved::Skipped(reason.to_owned()));
    }
    let (answer, answered) = oneshot::channel();
    // The answer comes once the driver is closed again, so that the process does not end while the library is unloaded.
    let open = move || {
        let opened = driver.open().and_then(|session| session.inventory());
        drop(driver);
        // No task waits for the answer after the deadline.
        let _ = answer.send(opened);
    };
    std::thread::Builder::new().name("doctor-driver".to_owned()).spawn(open).map_err(NotObserved::failed)?;
    let limit = settings.driver_deadline;
    let late = |_| NotObserved::Failed(format!("did not answer within {} s", limit.as_secs_f64()), Some(HUNG));
    let opened = tokio::time::timeout(limit, answered).await.map_err(late)?;
    let panicked = |_| NotObserved::failed("the thread that opened the driver panicked; please report this");
    let refused = |failure: Failure| NotObserved::Failed(failure.reason, Some(failure.remedy));
    let (inventory, problems) = opened.map_err(panicked)?.map_err(refused)?;
    let problems = problems.iter().map(|problem| format!("{}: {}", problem.call, problem.code)).collect();
    Ok(DriverState { inventory, problems })
}

/// Whether the kernel permits writing to the directory; creates nothing.
fn writable(directory: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(directory).map_err(|error| error.to_string())?;
    if !metadata.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    use rustix::fs::Access;
    rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| std::io::Error::from(error).to_string())
}

/// The version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  …`: the first word of digits and dots.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("NVRM version"))?;
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    line.split_whitespace().find(is_version).map(str::to_owned)
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
