//! Wiring and supervision: the only room that knows all others.
//!
//! In: validated settings. Out: a running node agent, or the reason why it ended. Refuses to know: how any room does its
//! work, and where settings come from.

mod demo;
mod descriptors;
mod governance;
mod health_task;
mod journal;
mod missing;
pub mod owners;
mod probe;
mod publisher;
mod self_use;
mod settings;
mod xids;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinSet};

use crate::clock::Clock;
use crate::hardware::{self, DriverLease, Hardware, nvml};
use crate::journal::Journal;
use crate::kubelet::{self, PodSources};
use crate::metrics::Pages;
use crate::model::{ConfigReload, HardwareState, HealthState, PluginState, Snapshot};
use crate::web::{self, BindError, Listener, LiveConfig, ScrapeDurations, ServerSettings, WebState};
use crate::{doctor, plugin, processes, threads};

pub use crate::client::{HttpUrl, Target, get};
pub use crate::doctor::Report;
pub use crate::governance::{ReadFile, sha256};
pub use crate::hardware::nvml::{LibrarySearch, end_process, is_present as driver_is_present};
pub use crate::hardware::simulated::Profile;
pub use crate::health::Config as HealthConfig;
pub use crate::journal::{Bounds as JournalBounds, Settings as JournalSettings, Size};
pub use crate::model::{PodLabel, PodLabelError};
pub use crate::plugin::{Config as PluginConfig, ConfigError as PluginConfigError, ResourceConfig};
pub use crate::web::{Limits as WebLimits, ListenAddress, WebConfig, WebConfigError};
pub use demo::{DemoError, DemoSettings, demo};
pub use probe::{Probe, probe_nvml};
pub use settings::{HardwareSource, LogFormat, ProcessAttribution, Reloadable, Settings};

use health_task::Judge;
use publisher::{Publisher, Pulse};

/// After a first signal: the promise is to be gone within five seconds.
const GRACE: Duration = Duration::from_millis(4200);

/// Why the agent ended, other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    WebConfig(#[from] WebConfigError),
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    #[error("the web server ended: {0}")]
    Web(std::io::Error),
    #[error("the {0} task ended, which it never should; the log above says why")]
    TaskEnded(&'static str),
    #[error("a task broke, which none ever should: {0}; please report this")]
    TaskBroke(JoinError),
}

/// Re-reads the settings that may change while running; the error says what is wrong with them.
pub type Reload = Box<dyn FnMut() -> Result<Reloadable, String> + Send>;

/// Log lines dropped so far. Called once for each snapshot.
pub type DroppedLogLines = Box<dyn Fn() -> u64 + Send + Sync>;

/// Told of the first address, once everything listens.
pub type Opened = Box<dyn FnOnce(&ListenAddress) + Send>;

/// Runs until SIGTERM or SIGINT. A second signal ends the process at once.
pub async fn run(settings: Settings, reload: Reload, dropped_lines: DroppedLogLines) -> Result<(), AgentError> {
    let clock = Clock::start();
    let driver = settings.driver(clock);
    run_on(driver, settings, reload, clock, dropped_lines, Box::new(|_| {})).await
}

/// Looks at everything that the agent needs, with these settings, and at the agent itself where one answers.
pub async fn examine(settings: Settings, url: Option<HttpUrl>) -> Report {
    let clock = Clock::start();
    let driver = (settings.hardware == HardwareSource::Nvml).then(|| settings.driver_to_examine(clock)).flatten();
    doctor::examine(settings.doctor_settings(url), driver, clock).await
}

