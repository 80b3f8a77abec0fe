use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::{Collector, ContainerId, ContainerRef, PodLabel, PodRef, PodUid, Reason};

/// One process for all its life: a process id alone is given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ProcessKey {
    /// As the host counts.
    pub pid: u32,
    /// Clock ticks after boot, from `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

/// Whose a process is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    Container(ContainerRef),
    /// The pod lives, but nobody said which of its containers it is.
    Pod(PodRef),
    /// In the cgroup of a pod that no source lists any more, or that has finished.
    EndedPod {
        uid: PodUid,
        /// While somebody still knows the name.
        pod: Option<PodRef>,
    },
    /// In no pod's cgroup: a daemon, a display server, a container that is not the kubelet's.
    Host,
    Unknown(UnknownOwner),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownOwner {
    /// Nobody asked yet, or process attribution is off.
    NotResolved,
    /// It had ended before it could be looked at.
    Gone,
    /// `/proc` did not let us read, or what it said makes no sense.
    Unreadable,
    /// It is in a pod, but neither pod-log directories nor the Pods API are there to name it.
    NoNames,
}

impl Owner {
    /// The container whose use this is.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerRef> {
        match self {
            Self::Container(container) => Some(container),
            _ => None,
        }
    }

    /// The living pod whose use this is, also where its container is not known.
    #[must_use]
    pub fn pod(&self) -> Option<PodRef> {
        match self {
            Self::Container(container) => {
                Some(PodRef { namespace: Arc::clone(&container.namespace), pod: Arc::clone(&container.pod) })
            }
            Self::Pod(pod) => Some(pod.clone()),
            _ => None,
        }
    }

    /// Why the use of this process is unattributed; `None` for a process of a running pod.
    #[must_use]
    pub const fn unattributed_reason(&self) -> Option<Reason> {
        match self {
            Self::Container(_) | Self::Pod(_) => None,
            Self::EndedPod { .. } => Some(Reason::TerminatedPod),
            Self::Host => Some(Reason::Host),
            Self::Unknown(_) => Some(Reason::Unknown),
        }
    }
}

/// A wanted process as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// `None`: it was never seen alive.
    pub key: Option<ProcessKey>,
    pub owner: Owner,
}

/// What the processes room publishes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessState {
    /// Host process ids are visible and used.
    pub enabled: bool,
    /// What is missing, with a remedy: host process ids, or somebody who names pods.
    pub problem: Option<Arc<str>>,
    /// The wanted ones, by host process id.
    pub processes: BTreeMap<u32, Process>,
    /// The living pods that somebody gives a UID for, by name.
    #[serde(serialize_with = "as_list")]
    pub pods: Arc<BTreeMap<PodRef, Arc<PodIdentity>>>,
    /// The labels that are shown of each.
    pub pod_labels: Arc<[PodLabel]>,
    /// `None` while not enabled.
    pub collector: Option<Collector>,
}

/// JSON's keys are strings, and each identity says its pod's name.
fn as_list<S: Serializer>(pods: &Arc<BTreeMap<PodRef, Arc<PodIdentity>>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(pods.values())
}

impl ProcessState {
    /// The owner of a process by its host process id.
    #[must_use]
    pub fn owner(&self, pid: u32) -> &Owner {
        const NOT_RESOLVED: &Owner = &Owner::Unknown(UnknownOwner::NotResolved);
        self.processes.get(&pid).map_or(NOT_RESOLVED, |process| &process.owner)
    }
}

/// Who a pod is, beyond its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodIdentity {
    pub pod: PodRef,
    /// As the API server knows it.
    pub uid: PodUid,
    /// As cgroups and directories have it, where that is another: a pod from a manifest.
    pub runtime_uid: Option<PodUid>,
    /// Of the labels asked for, those that it has. Empty where the source has none.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Succeeded or failed: none of its containers runs.
    pub terminal: bool,
    /// Names of containers by id, as far as known.
    pub containers: BTreeMap<ContainerId, Arc<str>>,
}

/// The kubelet's pods, as its Pods API tells of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodDirectory {
    /// The kubelet has told of all its pods and goes on telling. While false, `pods` may be old or empty, and what is
    /// not in it may live.
    pub complete: bool,
    /// By the API server's UID.
    pub pods: BTreeMap<PodUid, Arc<PodIdentity>>,
    /// Why there is nothing, with a remedy. A kubelet without the API is no problem.
    pub problem: Option<Arc<str>>,
}

impl PodIdentity {
    /// As cgroups, directories and the kubelet's checkpoint have it.
    #[must_use]
    pub fn uid_in_cgroups(&self) -> &PodUid {
        self.runtime_uid.as_ref().unwrap_or(&self.uid)
    }
}

impl PodDirectory {
    /// The pod with this UID, the API server's or the one in cgroups.
    #[must_use]
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
        assert_eq!(reasons, [None, None, Some(Reason::TerminatedPod), Some(Reason::Host), Some(Reason::Unknown)]);
        let process = |(pid, owner)| (pid, Process { key, owner });
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
