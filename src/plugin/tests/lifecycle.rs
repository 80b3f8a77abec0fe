//! One resource's life, with deadlines short enough to wait for.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::entry;
use crate::clock::Clock;
use crate::model::{DeviceId, HardwareState, KubeletState, Monotonic, PluginResource, PluginState, UnhealthyReason};
use crate::plugin::lifecycle::{Deadlines, Life};
use crate::plugin::live_sockets::{LiveSockets, OwnSockets};
use crate::plugin::record::Record;
use crate::plugin::server::Desk;
use crate::plugin::sockets;
use crate::plugin::{Hardware, Offer, OfferedDevice, Withheld};
use crate::simulation::kubelet::{FakeKubelet, Method, Options};

const TOY: &str = "example.com/toy";

fn toy(health: Result<(), Withheld>) -> Offer {
    let numa_nodes = std::collections::BTreeSet::new();
    let device = OfferedDevice { id: DeviceId::new("toy-0"), numa_nodes, health, hardware: Hardware::Nothing };
    Offer { resource: TOY.into(), devices: vec![device] }
}

fn unchecked() -> Offer {
    toy(Err(Withheld::judged(UnhealthyReason::Unknown, "it has not been checked yet")))
}

/// A life with all that it hears.
struct Lived {
    state: watch::Receiver<Arc<PluginState>>,
    offer: watch::Sender<Arc<Offer>>,
    stop: watch::Sender<Option<&'static str>>,
    life: JoinHandle<crate::plugin::lifecycle::Lived>,
    beside: JoinHandle<()>,
    _heard: (watch::Sender<Arc<HardwareState>>, watch::Sender<Arc<KubeletState>>),
    _live: watch::Sender<Option<Arc<LiveSockets>>>,
}

impl Drop for Lived {
    fn drop(&mut self) {
        self.life.abort();
        self.beside.abort();
    }
}

impl Lived {
    fn begin(directory: &Path, deadlines: Deadlines) -> Self {
        Self::offering(toy(Ok(())), directory, deadlines)
    }

    fn offering(first: Offer, directory: &Path, deadlines: Deadlines) -> Self {
        let clock = Clock::start();
        let (publish, state) = watch::channel(Arc::default());
        let (stop, stopped) = watch::channel(None);
        let (hardware, readings) = watch::channel(Arc::default());
        let (kubelet, answers) = watch::channel(Arc::default());
        let (changes, changed) = watch::channel(0);
        let beside = tokio::spawn(sockets::watch_directory(directory.to_owned(), changes));
        let (tell_live, live) = watch::channel(Some(Arc::default()));
        let record = Record::new(TOY.into(), clock, publish);
        record.begin(false, false, false);
        let (offer, offers) = watch::channel(Arc::new(first));
        let desk = Desk {
            config: Arc::new(entry(&format!("kind: simulated, name: {TOY}, devices: 1, onConflict: takeover"))),
            offer: offers,
            facts: watch::channel(Arc::default()).1,
            hardware: readings,
            kubelet: answers.clone(),
            record,
            clock,
            allocated: Arc::new(Notify::new()),
            look: Arc::new(Notify::new()),
            grants: Arc::default(),
        };
        let life = Life {
            directory: directory.to_owned(),
            desk,
            kubelet: answers,
            changes: changed,
            live,
            own_sockets: OwnSockets::default(),
            stop: stopped,
            advertised: std::collections::BTreeSet::new(),
            answers_from: Monotonic::default(),
            deadlines,
        };
        Self {
            state,
            offer,
            stop,
            life: tokio::spawn(life.run()),
            beside,
            _heard: (hardware, kubelet),
            _live: tell_live,
        }
    }

    async fn until(&self, what: &str, condition: impl Fn(&PluginResource) -> bool) {
        let mut state = self.state.clone();
        let becomes = state.wait_for(|state| state.resources.get(&TOY.into()).is_some_and(&condition));
        let became = tokio::time::timeout(Duration::from_secs(20), becomes).await.is_ok();
        assert!(became, "never: {what}; now {:?}", self.state.borrow());
    }

