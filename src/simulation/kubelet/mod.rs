//! A fake kubelet on real unix sockets, after the observed behaviour of Kubernetes 1.36 and adjacent versions.
//!
//! In: pods and plugins, and faults. Out: the PodResources API, the Pods API, the registration socket and the
//! checkpoint file. Does not use: the identity of its clients.

mod admission;
mod answers;
mod boot;
mod checkpoint;
mod device_manager;
mod faults;
mod lister;
mod pods_api;
mod registration;
mod shared;
mod socket;
mod spec;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::{Code, Status};

pub use admission::AdmissionOutcome;
pub use checkpoint::{SimulatedCheckpoint, SimulatedCheckpointData, SimulatedPodDevices};
pub use device_manager::{DeviceCount, KubeletVersion, ListedDevice, STOP_GRACE};
pub use faults::Method;
pub use pods_api::container_id;
pub use socket::{SocketServer, channel};
pub use spec::{Claim, ContainerKind, ContainerSpec, GivenDevice, PodSpec, memory_block};
pub use state::{Gates, PodPhase, SimulatedPod};

use boot::RunningServers;
use faults::InjectedFaults;
use shared::SharedKubelet;
use state::FakeKubeletState;

use crate::wire::v1::ContainerMemory;

#[derive(Clone, Debug)]
pub struct Options {
    pub version: KubeletVersion,
    pub gates: Gates,
    /// The seed of every random order and choice.
    pub seed: u64,
    /// How long a restarted kubelet lists no pods or a part of them.
    pub early_window: Duration,
    /// The time from bind to listen of the registration socket, in which each dial is refused.
    pub bind_to_listen: Duration,
    /// The time from a restarted kubelet's registration socket to the admission of the pods that ran before. The kubelet
    /// lists them a second after it has begun to wait for its node; those from manifests earlier, which is not simulated.
    pub admission_after: Duration,
    pub dial_timeout: Duration,
    /// The allocatable CPUs under the static CPU policy; empty without it.
    pub cpu_ids: Vec<i64>,
    /// The allocatable memory under the static memory policy; empty without it.
    pub memory: Vec<ContainerMemory>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            version: KubeletVersion::default(),
            gates: Gates::default(),
            seed: 1,
            early_window: Duration::from_millis(90),
            bind_to_listen: Duration::ZERO,
            admission_after: Duration::from_millis(950),
            dial_timeout: Duration::from_secs(10),
            cpu_ids: Vec::new(),
            memory: Vec::new(),
        }
    }
}

/// The running fake kubelet. Dropping it ends it as SIGKILL would: connections break, socket files stay in the caller's
/// directory.
#[derive(Debug)]
pub struct FakeKubelet {
    shared: Arc<SharedKubelet>,
    running: Mutex<RunningServers>,
    root: PathBuf,
}

impl FakeKubelet {
    /// Starts under `root`, in place of `/var/lib/kubelet`. Unlike a restart it is ready when it returns.
    pub async fn start(root: &Path, options: Options) -> io::Result<Self> {
        let (pod_resources, device_plugins) = (root.join("pod-resources"), root.join("device-plugins"));
        for (directory, mode) in [(&pod_resources, 0o750), (&device_plugins, 0o755)] {
            fs::create_dir_all(directory)?;
            fs::set_permissions(directory, Permissions::from_mode(mode))?;
        }
        let shared = Arc::new(SharedKubelet::new(options, pod_resources, device_plugins));
        let kubelet = Self { shared, running: Mutex::default(), root: root.to_owned() };
        kubelet.switch_on(Duration::ZERO, Vec::new())?;
        kubelet.ready().await;
        Ok(kubelet)
    }

    pub fn pod_resources_socket(&self) -> PathBuf {
        self.shared.pod_resources.join(SOCKET)
    }

    pub fn device_plugin_directory(&self) -> PathBuf {
        self.shared.device_plugins.clone()
    }

    /// The directory in which each DRA driver makes a directory.
    pub fn dra_plugin_directory(&self) -> PathBuf {
        self.root.join("plugins")
    }

    /// The socket of the Pods API, which exists from 1.37, or with the gate on.
    pub fn pods_api_socket(&self) -> PathBuf {
        self.root.join("pods-api/pods-api.sock")
    }

