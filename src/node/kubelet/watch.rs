//! Keeps the `KubeletState` up to date: when to call the kubelet, and what to publish after each answer.
//!
//! In: settings, triggers, pods and processes. Out: the published state. It does not decode and does not decide what is
//! accepted.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::accepted::{AcceptedAllocations, PodSources};
use super::claim_files::ClaimDirectories;
use super::client::{CallError, Client};
use super::trigger::{FileEvents, Trigger};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{DurationHistogram, KubeletState, Moment, Monotonic, PodDirectory, PodRef, TokenBucket};
use crate::tasks::{Tasks, changed};

/// The query is repeated after this long while an answer has not settled.
const SETTLING_INTERVAL: Duration = Duration::from_millis(1000);
/// Calls per second on average, beside one for each allocation that the bundled plugin grants and for each end of its
/// pod in the Pods API. The kubelet's own limit of 100 is shared by all its clients.
const CALLS_PER_SECOND: f64 = 2.0;
/// Calls without a pause after a quiet time: a changed allocation is published at once.
const BURST: f64 = 4.0;
/// First and longest pause after a failure; at most the refresh interval.
const RETRIES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Allocatable devices are queried at this interval, and after a change that might concern them.
const ALLOCATABLE_INTERVAL: Duration = Duration::from_secs(10);
/// A busy node writes its checkpoint often; List comes first then.
const ALLOCATABLE_PAUSE: Duration = Duration::from_secs(2);
/// After an allocation was granted the kubelet writes its checkpoint, which triggers a query. Where that is not seen,
/// the kubelet shows the allocation after this long.
const UNSEEN_CHECKPOINT: Duration = Duration::from_millis(50);

const METHODS: [&str; 3] = ["List", "GetAllocatableResources", "Get"];
const CODES: [&str; 9] = [
    "unavailable",
    "not_a_socket",
    "permission_denied",
    "deadline_exceeded",
    "rate_limited",
    "unimplemented",
    "too_large",
    "malformed",
    "other",
];

pub struct KubeletSettings {
    pub pod_resources_socket: PathBuf,
    /// Where the kubelet keeps `kubelet_internal_checkpoint`.
    pub device_plugin_directory: PathBuf,
    /// Of the files of DRA drivers.
    pub claim_directories: ClaimDirectories,
    /// Read before each pause: it may change while running.
    pub refresh_interval: Box<dyn Fn() -> Duration + Send + Sync>,
    /// For each call.
    pub deadline: Duration,
}

/// The running watch of the kubelet.
#[derive(Clone, Debug)]
pub struct KubeletHandle {
    pub states: watch::Receiver<Arc<KubeletState>>,
    /// To be notified of each allocation that the bundled plugin granted.
    pub allocated: Arc<Notify>,
    /// To be notified when a fresh answer of `GetAllocatableResources` is needed.
    pub refresh_allocatable: Arc<Notify>,
}

/// Publishes what the kubelet answers for as long as the task runs.
pub fn start(settings: KubeletSettings, pods: PodSources, clock: Clock, tasks: &mut Tasks) -> KubeletHandle {
    let (publish, states) = watch::channel(Arc::default());
    let handle = KubeletHandle { states, allocated: Arc::default(), refresh_allocatable: Arc::default() };
    tasks.spawn("kubelet", run(settings, pods, handle.clone(), clock, publish));
    handle
}

