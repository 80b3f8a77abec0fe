//! Reloading: reads the settings again and publishes those that may change while running.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::Reload;
use super::settings::Reloadable;
use crate::clock::Clock;
use crate::domain::model::ConfigReload;
use crate::plugin::PluginHandle;
use crate::tasks::{self, Tasks};

/// The settings that a reload changes, and the outcome of the last reload.
pub struct ConfigReloader {
    clock: Clock,
    pub reloadable: watch::Sender<Reloadable>,
    pub outcome: watch::Sender<ConfigReload>,
}

impl ConfigReloader {
    pub fn new(loaded: Reloadable, clock: Clock) -> Self {
        let outcome = ConfigReload { successful: true, last_success: clock.now().unix };
        Self { clock, reloadable: watch::Sender::new(loaded), outcome: watch::Sender::new(outcome) }
    }

    /// Reads the settings again, on a blocking thread, whenever the returned value is notified.
    pub fn start(self, read: Reload, plugin: Option<PluginHandle>, tasks: &mut Tasks) -> Arc<Notify> {
        let requests = Arc::new(Notify::new());
        tasks.spawn("configuration", self.follow(read, plugin, Arc::clone(&requests)));
        requests
    }

    /// Ends early only after a panic.
    async fn follow(self, mut read: Reload, plugin: Option<PluginHandle>, requests: Arc<Notify>) {
        loop {
            requests.notified().await;
            let reading = move || {
                let reread = read();
                (read, reread)
            };
            let late = || {
                let problem = "reading its files has hung for 10 s, and goes on: check their file system";
                self.apply(Err(problem.to_owned()), None);
            };
            let done = tasks::blocking(reading, late)
                .await
                .inspect_err(|error| tracing::error!(%error, "reading the configuration panicked"));
            let Ok((returned, reread)) = done else { return };
            read = returned;
            self.apply(reread, plugin.as_ref());
        }
    }

    /// Settings with an error change nothing.
    fn apply(&self, reread: Result<Reloadable, String>, plugin: Option<&PluginHandle>) {
        match reread {
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
                tracing::error!(%problem, "configuration rejected: the previous one remains in use");
                self.outcome.send_modify(|outcome| outcome.successful = false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plugin::PluginPlan;

    fn settings(device_plugin: Option<PluginPlan>, seconds: u64) -> Reloadable {
        Reloadable {
            refresh_interval: Duration::from_secs(seconds),
            retention: Duration::ZERO,
            series_limit: 0,
            log_level: String::new(),
            files: vec![],
            device_plugin,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_system_that_hangs_is_a_failure_until_it_answers() {
        let (answer, hangs) = std::sync::mpsc::channel();
        let config = ConfigReloader::new(settings(None, 1), Clock::start());
        let (mut outcome, reloadable) = (config.outcome.subscribe(), config.reloadable.subscribe());
        let mut tasks = Tasks::default();
        config.start(Box::new(move || Ok(hangs.recv().unwrap())), None, &mut tasks).notify_one();
        while outcome.borrow().successful {
            tokio::task::yield_now().await;
            tokio::time::advance(tasks::LATE).await;
        }
        answer.send(settings(None, 2)).unwrap();
        outcome.wait_for(|outcome| outcome.successful).await.unwrap();
        assert_eq!(*reloadable.borrow(), settings(None, 2));
        tasks.abort().await;
    }

    #[test]
    fn a_plan_that_needs_a_restart_is_not_in_force() {
        let plan = Some(PluginPlan::default());
        for (running, new) in [(None, plan.clone()), (plan, None)] {
            let reread = settings(new, 2);
            let config = ConfigReloader::new(settings(running.clone(), 1), Clock::start());
            config.apply(Ok(reread), None);
            assert_eq!(*config.reloadable.borrow(), settings(running, 2));
        }
    }
}
