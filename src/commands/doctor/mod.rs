//! `podmeter doctor`: checks once what the agent needs on a node, with remedies.
//!
//! Inputs: where the kubelet, the driver and the agent are. Output: a `DoctorReport`, one finding for each check. Does
//! not use: attribution, metrics, the web server. `observe` makes the `Observations`, each with a deadline; `machine` and
//! `agent` check them and do no I/O. The doctor changes nothing: it registers nothing, removes nothing, starts no
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

/// What to observe, and where.
#[derive(Clone, Debug)]
pub struct DoctorSettings {
    /// The agent to check instead of this machine.
    pub remote: Option<AgentTarget>,
    /// The limit for opening the driver and listing its GPUs.
    pub driver_deadline: Duration,
    /// The settings of this machine's agent.
    pub node: AgentSettings,
}

impl DoctorSettings {
    /// The agent to query; `None`: no admin socket is configured, and only the listeners are queried.
    fn agent(&self) -> Option<AgentTarget> {
        self.remote.clone().or_else(|| self.node.admin_socket.clone().map(AgentTarget::Socket))
    }

    /// Whether the target was given explicitly, so that an agent is expected there.
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
