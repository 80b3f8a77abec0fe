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

use std::time::Duration;

use crate::agent::AgentSettings;
use crate::clock::Clock;
use crate::commands::client::AgentTarget;
use observe::Observations;
pub use report::{Check, CheckStatus, DoctorReport};

/// Where to observe what.
#[derive(Clone, Debug)]
pub struct DoctorSettings {
    /// The agent there is checked, and not this machine.
    pub remote: Option<AgentTarget>,
    /// For the driver to be opened and to list its GPUs.
    pub driver_deadline: Duration,
    /// Those of this machine's agent.
    pub node: AgentSettings,
}

impl DoctorSettings {
    /// `None`: no admin socket is configured; only the listeners are queried.
    fn agent(&self) -> Option<AgentTarget> {
        self.remote.clone().or_else(|| self.node.admin_socket.clone().map(AgentTarget::Socket))
    }

    /// The target was given explicitly, so an agent is expected there.
    fn agent_is_named(&self) -> bool {
        self.remote.is_some() || self.node.admin_socket_required
    }
}

/// Observes everything concurrently, the driver last; ends within a minute whatever hangs.
pub async fn examine(settings: DoctorSettings, clock: Clock) -> DoctorReport {
    let observations = observe::observe(settings, clock).await;
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
