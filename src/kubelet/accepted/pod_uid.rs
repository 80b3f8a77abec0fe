//! Which pod a listed name belongs to. `List` has no UIDs, and a new pod may reuse the name of a removed one (every
//! StatefulSet does so). In: an answer of `List` and the sources of UIDs. Out: the same answer with UIDs, and
//! references that differ wherever the pods do.
//!
//! | source | trusted | because |
//! |---|---|---|
//! | the kubelet's device checkpoint | first | written for each allocation, before the container starts |
//! | Pods API | second | complete, but a pod comes into it only after its admission |
//! | pod-log directories, or the Pods API before it was lost | last | made when the pod starts; its predecessor's may remain |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::model::{
    Allocations, DeviceId, FileStamp, Monotonic, Pod, PodDirectory, PodIdentity, PodRef, PodUid, ResourceName,
};

/// How long the UID of a removed pod is not used for the next pod of its name. It is limited: a pod from a
/// manifest keeps its UID.
const UID_NOT_REUSED: Duration = Duration::from_secs(30);

/// Which pod was given which device, as the kubelet's checkpoint has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointAllocations {
    /// Differs for each time that the file was written.
    pub version: Option<FileStamp>,
    /// By container, resource and device. `None`: several pods, so it is not known which.
    pub pods: BTreeMap<(Arc<str>, ResourceName, DeviceId), Option<PodUid>>,
    /// All devices by resource, registered or assigned. `None` where there is no file.
    pub devices: Option<Arc<BTreeMap<ResourceName, BTreeSet<DeviceId>>>>,
}

/// Where UIDs are known from.
pub struct UidSources<'a> {
    pub checkpoint: &'a CheckpointAllocations,
    pub directory: &'a PodDirectory,
    /// By their log directories, or as the Pods API last had them.
    pub from_pod_logs: &'a BTreeMap<PodRef, Arc<PodIdentity>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UidSource {
    PodLogs,
    PodsApi,
    Checkpoint,
}

/// The pods that are listed, and those that were removed a moment ago.
#[derive(Debug, Default)]
pub struct PodUids {
    listed: BTreeMap<PodRef, ListedPod>,
    removed: BTreeMap<PodRef, RemovedPod>,
}

#[derive(Clone, Debug)]
struct ListedPod {
    /// `None` while it is unknown which pod of the name is listed.
    uid: Option<(UidSource, PodUid)>,
    /// In references to its containers. These are keys of accounts, and another key would split an account: so it stays as it
    /// was when the pod was first listed, `None` also once `uid` is found.
    reference_uid: Option<PodUid>,
}

#[derive(Debug)]
struct RemovedPod {
    uid: PodUid,
    at: Monotonic,
    version: Option<FileStamp>,
}

impl PodUids {
    /// Writes UIDs into `answer`. `is_whole`: a pod that is not in it no longer exists.
    pub fn identify(&mut self, now: Monotonic, answer: &mut Allocations, is_whole: bool, sources: &UidSources<'_>) {
        self.removed.retain(|_, removed| now.since(removed.at) < UID_NOT_REUSED);
        let mut by_name: BTreeMap<&PodRef, Vec<&PodIdentity>> = BTreeMap::new();
        for identity in sources.directory.pods.values().filter(|identity| !identity.terminal) {
            by_name.entry(&identity.pod).or_default().push(identity);
        }
        let mut listed = BTreeMap::new();
        for pod in &mut answer.pods {
            let running = by_name.get(&pod.reference).map_or(&[][..], Vec::as_slice);
            let found = self.find(pod, running, sources);
            let identified = match self.listed.remove(&pod.reference) {
                Some(before) => before.updated_by(found, sources.directory),
                None => ListedPod::new(found),
            };
            pod.uid = identified.uid.as_ref().map(|(_, uid)| uid.clone());
            for container in &mut pod.containers {
                container.reference.pod_uid.clone_from(&identified.reference_uid);
            }
            listed.insert(pod.reference.clone(), identified);
        }
        let missing = std::mem::replace(&mut self.listed, listed);
        if !is_whole {
            self.listed.extend(missing);
            return;
        }
        let version = sources.checkpoint.version;
        for (pod, before) in missing {
            if let Some((_, uid)) = before.uid {
                self.removed.insert(pod, RemovedPod { uid, at: now, version });
            }
        }
    }

