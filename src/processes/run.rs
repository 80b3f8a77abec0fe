//! The task that finds the owners of the processes in the readings, before these are published.
//!
//! In: the state of the holders with the readings, the pods of the kubelet. Out: `OwnersState`, once for each state of the
//! holders: at once, unless a scan begins then: for a new process, or because it is due. That is waited for, a short time.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};

use super::Resolver;
use crate::clock::Clock;
use crate::domain::attribution::{OwnersState, process_ids};
use crate::domain::holders::HoldersState;
use crate::domain::model::{PodDirectory, PodLabel, PodLogs, ProcessState, SourceStatus};
use crate::tasks::{self, SlowRead, Tasks, changed};

/// The longest wait for the owners of new processes; without them their use waits for later readings.
const OWNERS_WAIT: Duration = Duration::from_millis(50);
/// Processes are scanned at least this often: they end, and pods too.
const PERIOD: Duration = Duration::from_secs(1);
/// The shortest interval, however often the pods change.
const PAUSE: Duration = Duration::from_millis(100);
const HANGS: &str = "reading /proc hangs, so use is attributed by allocation alone until it returns: a process on a GPU \
                     hangs in the kernel, or the file system does";

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

/// The readings whose processes are resolved, and the sources of pods.
pub struct ProcessesInputs {
    pub holders: watch::Receiver<Arc<HoldersState>>,
    pub directory: watch::Receiver<Arc<PodDirectory>>,
    pub logs: watch::Receiver<Arc<PodLogs>>,
}

/// Publishes each state of the holders, with the owners of the processes in its readings, for as long as the task runs. It ends
/// early only after a panic.
pub fn start(
    settings: ProcessesSettings,
    inputs: ProcessesInputs,
    clock: Clock,
    tasks: &mut Tasks,
) -> watch::Receiver<OwnersState> {
    let holders = Arc::clone(&inputs.holders.borrow());
    let (publish, states) = watch::channel(OwnersState { holders, ..OwnersState::default() });
    tasks.spawn("processes", async move {
        let Err(error) = run(Scans::new(settings, clock), inputs, publish).await;
        tracing::error!(%error, "the resolver of processes panicked");
    });
    states
}

async fn run(
    mut scans: Scans,
    inputs: ProcessesInputs,
    publish: watch::Sender<OwnersState>,
) -> Result<Infallible, JoinError> {
    let ProcessesInputs { mut holders, mut directory, mut logs } = inputs;
    let mut is_due = true;
    loop {
        let state = Arc::clone(&holders.borrow_and_update());
        let pids = process_ids(&state.hardware);
        if scans.reading.is_idle() && (is_due || scans.lacks_any_of(&pids)) {
            let pods = (Arc::clone(&directory.borrow_and_update()), Arc::clone(&logs.borrow_and_update()));
            scans.scan(pids, pods).await?;
        }
        let (is_idle, is_late) = (scans.reading.is_idle(), scans.began.elapsed() >= tasks::LATE);
        if !is_idle && is_late {
            give_up(Arc::make_mut(&mut scans.found));
        }
        // Owners alone are no reason for a snapshot: the next one has them.
        publish.send_if_modified(|published| {
            let is_new = !Arc::ptr_eq(&published.holders, &state);
            *published = OwnersState { holders: state, processes: Arc::clone(&scans.found) };
            is_new
        });
        let began = scans.began;
        let other_pods = async {
            sleep_until(began + PAUSE).await;
            tokio::select! {
                () = changed(&mut directory) => {}
                () = changed(&mut logs) => {}
            }
        };
        let due = began + if is_idle { PERIOD } else { tasks::LATE };
        is_due = tokio::select! {
            () = changed(&mut holders) => false,
            found = scans.reading.finished() => {
                scans.found = Arc::new(found?);
                false
            }
            () = other_pods, if is_idle => true,
            () = sleep_until(due), if is_idle || !is_late => is_idle,
        };
    }
}

/// The scans of processes, one at a time, and what the last one has found.
struct Scans {
    task: Arc<Mutex<ProcessTask>>,
    reading: SlowRead<ProcessState>,
    /// The start of the scan under way, or of the last one.
    began: Instant,
    found: Arc<ProcessState>,
}

impl Scans {
    fn new(settings: ProcessesSettings, clock: Clock) -> Self {
        let task = ProcessTask {
            resolver: Resolver::new(&settings.proc_root),
            labels: settings.pod_labels.clone().into(),
            problem: None,
            enabled: false,
            settings,
            clock,
        };
        let (task, now) = (Arc::new(Mutex::new(task)), Instant::now());
        Self { task, reading: SlowRead::idle(), began: now, found: Arc::default() }
    }

    /// Whether one of them is new to a scan, unless none are scanned, or the scan hangs.
    fn lacks_any_of(&self, pids: &BTreeSet<u32>) -> bool {
        self.found.is_current() && !pids.iter().all(|pid| self.found.processes.contains_key(pid))
    }

    /// Begins a scan, and waits for it for a short time: files of a process that hangs in the kernel may hang too, which costs a
    /// thread and the owners, and no readings.
    async fn scan(
        &mut self,
        pids: BTreeSet<u32>,
        (directory, logs): (Arc<PodDirectory>, Arc<PodLogs>),
    ) -> Result<(), JoinError> {
        self.began = Instant::now();
        let task = Arc::clone(&self.task);
        let scan = move || task.lock().scan(&pids, &directory, &logs);
        if let Some(found) = self.reading.answer(OWNERS_WAIT, scan).await {
            self.found = Arc::new(found?);
        }
        Ok(())
    }
}

/// Withdraws the results of the last scan until this one returns.
fn give_up(state: &mut ProcessState) {
    if state.problem.as_deref() == Some(HANGS) {
        return;
    }
    tracing::warn!("{HANGS}");
    state.problem = Some(HANGS.into());
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
    fn scan(&mut self, pids: &BTreeSet<u32>, directory: &Arc<PodDirectory>, logs: &PodLogs) -> ProcessState {
        let started = self.clock.now();
        self.enabled = self.settings.mode != ProcessAttribution::Off && (self.enabled || self.resolver.sees_the_host());
        let none = BTreeSet::new();
        let processes =
            self.resolver.resolve(started.monotonic, if self.enabled { pids } else { &none }, directory, logs);
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
