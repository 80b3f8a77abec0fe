use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::budget::Budget;
use super::client::{CallError, Client};
use super::trigger::{FileEvents, Trigger};
use crate::attribution::Settle;
use crate::clock::Clock;
use crate::model::{DurationHistogram, KubeletState, Moment, Monotonic};

/// While an answer has not settled it is asked for again after this long.
const SETTLING_INTERVAL: Duration = Duration::from_millis(1000);
/// First pause after a failure; doubles up to the refresh interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Allocatable devices change rarely: asked for at this interval, and after a change that might concern them.
const ALLOCATABLE_INTERVAL: Duration = Duration::from_secs(30);
/// A busy node writes its checkpoint often; List comes first then.
const ALLOCATABLE_PAUSE: Duration = Duration::from_secs(2);
/// After an allocation was granted: by then the kubelet shows it, if its checkpoint has not said so before.
const SECOND_LOOK: Duration = Duration::from_millis(50);

const METHODS: [&str; 2] = ["List", "GetAllocatableResources"];
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

pub struct Settings {
    pub pod_resources_socket: PathBuf,
    /// Where the kubelet keeps `kubelet_internal_checkpoint`.
    pub device_plugin_directory: PathBuf,
    /// Asked before each pause: it may change while running.
    pub refresh_interval: Box<dyn Fn() -> Duration + Send + Sync>,
    /// For each call.
    pub deadline: Duration,
    /// Told of each allocation that the bundled plugin granted.
    pub allocated: Arc<Notify>,
    /// Told when somebody wants to know anew what the kubelet can allocate.
    pub look: Arc<Notify>,
}