async fn run_on(
    driver: Option<Box<dyn hardware::Driver>>,
    settings: Settings,
    mut reload: Reload,
    clock: Clock,
    dropped_lines: DroppedLogLines,
    opened: Opened,
) -> Result<(), AgentError> {
    let mut signals = Signals::receive()?;
    let descriptor_limit = descriptors::raise_limit();
    let web_config = settings.web_config.as_deref().map(|file| LiveConfig::load(file, clock)).transpose()?;
    let Bound { listeners, awaited } = bind(&settings).await?;

    let call_durations = driver.as_ref().and_then(|driver| driver.call_durations());
    let mut devices = driver.map(|driver| hardware::start(driver, settings.hardware_settings(), clock));
    let (_no_devices, nothing) = watch::channel(Arc::new(HardwareState { source: "none", ..HardwareState::default() }));
    let (publish_kubelet, kubelet_states) = watch::channel(Arc::default());
    let (publish, snapshots) = watch::channel(Arc::<Snapshot>::default());
    let (live, reloadable) = watch::channel(settings.reloadable.clone());
    let loaded = ConfigReload { successful: true, last_success: clock.now().unix };
    let (reloads, config_reload) = watch::channel(Some(loaded));
    let (pulse, scrapes) = (Pulse::default(), ScrapeDurations::default());

    let driver_states = devices.as_ref().map_or(nothing, Hardware::watch);
    let (publish_hardware, hardware_states) = watch::channel(driver_states.borrow().clone());
    let (allocated, look) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (publish_pods, pod_directories) = watch::channel(Arc::default());
    let (publish_processes, process_states) = watch::channel(Arc::default());
    let pod_sources = PodSources { directory: pod_directories.clone(), processes: process_states.clone() };
    let kubelet_settings =
        settings.kubelet_settings(reloadable.clone(), Arc::clone(&allocated), Arc::clone(&look), pod_sources);
    let (stop_plugin, plugin_stops) = watch::channel(false);
    let (publish_plugin, plugin_states) = watch::channel(Arc::<PluginState>::default());

    let (publish_health, health_states) = watch::channel(Arc::<HealthState>::default());
    let heard = devices.as_mut().and_then(Hardware::xids);
    let (operator, orders) = health_task::operator();
    let journal = journal::start(settings.journal.as_ref(), clock);
    let journal_reader = journal.as_ref().map(Journal::reader);

    let mut tasks = JoinSet::new();
    tasks.spawn(named(
        "hardware",
        missing::complete(missing::Watch {
            hardware: driver_states,
            kubelet: kubelet_states.clone(),
            reloadable: reloadable.clone(),
            clock,
            publish: publish_hardware,
        }),
    ));
    let (mut xids, mut attributed_xids) = (None, None);
    if let Some(heard) = heard {
        let (hand_out, judged, attributed) = xids::for_two(heard);
        tasks.spawn(named("XID", hand_out));
        (xids, attributed_xids) = (Some(judged), Some(attributed));
    }
    // Apart from the other tasks: it ends when it is told to, once its sockets are gone.
    let mut plugin_task = JoinSet::new();
    let mut offered = None;
    if let Some(settings) = settings.plugin_settings() {
        let (hardware, kubelet) = (hardware_states.clone(), kubelet_states.clone());
        let health = health_states.clone();
        let neighbours = plugin::Neighbours { hardware, health, kubelet, allocated, look };
        let configured = settings.resources.clone();
        let (resources, resource_states) = watch::channel(configured);
        let run = plugin::run_reloading(settings, resource_states, clock, neighbours, publish_plugin, plugin_stops);
        plugin_task.spawn(run);
        offered = Some(resources);
    }
    tasks.spawn(named("kubelet", kubelet::run(kubelet_settings, clock, publish_kubelet)));
    let judge = Judge {
        config: settings.health.clone(),
        clock,
        hardware: hardware_states.clone(),
        xids,
        orders,
        snapshots: snapshots.clone(),
        publish: publish_health,
    };
    tasks.spawn(named("health", judge.run()));
    tasks.spawn(named("Pods API", kubelet::pods::watch(settings.pods_settings(), publish_pods)));
    let (wanted, wanted_processes) = watch::channel(Arc::default());
    let processes_settings = settings.processes_settings();
    tasks.spawn(named(
        "processes",
        processes::run(processes_settings, clock, wanted_processes, pod_directories, publish_processes),
    ));
    let reloadable_for_record = reloadable.clone();
    if let Some(journal) = &journal {
        tasks.spawn(named("journal", journal::follow(journal.watcher(), snapshots.clone())));
    }
    let publisher = Publisher {
        clock,
        node_name: settings.node_name.as_str().into(),
        sample_interval: settings.sample_interval,
        hardware: hardware_states,
        kubelet: kubelet_states,
        health: health_states,
        plugin: (!plugin_task.is_empty()).then_some(plugin_states),
        wanted,
        processes: process_states,
        xids: attributed_xids,
        health_config: settings.health.clone(),
        call_durations,
        dropped_lines,
        reloadable,
        config_reload,
        web_config: web_config.clone(),
        journal: journal_reader.clone(),
        scrapes: scrapes.clone(),
        publish,
        pulse: pulse.clone(),
    };
    let publishing = tasks.spawn(named("publisher", publisher.run()));
    tasks.spawn(named("threads", keep_threads()));

    let ready_snapshots = snapshots.clone();
    let allocations = journal::allocations(journal_reader, snapshots.clone(), clock);
    let state = WebState {
        snapshots,
        pages: Arc::new(Pages::default()),
        scrapes,
        clock,
        healthy: Arc::new(move || pulse.feel(clock.now().monotonic)),
        ready: Arc::new(move || ready(&ready_snapshots.borrow())),
        record: governance::source(&settings, &listeners, awaited.as_deref(), reloadable_for_record, clock),
        allocations,
        admin: web::Admin {
            driver: devices.as_ref().map(|devices| driver_orders(&devices.lease())),
            mark: health_task::marker(operator, clock),
        },
        live: web::Live::default(),
        answers: web::Answers::default(),
    };
    tasks.spawn(named("live page", web::follow(state.clone())));
    let encrypted = web_config.as_ref().is_some_and(LiveConfig::is_encrypted);
    for listener in &listeners {
        match listener.address() {
            ListenAddress::Tcp(address) if listener.serves_pages() => {
                let scheme = if encrypted { "https" } else { "http" };
                tracing::info!(page = %format_args!("{scheme}://{address}/"), %address, "listening");
            }
            address => tracing::info!(%address, "listening"),
        }
    }
    if let Some(first) = listeners.first() {
        opened(&first.address());
    }
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = ServerSettings { web_config, limits: settings.web_limits, descriptor_limit, awaited };
    let serving = web::serve(listeners, state, server, async move { drop(stopped.await) });
    tokio::pin!(serving);

    let outcome = loop {
        tokio::select! {
            served = &mut serving => break served.map_err(AgentError::Web),
            Some(ended) = tasks.join_next() => break Err(match ended {
                Ok(name) => AgentError::TaskEnded(name),
                Err(error) => AgentError::TaskBroke(error),
            }),
            Some(ended) = plugin_task.join_next() => break Err(plugin_ended(ended)),
            asked = signals.next() => match asked {
                Asked::ToEnd => break Ok(()),
                Asked::ToReload => apply(reload(), &live, offered.as_ref(), &reloads, clock),
            },
        }
    };
    tracing::info!("ending");
    drop(stop);
    stop_plugin.send_replace(true);
    // It would tell of devices that grow old.
    publishing.abort();
    let ending = async {
        let threads = devices.map(|devices| tokio::task::spawn_blocking(move || devices.stop()));
        if outcome.is_ok() {
            // The listeners and the plugin's sockets are closed; requests under way finish.
            let _ = tokio::join!(serving, plugin_task.join_next());
        }
        tasks.shutdown().await;
        plugin_task.shutdown().await;
        if let Some(journal) = journal {
            let _ = tokio::task::spawn_blocking(move || journal.stop()).await;
        }
        if let Some(threads) = threads {
            let _ = threads.await;
        }
    };
    tokio::select! {
        () = ending => {}
        () = signals.end() => tracing::warn!("ended at once, as asked"),
        () = tokio::time::sleep(GRACE) => tracing::warn!("requests or device calls under way did not finish in time"),
    }
    outcome
}

