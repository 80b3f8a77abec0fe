//! The governance record's wiring: the facts of this process at the moment of a request.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use super::listeners::Bound;
use super::settings::{AgentSettings, Reloadable};
use crate::clock::Clock;
use crate::domain::health::Recovery;
use crate::kubelet::KubeletSettings;
use crate::plugin::PluginSettings;
use crate::serve::governance::{self, ConfigurationDigests, Deployment, GovernanceFacts, ListenerSummary, sha256};
use crate::serve::web::{GovernanceRequest, GovernanceSource, ListenAddress, Purpose, WatchedConfig};

/// Writes the governance record of a snapshot, with the facts of this process at that moment.
pub fn source(
    settings: AgentSettings,
    bound: &Bound,
    web_config: Option<WatchedConfig>,
    reloadable: watch::Receiver<Reloadable>,
    clock: Clock,
) -> GovernanceSource {
    let listeners = bound.listeners.iter().map(|listener| (listener.address.clone(), listener.purpose));
    // Served once the process that listens there has ended.
    let awaited = bound.awaited.iter().map(|address| (address.clone(), Purpose::Admin));
    let listeners: Vec<(ListenAddress, Purpose)> = listeners.chain(awaited).collect();
    let deployment = deployment(|name| std::env::var(name).ok());
    Arc::new(move |snapshot, GovernanceRequest { yaml, is_admin }| {
        // A reload may add TLS or passwords.
        let is_guarded = web_config.as_ref().is_some_and(WatchedConfig::is_guarded);
        let facts = GovernanceFacts {
            at: clock.now(),
            deployment: deployment.clone(),
            configuration: configuration(&settings, &reloadable.borrow()),
            listeners: listeners.iter().map(|(address, purpose)| summary(address, *purpose, is_guarded)).collect(),
            recovery: if settings.health.recovery == Recovery::Auto { "auto" } else { "manual" },
            hold_down: settings.health.hold_down,
            process: governance::read_own_process(Path::new("/proc/self")),
            with_serials: is_admin,
        };
        governance::write(&governance::record(snapshot, &facts), yaml)
    })
}

/// `is_guarded`: by the web configuration, where that applies.
fn summary(address: &ListenAddress, purpose: Purpose, is_guarded: bool) -> ListenerSummary {
    ListenerSummary {
        address: address.to_string(),
        admin: purpose == Purpose::Admin,
        probes: purpose == Purpose::Probes,
        guarded: is_guarded && purpose == Purpose::Public,
    }
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
    let plugin = PluginSettings { node_name: String::new(), ..settings.plugin.clone() };
    let kubelet = KubeletSettings { node_name: String::new(), ..settings.kubelet.clone() };
    let in_force = AgentSettings { node_name: String::new(), kubelet, plugin, reloadable, ..settings.clone() };
    ConfigurationDigests { settings_sha256: sha256(format!("{in_force:?}").as_bytes()), files }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_configuration_of_headers_alone_guards_no_listener() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let is_guarded = |text: &str, purpose: Purpose| {
            std::fs::write(file.path(), text).unwrap();
            let config = WatchedConfig::load(file.path(), Clock::start()).unwrap();
            summary(&"127.0.0.1:9410".parse().unwrap(), purpose, config.is_guarded()).guarded
        };
        let users = format!("basic_auth_users: {{alice: $2b$04${}}}", ".".repeat(53));
        assert!(!is_guarded("http_server_config: {headers: {X-Frame-Options: deny}}", Purpose::Public));
        assert!(is_guarded(&users, Purpose::Public));
        assert!(!is_guarded(&users, Purpose::Probes) && !is_guarded(&users, Purpose::Admin));
    }

    #[test]
    fn an_empty_or_missing_variable_is_absent() {
        assert_eq!(deployment(|_| None), Deployment::default());
        let deployment = deployment(|name| {
            Some(if name == "PODMETER_IMAGE" { "example.com/podmeter:1".into() } else { String::new() })
        });
        assert_eq!(deployment, Deployment { image: Some("example.com/podmeter:1".into()), ..Deployment::default() });
    }
}