async fn run(
    settings: KubeletSettings,
    mut pods: PodSources,
    KubeletHandle { allocated, refresh_allocatable, .. }: KubeletHandle,
    clock: Clock,
    publish: watch::Sender<Arc<KubeletState>>,
) {
    let mut events = FileEvents::new(&settings.pod_resources_socket, &settings.device_plugin_directory);
    let mut watch = KubeletWatch::new(settings, pods.clone(), clock, publish);
    // The first refresh has no trigger: a socket made a moment ago is already there.
    watch.refresh().await;
    loop {
        let (pause, _) = watch.pause();
        if pause.is_zero() {
            // One refresh shows all changes up to now, and they may change what is due first.
            while let Some(trigger) = events.ready().await {
                watch.take(trigger);
            }
            events.watch_directories();
            match watch.pause().1 {
                NextCall::Refresh(trigger) => {
                    trigger.into_iter().for_each(|trigger| watch.take(trigger));
                    watch.refresh().await;
                }
                NextCall::Pods => watch.ask_about_ended().await,
                NextCall::Allocatable => watch.allocatable().await,
            }
            continue;
        }
        tokio::select! {
            trigger = events.next() => watch.take(trigger),
            () = allocated.notified() => watch.allocated(),
            () = refresh_allocatable.notified() => watch.want_allocatable(Duration::ZERO),
            () = changed(&mut pods.directory) => {
                let directory = Arc::clone(&pods.directory.borrow_and_update());
                watch.pods_changed(directory).await;
            }
            () = changed(&mut pods.processes) => {
                let names = Arc::as_ptr(&pods.processes.borrow_and_update().pods);
                watch.names_changed(names.addr()).await;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug)]
enum NextCall {
    /// Without a trigger where that was counted on arrival.
    Refresh(Option<Trigger>),
    /// Query the pods that have ended.
    Pods,
    /// Query allocatable devices only.
    Allocatable,
}

struct KubeletWatch {
    settings: KubeletSettings,
    clock: Clock,
    publish: watch::Sender<Arc<KubeletState>>,
    client: Client,
    accepted: AcceptedAllocations,
    /// Of calls to the kubelet.
    budget: TokenBucket,
    state: KubeletState,
    /// After a failure of `List`.
    retry: Option<Duration>,
    retries: Backoff,
    /// The earliest time to query allocatable devices, if the call budget permits.
    allocatable_due: Option<Monotonic>,
    allocatable_asked: Option<Moment>,
    allocatable_retries: Backoff,
    /// By this kubelet: a new connection may be to another.
    allocatable_unimplemented: bool,
    /// Since when a file event waits for a refresh.
    seen_at: Option<Monotonic>,
    /// When to query a granted allocation, unless the checkpoint changes before.
    granted_due: Option<Monotonic>,
    /// The pauses count from here, whatever else was done meanwhile.
    refreshed_at: Monotonic,
    /// As the Pods API last had it.
    directory: Arc<PodDirectory>,
    /// Identifies the names that were last used.
    names: usize,
    /// Holders that have ended by the Pods API, and are to be queried.
    ended: BTreeSet<PodRef>,
    /// By this kubelet.
    get_unimplemented: bool,
    /// The checkpoint of this kubelet has not been read.
    checkpoint_due: bool,
}

impl KubeletWatch {
    fn new(
        settings: KubeletSettings,
        pods: PodSources,
        clock: Clock,
        publish: watch::Sender<Arc<KubeletState>>,
    ) -> Self {
        let mut state = KubeletState::default();
        for trigger in Trigger::ALL {
            state.counters.triggers.insert(trigger.name(), 0);
        }
        for method in METHODS {
            state.counters.durations.insert(method, DurationHistogram::default());
            state.counters.errors.insert(method, CODES.into_iter().map(|code| (code, 0)).collect());
        }
        Self {
            client: Client::new(&settings.pod_resources_socket, settings.deadline),
            budget: TokenBucket::full(CALLS_PER_SECOND, BURST, clock.now().monotonic),
            accepted: AcceptedAllocations::new(
                &settings.device_plugin_directory,
                settings.claim_directories.clone(),
                pods,
            ),
            settings,
            clock,
            publish,
            state,
            retry: None,
            retries: Backoff::new(RETRIES),
            allocatable_due: None,
            allocatable_asked: None,
            allocatable_retries: Backoff::new(RETRIES),
            allocatable_unimplemented: false,
            seen_at: None,
            granted_due: None,
            refreshed_at: clock.now().monotonic,
            directory: Arc::default(),
            names: 0,
            ended: BTreeSet::new(),
            get_unimplemented: false,
            checkpoint_due: true,
        }
    }

    /// How long to sleep when nothing happens, and what to do then. No call is due before the budget has it.
    fn pause(&mut self) -> (Duration, NextCall) {
        let interval = (self.settings.refresh_interval)();
        let pause = match self.retry {
            Some(retry) => retry.min(interval),
            None if !self.accepted.settle.is_settled() => SETTLING_INTERVAL.min(interval),
            None => interval,
        };
        let now = self.clock.now().monotonic;
        let affordable = now + self.budget.wait_for(1.0, now);
        let allocatable = self.allocatable_due.filter(|_| self.retry.is_none());
        let first = [
            self.seen_at.map(|at| (at.max(affordable), NextCall::Refresh(None))),
            self.granted_due.map(|due| (due.max(affordable), NextCall::Refresh(Some(Trigger::Allocate)))),
            (!self.ended.is_empty() && self.retry.is_none()).then_some((affordable, NextCall::Pods)),
            self.accepted.unconfirmed.due().map(|due| (due.max(affordable), NextCall::Refresh(None))),
            Some(((self.refreshed_at + pause).max(affordable), NextCall::Refresh(Some(Trigger::Timer)))),
            // List comes first: it finds a call left after this one.
            allocatable.map(|due| (due.max(now + self.budget.wait_for(2.0, now)), NextCall::Allocatable)),
        ];
        let (due, what) = first.into_iter().flatten().min_by_key(|(due, _)| *due).expect("the timer is always due");
        (due.since(now), what)
    }

    /// Queried once the call budget permits, and once for each request.
    fn want_allocatable(&mut self, pause: Duration) {
        let due = self.allocatable_asked.map_or(self.refreshed_at, |asked| asked.monotonic + pause);
        self.allocatable_due = Some(self.allocatable_due.map_or(due, |already| already.min(due)));
    }

    /// An allocation was granted. The kubelet shows it only after it has our answer: a query now would waste a call.
    fn allocated(&mut self) {
        let now = self.clock.now().monotonic;
        self.budget.add(now);
        self.granted_due = Some(now + UNSEEN_CHECKPOINT);
    }

    fn take(&mut self, trigger: Trigger) {
        *self.state.counters.triggers.entry(trigger.name()).or_default() += 1;
        let now = self.clock.now().monotonic;
        match trigger {
            Trigger::Checkpoint => {
                self.want_allocatable(ALLOCATABLE_PAUSE);
                // What was granted is written: this refresh shows it.
                self.granted_due = None;
                self.seen_at = Some(now);
            }
            Trigger::Reconnect => {
                self.seen_at = Some(now);
                self.checkpoint_due = true;
                self.lost();
                self.want_allocatable(ALLOCATABLE_PAUSE);
            }
            Trigger::Allocate | Trigger::Timer => {
                self.granted_due.take_if(|due| *due <= now);
            }
            Trigger::PodsApi => {}
        }
    }

    /// Accepts new pods now; queries the kubelet about ended ones.
    async fn pods_changed(&mut self, directory: Arc<PodDirectory>) {
        let ended = self.accepted.ended(&self.directory, &directory);
        if !ended.is_empty() {
            self.take(Trigger::PodsApi);
            self.budget.add(self.clock.now().monotonic);
            self.ended.extend(ended);
        }
        self.directory = directory;
        self.reconsider().await;
    }

    async fn names_changed(&mut self, names: usize) {
        if std::mem::replace(&mut self.names, names) != names {
            self.reconsider().await;
        }
    }

    async fn reconsider(&mut self) {
        if let Some(allocations) = self.accepted.reconsider(self.clock.now().monotonic).await {
            self.state.allocations = Some(allocations);
            self.publish();
        }
    }

    /// `Get` for one pod; for several, and of a kubelet that has no `Get`, one `List` is less.
    async fn ask_about_ended(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        let one = ended.first().filter(|_| ended.len() == 1 && !self.get_unimplemented);
        let Some(pod) = one.filter(|_| self.accepted.settle.is_settled()) else { return self.refresh().await };
        let started = self.clock.now();
        self.budget.take(started.monotonic);
        let answer = self.client.get(pod).await;
        let now = self.count("Get", started, answer.as_ref().err());
        match answer {
            Ok(answer) => {
                self.state.allocations = Some(self.accepted.observe_pod(now.monotonic, pod, answer).await);
                self.publish();
            }
            Err(error) => {
                tracing::debug!(code = error.code(), "{error}");
                self.get_unimplemented |= matches!(error, CallError::Unimplemented(_));
                if error.lost_connection() {
                    self.lost();
                }
                self.seen_at = Some(now.monotonic);
            }
        }
    }

    /// The next answer may be the first one of another kubelet, whichever call it belongs to.
    fn lost(&mut self) {
        self.client.disconnect();
        self.accepted.settle.reconnected();
        self.allocatable_unimplemented = false;
        self.get_unimplemented = false;
    }

    /// Queries the kubelet once and publishes the result or the failure.
    async fn refresh(&mut self) {
        self.seen_at = None;
        self.ended.clear();
        self.read_checkpoint().await;
        self.list().await;
        if !self.allocatable_unimplemented && self.allocatable_due.is_none() {
            self.want_allocatable(ALLOCATABLE_INTERVAL);
        }
        self.refreshed_at = self.clock.now().monotonic;
    }

    /// Once for each kubelet: it names devices that no answer lists before their plugin has registered. Later, `List`
    /// and `GetAllocatableResources` name them.
    async fn read_checkpoint(&mut self) {
        if std::mem::take(&mut self.checkpoint_due) {
            self.state.checkpoint =
                self.accepted.checkpoint.refresh().await.devices.clone().or(self.state.checkpoint.take());
        }
    }

    async fn list(&mut self) {
        let started = self.clock.now();
        self.budget.take(started.monotonic);
        let answer = self.client.list().await;
        let now = self.count("List", started, answer.as_ref().err());
        self.state.collector.duration = Some(now.monotonic.since(started.monotonic));
        match answer {
            Ok(allocations) => {
                self.state.allocations = Some(self.accepted.observe(now.monotonic, allocations).await);
                self.state.allocations_at = Some(now);
                self.state.unreadable_claim_files = self.accepted.claim_files.unreadable();
                self.state.settled = self.accepted.settle.is_settled();
                self.state.truncated = false;
                self.state.collector.success = true;
                self.state.collector.last_success = Some(now);
                if self.state.problem.take().is_some() {
                    tracing::info!(socket = %self.settings.pod_resources_socket.display(), "the kubelet answers again");
                }
                self.retry = None;
                self.retries.reset();
            }
            Err(error) => {
                self.state.collector.success = false;
                self.state.truncated = matches!(error, CallError::TooLarge { .. });
                if error.lost_connection() {
                    self.lost();
                    self.state.settled = false;
                }
                let problem = error.to_string();
                if self.state.problem.as_deref() != Some(&problem) {
                    tracing::warn!(code = error.code(), "{problem}");
                    self.state.problem = Some(problem.into());
                }
                self.retry = Some(self.retries.pause());
            }
        }
        self.publish();
    }

    async fn allocatable(&mut self) {
        let started = self.clock.now();
        self.budget.take(started.monotonic);
        self.allocatable_asked = Some(started);
        self.allocatable_due = None;
        let answer = self.client.allocatable().await;
        let now = self.count("GetAllocatableResources", started, answer.as_ref().err());
        match answer {
            Ok(allocatable) => {
                if self.state.allocatable.as_deref() != Some(&allocatable) {
                    self.state.allocatable = Some(Arc::new(allocatable));
                }
                self.state.allocatable_at = Some(started);
                self.want_allocatable(ALLOCATABLE_INTERVAL);
                self.allocatable_retries.reset();
            }
            Err(CallError::Unimplemented(method)) => {
                tracing::info!(method, "this kubelet is too old to report what is allocatable");
                self.allocatable_unimplemented = true;
            }
            // List fails too and is called more often: one failure, one log line.
            Err(error) => {
                if error.lost_connection() {
                    self.lost();
                }
                self.allocatable_due = Some(now.monotonic + self.allocatable_retries.pause());
                tracing::debug!(code = error.code(), "{error}");
            }
        }
        self.publish();
    }

    fn count(&mut self, method: &'static str, started: Moment, error: Option<&CallError>) -> Moment {
        let now = self.clock.now();
        let counters = &mut self.state.counters;
        counters.durations.entry(method).or_default().observe(now.monotonic.since(started.monotonic));
        if let Some(error) = error {
            *counters.errors.entry(method).or_default().entry(error.code()).or_default() += 1;
        }
        now
    }

    fn publish(&self) {
        self.publish.send_replace(Arc::new(self.state.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::domain::model::{Allocations, ContainerRef, PodIdentity};
    use crate::test_data::{container, pod};

    fn directory(pods: &[(&str, bool)]) -> Arc<PodDirectory> {
        let identity = |(name, terminal): &(&str, bool)| PodIdentity {
            pod: PodRef::new("team", name),
            uid: (*name).into(),
            runtime_uid: None,
            labels: BTreeMap::new(),
            terminal: *terminal,
            containers: BTreeMap::new(),
        };
        let pods = pods.iter().map(|pod| (pod.0.into(), Arc::new(identity(pod))));
        Arc::new(PodDirectory { complete: true, pods: pods.collect(), problem: None })
    }

    /// Pods a and b hold devices; the call budget is used up.
    async fn watch_of_two_holders() -> KubeletWatch {
        let settings = KubeletSettings {
            pod_resources_socket: PathBuf::new(),
            device_plugin_directory: PathBuf::new(),
            claim_directories: ClaimDirectories { plugins: PathBuf::new(), cdi: PathBuf::new(), proc: PathBuf::new() },
            refresh_interval: Box::new(|| Duration::from_secs(3600)),
            deadline: Duration::from_secs(5),
        };
        let clock = Clock::start();
        let identified = watch::channel(directory(&[("a", false), ("b", false)])).1;
        let pods = PodSources { directory: identified, ..PodSources::default() };
        let mut watch = KubeletWatch::new(settings, pods, clock, watch::channel(Arc::default()).0);
        let held = ["a", "b"].map(|name| {
            let reference = ContainerRef::new("team", name, "main").with_uid(Some(name.into()));
            pod(container(reference, &[("nvidia.com/gpu", name)]))
        });
        watch.accepted.observe(clock.now().monotonic, Allocations { pods: held.into() }).await;
        let now = clock.now().monotonic;
        (0..4).for_each(|_| watch.budget.take(now));
        watch
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_holder_is_queried_at_once_though_the_call_budget_is_used_up() {
        let mut watch = watch_of_two_holders().await;
        watch.pods_changed(directory(&[("a", false), ("b", false)])).await;
        assert!(!watch.pause().0.is_zero(), "nothing has ended");
        watch.pods_changed(directory(&[("b", false)])).await;
        assert!(matches!(watch.pause(), (Duration::ZERO, NextCall::Pods)));
    }

    /// Its admission took longer than its confirmation is waited for.
    #[tokio::test(start_paused = true)]
    async fn a_holder_that_the_pods_api_first_lists_as_failed_is_queried() {
        let mut watch = watch_of_two_holders().await;
        watch.pods_changed(directory(&[("a", false)])).await;
        watch.pods_changed(directory(&[("a", false), ("b", true)])).await;
        assert_eq!(watch.ended, [PodRef::new("team", "b")].into());
        watch.ended.clear();
        watch.pods_changed(directory(&[("a", false), ("b", true)])).await;
        assert!(watch.ended.is_empty(), "once");
    }
}
