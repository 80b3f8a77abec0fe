//! Wiring and supervision: starts every module, connects them and ends them.
//!
//! In: validated settings. Out: a running node agent, or the reason why it ended. Deliberately unknown: how a module
//! does its work, and where settings come from.
//!
//! Small files connect one module each: `devices` the hardware threads, `journal` the snapshots with the journal's thread,
//! `governance` the record with the facts of this process, `listeners` the sockets. `probes` decides what `/-/healthy` and
//! `/-/ready` answer, `self_use` reads what this process uses, `signals` makes requests of the process's signals, `reload`
//! reads the settings again.

mod demo;
mod devices;
mod governance;
mod health;
mod journal;
mod listeners;
mod probes;
mod publisher;
mod reload;
mod self_use;
mod settings;
mod signals;

use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::clock::Clock;
use crate::domain::model::Snapshot;
use crate::domain::periods::STOP;
use crate::hardware::{Driver, XidSender};
use crate::journal::Journal;
use crate::kubelet;
use crate::kubelet::holders::HoldersInputs;
use crate::plugin;
use crate::processes::{self, ProcessesInputs};
use crate::serve::web::{self, BindError, Scrapes, ServerSettings, WatchedConfig, WebState};
use crate::tasks::{NoThread, TaskError, Tasks};

#[cfg(test)]
pub use crate::domain::health::DURATION as DURATION_PATTERN;
pub use crate::domain::health::HealthConfig;
pub use crate::domain::model::{HardwareSource, PodLabel, PodLabelError};
pub use crate::hardware::nvml::{LibrarySearch, end_process};
pub use crate::hardware::simulated::SimulatedProfile;
pub use crate::journal::{Bounds as JournalBounds, JournalSettings};
pub use crate::plugin::{EntryConfig, PluginConfig, PluginConfigError, PluginPlan, ProfileConfig};
pub use crate::serve::governance::{ReadFile, sha256};
pub use crate::serve::web::{GrafanaUrl, Limits as WebLimits, ListenAddress, WebConfig, WebConfigError};
pub use demo::{DemoError, DemoSettings, demo};
pub use settings::{AgentSettings, LogFormat, Reloadable};

use devices::Devices;
use health::FaultsFile;
use listeners::Bound;
use publisher::PublisherInputs;
use reload::ConfigReloader;
use signals::{SignalRequest, Signals};

