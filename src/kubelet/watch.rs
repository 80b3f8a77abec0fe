//! Keeps the `KubeletState` up to date: calls the kubelet when a call is due, and publishes after each answer.
//!
//! In: settings, triggers and pods. Out: the published state. It does not decode, and decides
//! neither what is accepted nor when a call is due.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use strum::{IntoEnumIterator, VariantNames};
use tokio::sync::{Notify, watch};

use super::accepted::AcceptedAllocations;
use super::claim_files::ClaimDirectories;
use super::client::{CallError, Client};
use super::pods::PodSources;
use super::schedule::{CallSchedule, NextCall, PendingAllocations};
use super::trigger::{FileEvents, Trigger};
use crate::clock::Clock;
use crate::domain::model::{Allocations, DurationHistogram, KubeletState, Moment, PodDirectory, PodRef};
use crate::tasks::{Tasks, changed};

const METHODS: [&str; 3] = ["List", "GetAllocatableResources", "Get"];

#[derive(Clone, Debug)]
pub struct KubeletSettings {
    pub pod_resources_socket: PathBuf,
    /// Where the kubelet keeps `kubelet_internal_checkpoint`.
    pub device_plugin_directory: PathBuf,
    /// The directories of the files of DRA drivers.
    pub claim_directories: ClaimDirectories,
    /// The node's name in Kubernetes.
    pub node_name: String,
    /// The limit of each call.
    pub deadline: Duration,
}

/// Called before each pause: the interval may change while running.
pub type RefreshInterval = Box<dyn Fn() -> Duration + Send + Sync>;

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
pub fn start(
    settings: KubeletSettings,
    refresh_interval: RefreshInterval,
    pods: PodSources,
    clock: Clock,
    tasks: &mut Tasks,
) -> KubeletHandle {
    let (publish, states) = watch::channel(Arc::default());
    let handle = KubeletHandle { states, allocated: Arc::default(), refresh_allocatable: Arc::default() };
    tasks.spawn("kubelet", run(settings, refresh_interval, pods, handle.clone(), clock, publish));
    handle
}

