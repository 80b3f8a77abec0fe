//! One resource's lifecycle, with deadlines short enough to wait for.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::lifecycle::{Deadlines, EndedLifecycle, Lifecycle};
use crate::clock::Clock;
use crate::domain::holders::HoldersState;
use crate::domain::model::{KubeletState, Monotonic, PluginResource, PluginState, ResourceName, UnhealthyReason};
use crate::plugin::allocate::ServiceInputs;
use crate::plugin::host::sockets;
use crate::plugin::inputs::PluginInputs;
use crate::plugin::offer::{Offer, OfferedDevice, OfferedHardware, OfferedHealth, PluginUnhealthy};
use crate::plugin::status::ResourceStatus;
use crate::plugin::test_data::{entry, plugin_inputs};
use crate::simulation::kubelet::{FakeKubelet, Method, Options};
use crate::test_data::at_second;

const TOY: &str = "example.com/toy";

#[tokio::test(flavor = "multi_thread")]
async fn registered_to_waiting_when_the_kubelet_lists_none_of_our_devices() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let harness = LifecycleHarness::begin(&kubelet.device_plugin_directory(), Deadlines::default());
    harness.until("registered", |state| state.registered).await;
    kubelet.hang(Method::Register);
    let answers = async {
        for second in 100.. {
            harness.answer_without_devices(second);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = answers => {}
        () = harness.until_problem("the kubelet no longer lists our devices") => {}
    }
}

/// Otherwise a kubelet would show the devices of running pods as unhealthy until the check.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_to_serving_once_the_devices_are_checked() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let harness = LifecycleHarness::offering(unchecked(), &kubelet.device_plugin_directory(), Deadlines::default());
    let registered = harness.until("registered", |state| state.registered);
    assert!(tokio::time::timeout(Duration::from_millis(300), registered).await.is_err(), "it is waited for");
    harness.offer.send_replace(Arc::new(toy(Ok(()))));
    harness.until("registered", |state| state.registered).await;
    assert!(kubelet.node_status_becomes(|status| status.get(TOY).is_some_and(|count| count.allocatable == 1)).await);
    assert_eq!(harness.state.borrow().resources[&TOY.into()].registrations, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_to_serving_when_the_check_takes_too_long() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let harness = LifecycleHarness::offering(unchecked(), &kubelet.device_plugin_directory(), Deadlines::default());
    assert!(kubelet.node_status_becomes(|status| status.get(TOY).is_some_and(|count| count.capacity == 1)).await);
    assert!(!kubelet.listed(TOY).unwrap()["toy-0"]);
    drop(harness);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarted_during_the_wait_is_no_reason_to_end_the_attempt() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let deadlines = Deadlines { register: Duration::from_millis(150), ..Deadlines::default() };
    let harness = LifecycleHarness::offering(unchecked(), &kubelet.device_plugin_directory(), deadlines);
    tokio::time::sleep(Duration::from_millis(100)).await;
    kubelet.hang(Method::Register);
    kubelet.restart().unwrap();
    kubelet.ready().await;
    harness.offer.send_replace(Arc::new(toy(Ok(()))));
    harness.until("an end", |state| state.problem.is_some()).await;
    let problem = harness.state.borrow().resources[&TOY.into()].problem.clone().unwrap();
    assert!(problem.contains("no answer within 150ms"), "{problem}");
}

/// A restarted kubelet removes our socket before it makes its socket; it would then dial ours for ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn serving_to_waiting_when_our_socket_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    kubelet.hang(Method::Register);
    let directory = kubelet.device_plugin_directory();
    let harness = LifecycleHarness::begin(&directory, Deadlines::default());
    let purged = async {
        loop {
            let all = sockets::identities(&directory);
            if let Some(name) = all.keys().find(|name| *name != sockets::KUBELET) {
                return std::fs::remove_file(directory.join(name)).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), purged).await.unwrap();
    harness.until("an end", |state| state.problem.is_some()).await;
    let problem = harness.state.borrow().resources[&TOY.into()].problem.clone().unwrap();
    assert!(!problem.contains("no answer"), "{problem}");
    kubelet.heal();
    harness.until("registered", |state| state.registered).await;
}

/// Without a kubelet for a day of paused time, registration is retried without limit, every half minute, with jitter.
#[tokio::test(start_paused = true)]
async fn waiting_is_retried_without_end_with_jitter_and_its_time_counts() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = LifecycleHarness::begin(directory.path(), Deadlines::default());
    // Only timers may advance the time.
    harness.directory_watch.abort();
    let clock = Clock::start();
    let mut tried = vec![];
    while clock.now().monotonic.since(Monotonic::default()) < Duration::from_hours(24) {
        harness.state.changed().await.unwrap();
        tried.push(clock.now().monotonic);
    }
    let pauses: Vec<Duration> = tried.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    let (first, later) = pauses.split_at(15);
    assert!(first[0] <= Duration::from_millis(10), "{:?}", first[0]);
    let millisecond = Duration::from_millis(1);
    for pause in later {
        assert!((14..=30).contains(&(*pause - millisecond).as_secs()), "{pause:?}");
    }
    let different: std::collections::BTreeSet<&Duration> = later.iter().collect();
    assert!(different.len() > later.len() / 2, "{} of {}", different.len(), later.len());
    let state = harness.state.borrow().resources[&TOY.into()].clone();
    assert!(state.problem.is_some_and(|problem| problem.contains("kubelet.sock is not there")));
    let since = state.unregistered_since.expect("not registered");
    assert!(clock.now().monotonic.since(since) >= Duration::from_hours(24) - Duration::from_secs(1));
}

