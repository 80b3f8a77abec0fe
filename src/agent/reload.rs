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
            Ok(mut reloadable) => {
                let files: Vec<_> = reloadable.files.iter().map(|file| file.path.display().to_string()).collect();
                tracing::info!(files = files.join(","), "configuration re-read");
                let plan_in_force = self.reloadable.borrow().device_plugin.clone();
                if plan_in_force.is_some() != reloadable.device_plugin.is_some() {
                    tracing::warn!("switching the device plugin on or off needs a restart of podmeter");
                    reloadable.device_plugin = plan_in_force;
                }
                if let (Some(plugin), Some(plan)) = (plugin, &reloadable.device_plugin) {
                    plugin.configure(plan);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::plugin::PluginPlan;

    #[test]
    fn a_plan_that_needs_a_restart_is_not_in_force() {
        let settings = |device_plugin: Option<PluginPlan>, seconds| Reloadable {
            refresh_interval: Duration::from_secs(seconds),
            retention: Duration::ZERO,
            series_limit: 0,
            log_level: String::new(),
            files: vec![],
            device_plugin,
        };
        let plan = Some(PluginPlan::default());
        for (running, new) in [(None, plan.clone()), (plan, None)] {
            let reread = settings(new, 2);
            let read = Box::new(move || Ok(reread.clone()));
            let mut config = ConfigReloader::new(settings(running.clone(), 1), read, Clock::start());
            config.reload(None);
            assert_eq!(*config.reloadable.borrow(), settings(running, 2));
        }
    }
}