/// For each thread of the runtime, so that the driver library may hang while it is loaded.
pub fn prepare_thread() {
    threads::prepare();
    web::prepare_thread();
}

/// Keeps the runtime's blocking threads while the driver library is being loaded: no further one starts meanwhile.
async fn keep_threads() {
    loop {
        tokio::time::sleep(threads::KEEP).await;
        if nvml::is_loading() {
            drop(threads::keep_blocking(&tokio::runtime::Handle::current()));
        }
    }
}

fn plugin_ended(ended: Result<(), JoinError>) -> AgentError {
    ended.map_or_else(AgentError::TaskBroke, |()| AgentError::TaskEnded("device plugin"))
}

/// The admin socket's orders to the hardware room.
fn driver_orders(lease: &DriverLease) -> web::DriverOrders {
    let (releases, resumes) = (lease.clone(), lease.clone());
    web::DriverOrders {
        release: Arc::new(move |duration| {
            let lease = releases.clone();
            Box::pin(async move { lease.release(duration).await.map_err(|problem| problem.to_string()) })
        }),
        resume: Arc::new(move |()| {
            let lease = resumes.clone();
            Box::pin(async move { lease.resume().await.map_err(|problem| problem.to_string()) })
        }),
    }
}

async fn named(name: &'static str, task: impl Future<Output = ()>) -> &'static str {
    task.await;
    name
}

struct Bound {
    listeners: Vec<Listener>,
    /// The admin socket, where another process listens on it: mostly the agent that this one follows in a rolling update.
    awaited: Option<PathBuf>,
}

async fn bind(settings: &Settings) -> Result<Bound, AgentError> {
    let (mut listeners, mut awaited) = (vec![], None);
    for address in &settings.listen {
        listeners.push(Listener::bind(address).await?);
    }
    if let Some(address) = &settings.probe_listen {
        listeners.push(Listener::bind_probes(address).await?);
    }
    if let Some(path) = &settings.admin_socket {
        match Listener::bind_private(path).await {
            Ok(listener) => listeners.push(listener),
            Err(BindError::InUse { path }) => {
                tracing::warn!(
                    path = %path.display(),
                    "another process listens on the admin socket: waiting until it has ended; local commands reach it \
                     until then"
                );
                awaited = Some(path);
            }
            Err(error) if settings.admin_socket_required => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "no admin socket; local commands need --url"),
        }
    }
    Ok(Bound { listeners, awaited })
}

