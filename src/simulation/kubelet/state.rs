//! The state of a kubelet, without sockets or clocks: pods with their phases, the device manager, CPUs, claims.

use std::collections::{BTreeMap, BTreeSet};

use super::Options;
use super::device_manager::DeviceManager;
use super::spec::{Claim, PodSpec};
use crate::simulation::random::Random;

/// The suffix of the names of pods from manifests.
const NODE_NAME: &str = "lab-node";

/// The phase of a pod. Only the last two are terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not running yet: in admission, or its sandbox does not start.
    Pending,
    Running,
    /// Terminating; its containers still run.
    Terminating,
    Succeeded,
    Failed,
}

impl PodPhase {
    pub fn is_active(self) -> bool {
        !matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The parts of the API that are switched on. The default is that of Kubernetes 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// The call Get, off by default from 1.27 to 1.33.
    pub get: bool,
    /// The Pods API: off by default in 1.36. From 1.37 it is always served.
    pub pods_api: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self { get: true, pods_api: false }
    }
}

/// How far a kubelet has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    Off,
    /// It has neither pods nor managers yet.
    Starting,
    /// It has one batch of pods.
    Partial,
    Ready,
}

#[derive(Clone, Debug)]
pub struct SimulatedPod {
    pub uid: String,
    /// The name, with the node's name at its end when it comes from a manifest.
    pub name: String,
    pub spec: PodSpec,
    pub phase: PodPhase,
    /// Whether its admission is over: only then a running watch of the Pods API has it; a new one begins with all pods.
    pub admitted: bool,
    finished: BTreeSet<String>,
}

#[derive(Debug)]
pub struct FakeKubeletState {
    pub devices: DeviceManager,
    pub pods: Vec<SimulatedPod>,
    pub claims: BTreeMap<(String, String), Claim>,
    pub boot: Boot,
    pub random: Random,
    pub options: Options,
}

impl FakeKubeletState {
    pub fn new(options: Options) -> Self {
        Self {
            devices: DeviceManager::new(options.version),
            pods: Vec::new(),
            claims: BTreeMap::new(),
            boot: Boot::Off,
            random: Random::seeded(options.seed),
            options,
        }
    }

    /// Adds a pending pod. Devices without an Allocate call are given now. Returns its UID and name.
    pub fn insert(&mut self, spec: PodSpec) -> (String, String) {
        let uid = spec.uid.clone().unwrap_or_else(|| self.new_uid(spec.static_pod));
        let name = match spec.static_pod {
            true => format!("{}-{NODE_NAME}", spec.name),
            false => spec.name.clone(),
        };
        for (_, container) in spec.all_containers() {
            for holding in &container.holds {
                self.devices.give(&uid, &container.name, holding);
            }
        }
        let (phase, finished) = (PodPhase::Pending, BTreeSet::new());
        self.pods.push(SimulatedPod { uid: uid.clone(), name: name.clone(), spec, phase, admitted: false, finished });
        (uid, name)
    }

    /// Frees the devices of pods that are no longer active, as at the start of every List.
    pub fn free_devices_of_gone_pods(&mut self) {
        if self.boot == Boot::Ready {
            let active: BTreeSet<&str> =
                self.pods.iter().filter(|pod| pod.phase.is_active()).map(|pod| pod.uid.as_str()).collect();
            self.devices.keep_only(&active);
        }
    }

    pub fn pod(&self, namespace: &str, name: &str) -> Option<&SimulatedPod> {
        self.pods.iter().rev().find(|pod| pod.spec.namespace == namespace && pod.name == name)
    }

    fn pod_mut(&mut self, namespace: &str, name: &str) -> Option<&mut SimulatedPod> {
        self.pods.iter_mut().rev().find(|pod| pod.spec.namespace == namespace && pod.name == name)
    }

    /// Returns whether there is such a pod.
    pub fn set_phase(&mut self, namespace: &str, name: &str, phase: PodPhase) -> bool {
        let Some(pod) = self.pod_mut(namespace, name) else { return false };
        (pod.phase, pod.admitted) = (phase, true);
        true
    }

    /// Completes a container. The pod has succeeded when that was the last app container.
    pub fn finish_container(&mut self, namespace: &str, name: &str, container: &str) -> bool {
        let Some(pod) = self.pod_mut(namespace, name) else { return false };
        pod.finished.insert(container.to_owned());
        if pod.spec.containers.iter().all(|container| pod.finished.contains(&container.name)) {
            pod.phase = PodPhase::Succeeded;
        }
        true
    }

    /// Deletes a pod. One from a manifest is removed at once, while its containers may still run. Another terminates
    /// first; one that is terminal already is removed.
    pub fn delete(&mut self, namespace: &str, name: &str) -> bool {
        let Some(pod) = self.pod_mut(namespace, name) else { return false };
        if pod.spec.static_pod || !pod.phase.is_active() {
            return self.forget(namespace, name);
        }
        pod.phase = PodPhase::Terminating;
        true
    }

    pub fn forget(&mut self, namespace: &str, name: &str) -> bool {
        let before = self.pods.len();
        self.pods.retain(|pod| !(pod.spec.namespace == namespace && pod.name == name));
        self.pods.len() < before
    }

    fn new_uid(&mut self, static_pod: bool) -> String {
        let hex = format!("{:016x}{:016x}", self.random.next(), self.random.next());
        if static_pod {
            return hex;
        }
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}