async fn run(
    settings: KubeletSettings,
    refresh_interval: RefreshInterval,
    mut pods: PodSources,
    KubeletHandle { allocated, refresh_allocatable, .. }: KubeletHandle,
    clock: Clock,
    publish: watch::Sender<Arc<KubeletState>>,
) {
    let mut events = FileEvents::new(&settings.pod_resources_socket, &settings.device_plugin_directory);
    let mut watch = KubeletWatch::new(settings, refresh_interval, pods.clone(), clock, publish);
    // The first refresh has no trigger: a socket made a moment ago is already there.
    watch.refresh().await;
    loop {
        let (pause, _) = watch.next_call();
        if pause.is_zero() {
            // One refresh shows all changes up to now, and they may change what is due first, and when.
            while let Some(trigger) = events.ready().await {
                watch.apply_trigger(trigger);
            }
            events.watch_directories();
            let (pause, call) = watch.next_call();
            match call {
                _ if !pause.is_zero() => {}
                NextCall::Refresh(trigger) => {
                    trigger.into_iter().for_each(|trigger| watch.apply_trigger(trigger));
                    watch.refresh().await;
                }
                NextCall::EndedPods => watch.query_ended_pods().await,
                NextCall::Allocatable => watch.query_allocatable().await,
            }
            continue;
        }
        tokio::select! {
            trigger = events.next() => watch.apply_trigger(trigger),
            () = allocated.notified() => watch.schedule.allocation_granted(clock.now().monotonic),
            () = refresh_allocatable.notified() => watch.schedule.request_allocatable(Duration::ZERO),
            () = changed(&mut pods.directory) => {
                let directory = Arc::clone(&pods.directory.borrow_and_update());
                watch.pods_changed(directory).await;
            }
            () = changed(&mut pods.logs) => watch.reconsider().await,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct KubeletWatch {
    settings: KubeletSettings,
    refresh_interval: RefreshInterval,
    clock: Clock,
    publish: watch::Sender<Arc<KubeletState>>,
    client: Client,
    accepted: AcceptedAllocations,
    schedule: CallSchedule,
    state: KubeletState,
    /// To find the pods that end with the next one; decisions use the `PodSources` of `accepted`.
    previous_directory: Arc<PodDirectory>,
    /// Holders that have ended by the Pods API, and are to be queried.
    ended: BTreeSet<PodRef>,
    /// Methods that this kubelet does not have: a new connection may be to another.
    unimplemented: BTreeSet<&'static str>,
    /// The checkpoint of this kubelet has not been read.
    checkpoint_due: bool,
}

impl KubeletWatch {
    fn new(
        settings: KubeletSettings,
        refresh_interval: RefreshInterval,
        pods: PodSources,
        clock: Clock,
        publish: watch::Sender<Arc<KubeletState>>,
    ) -> Self {
        let mut state = KubeletState::default();
        for trigger in Trigger::iter() {
            state.counters.triggers.insert(trigger.into_str(), 0);
        }
        for method in METHODS {
            state.counters.durations.insert(method, DurationHistogram::default());
            state.counters.errors.insert(method, CallError::VARIANTS.iter().map(|code| (*code, 0)).collect());
        }
        Self {
            client: Client::new(&settings.pod_resources_socket, settings.deadline),
            accepted: AcceptedAllocations::new(&settings, pods),
            schedule: CallSchedule::new(clock.now().monotonic),
            settings,
            refresh_interval,
            clock,
            publish,
            state,
            previous_directory: Arc::default(),
            ended: BTreeSet::new(),
            unimplemented: BTreeSet::new(),
            checkpoint_due: true,
        }
    }

    fn next_call(&mut self) -> (Duration, NextCall) {
        let pending = PendingAllocations {
            is_settled: self.accepted.settle.is_settled(),
            has_ended_pods: !self.ended.is_empty(),
            unconfirmed_due: self.accepted.pods.unconfirmed_due(),
        };
        self.schedule.next((self.refresh_interval)(), pending, self.clock.now().monotonic)
    }

    fn apply_trigger(&mut self, trigger: Trigger) {
        *self.state.counters.triggers.entry(trigger.into_str()).or_default() += 1;
        self.schedule.triggered(trigger, self.clock.now().monotonic);
        if trigger == Trigger::Reconnect {
            self.checkpoint_due = true;
            self.reset_connection();
        }
    }

    /// Accepts new pods now; queries the kubelet about ended ones.
    async fn pods_changed(&mut self, directory: Arc<PodDirectory>) {
        let ended = self.accepted.ended(&self.previous_directory, &directory);
        if !ended.is_empty() {
            self.apply_trigger(Trigger::PodsApi);
            self.ended.extend(ended);
        }
        self.previous_directory = directory;
        self.reconsider().await;
    }

    async fn reconsider(&mut self) {
        let allocations = self.accepted.reconsider(self.clock.now().monotonic).await;
        // A pod that was rejected changes only which pods are unconfirmed.
        let changed = !self.accepted.pods.unconfirmed().eq(&self.state.unconfirmed);
        if let Some(allocations) = allocations.or_else(|| self.state.allocations.clone().filter(|_| changed)) {
            self.set_allocations(allocations);
            self.publish();
        }
    }

    fn set_allocations(&mut self, accepted: Arc<Allocations>) {
        self.state.allocations = Some(accepted);
        self.state.unconfirmed = self.accepted.pods.unconfirmed().cloned().collect();
    }

    /// `Get` for one pod; for several, and of a kubelet that has no `Get`, one `List` is less.
    async fn query_ended_pods(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        let one = ended.first().filter(|_| ended.len() == 1 && !self.unimplemented.contains("Get"));
        let Some(pod) = one.filter(|_| self.accepted.settle.is_settled()) else { return self.refresh().await };
        let started = self.start_call();
        let answer = self.client.get(pod).await;
        let now = self.finish_call("Get", started, answer.as_ref().err());
        match answer {
            Ok(answer) => {
                let allocations = self.accepted.observe_pod(now.monotonic, pod, answer).await;
                self.set_allocations(allocations);
                self.publish();
            }
            Err(error) => {
                tracing::debug!(code = error.into_str(), "{error}");
                self.schedule.get_failed(now.monotonic);
            }
        }
    }

    /// The next answer may be the first one of another kubelet, whichever call it belongs to.
    fn reset_connection(&mut self) {
        self.client.disconnect();
        self.accepted.settle.reconnected();
        self.state.settled = false;
        self.unimplemented.clear();
    }

    /// Queries the kubelet once and publishes the result or the failure.
    async fn refresh(&mut self) {
        self.schedule.refresh_began();
        self.ended.clear();
        self.read_checkpoint().await;
        self.list().await;
        let has_allocatable = !self.unimplemented.contains("GetAllocatableResources");
        self.schedule.refreshed(has_allocatable, self.clock.now().monotonic);
    }

    /// Once for each kubelet: it names devices that no answer lists before their plugin has registered. Later, `List`
    /// and `GetAllocatableResources` name them.
    async fn read_checkpoint(&mut self) {
        if self.checkpoint_due {
            let checkpoint = self.accepted.checkpoint.refresh().await;
            self.checkpoint_due = self.accepted.checkpoint.problem.is_some();
            if !self.checkpoint_due {
                self.state.checkpoint = checkpoint.devices.clone().or(self.state.checkpoint.take());
                let held = checkpoint.pods.keys().map(|(_, resource, id)| (resource.clone(), id.clone()));
                self.state.held_in_checkpoint = Arc::new(held.collect());
            }
        }
    }

    async fn list(&mut self) {
        let started = self.start_call();
        let answer = self.client.list().await;
        let now = self.finish_call("List", started, answer.as_ref().err());
        self.state.collector.duration = Some(now.monotonic.since(started.monotonic));
        match answer {
            Ok(allocations) => {
                let allocations = self.accepted.observe(now.monotonic, allocations).await;
                self.set_allocations(allocations);
                self.state.allocations_at = Some(now);
                self.state.unreadable_claim_files = self.accepted.claim_files.unreadable.clone();
                self.state.settled = self.accepted.settle.is_settled();
                self.state.truncated = false;
                self.state.collector.success = true;
                self.state.collector.last_success = Some(now);
                if self.state.problem.take().is_some() {
                    tracing::info!(socket = %self.settings.pod_resources_socket.display(), "the kubelet answers again");
                }
                self.schedule.list_succeeded();
            }
            Err(error) => {
                self.state.collector.success = false;
                self.state.truncated = matches!(error, CallError::TooLarge { .. });
                let problem = error.to_string();
                if self.state.problem.as_deref() != Some(&problem) {
                    tracing::warn!(code = error.into_str(), "{problem}");
                    self.state.problem = Some(problem.into());
                }
                self.schedule.list_failed();
            }
        }
        self.publish();
    }

    async fn query_allocatable(&mut self) {
        let started = self.start_call();
        self.schedule.allocatable_queried(started.monotonic);
        let answer = self.client.allocatable().await;
        let now = self.finish_call("GetAllocatableResources", started, answer.as_ref().err());
        match answer {
            Ok(allocatable) => {
                if self.state.allocatable.as_deref() != Some(&allocatable) {
                    self.state.allocatable = Some(Arc::new(allocatable));
                }
                self.state.allocatable_at = Some(started);
                self.schedule.allocatable_succeeded();
            }
            Err(CallError::Unimplemented(method)) => {
                tracing::info!(method, "this kubelet is too old to report what is allocatable");
            }
            // List fails too and is called more often: one failure, one log line.
            Err(error) => {
                self.schedule.allocatable_failed(now.monotonic);
                tracing::debug!(code = error.into_str(), "{error}");
            }
        }
        self.publish();
    }

    /// Consumes the call's part of the budget. Returns the time.
    fn start_call(&mut self) -> Moment {
        let now = self.clock.now();
        self.schedule.call_began(now.monotonic);
        now
    }

    /// Counts the call, and keeps what its error says of the kubelet. Returns the time.
    fn finish_call(&mut self, method: &'static str, started: Moment, error: Option<&CallError>) -> Moment {
        let now = self.clock.now();
        let counters = &mut self.state.counters;
        counters.durations.entry(method).or_default().observe(now.monotonic.since(started.monotonic));
        if let Some(error) = error {
            *counters.errors.entry(method).or_default().entry(error.into_str()).or_default() += 1;
            if let CallError::Unimplemented(method) = error {
                self.unimplemented.insert(method);
            }
            if error.lost_connection() {
                self.reset_connection();
            }
        }
        now
    }

    fn publish(&self) {
        self.publish.send_replace(Arc::new(self.state.clone()));
    }
}

#[cfg(test)]
pub(super) mod tests;
