//! Reloading: reads the settings again and publishes those that may change while running.

use tokio::sync::watch;

use super::Reload;
use super::settings::Reloadable;
use crate::clock::Clock;
use crate::domain::model::ConfigReload;
use crate::node::plugin;

/// The settings that a reload changes, and the outcome of the last reload.
pub struct ConfigReloader {
    read: Reload,
    clock: Clock,
    pub reloadable: watch::Sender<Reloadable>,
    pub outcome: watch::Sender<ConfigReload>,
}

impl ConfigReloader {
    pub fn new(loaded: Reloadable, read: Reload, clock: Clock) -> Self {
        let outcome = ConfigReload { successful: true, last_success: clock.now().unix };
        Self { read, clock, reloadable: watch::Sender::new(loaded), outcome: watch::Sender::new(outcome) }
    }

    /// Reads the settings again. Settings with an error change nothing.
    pub fn reload(&mut self, plugin: Option<&plugin::PluginHandle>) {
        match (self.read)() {
            Ok(reloadable) => {
                let files: Vec<_> = reloadable.files.iter().map(|file| file.path.display().to_string()).collect();
                tracing::info!(files = files.join(","), "configuration re-read");
                match (plugin, &reloadable.device_plugin) {
                    (Some(plugin), Some(plan)) => plugin.configure(plan),
                    (None, None) => {}
                    _ => tracing::warn!("switching the device plugin on or off needs a restart of podmeter"),
                }
                self.reloadable.send_replace(reloadable);
                self.outcome.send_replace(ConfigReload { successful: true, last_success: self.clock.now().unix });
            }
            Err(problem) => {
                tracing::error!(%problem, "configuration not re-read: the old one stays in force");
                self.outcome.send_modify(|outcome| outcome.successful = false);
            }
        }
    }
}