/// `Err` with what is still waited for.
fn ready(snapshot: &Snapshot) -> Result<(), String> {
    let kubelet = &snapshot.kubelet;
    if kubelet.allocations.is_none() && kubelet.problem.is_none() {
        return Err("the kubelet has not been asked yet".into());
    }
    let devices = &snapshot.hardware;
    if devices.source != "none" && devices.inventory.generation == 0 && devices.problem.is_none() {
        return Err("the devices have not been read yet".into());
    }
    let Some(plugin) = &snapshot.plugin else { return Ok(()) };
    if !plugin.checked {
        return Err("the device plugin has not looked at the devices yet".into());
    }
    // Once is enough: a kubelet that restarts later is no reason to take this node's metrics away.
    let waiting = plugin
        .resources
        .iter()
        .find(|(_, state)| state.registrations == 0 && state.conflict.is_none() && state.ended.is_none());
    match waiting {
        None => Ok(()),
        Some((resource, state)) => {
            let problem = state.problem.as_deref().unwrap_or("the kubelet has not been asked yet");
            Err(format!("{resource} is not registered with the kubelet: {problem}"))
        }
    }
}

fn apply(
    read: Result<Reloadable, String>,
    live: &watch::Sender<Reloadable>,
    offered: Option<&watch::Sender<Vec<ResourceConfig>>>,
    reloads: &watch::Sender<Option<ConfigReload>>,
    clock: Clock,
) {
    let now = clock.now().unix;
    let last = reloads.borrow().map_or(now, |reload| reload.last_success);
    match read {
        Ok(reloadable) => {
            log_reloaded(&reloadable);
            match (offered, &reloadable.device_plugin) {
                (Some(offered), Some(resources)) => {
                    offered.send_if_modified(|offered| {
                        let changed = offered != resources;
                        offered.clone_from(resources);
                        changed
                    });
                }
                (None, None) => {}
                _ => tracing::warn!("the device plugin is switched on and off by a restart of podmeter only"),
            }
            live.send_replace(reloadable);
            reloads.send_replace(Some(ConfigReload { successful: true, last_success: now }));
        }
        Err(problem) => {
            tracing::error!(%problem, "configuration not re-read: the old one stays in force");
            reloads.send_replace(Some(ConfigReload { successful: false, last_success: last }));
        }
    }
}

fn log_reloaded(reloadable: &Reloadable) {
    let Reloadable { refresh_interval, retention, series_limit, log_level, files, device_plugin } = reloadable;
    let (refresh_interval, retention) =
        (humantime::format_duration(*refresh_interval), humantime::format_duration(*retention));
    let files: Vec<_> = files.iter().map(|file| file.path.display().to_string()).collect();
    tracing::info!(
        %refresh_interval,
        %retention,
        series_limit,
        log_level,
        files = files.join(","),
        resource_entries = device_plugin.as_ref().map_or(0, Vec::len),
        "configuration re-read"
    );
}

struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
}

enum Asked {
    ToEnd,
    ToReload,
}

impl Signals {
    /// SIGUSR1 and SIGUSR2 would end the process, and so would SIGXFSZ at a file that may not grow, where the write is to
    /// fail instead, as on a full disk. A handler that was once installed stays.
    fn survive() -> std::io::Result<()> {
        for survived in [Signal::USR1, Signal::USR2, Signal::XFSZ] {
            drop(signal(SignalKind::from_raw(survived.as_raw()))?);
        }
        Ok(())
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::ToEnd,
            _ = self.interrupt.recv() => Asked::ToEnd,
            _ = self.hangup.recv() => Asked::ToReload,
        }
    }

    async fn end(&mut self) {
        while !matches!(self.next().await, Asked::ToEnd) {}
    }

    fn receive() -> Result<Self, AgentError> {
        Self::survive().map_err(AgentError::Signals)?;
        let receive = |kind| signal(kind).map_err(AgentError::Signals);
        Ok(Self {
            terminate: receive(SignalKind::terminate())?,
            interrupt: receive(SignalKind::interrupt())?,
            hangup: receive(SignalKind::hangup())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_the_plugin_is_told_as_one() {
        let ended = tokio::spawn(async { panic!("a defect") }).await;
        assert!(matches!(plugin_ended(ended), AgentError::TaskBroke(_)));
        assert!(matches!(plugin_ended(Ok(())), AgentError::TaskEnded("device plugin")));
    }
}
