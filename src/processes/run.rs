//! The task that resolves processes.
//!
//! In: the process IDs to resolve, the pods of the kubelet. Out: `ProcessState`, each second and on each change.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Resolver;
use crate::clock::Clock;
use crate::domain::model::{PodDirectory, PodLabel, PodLogs, ProcessState, SourceStatus};
use crate::tasks::{self, Tasks, changed};

/// Owners are resolved at least this often: processes end, and pods too.
const PERIOD: Duration = Duration::from_secs(1);
/// The shortest interval, however often the pods change.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether processes are attributed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessAttribution {
    /// When the host's process ids are visible.
    #[default]
    Auto,
    /// The same, with a warning where they are not visible. Process ids of another namespace would name the wrong pods,
    /// so they are never used.
    On,
    Off,
}

#[derive(Clone, Debug)]
pub struct ProcessesSettings {
    pub mode: ProcessAttribution,
    /// Laid out as `/proc`.
    pub proc_root: PathBuf,
    /// Shown with each pod.
    pub pod_labels: Vec<PodLabel>,
}

/// The running resolver of processes.
#[derive(Debug)]
pub struct ProcessesHandle {
    /// The host process IDs to resolve.
    pub wanted: watch::Sender<Arc<BTreeSet<u32>>>,
    pub states: watch::Receiver<Arc<ProcessState>>,
}

/// Where the pods of processes are known from.
pub struct ProcessesInputs {
    pub directory: watch::Receiver<Arc<PodDirectory>>,
    pub logs: watch::Receiver<Arc<PodLogs>>,
}

/// Publishes the owners of the requested processes for as long as the task runs. It ends early only after a panic.
pub fn start(settings: ProcessesSettings, inputs: ProcessesInputs, clock: Clock, tasks: &mut Tasks) -> ProcessesHandle {
    let (wanted, requested) = watch::channel(Arc::default());
    let (publish, states) = watch::channel(Arc::default());
    tasks.spawn("processes", run(settings, clock, requested, inputs, publish));
    ProcessesHandle { wanted, states }
}

async fn run(
    settings: ProcessesSettings,
    clock: Clock,
    mut wanted: watch::Receiver<Arc<BTreeSet<u32>>>,
    ProcessesInputs { mut directory, mut logs }: ProcessesInputs,
    publish: watch::Sender<Arc<ProcessState>>,
) {
    let mut task = ProcessTask {
        resolver: Resolver::new(&settings.proc_root),
        labels: settings.pod_labels.clone().into(),
        problem: None,
        enabled: false,
        settings,
        clock,
    };
    loop {
        let pids = Arc::clone(&wanted.borrow_and_update());
        let (pods, pod_logs) = (Arc::clone(&directory.borrow_and_update()), Arc::clone(&logs.borrow_and_update()));
        // Files of a process that hangs in the kernel may hang too: that costs this thread and nothing else.
        let round = move || {
            let state = task.round(&pids, &pods, &pod_logs);
            (task, state)
        };
        let late = || publish.send_modify(|state| give_up(Arc::make_mut(state)));
        let done = tasks::blocking(round, late)
            .await
            .inspect_err(|error| tracing::error!(%error, "the resolver of processes panicked"));
        let Ok((returned, state)) = done else { return };
        task = returned;
        publish.send_replace(Arc::new(state));
        let other_pods = async {
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = changed(&mut directory) => {}
                () = changed(&mut logs) => {}
            }
        };
        tokio::select! {
            // At once: a snapshot waits for their owners.
            () = changed(&mut wanted) => {}
            () = other_pods => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Withdraws the results of the last round until this one returns.
fn give_up(state: &mut ProcessState) {
    let problem = "reading /proc hangs, so use is attributed by allocation alone until it returns: a process on a GPU hangs \
                   in the kernel, or the file system does";
    tracing::warn!("{problem}");
    state.problem = Some(problem.into());
    state.processes.clear();
    if let Some(collector) = &mut state.collector {
        (collector.success, collector.stuck) = (false, true);
    }
}

struct ProcessTask {
    settings: ProcessesSettings,
    clock: Clock,
    resolver: Resolver,
    labels: Arc<[PodLabel]>,
    problem: Option<String>,
    enabled: bool,
}

impl ProcessTask {
    fn round(&mut self, wanted: &BTreeSet<u32>, directory: &Arc<PodDirectory>, logs: &PodLogs) -> ProcessState {
        let started = self.clock.now();
        self.enabled = self.settings.mode != ProcessAttribution::Off && (self.enabled || self.resolver.sees_the_host());
        let none = BTreeSet::new();
        let processes =
            self.resolver.resolve(started.monotonic, if self.enabled { wanted } else { &none }, directory, logs);
        let pods = self.resolver.pods(directory, logs);
        self.log_changes(directory, logs);
        let now = self.clock.now();
        let duration = Some(now.monotonic.since(started.monotonic));
        let collector = SourceStatus { success: true, stuck: false, last_success: Some(now), duration };
        ProcessState {
            enabled: self.enabled,
            problem: self.problem.as_deref().map(Into::into),
            processes,
            pods,
            pod_labels: Arc::clone(&self.labels),
            collector: self.enabled.then_some(collector),
        }
    }

    /// Logs what is missing, each time it changes.
    fn log_changes(&mut self, directory: &PodDirectory, logs: &PodLogs) {
        use ProcessAttribution::{Auto, Off, On};
        let problem = match self.settings.mode {
            Off => None,
            Auto | On if !self.enabled => Some(format!(
                "{} shows no host process ids, so use is attributed by allocation alone; for shares by process run \
                 with hostPID: true",
                self.settings.proc_root.display()
            )),
            Auto | On => logs.problem.as_ref().filter(|_| !directory.complete).map(|problem| {
                format!(
                    "pods cannot be named by their UIDs: {problem}; mount /var/log/pods (read-only, see \
                     --pod-logs-root) or use a kubelet with the Pods API"
                )
            }),
        };
        if problem != self.problem {
            match (&problem, self.settings.mode) {
                (Some(problem), On) => tracing::warn!("{problem}"),
                (Some(problem), _) => tracing::info!("{problem}"),
                (None, _) => tracing::info!("processes are attributed to containers"),
            }
            self.problem = problem;
        }
    }
}