    /// Replaces all pods by running ones. Their `requests` are ignored: what they hold is given. An existing pod of the
    /// same name stays the same pod, unless the new one has another UID.
    pub fn set_pods(&self, pods: Vec<PodSpec>) {
        let mut state = self.shared.state.lock();
        let before = std::mem::take(&mut state.pods);
        for pod in &before {
            state.devices.free(&pod.uid);
        }
        for mut spec in pods {
            let same = before.iter().find(|pod| (&pod.spec.namespace, &pod.spec.name) == (&spec.namespace, &spec.name));
            spec.uid = spec.uid.or_else(|| same.map(|pod| pod.uid.clone()));
            state.insert(spec);
            if let Some(pod) = state.pods.last_mut() {
                (pod.phase, pod.admitted) = (PodPhase::Running, true);
            }
        }
        self.shared.write_checkpoint(&state);
        drop(state);
        self.shared.changed();
    }

    /// Replaces the devices of a resource without a plugin.
    pub fn set_devices(&self, resource: &str, devices: Vec<ListedDevice>) {
        let mut state = self.shared.state.lock();
        state.devices.set_devices(resource, devices);
        self.shared.write_checkpoint(&state);
        drop(state);
        self.shared.changed();
    }

    /// Adds a prepared claim, which containers that name it show from now on.
    pub fn set_claim(&self, claim: Claim) {
        self.shared.state.lock().claims.insert((claim.namespace.clone(), claim.name.clone()), claim);
    }

