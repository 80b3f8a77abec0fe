//! `podmeter doctor`: the doctor's settings from those of the agent, and its report on standard output.

use std::time::Duration;

use super::arguments::DoctorArguments;
use super::{FAILED, Failed, block_on, is_coloured, misused, print, settings, terminal_columns};
use crate::agent::AgentSettings;
use crate::clock::Clock;
use crate::commands::client::AgentTarget;
use crate::commands::doctor::{self, DoctorSettings};
use crate::domain::model::HardwareSource;

/// Without persistence mode the driver takes seconds for each GPU.
const DRIVER_DEADLINE: Duration = Duration::from_secs(20);

/// Checks the node with the agent's settings, and a running agent where one answers.
pub(super) fn run(arguments: DoctorArguments) -> Result<(), Failed> {
    let DoctorArguments { remote, output, agent } = arguments;
    let settings = settings::resolve(agent).map_err(misused)?.settings;
    let clock = Clock::start();
    let driver = (settings.hardware == HardwareSource::Nvml).then(|| settings.driver(clock)).flatten();
    let report = block_on(doctor::examine(settings_of(settings, remote.target()?), driver, clock))?;
    print(&match &*output {
        "json" => report.json(),
        _ => report.text(is_coloured(), terminal_columns().unwrap_or(80)),
    })?;
    if report.is_ok() {
        Ok(())
    } else {
        Err(Failed(FAILED, format!("{} of {} checks failed", report.failed, report.checks.len())))
    }
}

/// `remote`: check the agent there, and not this machine.
fn settings_of(agent: AgentSettings, remote: Option<AgentTarget>) -> DoctorSettings {
    DoctorSettings {
        only_agent: remote.is_some(),
        agent_is_named: remote.is_some() || agent.admin_socket_required,
        listeners: agent.listen.iter().filter_map(|address| AgentTarget::of_listener(&address.to_string())).collect(),
        claim_directories: agent.claim_directories,
        attribution: agent.processes.mode,
        agent: remote.or_else(|| agent.admin_socket.map(AgentTarget::Socket)),
        pod_resources_socket: agent.pod_resources_socket,
        device_plugin_directory: agent.device_plugin_directory,
        pods_api_socket: agent.pods_api.socket,
        kubelet_deadline: agent.kubelet_deadline,
        driver_deadline: DRIVER_DEADLINE,
        hardware: agent.hardware,
        plan: agent.reloadable.device_plugin,
        node_name: agent.node_name,
        proc_root: agent.proc_root,
        sys_root: agent.sys_root,
        ignored_gpus: agent.ignored_gpus,
        pod_logs_root: agent.processes.pod_logs_root,
    }
}