    async fn until_problem(&self, text: &str) {
        self.until(text, |state| state.problem.as_ref().is_some_and(|problem| problem.contains(text))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_hangs_in_register_is_asked_again() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    kubelet.hang(Method::Register);
    let deadlines = Deadlines { register: Duration::from_millis(150), ..Deadlines::default() };
    let lived = Lived::begin(&kubelet.device_plugin_directory(), deadlines);
    lived.until_problem("does not register the plugin: no answer within 150ms").await;
    kubelet.heal();
    lived.until("registered", |state| state.registered).await;
    // The deadline in use is above the ten seconds that the kubelet may take to dial back.
    assert!(Deadlines::default().register > Duration::from_secs(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_never_asks_for_the_list_is_registered_with_again() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    kubelet.hang(Method::ListAndWatch);
    let deadlines = Deadlines { list: Duration::from_millis(150), ..Deadlines::default() };
    let lived = Lived::begin(&kubelet.device_plugin_directory(), deadlines);
    lived.until_problem("did not ask for its devices within 150ms").await;
    lived.until("registered again", |state| state.registrations >= 2).await;
    kubelet.heal();
    assert!(kubelet.node_status_becomes(|status| status.get(TOY).is_some_and(|count| count.allocatable == 1)).await);
}

/// A kubelet would show each pod on it as ill for that moment.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_not_been_checked_yet_is_not_told_to_the_kubelet() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let lived = Lived::offering(unchecked(), &kubelet.device_plugin_directory(), Deadlines::default());
    let registered = lived.until("registered", |state| state.registered);
    assert!(tokio::time::timeout(Duration::from_millis(300), registered).await.is_err(), "it is waited for");
    lived.offer.send_replace(Arc::new(toy(Ok(()))));
    lived.until("registered", |state| state.registered).await;
    assert!(kubelet.node_status_becomes(|status| status.get(TOY).is_some_and(|count| count.allocatable == 1)).await);
    assert_eq!(lived.state.borrow().resources[&TOY.into()].registrations, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_does_not_come_is_not_waited_for_longer_than_that() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    let lived = Lived::offering(unchecked(), &kubelet.device_plugin_directory(), Deadlines::default());
    assert!(kubelet.node_status_becomes(|status| status.get(TOY).is_some_and(|count| count.capacity == 1)).await);
    assert!(!kubelet.listed(TOY).unwrap()["toy-0"]);
    drop(lived);
}

/// As a restarted kubelet does before it makes its own socket; it would then look for ours for ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_purged_while_it_is_being_registered_ends_the_attempt() {
    let root = tempfile::tempdir().unwrap();
    let kubelet = FakeKubelet::start(root.path(), Options::default()).await.unwrap();
    kubelet.hang(Method::Register);
    let directory = kubelet.device_plugin_directory();
    let lived = Lived::begin(&directory, Deadlines::default());
    let purged = async {
        loop {
            let ours = sockets::identities(&directory);
            if let Some(name) = ours.keys().next() {
                return std::fs::remove_file(directory.join(name)).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), purged).await.unwrap();
    lived.until("an end", |state| state.problem.is_some()).await;
    let problem = lived.state.borrow().resources[&TOY.into()].problem.clone().unwrap();
    assert!(!problem.contains("no answer"), "{problem}");
    kubelet.heal();
    lived.until("registered", |state| state.registered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_too_long_for_a_socket_is_said_with_its_length() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("a-directory-with-a-name-of-some-length-".repeat(3));
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("kubelet.sock"), "").unwrap();
    let lived = Lived::begin(&directory, Deadlines::default());
    lived.until_problem("the path of a socket at most 107").await;
    let problem = lived.state.borrow().resources[&TOY.into()].problem.clone().unwrap();
    assert!(problem.contains("--device-plugin-dir") && problem.contains(" bytes"), "{problem}");
    lived.stop.send_replace(Some("podmeter is ending"));
}

/// No kubelet for a day of paused time: tried for ever, half a minute apart at most, and never in step.
#[tokio::test(start_paused = true)]
async fn registration_is_tried_for_ever_with_jitter_and_the_time_without_it_counts() {
    let directory = tempfile::tempdir().unwrap();
    let mut lived = Lived::begin(directory.path(), Deadlines::default());
    // Nothing but timers is to move the time.
    lived.beside.abort();
    let clock = Clock::start();
    let mut tried = vec![];
    while clock.now().monotonic.since(Monotonic::default()) < Duration::from_hours(24) {
        lived.state.changed().await.unwrap();
        tried.push(clock.now().monotonic);
    }
    let pauses: Vec<Duration> = tried.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    let (first, later) = pauses.split_at(12);
    assert!(first[0] <= Duration::from_millis(60), "{:?}", first[0]);
    let millisecond = Duration::from_millis(1);
    for pause in later {
        assert!((14..=30).contains(&(*pause - millisecond).as_secs()), "{pause:?}");
    }
    let different: std::collections::BTreeSet<&Duration> = later.iter().collect();
    assert!(different.len() > later.len() / 2, "{} of {}", different.len(), later.len());
    let state = lived.state.borrow().resources[&TOY.into()].clone();
    assert!(state.problem.is_some_and(|problem| problem.contains("kubelet.sock is not there")));
    let since = state.unregistered_since.expect("not registered");
    assert!(clock.now().monotonic.since(since) >= Duration::from_hours(24) - Duration::from_secs(1));
}