    pub fn remove_claim(&self, namespace: &str, name: &str) {
        self.shared.state.lock().claims.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Completes a container; with the last app container the pod has succeeded. Returns false without such a pod.
    pub fn finish_container(&self, namespace: &str, pod: &str, container: &str) -> bool {
        self.with_change(|state| state.finish_container(namespace, pod, container))
    }

    pub fn set_phase(&self, namespace: &str, pod: &str, phase: PodPhase) -> bool {
        self.with_change(|state| state.set_phase(namespace, pod, phase))
    }

    /// Deletes a pod. One from a manifest is removed at once; another terminates and stays until `remove_pod`.
    pub fn delete_pod(&self, namespace: &str, pod: &str) -> bool {
        self.with_change(|state| state.delete(namespace, pod))
    }

    /// Removes the pod at once, even while its containers run.
    pub fn remove_pod(&self, namespace: &str, pod: &str) -> bool {
        self.with_change(|state| state.forget(namespace, pod))
    }

    fn with_change(&self, change: impl FnOnce(&mut FakeKubeletState) -> bool) -> bool {
        let changed = change(&mut self.shared.state.lock());
        self.shared.changed();
        changed
    }

    /// The UID that the runtime uses in cgroups and directories.
    pub fn uid(&self, namespace: &str, pod: &str) -> Option<String> {
        self.shared.state.lock().pod(namespace, pod).map(|pod| pod.uid.clone())
    }

    pub fn phase(&self, namespace: &str, pod: &str) -> Option<PodPhase> {
        self.shared.state.lock().pod(namespace, pod).map(|pod| pod.phase)
    }

    /// The devices of one container as (resource, device ID), sorted; whether or not List would show the pod.
    pub fn devices_of(&self, namespace: &str, pod: &str, container: &str) -> Vec<(String, String)> {
        let state = self.shared.state.lock();
        let Some(pod) = state.pod(namespace, pod) else { return Vec::new() };
        let devices = state.devices.devices_of(&pod.uid, container);
        let devices = devices.map(|(resource, device, _)| (resource.to_owned(), device.to_owned()));
        devices.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Capacity and allocatable of each resource, as in the node status.
    pub fn node_status(&self) -> BTreeMap<String, DeviceCount> {
        let now = self.shared.now();
        let mut state = self.shared.state.lock();
        if state.devices.expire(now) {
            self.shared.write_checkpoint(&state);
        }
        state.devices.counts()
    }

    /// How many plugins of the resource the kubelet counts as connected.
    pub fn connected_plugins(&self, resource: &str) -> usize {
        self.shared.state.lock().devices.connections(resource)
    }

    /// The IDs that can be allocated, whether held or not.
    pub fn allocatable_ids(&self, resource: &str) -> BTreeSet<String> {
        let state = self.shared.state.lock();
        let of_resource = state.devices.allocatable().filter(|(name, _)| *name == resource);
        of_resource.map(|(_, device)| device.id.clone()).collect()
    }

    /// The devices of a resource and whether each can be allocated. `None`: no plugin is connected.
    pub fn listed(&self, resource: &str) -> Option<BTreeMap<String, bool>> {
        let state = self.shared.state.lock();
        state.devices.plugin(resource)?;
        Some(state.devices.usable(resource).map(|(id, usable)| (id.to_owned(), usable)).collect())
    }

    /// Each list of the resource that plugins have sent, oldest first: device IDs and whether they were healthy.
    /// Restarts keep them; the latest 256 of all resources are kept.
    pub fn received(&self, resource: &str) -> Vec<BTreeMap<String, bool>> {
        let state = self.shared.state.lock();
        let lists = state.devices.history.iter().filter(|(name, _)| name == resource);
        let states = |list: &[ListedDevice]| list.iter().map(|device| (device.id.clone(), device.healthy)).collect();
        lists.map(|(_, list)| states(list)).collect()
    }

    /// Ends the current plugin's stream, as a broken connection does. Returns false where there is none.
    pub fn lose_stream(&self, resource: &str) -> bool {
        let serial = self.shared.state.lock().devices.plugin(resource);
        let Some(serial) = serial else { return false };
        self.shared.stream_ended(serial);
        true
    }

    /// The devices (resource, ID) that a plugin omitted in a later list of a stream, which may end a real kubelet.
    pub fn dropped_devices(&self) -> Vec<(String, String)> {
        self.shared.state.lock().devices.dropped.clone()
    }

    /// Waits until the node status satisfies `condition`. Returns false when it hangs.
    pub async fn node_status_becomes(&self, condition: impl Fn(&BTreeMap<String, DeviceCount>) -> bool) -> bool {
        let wait = self.shared.until(|| condition(&self.node_status()));
        // Only a hang exceeds it.
        tokio::time::timeout(Duration::from_mins(2), wait).await.is_ok()
    }

    /// Advances the kubelet's clock, which the rate limit and the grace period of lost plugins use.
    pub fn advance(&self, by: Duration) {
        self.shared.advance(by);
        drop(self.node_status());
    }

    /// Sets the gates; `get` takes effect at once, `pods_api` with the next restart.
    pub fn set_gates(&self, gates: Gates) {
        self.shared.state.lock().options.gates = gates;
    }

    /// Makes calls of this method wait until `heal`.
    pub fn hang(&self, method: Method) {
        self.shared.faults.send_modify(|faults| {
            faults.hanging.insert(method);
        });
    }

    /// Makes calls of this method fail until `heal`.
    pub fn fail(&self, method: Method, code: Code, message: &str) {
        self.shared.faults.send_modify(|faults| drop(faults.failing.insert(method, Status::new(code, message))));
    }

    /// Makes List's answer larger by about this size, until `heal`.
    pub fn answer_bytes(&self, bytes: usize) {
        self.shared.faults.send_modify(|faults| faults.answer_bytes = Some(bytes));
    }

    /// Removes all permissions of the PodResources directory, or restores them. Has no effect on root.
    pub fn refuse_permission(&self, refuse: bool) -> io::Result<()> {
        let mode = if refuse { 0o000 } else { 0o750 };
        fs::set_permissions(&self.shared.pod_resources, Permissions::from_mode(mode))
    }

    /// Ends `hang`, `fail` and `answer_bytes`.
    pub fn heal(&self) {
        self.shared.faults.send_replace(InjectedFaults::default());
    }

    /// The content of the checkpoint file. `None`: there is no valid one.
    pub fn checkpoint(&self) -> Option<SimulatedCheckpoint> {
        SimulatedCheckpoint::read(&self.shared.device_plugins)
    }
}

impl Drop for FakeKubelet {
    fn drop(&mut self) {
        self.stop();
    }
}

const SOCKET: &str = "kubelet.sock";
