//! The state that the fake kubelet's servers and its handle share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use super::Options;
use super::device_manager::Serial;
use super::faults::{InjectedFaults, Method};
use super::state::{Boot, FakeKubeletState};
use crate::clock::Clock;
use crate::domain::model::{Monotonic, TokenBucket};
use crate::wire::v1beta1::device_plugin_client::DevicePluginClient;

#[derive(Debug)]
pub struct SharedKubelet {
    pub pod_resources: PathBuf,
    pub device_plugins: PathBuf,
    /// Counts changes of the state, to wait for one.
    pub changes: watch::Sender<u64>,
    pub faults: watch::Sender<InjectedFaults>,
    pub limiter: Mutex<TokenBucket>,
    /// Pods are admitted one after the other, as on the kubelet's main loop.
    pub admission: tokio::sync::Mutex<()>,
    pub state: Mutex<FakeKubeletState>,
    pub plugins: Mutex<BTreeMap<Serial, Plugin>>,
    clock: Clock,
    skew: Mutex<Duration>,
}

/// A registered plugin.
#[derive(Debug)]
pub struct Plugin {
    pub client: DevicePluginClient<Channel>,
    pub prefers: bool,
    /// The task that follows its list, which ends when this is dropped.
    pub _watch: JoinSet<()>,
}

impl SharedKubelet {
    pub fn new(options: Options, pod_resources: PathBuf, device_plugins: PathBuf) -> Self {
        let clock = Clock::start();
        Self {
            state: Mutex::new(FakeKubeletState::new(options)),
            pod_resources,
            device_plugins,
            changes: watch::Sender::new(0),
            faults: watch::Sender::default(),
            limiter: Mutex::new(rate_limit(Monotonic::default())),
            admission: tokio::sync::Mutex::default(),
            plugins: Mutex::default(),
            clock,
            skew: Mutex::default(),
        }
    }

    pub fn now(&self) -> Monotonic {
        self.clock.now().monotonic + *self.skew.lock()
    }

    pub fn advance(&self, by: Duration) {
        *self.skew.lock() += by;
    }

    /// Waits while calls of the method hang, then returns the error with which it has to fail, if any.
    pub async fn fault(&self, method: Method) -> Result<(), Status> {
        let mut faults = self.faults.subscribe();
        let faults = faults.wait_for(|faults| !faults.hanging.contains(&method)).await;
        let faults = faults.map_err(|_| Status::unavailable("the kubelet is gone"))?;
        faults.failing.get(&method).map_or(Ok(()), |status| Err(status.clone()))
    }

    pub async fn until(&self, condition: impl Fn() -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition() {
            // `self` holds the sender: this cannot fail.
            let _ = changes.changed().await;
        }
    }

    pub fn boot(&self) -> Boot {
        self.state.lock().boot
    }

    /// Sets how far the kubelet has started; one that was stopped meanwhile stays stopped.
    pub fn proceed(&self, boot: Boot) {
        let mut state = self.state.lock();
        if state.boot != Boot::Off {
            state.boot = boot;
        }
        drop(state);
        self.changed();
    }

    pub fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Writes the checkpoint; a kubelet that cannot write it continues.
    pub fn write_checkpoint(&self, state: &FakeKubeletState) {
        let written = state.devices.checkpoint().write(&self.device_plugins);
        if let Err(error) = written {
            tracing::warn!(%error, directory = %self.device_plugins.display(), "checkpoint not written");
        }
    }

    pub fn stream_ended(&self, serial: Serial) {
        let now = self.now();
        let closed = self.state.lock().devices.stream_ended(serial, now);
        let mut plugins = self.plugins.lock();
        plugins.remove(&serial);
        closed.iter().for_each(|serial| drop(plugins.remove(serial)));
        drop(plugins);
        self.changed();
    }
}

/// The kubelet's rate limit for PodResources, shared by all clients and methods.
pub fn rate_limit(now: Monotonic) -> TokenBucket {
    TokenBucket::full(100.0, 10.0, now)
}
