//! The governance record's wiring: the facts of this process at the moment of a request.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use super::listeners::Bound;
use super::settings::{AgentSettings, Reloadable};
use crate::clock::Clock;
use crate::domain::health::Recovery;
use crate::serve::governance::{self, ConfigurationDigests, Deployment, GovernanceFacts, ListenerSummary, sha256};
use crate::serve::web::{self, GovernanceSource, Purpose};

/// Writes the governance record of a snapshot, with the facts of this process at that moment.
pub fn source(
    settings: AgentSettings,
    bound: &Bound,
    reloadable: watch::Receiver<Reloadable>,
    clock: Clock,
) -> GovernanceSource {
    let (mut addresses, mut admin) = (vec![], vec![]);
    for listener in &bound.listeners {
        let (address, purpose) = (listener.address().to_string(), listener.purpose());
        let (private, probes) = (purpose == Purpose::Private, purpose == Purpose::Probes);
        let guarded = settings.web_config.is_some() && purpose == Purpose::Pages;
        let kind = if private { &mut admin } else { &mut addresses };
        kind.push(ListenerSummary { address, admin: private, probes, guarded });
    }
    // Served once the process that listens there has ended.
    if let Some(path) = &bound.awaited {
        let address = web::ListenAddress::Unix(path.clone()).to_string();
        admin.push(ListenerSummary { address, admin: true, probes: false, guarded: false });
    }
    let marks = !admin.is_empty();
    addresses.extend(admin);
    let deployment = deployment(|name| std::env::var(name).ok());
    Arc::new(move |snapshot, web::GovernanceRequest { yaml, private }| {
        let facts = GovernanceFacts {
            at: clock.now(),
            deployment: deployment.clone(),
            configuration: configuration(&settings, &reloadable.borrow()),
            listeners: addresses.clone(),
            marks,
            recovery: if settings.health.recovery == Recovery::Auto { "auto" } else { "manual" },
            hold_down: settings.health.hold_down,
            process: governance::read_own_process(Path::new("/proc/self")),
            with_serials: private,
        };
        governance::write(&governance::record(snapshot, &facts), yaml)
    })
}

/// From the environment variables that the chart sets.
fn deployment(variable: impl Fn(&str) -> Option<String>) -> Deployment {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    Deployment {
        image: set("PODMETER_IMAGE"),
        namespace: set("PODMETER_POD_NAMESPACE"),
        pod: set("PODMETER_POD_NAME"),
        update_strategy: set("PODMETER_UPDATE_STRATEGY"),
    }
}

/// The settings in force: those of the start, with the ones that were reloaded since. Without the node's name, so that
/// nodes with equal settings have equal digests.
fn configuration(settings: &AgentSettings, reloadable: &Reloadable) -> ConfigurationDigests {
    let files = reloadable.files.clone();
    let reloadable = Reloadable { files: vec![], ..reloadable.clone() };
    let in_force = AgentSettings { node_name: String::new(), reloadable, ..settings.clone() };
    ConfigurationDigests { settings_sha256: sha256(format!("{in_force:?}").as_bytes()), files }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_or_missing_variable_is_absent() {
        assert_eq!(deployment(|_| None), Deployment::default());
        let deployment = deployment(|name| {
            Some(if name == "PODMETER_IMAGE" { "example.com/podmeter:1".into() } else { String::new() })
        });
        assert_eq!(deployment, Deployment { image: Some("example.com/podmeter:1".into()), ..Deployment::default() });
    }
}
