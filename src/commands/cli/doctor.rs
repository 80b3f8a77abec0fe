//! `podmeter doctor`: its reports on standard output.

use std::time::Duration;

use super::arguments::DoctorArguments;
use super::{Failed, block_on, failed, is_coloured, misused, print, settings, terminal_columns};
use crate::clock::Clock;
use crate::commands::client::{self, AgentTarget};
use crate::commands::doctor::{self, DoctorSettings};
use crate::words::counted;

/// Without persistence mode the driver takes seconds for each GPU.
const DRIVER_DEADLINE: Duration = Duration::from_secs(20);

/// Checks the node with the agent's settings, and a running agent where one answers; or the agents at a URL.
pub(super) fn run(arguments: DoctorArguments) -> Result<(), Failed> {
    let DoctorArguments { remote, each_address, output, agent } = arguments;
    let node = settings::resolve(agent).map_err(misused)?.settings;
    let targets = match remote.target()? {
        Some(AgentTarget::Url(url)) if each_address => {
            let urls = block_on(client::at_each_address(&url))?.map_err(failed)?;
            urls.into_iter().map(|url| Some(AgentTarget::Url(url))).collect()
        }
        target => vec![target],
    };
    let (mut failed_checks, mut checks) = (0, 0);
    for remote in targets {
        let settings = DoctorSettings { remote, driver_deadline: DRIVER_DEADLINE, node: node.clone() };
        let report = block_on(doctor::examine(settings, Clock::start()))?;
        print(&match &*output {
            "json" => report.json(),
            _ => report.text(is_coloured(), terminal_columns().unwrap_or(80)),
        })?;
        (failed_checks, checks) = (failed_checks + report.failed, checks + report.checks.len());
    }
    if failed_checks == 0 {
        Ok(())
    } else {
        Err(failed(format_args!("{failed_checks} of {} failed", counted(checks, "check"))))
    }
}
