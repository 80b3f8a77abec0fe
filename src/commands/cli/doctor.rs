//! `podmeter doctor`: its report on standard output.

use std::time::Duration;

use super::arguments::DoctorArguments;
use super::{FAILED, Failed, block_on, is_coloured, misused, print, settings, terminal_columns};
use crate::clock::Clock;
use crate::commands::doctor::{self, DoctorSettings};
use crate::words::counted;

/// Without persistence mode the driver takes seconds for each GPU.
const DRIVER_DEADLINE: Duration = Duration::from_secs(20);

/// Checks the node with the agent's settings, and a running agent where one answers.
pub(super) fn run(arguments: DoctorArguments) -> Result<(), Failed> {
    let DoctorArguments { remote, output, agent } = arguments;
    let node = settings::resolve(agent).map_err(misused)?.settings;
    let settings = DoctorSettings { remote: remote.target()?, driver_deadline: DRIVER_DEADLINE, node };
    let report = block_on(doctor::examine(settings, Clock::start()))?;
    print(&match &*output {
        "json" => report.json(),
        _ => report.text(is_coloured(), terminal_columns().unwrap_or(80)),
    })?;
    if report.is_ok() {
        Ok(())
    } else {
        Err(Failed(FAILED, format!("{} of {} failed", report.failed, counted(report.checks.len(), "check"))))
    }
}
