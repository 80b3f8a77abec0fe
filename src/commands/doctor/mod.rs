//! `podmeter doctor`: checks what the agent needs on a node, once, and names what to do.
//!
//! Inputs: where the kubelet, the driver and the agent are found. Output: a `DoctorReport`, one finding for each check. Does
//! not use: attribution, metrics, the web server. `observe` makes the `Observations`, each with a deadline; `machine` and
//! `agent` check them and do no I/O. Nothing here changes anything: it registers nothing, removes nothing, starts no
//! process, and only connects to the sockets of other plugins.

mod agent;
mod machine;
mod observe;
mod observe_agent;
mod report;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Clock;
use crate::commands::client::AgentTarget;
use crate::domain::model::{HardwareSource, PciBusId};
use crate::node::hardware::Driver;
use crate::node::kubelet::claim_files::ClaimDirectories;
use crate::node::plugin::PluginPlan;
use crate::node::processes::ProcessAttribution;
use observe::Observations;
pub use report::{Check, CheckStatus, DoctorReport};

/// Where to observe what, with the agent's settings.
#[derive(Clone, Debug)]
pub struct DoctorSettings {
    /// `None`: no admin socket is configured; only the listeners are queried.
    pub agent: Option<AgentTarget>,
    /// The listeners that the settings name: queried when the agent is not found at `agent`.
    pub listeners: Vec<AgentTarget>,
    /// This machine is not observed: its checks are left out.
    pub only_agent: bool,
    /// The target was given explicitly, so an agent is expected there.
    pub agent_is_named: bool,
    pub pod_resources_socket: PathBuf,
    pub device_plugin_directory: PathBuf,
    pub pods_api_socket: PathBuf,
    /// Of the files of DRA drivers.
    pub claim_directories: ClaimDirectories,
    /// For each call to the kubelet.
    pub kubelet_deadline: Duration,
    /// For the driver to be opened and to list its GPUs.
    pub driver_deadline: Duration,
    /// `nvml`, `simulated` or `none`.
    pub hardware: HardwareSource,
    /// What the bundled device plugin would offer; `None` while it is off.
    pub plan: Option<PluginPlan>,
    /// For the profiles.
    pub node_name: String,
    pub attribution: ProcessAttribution,
    pub proc_root: PathBuf,
    pub sys_root: PathBuf,
    pub ignored_gpus: BTreeSet<PciBusId>,
    pub pod_logs_root: PathBuf,
}

/// Observes everything concurrently, the driver last; ends within a minute whatever hangs. `driver` is what NVML
/// readings come from.
pub async fn examine(settings: DoctorSettings, driver: Option<Box<dyn Driver>>, clock: Clock) -> DoctorReport {
    let observations = observe::observe(settings, driver, clock).await;
    let left_out = if observations.machine.is_none() { machine::CHECKS.len() } else { 0 };
    DoctorReport::new(observations.now, checks(&observations), left_out)
}

/// Runs every check that is not left out.
fn checks(observations: &Observations) -> Vec<Check> {
    let machine = observations.machine.iter().flat_map(|machine| {
        machine::CHECKS
            .iter()
            .map(|(id, title, why, check)| Check::new(id, title, why, check(&observations.settings, machine)))
    });
    let agent = agent::CHECKS.iter().map(|(id, title, why, check)| Check::new(id, title, why, check(observations)));
    machine.chain(agent).collect()
}