    fn find(&self, pod: &Pod, running: &[&PodIdentity], sources: &UidSources<'_>) -> Option<(UidSource, PodUid)> {
        let removed = self.removed.get(&pod.reference);
        let was_removed = |uid: &PodUid| removed.is_some_and(|removed| removed.uid == *uid);
        if let Some(uid) = allocated_to(pod, sources.checkpoint) {
            // Listed before the kubelet has written its checkpoint: what is there is the predecessor's.
            let is_old =
                was_removed(&uid) && removed.is_some_and(|removed| removed.version == sources.checkpoint.version);
            let known = sources.directory.identity(&uid);
            let is_another = known.is_some_and(|identity| identity.pod != pod.reference);
            if !is_old && !is_another {
                return Some((UidSource::Checkpoint, uid));
            }
        }
        let (source, uid) = match (running, sources.directory.complete) {
            ([identity], true) => (UidSource::PodsApi, identity.uid_in_cgroups()),
            // Of two pods of one name it is not known which one is listed.
            (_, true) => return None,
            (_, false) => (UidSource::PodLogs, sources.from_pod_logs.get(&pod.reference)?.uid_in_cgroups()),
        };
        (!was_removed(uid)).then(|| (source, uid.clone()))
    }
}

impl ListedPod {
    fn new(uid: Option<(UidSource, PodUid)>) -> Self {
        Self { reference_uid: uid.as_ref().map(|(_, uid)| uid.clone()), uid }
    }

    /// What is known of a pod whose name stays listed, after `found`:
    ///
    /// | `uid` | `reference_uid` | found | result |
    /// |---|---|---|---|
    /// | none | a UID: it has left the Pods API | another | another pod: both UIDs are the one that was found |
    /// | none | any | any | the same pod: `uid` is what was found |
    /// | a UID that the Pods API no longer has | any | none | no `uid`: it may be the next pod of the name |
    /// | a UID | any | none | no change |
    /// | a UID | any | the same | the source that found it now |
    /// | a UID that the Pods API may have | any | another, of a lesser source | no change |
    /// | a UID | any | another | another pod |
    fn updated_by(self, found: Option<(UidSource, PodUid)>, directory: &PodDirectory) -> Self {
        match (&self.uid, &found) {
            (None, Some((_, now))) if self.reference_uid.as_ref().is_some_and(|uid| uid != now) => Self::new(found),
            (None, _) => Self { uid: found, ..self },
            (Some((_, uid)), None) if is_gone(uid, directory) => Self { uid: None, ..self },
            (Some(_), None) => self,
            (Some((_, before)), Some((_, now))) if before == now => Self { uid: found, ..self },
            (Some((had, before)), Some((has, _))) if has < had && !is_gone(before, directory) => self,
            (Some(_), Some(_)) => Self::new(found),
        }
    }
}

/// The Pods API has all pods, and not this one.
fn is_gone(uid: &PodUid, directory: &PodDirectory) -> bool {
    directory.complete && directory.identity(uid).is_none()
}

/// The one pod that was given the devices which this one is listed with.
fn allocated_to(pod: &Pod, checkpoint: &CheckpointAllocations) -> Option<PodUid> {
    let mut uids = BTreeSet::new();
    for container in &pod.containers {
        for held in &container.devices {
            let key = (Arc::clone(&container.reference.container), held.resource.clone(), held.id.clone());
            uids.extend(checkpoint.pods.get(&key));
        }
    }
    let uid = uids.pop_first()?;
    if uids.is_empty() { uid.clone() } else { None }
}

#[cfg(test)]
mod tests;