/// Why the agent ended without a request.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    WebConfig(#[from] WebConfigError),
    #[error("signals cannot be received: {0}")]
    Signals(#[from] std::io::Error),
    #[error(transparent)]
    NoThread(#[from] NoThread),
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Reads the settings that a reload changes. The error names what is wrong with them.
pub type Reload = Box<dyn FnMut() -> Result<Reloadable, String> + Send>;

/// The number of log lines dropped so far. Called once for each snapshot.
pub type DroppedLogLines = Box<dyn Fn() -> u64 + Send + Sync>;

/// Called with the first address once every listener is bound.
pub type OnListening = Box<dyn FnOnce(&ListenAddress) + Send>;

/// Runs until SIGTERM or SIGINT. A second signal ends the process at once.
pub async fn run(settings: AgentSettings, reload: Reload, dropped_lines: DroppedLogLines) -> Result<(), AgentError> {
    let clock = Clock::start();
    let driver = settings.driver(clock);
    let setup = Setup { driver, clock, reload, dropped_lines };
    run_on(setup, settings, Box::new(|_| {}), &mut Tasks::default()).await
}

/// What the agent gets besides its settings: for `demo`, a simulated driver.
struct Setup {
    driver: Option<Box<dyn Driver>>,
    clock: Clock,
    reload: Reload,
    dropped_lines: DroppedLogLines,
}

/// Also ends when one of the `simulation`'s tasks does; they are left running.
async fn run_on(
    setup: Setup,
    settings: AgentSettings,
    opened: OnListening,
    simulation: &mut Tasks,
) -> Result<(), AgentError> {
    let mut signals = Signals::receive()?;
    let web_config = settings.web_config.as_deref().map(|file| WatchedConfig::load(file, setup.clock)).transpose()?;
    let bound = listeners::bind(&settings).await?;
    let web_threads = web::WebThreads::start()?;
    let mut agent = RunningAgent::start(setup, &settings, web_config.clone())?;
    bound.announce(web_config.as_ref().is_some_and(WatchedConfig::is_encrypted), opened);
    agent.serve(settings, bound, web_config, &web_threads);
    let outcome = agent.wait(&mut signals, simulation).await;
    agent.stop(outcome.is_ok(), &mut signals).await;
    outcome
}

/// The running modules that the agent reloads, watches and stops.
struct RunningAgent {
    clock: Clock,
    /// Aborted at the end.
    tasks: Tasks,
    /// Ends on request, once its requests are answered.
    web: Tasks,
    /// Ends on request, once its sockets are removed.
    plugin_task: Tasks,
    reloads: Arc<Notify>,
    reloadable: watch::Receiver<Reloadable>,
    devices: Devices,
    health: health::HealthHandle,
    journal: Option<Journal>,
    publisher: AbortHandle,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    scrapes: Scrapes,
}

impl RunningAgent {
    /// Each module gets what the modules before it publish.
    fn start(setup: Setup, settings: &AgentSettings, web_config: Option<WatchedConfig>) -> Result<Self, NoThread> {
        let Setup { driver, clock, reload, dropped_lines } = setup;
        let (mut tasks, web, mut plugin_task) = <(Tasks, Tasks, Tasks)>::default();
        let config = ConfigReloader::new(settings.reloadable.clone(), clock);
        let reloadable = || config.reloadable.subscribe();
        let faults_file = settings.faults_beside().map(FaultsFile::read);
        let faults = faults_file.as_ref().map(FaultsFile::faults).unwrap_or_default();
        let pods = kubelet::pods::start(settings.pods.clone(), clock, &mut tasks);
        let in_force = reloadable();
        let refresh_interval = Box::new(move || in_force.borrow().refresh_interval);
        let kubelet = kubelet::start(settings.kubelet.clone(), refresh_interval, pods.clone(), clock, &mut tasks);
        let served = faults.gpus.values().filter_map(|of_gpu| of_gpu.pci_bus_id.clone()).collect();
        let (xids, [health_xids, container_xids]) = XidSender::new();
        let devices = devices::start(driver, settings.devices.clone(), xids, clock, &mut tasks)?;
        let (publish_plugin, plugin_states) = watch::channel(Arc::default());
        let offered = reloadable();
        let inputs = HoldersInputs {
            hardware: devices.states.clone(),
            kubelet: kubelet.states.clone(),
            plugin: plugin_states.clone(),
            may_be_offered: Box::new(move |resource| offered.borrow().may_offer_gpus_as(resource)),
            served,
            demand: devices.held_demand(),
        };
        let holders = kubelet::holders::start(inputs, clock, &mut tasks);
        let inputs = health::HealthTaskInputs { holders: holders.clone(), xids: health_xids, faults };
        let health = health::start(settings.health.clone(), inputs, clock, &mut tasks);
        if let Some(file) = faults_file {
            file.start(health.faults.clone(), &mut tasks);
        }
        let plugin = settings.reloadable.device_plugin.clone().map(|plan| {
            let inputs = plugin::PluginInputs {
                holders: holders.clone(),
                health: health.states.clone(),
                allocated: kubelet.allocated.clone(),
                refresh_allocatable: kubelet.refresh_allocatable.clone(),
            };
            plugin::start(settings.plugin.clone(), plan, inputs, publish_plugin, clock, &mut plugin_task)
        });
        let (publish, snapshots) = watch::channel(Arc::<Snapshot>::default());
        let journal = journal::start(settings.journal.as_ref(), snapshots.clone(), clock, &mut tasks)?;
        health::start_condition_file(settings.condition_file.clone(), snapshots.clone(), clock, &mut tasks);
        let inputs = ProcessesInputs { holders, directory: pods.directory, logs: pods.logs };
        let owners = processes::start(settings.processes.clone(), inputs, clock, &mut tasks);
        let scrapes = Scrapes::default();
        let inputs = PublisherInputs {
            owners,
            health: health.states.clone(),
            plugin: plugin_states,
            xids: container_xids,
            reloadable: reloadable(),
            call_durations: devices.call_durations.clone(),
            dropped_lines,
            config_reload: config.outcome.subscribe(),
            web_config,
            journal: journal.as_ref().map(Journal::reader),
            scrapes: scrapes.clone(),
        };
        let publisher = publisher::start(settings, inputs, publish, clock, &mut tasks);
        let reloadable = reloadable();
        let reloads = config.start(reload, plugin, &mut tasks);
        Ok(Self {
            clock,
            tasks,
            web,
            plugin_task,
            reloads,
            reloadable,
            devices,
            health,
            journal,
            publisher,
            snapshots,
            scrapes,
        })
    }

    /// Serves the last snapshot, and the commands of the admin socket.
    fn serve(
        &mut self,
        settings: AgentSettings,
        bound: Bound,
        web_config: Option<WatchedConfig>,
        threads: &web::WebThreads,
    ) {
        let clock = self.clock;
        let (live, ready) = (self.snapshots.clone(), self.snapshots.clone());
        let (loading, demand) = (self.devices.loading(), self.devices.demand());
        let journal = self.journal.as_ref().map(Journal::reader);
        let server = ServerSettings {
            web_config: web_config.clone(),
            limits: settings.web_limits,
            awaited: bound.awaited.clone(),
        };
        let state = WebState {
            snapshots: self.snapshots.clone(),
            dcgm_generation: settings.dcgm_generation,
            grafana_url: settings.grafana_url.clone(),
            scrapes: self.scrapes.clone(),
            clock,
            healthy: Arc::new(move || {
                let now = clock.now().monotonic;
                probes::is_live(&live.borrow(), now)
                    .and_then(|()| loading.as_ref().map_or(Ok(()), |loading| loading.check(now)))
            }),
            ready: Arc::new(move || probes::is_ready(&ready.borrow())),
            governance: governance::source(settings, &bound, web_config, self.reloadable.clone(), clock),
            allocations: journal::allocations(journal, self.snapshots.clone(), clock),
            admin: web::Admin { driver: self.devices.driver_commands(), order: Arc::clone(&self.health.order) },
            watch: Arc::new(move |gpus| demand.as_ref().is_none_or(|demand| demand.watched(gpus))),
            streams: web::EventStreams::default(),
            cached_bodies: web::CachedBodies::default(),
        };
        let _on_its_threads = threads.enter();
        web::start(bound.listeners, state, server, &mut self.tasks, &mut self.web);
    }

    /// Reloads the configuration on request, until a signal ends the process or a task ends unexpectedly.
    async fn wait(&mut self, signals: &mut Signals, simulation: &mut Tasks) -> Result<(), AgentError> {
        loop {
            tokio::select! {
                ended = self.tasks.ended() => return Err(ended.into()),
                ended = self.web.ended() => return Err(ended.into()),
                ended = self.plugin_task.ended() => return Err(ended.into()),
                ended = simulation.ended() => return Err(ended.into()),
                request = signals.next() => match request {
                    SignalRequest::End => return Ok(()),
                    SignalRequest::Reload => self.reloads.notify_one(),
                },
            }
        }
    }

    /// Stops the modules within `STOP`. A second signal ends that at once. After an error the servers are not waited
    /// for. The driver is not closed: a wait for its events takes up to a second, and the end of the process closes it.
    async fn stop(mut self, orderly: bool, signals: &mut Signals) {
        tracing::info!("ending");
        // Closes the channel of the snapshots, with which `journal::follow` ends and drops its feed: `Journal::stop` waits
        // for that.
        self.publisher.abort();
        let journal = self.journal.map(|journal| tokio::task::spawn_blocking(move || journal.stop()));
        let ending = async {
            if orderly {
                finish_in_order(&mut self.web, &mut self.plugin_task).await;
            }
            self.web.abort().await;
            self.plugin_task.abort().await;
            if let Some(journal) = journal {
                let _ = journal.await;
            }
        };
        tokio::select! {
            () = ending => {}
            () = signals.end() => tracing::warn!("a second signal ended the process at once"),
            () = tokio::time::sleep(STOP) => tracing::warn!("requests under way did not finish in time"),
        }
    }
}

/// The plugin last, so that the node is without devices for as short a time as possible.
async fn finish_in_order(web: &mut Tasks, plugin: &mut Tasks) {
    web.stop();
    web.finish().await;
    plugin.stop();
    plugin.finish().await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_plugins_devices_are_withdrawn_once_the_web_requests_are_answered() {
        let (mut web, mut plugin) = <(Tasks, Tasks)>::default();
        let [answered, withdrawn_last] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (mut web_stops, mut plugin_stops) = (web.stopping(), plugin.stopping());
        let (request, withdrawal) = (Arc::clone(&answered), Arc::clone(&withdrawn_last));
        web.spawn("web", async move {
            let _ = web_stops.wait_for(|stop| *stop).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            request.store(true, Ordering::Relaxed);
        });
        plugin.spawn("plugin", async move {
            let _ = plugin_stops.wait_for(|stop| *stop).await;
            withdrawal.store(answered.load(Ordering::Relaxed), Ordering::Relaxed);
        });
        finish_in_order(&mut web, &mut plugin).await;
        assert!(withdrawn_last.load(Ordering::Relaxed), "the sockets are there while a request is under way");
    }
}
