//! Processes on devices, their owners, and the identities of pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{ContainerId, ContainerRef, Monotonic, PodLabel, PodRef, PodUid, SourceStatus, UnattributedReason};

/// Identifies one process: process IDs are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessKey {
    /// The process ID in the host's PID namespace.
    pub pid: u32,
    /// The time of the start, in clock ticks after boot, from `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

/// The owner of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    Container(ContainerRef),
    /// A running pod, of which the container is unknown.
    Pod(PodRef),
    /// A pod that is no longer listed, or that has finished: the process is in its cgroup.
    EndedPod {
        uid: PodUid,
        /// The pod's name, while it is known.
        pod: Option<PodRef>,
    },
    /// The host: neither the process nor an ancestor is in the cgroup of a pod. It is a daemon, a display server or a
    /// container of another program than the kubelet.
    Host,
    /// The MPS server of a GPU that podmeter shares by MPS: its use counts as that of the holders.
    MpsServer,
    Unknown(UnknownOwner),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownOwner {
    /// The process is not examined yet, or process attribution is off.
    NotResolved,
    /// It ended before it was examined.
    Gone,
    /// `/proc` could not be read or parsed.
    Unreadable,
    /// It is in a pod whose name neither pod-log directories nor the Pods API give.
    NoNames,
}

impl Owner {
    /// The container that owns it.
    pub fn container(&self) -> Option<&ContainerRef> {
        match self {
            Self::Container(container) => Some(container),
            _ => None,
        }
    }

    /// The running pod that owns it, also where its container is unknown.
    pub fn pod(&self) -> Option<PodRef> {
        match self {
            Self::Container(container) => Some(container.pod_ref()),
            Self::Pod(pod) => Some(pod.clone()),
            _ => None,
        }
    }

    /// Why the use of this process is unattributed; `None` for a process of a running pod.
    pub const fn unattributed_reason(&self) -> Option<UnattributedReason> {
        match self {
            Self::Container(_) | Self::Pod(_) => None,
            Self::EndedPod { .. } => Some(UnattributedReason::TerminatedPod),
            Self::Host => Some(UnattributedReason::Host),
            Self::MpsServer => Some(UnattributedReason::Driver),
            Self::Unknown(_) => Some(UnattributedReason::Unknown),
        }
    }
}

/// A process on a device, by its last examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The identity; `None`: it had ended before.
    pub key: Option<ProcessKey>,
    pub owner: Owner,
    /// The control daemon of NVIDIA's MPS, if the process is a server of MPS and the daemon its parent, both by name:
    /// the daemon's process ID in its PID namespace.
    pub mps_daemon: Option<u32>,
}

/// The processes on the devices and their owners.
#[derive(Clone, Debug, Default)]
pub struct ProcessState {
    /// Whether host process IDs are visible, and process attribution is on.
    pub enabled: bool,
    /// What is missing, with a remedy: host process IDs, or a source of pod names.
    pub problem: Option<Arc<str>>,
    /// The processes on devices, by host process ID.
    pub processes: BTreeMap<u32, Process>,
    /// The running pods with a known UID, by name.
    pub pods: Arc<BTreeMap<PodRef, Arc<PodIdentity>>>,
    /// The labels to show of each pod.
    pub pod_labels: Arc<[PodLabel]>,
    /// The status of the scans; `None` while not enabled.
    pub collector: Option<SourceStatus>,
}

impl ProcessState {
    /// Whether the owners are those of what runs now: a scan that hangs does not show that.
    pub fn is_current(&self) -> bool {
        self.enabled && self.collector.as_ref().is_none_or(|collector| !collector.stuck)
    }

    /// The owner of a process by its host process ID.
    pub fn owner(&self, pid: u32) -> &Owner {
        const NOT_RESOLVED: &Owner = &Owner::Unknown(UnknownOwner::NotResolved);
        self.processes.get(&pid).map_or(NOT_RESOLVED, |process| &process.owner)
    }
}

/// The identity of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodIdentity {
    pub pod: PodRef,
    /// The UID in the API server.
    pub uid: PodUid,
    /// The UID in cgroups and directories, where it differs: for a pod from a manifest.
    pub runtime_uid: Option<PodUid>,
    /// The configured labels that it has. Empty where the source has no labels.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Whether it succeeded or failed, so that none of its containers runs.
    pub terminal: bool,
    /// The known names of containers, by ID.
    pub containers: BTreeMap<ContainerId, Arc<str>>,
}