/// An attempt can fall between the bind and the listen of a kubelet that was away for long.
#[tokio::test(start_paused = true)]
async fn waiting_is_short_after_the_first_refusal_by_a_new_kubelet() {
    let directory = tempfile::tempdir().unwrap();
    let mut harness = LifecycleHarness::begin(directory.path(), Deadlines::default());
    // Only timers may wake it.
    harness.directory_watch.abort();
    tokio::time::sleep(Duration::from_hours(1)).await;
    let kubelet = tokio::net::UnixSocket::new_stream().unwrap();
    kubelet.bind(sockets::kubelet_socket(directory.path())).unwrap();
    let problem = |state: &PluginState| state.resources[&TOY.into()].problem.clone().unwrap_or_default();
    // The pause before it may be half a minute.
    while !problem(&harness.state.borrow_and_update()).contains("refused") {
        harness.state.changed().await.unwrap();
    }
    let refused = tokio::time::Instant::now();
    harness.state.mark_unchanged();
    harness.state.changed().await.unwrap();
    assert!(refused.elapsed() <= Duration::from_millis(10), "{:?}", refused.elapsed());
}

/// The kubelet's answers come at these seconds, and list nothing.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_to_serving_when_the_kubelet_lists_nothing_of_the_other_plugin_for_a_minute() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let directory = kubelet.device_plugin_directory();
    let _listener = tokio::net::UnixListener::bind(directory.join("nvidia-gpu.sock")).unwrap();
    let offer = Offer { resource: "nvidia.com/gpu".into(), ..toy(Ok(())) };
    let harness = LifecycleHarness::configured("waitWhileServed", offer, &directory, Deadlines::default());
    harness.answer_without_devices(100);
    harness.until("a conflict", |state| state.conflict.is_some() && !state.unserved).await;
    harness.answer_without_devices(159);
    harness.until("no service", |state| state.unserved && state.registrations == 0).await;
    harness.answer_without_devices(160);
    harness.until("registered", |state| state.registered && state.conflict.is_none()).await;
}

fn toy(health: OfferedHealth) -> Offer {
    let device = OfferedDevice { health, ..OfferedDevice::new("toy-0", OfferedHardware::Nothing) };
    Offer { resource: TOY.into(), devices: vec![device] }
}

fn unchecked() -> Offer {
    toy(Err(PluginUnhealthy::device(UnhealthyReason::Unknown, "it has not been checked yet")))
}

/// A lifecycle and the senders of its inputs.
struct LifecycleHarness {
    resource: ResourceName,
    state: watch::Receiver<Arc<PluginState>>,
    offer: watch::Sender<Arc<Offer>>,
    task: JoinHandle<EndedLifecycle>,
    directory_watch: JoinHandle<()>,
    holders: watch::Sender<Arc<HoldersState>>,
    _stop: watch::Sender<Option<&'static str>>,
}

impl Drop for LifecycleHarness {
    fn drop(&mut self) {
        self.task.abort();
        self.directory_watch.abort();
    }
}

impl LifecycleHarness {
    fn begin(directory: &Path, deadlines: Deadlines) -> Self {
        Self::offering(toy(Ok(())), directory, deadlines)
    }

    fn offering(first: Offer, directory: &Path, deadlines: Deadlines) -> Self {
        Self::configured("takeover", first, directory, deadlines)
    }

    fn configured(on_conflict: &str, first: Offer, directory: &Path, deadlines: Deadlines) -> Self {
        let resource = first.resource.clone();
        let clock = Clock::start();
        let (publish, state) = watch::channel(Arc::default());
        let (stop, stopped) = watch::channel(None);
        let (holders, states) = watch::channel(Arc::default());
        let (changes, changed) = watch::channel(0);
        let watch = sockets::watch_directory(directory.to_owned(), changes, Arc::default(), publish.clone());
        let directory_watch = tokio::spawn(watch);
        let config = entry(&format!("kind: simulated, name: {resource}, devices: 1, onConflict: {on_conflict}"));
        let (offer, offers) = watch::channel(Arc::new(first));
        let service = ServiceInputs {
            status: ResourceStatus::begin(resource.clone(), &config, clock, publish),
            config: Arc::new(config),
            offer: offers,
            facts: watch::channel(Arc::default()).1,
            plugin: PluginInputs { holders: states, ..plugin_inputs() },
            clock,
        };
        let lifecycle = Lifecycle {
            directory: directory.to_owned(),
            service,
            directory_changes: changed,
            stop: stopped,
            advertised: std::collections::BTreeSet::new(),
            deadlines,
            other_has_it: false,
            kubelet_seen: None,
        };
        let task = tokio::spawn(lifecycle.run());
        Self { resource, state, offer, task, directory_watch, holders, _stop: stop }
    }

    /// The kubelet answers that it has no devices.
    fn answer_without_devices(&self, second: u64) {
        let (allocatable, allocatable_at) = (Some(Arc::default()), Some(at_second(second)));
        let kubelet = KubeletState { allocatable, allocatable_at, ..KubeletState::default() };
        self.holders.send_replace(Arc::new(HoldersState { kubelet: Arc::new(kubelet), ..HoldersState::default() }));
    }

    async fn until(&self, what: &str, condition: impl Fn(&PluginResource) -> bool) {
        let mut state = self.state.clone();
        let becomes = state.wait_for(|state| state.resources.get(&self.resource).is_some_and(&condition));
        let became = tokio::time::timeout(Duration::from_secs(20), becomes).await.is_ok();
        assert!(became, "never: {what}; now {:?}", self.state.borrow());
    }

    async fn until_problem(&self, text: &str) {
        self.until(text, |state| state.problem.as_ref().is_some_and(|problem| problem.contains(text))).await;
    }
}