/// Keeps `publish` up to date for ever. Ends only by being dropped.
pub async fn run(settings: Settings, clock: Clock, publish: watch::Sender<Arc<KubeletState>>) {
    let mut events = FileEvents::new(&settings.pod_resources_socket, &settings.device_plugin_directory);
    let mut watch = Watch::new(settings, clock, publish);
    // The first look is nobody's trigger; a socket made a moment ago is already there.
    watch.refresh().await;
    let (allocated, look) = (Arc::clone(&watch.settings.allocated), Arc::clone(&watch.settings.look));
    loop {
        let (pause, after_it) = watch.pause();
        let next = tokio::select! {
            trigger = events.next() => Next::Refresh(trigger),
            () = allocated.notified() => match watch.allocated() {
                true => Next::Refresh(Trigger::Allocate),
                false => continue,
            },
            () = look.notified() => {
                watch.want_allocatable(Duration::ZERO);
                continue;
            }
            () = tokio::time::sleep(pause) => after_it,
        };
        if let Next::Refresh(trigger) = next {
            watch.take(trigger);
            // What has happened up to now one look will show.
            while let Some(trigger) = events.ready().await {
                watch.take(trigger);
            }
            events.watch_directories();
            watch.refresh().await;
        } else {
            watch.allocatable().await;
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Refresh(Trigger),
    /// Ask what can be allocated, and no more.
    Allocatable,
}

struct Watch {
    settings: Settings,
    clock: Clock,
    publish: watch::Sender<Arc<KubeletState>>,
    client: Client,
    settle: Settle,
    budget: Budget,
    state: KubeletState,
    retry: Option<Duration>,
    /// From when on to ask what can be allocated, when there are calls left for it.
    allocatable_due: Option<Monotonic>,
    allocatable_asked: Option<Moment>,
    /// By this kubelet: a new connection may be to another.
    allocatable_unimplemented: bool,
    /// When to look again after an allocation was granted.
    second_look: Option<Monotonic>,
    /// The pauses count from here, whatever else was done meanwhile.
    refreshed_at: Monotonic,
}

impl Watch {
    fn new(settings: Settings, clock: Clock, publish: watch::Sender<Arc<KubeletState>>) -> Self {
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
            budget: Budget::new(clock.now().monotonic),
            settings,
            clock,
            publish,
            settle: Settle::default(),
            state,
            retry: None,
            allocatable_due: None,
            allocatable_asked: None,
            allocatable_unimplemented: false,
            second_look: None,
            refreshed_at: clock.now().monotonic,
        }
    }

    /// How long to sleep when nothing happens, and what to do then.
    fn pause(&mut self) -> (Duration, Next) {
        let interval = (self.settings.refresh_interval)();
        let pause = match self.retry {
            Some(retry) => retry.min(interval),
            None if !self.settle.is_settled() => SETTLING_INTERVAL.min(interval),
            None => interval,
        };
        let now = self.clock.now().monotonic;
        let mut next = (self.refreshed_at + pause, Next::Refresh(Trigger::Timer));
        let affordable = now + self.budget.wait_for_two(now);
        let allocatable = self.allocatable_due.filter(|_| self.retry.is_none()).map(|due| due.max(affordable));
        for (due, what) in [(self.second_look, Next::Refresh(Trigger::Allocate)), (allocatable, Next::Allocatable)] {
            next = due.filter(|due| *due < next.0).map_or(next, |due| (due, what));
        }
        (next.0.since(now), next.1)
    }

    /// List comes first: this is asked for once there are calls left, and not twice for one wish.
    fn want_allocatable(&mut self, pause: Duration) {
        let asked = self.allocatable_asked.map(|asked| asked.monotonic).unwrap_or_default();
        let due = if pause.is_zero() { self.clock.now().monotonic } else { asked + pause };
        self.allocatable_due = Some(self.allocatable_due.map_or(due, |already| already.min(due)));
    }

    /// An allocation was granted. Whether to look at once: the calls that are left may be wanted for the second look,
    /// which is the one that shows it for certain.
    fn allocated(&mut self) -> bool {
        let now = self.clock.now().monotonic;
        self.second_look = Some(now + SECOND_LOOK);
        self.budget.wait_for_two(now).is_zero()
    }

    fn take(&mut self, trigger: Trigger) {
        *self.state.counters.triggers.entry(trigger.name()).or_default() += 1;
        let is_due = |due: Monotonic| due <= self.clock.now().monotonic;
        match trigger {
            Trigger::Checkpoint => {
                self.want_allocatable(ALLOCATABLE_PAUSE);
                // What was granted is written: this look shows it.
                self.second_look = None;
            }
            Trigger::Reconnect => {
                self.client.disconnect();
                self.want_allocatable(ALLOCATABLE_PAUSE);
            }
            Trigger::Allocate | Trigger::Timer => {
                if self.second_look.is_some_and(is_due) {
                    self.second_look = None;
                }
            }
        }
    }

    /// One look at the kubelet, published whatever comes of it.
    async fn refresh(&mut self) {
        if !self.client.is_connected() {
            self.settle.reconnected();
            self.allocatable_unimplemented = false;
        }
        self.list().await;
        let now = self.clock.now();
        let is_old = |asked: Moment| now.monotonic.since(asked.monotonic) >= ALLOCATABLE_INTERVAL;
        if self.retry.is_none() && !self.allocatable_unimplemented && self.allocatable_asked.is_none_or(is_old) {
            self.allocatable().await;
        }
        self.refreshed_at = self.clock.now().monotonic;
    }

    async fn list(&mut self) {
        self.wait_for_budget().await;
        let started = self.clock.now();
        let answer = self.client.list().await;
        let now = self.count("List", started, answer.as_ref().err());
        self.state.collector.duration = Some(now.monotonic.since(started.monotonic));
        match answer {
            Ok(relation) => {
                self.state.relation = Some(self.settle.observe(now.monotonic, relation));
                self.state.relation_at = Some(now);
                self.state.settled = self.settle.is_settled();
                self.state.api = self.client.api();
                self.state.truncated = false;
                self.state.collector.success = true;
                self.state.collector.last_success = Some(now);
                if self.state.problem.take().is_some() {
                    tracing::info!(socket = %self.settings.pod_resources_socket.display(), "the kubelet answers again");
                }
                self.retry = None;
            }
            Err(error) => {
                self.state.collector.success = false;
                self.state.truncated = matches!(error, CallError::TooLarge { .. });
                if error.lost_connection() {
                    self.state.settled = false;
                }
                let problem = error.to_string();
                if self.state.problem.as_deref() != Some(&problem) {
                    tracing::warn!(code = error.code(), "{problem}");
                    self.state.problem = Some(problem.into());
                }
                let longest = (self.settings.refresh_interval)();
                self.retry = Some(self.retry.map_or(FIRST_RETRY, |retry| retry * 2).min(longest));
            }
        }
        self.publish();
    }

    async fn allocatable(&mut self) {
        self.wait_for_budget().await;
        let started = self.clock.now();
        self.allocatable_asked = Some(started);
        self.allocatable_due = None;
        let answer = self.client.allocatable().await;
        let now = self.count("GetAllocatableResources", started, answer.as_ref().err());
        match answer {
            Ok(allocatable) => {
                if self.state.allocatable.as_deref() != Some(&allocatable) {
                    self.state.allocatable = Some(Arc::new(allocatable));
                }
                self.state.allocatable_at = Some(now);
            }
            Err(CallError::Unimplemented(method)) => {
                tracing::info!(method, "this kubelet is too old to say what is allocatable");
                self.allocatable_unimplemented = true;
            }
            // List tells the same story and is asked more often: one failure, one log line.
            Err(error) => tracing::debug!(code = error.code(), "{error}"),
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

    async fn wait_for_budget(&mut self) {
        let wait = self.budget.wait(self.clock.now().monotonic);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        self.budget.spend(self.clock.now().monotonic);
    }

    fn publish(&self) {
        self.publish.send_replace(Arc::new(self.state.clone()));
    }
}
