use tokio::sync::watch;

use super::Reload;
use super::settings::Reloadable;
use crate::clock::Clock;
use crate::model::ConfigReload;
use crate::plugin;

/// The settings that a reload changes, and the outcome of the last reload.
pub struct Configuration {
    read: Reload,
    clock: Clock,
    reloadable: watch::Sender<Reloadable>,
    outcome: watch::Sender<ConfigReload>,
}

impl Configuration {
    pub fn new(loaded: Reloadable, read: Reload, clock: Clock) -> Self {
        let outcome = ConfigReload { successful: true, last_success: clock.now().unix };
        Self { read, clock, reloadable: watch::Sender::new(loaded), outcome: watch::Sender::new(outcome) }
    }

    pub fn reloadable(&self) -> watch::Receiver<Reloadable> {
        self.reloadable.subscribe()
    }

    pub fn outcome(&self) -> watch::Receiver<ConfigReload> {
        self.outcome.subscribe()
    }

    /// Reads the settings again. Settings with an error change nothing.
    pub fn reload(&mut self, plugin: Option<&plugin::Handle>) {
        match (self.read)() {
            Ok(reloadable) => {
                log_reloaded(&reloadable);
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

fn log_reloaded(reloadable: &Reloadable) {
    let Reloadable { refresh_interval, retention, series_limit, nvlink_links, log_level, files, device_plugin } =
        reloadable;
    let (refresh_interval, retention) =
        (humantime::format_duration(*refresh_interval), humantime::format_duration(*retention));
    let files: Vec<_> = files.iter().map(|file| file.path.display().to_string()).collect();
    tracing::info!(
        %refresh_interval,
        %retention,
        series_limit,
        nvlink_links,
        log_level,
        files = files.join(","),
        resource_entries = device_plugin.as_ref().map_or(0, |plan| plan.common.len()),
        profiles = device_plugin.as_ref().map_or(0, |plan| plan.profiles.len()),
        "configuration re-read"
    );
}