/// The kubelet's pods, from its Pods API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDirectory {
    /// Whether the watch is running and has sent all pods. While false, `pods` may be old or empty, and others may run.
    pub complete: bool,
    /// The pods by the API server's UID.
    pub pods: BTreeMap<PodUid, Arc<PodIdentity>>,
    /// Why there are no pods, with a remedy. `None` for a kubelet without the API.
    pub problem: Option<Arc<str>>,
}

/// The pods in the names of the kubelet's log directories.
#[derive(Clone, Debug, Default)]
pub struct PodLogs {
    /// The time as of which the pods are complete; `None` before the first reading.
    pub as_of: Option<Monotonic>,
    /// The pods by the UID in the name. The directory of a removed pod remains for a while.
    pub pods: Arc<BTreeMap<PodUid, PodRef>>,
    /// The pod of each name whose directory changed last.
    pub latest: Arc<BTreeMap<PodRef, PodUid>>,
    /// Why there are no pods: the directory cannot be read.
    pub problem: Option<Arc<str>>,
}

impl PodLogs {
    pub fn is_read(&self) -> bool {
        self.as_of.is_some() && self.problem.is_none()
    }

    /// Whether a pod that started after this moment may be absent.
    pub fn is_older_than(&self, moment: Monotonic) -> bool {
        self.as_of.is_none_or(|as_of| as_of < moment)
    }

    /// The running pods by name, from the Pods API, or else from the log directories.
    pub fn running_pods(&self, directory: &PodDirectory) -> BTreeMap<PodRef, Arc<PodIdentity>> {
        if directory.complete || !self.is_read() {
            let running = directory.pods.values().filter(|identity| !identity.terminal);
            return running.map(|identity| (identity.pod.clone(), Arc::clone(identity))).collect();
        }
        let identity = |(pod, uid): (&PodRef, &PodUid)| {
            // The last answer of the Pods API is still valid.
            let known = directory.pods.get(uid).filter(|identity| identity.pod == *pod).cloned();
            let nameless = || Arc::new(PodIdentity { pod: pod.clone(), uid: uid.clone(), ..PodIdentity::default() });
            (pod.clone(), known.unwrap_or_else(nameless))
        };
        self.latest.iter().map(identity).collect()
    }
}

impl PodIdentity {
    /// Whether the UID is the pod's: the API server's, or the one in cgroups.
    pub fn has_uid(&self, uid: &PodUid) -> bool {
        self.uid == *uid || self.runtime_uid.as_ref() == Some(uid)
    }

    /// The UID in cgroups, directories and the kubelet's checkpoint.
    pub fn uid_in_cgroups(&self) -> &PodUid {
        self.runtime_uid.as_ref().unwrap_or(&self.uid)
    }
}

impl PodDirectory {
    /// The pod with this UID: the API server's, or the one in cgroups.
    pub fn identity(&self, uid: &PodUid) -> Option<&Arc<PodIdentity>> {
        let in_cgroups = |identity: &&Arc<PodIdentity>| identity.runtime_uid.as_ref() == Some(uid);
        self.pods.get(uid).or_else(|| self.pods.values().find(in_cgroups))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_becomes_json() {
        let pod = PodRef::new("default", "web-0");
        let identity = PodIdentity {
            pod: pod.clone(),
            uid: "u".into(),
            runtime_uid: None,
            labels: BTreeMap::from([("app".into(), "web".into())]),
            terminal: false,
            containers: BTreeMap::from([("id".into(), "main".into())]),
        };
        let key = Some(ProcessKey { pid: 7, start_ticks: 9 });
        let owners = [
            Owner::Container(ContainerRef::in_pod(&pod, "main")),
            Owner::Pod(pod.clone()),
            Owner::EndedPod { uid: "u".into(), pod: None },
            Owner::Host,
            Owner::Unknown(UnknownOwner::NoNames),
        ];
        let reasons: Vec<_> = owners.iter().map(Owner::unattributed_reason).collect();
        assert_eq!(
            reasons,
            [
                None,
                None,
                Some(UnattributedReason::TerminatedPod),
                Some(UnattributedReason::Host),
                Some(UnattributedReason::Unknown)
            ]
        );
        let process = |(pid, owner)| (pid, Process { key, owner, mps_daemon: None });
        let state = ProcessState {
            processes: (0..).zip(owners).map(process).collect(),
            pods: Arc::new(BTreeMap::from([(pod, Arc::new(identity))])),
            ..ProcessState::default()
        };
        let json = serde_json::to_value(&state).unwrap();
        assert_eq!(json["processes"]["4"]["owner"]["unknown"], "no_names");
        assert_eq!(json["processes"]["0"]["owner"]["container"]["container"], "main");
        assert_eq!(json["pods"][0]["uid"], "u");
    }
}
