//! The pods that answers of `List` name: which pod it is, and whether the kubelet may still reject it. The table is in
//! `accepted`. Pure.
//!
//! In: answers and their times, and the other sources of pods. Out: the answers without unconfirmed pods, with UIDs, and references
//! that differ wherever the pods do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{LISTED_TWICE, UID_NOT_REUSED};
use crate::domain::model::{Allocations, FileStamp, Monotonic, Pod, PodDirectory, PodIdentity, PodRef, PodUid};
use crate::domain::periods::LONGEST_UNCONFIRMED;
use crate::kubelet::checkpoint::{CheckpointAllocations, CheckpointKey};

/// What is known of pods besides the answer of `List`.
pub struct OtherSources<'a> {
    pub checkpoint: &'a CheckpointAllocations,
    pub directory: &'a PodDirectory,
    /// The pods by their log directories, or as the Pods API last had them.
    pub from_pod_logs: &'a BTreeMap<PodRef, Arc<PodIdentity>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UidSource {
    PodLogs,
    PodsApi,
    Checkpoint,
}

/// The pods that the kubelet lists, one record for each name.
///
/// What kubelets up to 1.37 do, as far as the decisions here depend on it:
///
/// - `List` has no UIDs. It has a pod before the pod is admitted, and each device once its plugin has answered `Allocate`. A pod
///   that is rejected then may be listed for some seconds with the devices of its first containers.
/// - The checkpoint is written when a container has all its devices, before the container starts. Entries of a removed pod stay in
///   the file until the next allocation.
/// - The Pods API has a pod after its admission, or as failed. Until the API server has answered, it refuses (FailedPrecondition).
/// - A pod that ends is listed until its containers have ended, except one from a manifest and one that was deleted by force: their
///   devices are given to others while their containers still run. Up to 1.33 a pod that has ended stays listed without devices.
/// - A log directory stays as long as the Pod object, also after the pod has ended.
/// - Init containers are not listed: while one runs, its devices are listed under the container that will have them next.
/// - After a restart `List` has no pod until the container runtime runs, then those of manifests, and the others once the API server
///   has answered. Until then the checkpoint and the log directories of all pods stay.
#[derive(Debug, Default)]
pub struct ListedPods {
    pods: BTreeMap<PodRef, TrackedPod>,
    /// The version of the checkpoint that was read before the previous answer of `List`.
    version_before: Option<FileStamp>,
    /// The version that was read after the previous answer: it may have devices of pods that only the next answer lists.
    version_after: Option<FileStamp>,
}

/// The pod of a name, and the one that had the name before.
#[derive(Debug, Default)]
struct TrackedPod {
    /// `None`: it is not listed.
    identity: Option<Identity>,
    /// `None`: it has no devices, is accepted, or was rejected.
    unconfirmed: Option<UnconfirmedPod>,
    /// Whose UID is not used.
    removed: Option<RemovedPod>,
}

#[derive(Clone, Debug)]
struct Identity {
    /// `None` while it is unknown which pod of the name is listed.
    uid: Option<(UidSource, PodUid)>,
    /// In references to its containers. These are keys of accounts, and another key would split an account: so it stays as it
    /// was when the pod was first listed, `None` also once `uid` is found.
    reference_uid: Option<PodUid>,
}

#[derive(Debug)]
struct UnconfirmedPod {
    pod: Pod,
    /// Since when it is listed with devices.
    since: Monotonic,
    /// From when on a new answer that lists it is accepted.
    due: Monotonic,
    /// The checkpoint from before it was listed: what that has of its devices is another pod's.
    earlier: Option<FileStamp>,
}

#[derive(Debug)]
struct RemovedPod {
    uid: PodUid,
    at: Monotonic,
    version: Option<FileStamp>,
}

impl ListedPods {
    /// Writes UIDs into `answer` and removes the pods that are unconfirmed or rejected. `accepted`: what was accepted before. `is_whole`: a pod that is
    /// not in it no longer exists; else none is unconfirmed. `is_new`: the kubelet has just given it; an earlier one ends no
    /// wait for another.
    pub fn track(
        &mut self,
        now: Monotonic,
        answer: &mut Allocations,
        accepted: Option<&Allocations>,
        (is_whole, is_new): (bool, bool),
        sources: &OtherSources<'_>,
    ) {
        if !is_whole {
            (self.version_before, self.version_after) = (None, None);
        }
        let mut running: BTreeMap<&PodRef, Vec<&PodIdentity>> = BTreeMap::new();
        for identity in sources.directory.pods.values().filter(|identity| !identity.terminal) {
            running.entry(&identity.pod).or_default().push(identity);
        }
        let version_before = self.version_before;
        let mut before = std::mem::take(&mut self.pods);
        for tracked in before.values_mut() {
            tracked.removed.take_if(|removed| now.since(removed.at) >= UID_NOT_REUSED);
            tracked.unconfirmed.take_if(|_| !is_whole);
        }
        answer.pods.retain_mut(|pod| {
            let mut tracked = before.remove(&pod.reference).unwrap_or_default();
            tracked.identify(pod, running.get(&pod.reference).map_or(&[], Vec::as_slice), sources);
            let is_accepted = tracked.accept((now, is_whole, is_new), pod, accepted, version_before, sources);
            self.pods.insert(pod.reference.clone(), tracked);
            is_accepted
        });
        let missing = before.into_iter().filter_map(|(pod, tracked)| {
            let tracked = if is_whole { tracked.after_its_end(now, sources.checkpoint.version) } else { tracked };
            (tracked.identity.is_some() || tracked.removed.is_some()).then_some((pod, tracked))
        });
        self.pods.extend(missing);
    }

    /// To be called after each answer of `List`, with the version of the checkpoint that was read after it.
    pub fn answered(&mut self, version: Option<FileStamp>) {
        self.version_before = std::mem::replace(&mut self.version_after, version);
    }

    /// The pods that the kubelet may still reject.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &Pod> {
        self.unconfirmed_pods().map(|unconfirmed| &unconfirmed.pod)
    }

    /// When the first of them is due.
    pub fn unconfirmed_due(&self) -> Option<Monotonic> {
        self.unconfirmed_pods().map(|unconfirmed| unconfirmed.due).min()
    }

    fn unconfirmed_pods(&self) -> impl Iterator<Item = &UnconfirmedPod> {
        self.pods.values().filter_map(|tracked| tracked.unconfirmed.as_ref())
    }
}

impl TrackedPod {
    /// Finds the UID of the listed pod and writes it into the pod. `running`: those of its name in the Pods API.
    fn identify(&mut self, pod: &mut Pod, running: &[&PodIdentity], sources: &OtherSources<'_>) {
        let found = self.find(pod, running, sources);
        let identity = match self.identity.take() {
            Some(before) => before.updated_by(found, sources.directory),
            None => Identity::new(found),
        };
        pod.uid = identity.uid.as_ref().map(|(_, uid)| uid.clone());
        for container in &mut pod.containers {
            container.reference.pod_uid.clone_from(&identity.reference_uid);
        }
        self.identity = Some(identity);
    }

    fn find(&self, pod: &Pod, running: &[&PodIdentity], sources: &OtherSources<'_>) -> Option<(UidSource, PodUid)> {
        let removed = self.removed.as_ref();
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

    /// Decides whether the listed pod holds what it is listed with, as one without devices does. Else it is unconfirmed, or was
    /// rejected. `version_before`: of the checkpoint, before the previous answer.
    fn accept(
        &mut self,
        (now, is_whole, is_new): (Monotonic, bool, bool),
        pod: &Pod,
        accepted: Option<&Allocations>,
        version_before: Option<FileStamp>,
        sources: &OtherSources<'_>,
    ) -> bool {
        let waiting = self.unconfirmed.take();
        let before = accepted.and_then(|accepted| accepted.pod(&pod.reference)).filter(|before| before.has_devices());
        if !pod.has_devices() || before.is_some_and(|before| may_be_same(before, pod)) {
            return true;
        }
        let waiting = waiting.filter(|waiting| may_be_same(&waiting.pod, pod));
        let (since, earlier) = waiting.map_or((now, version_before), |waiting| (waiting.since, waiting.earlier));
        // In the Pods API it is admitted, or has ended: rejected, or before it was observed.
        if let Some(has_ended) = has_ended(pod, sources.directory) {
            return !has_ended;
        }
        if !is_whole {
            return true;
        }
        let is_written = !sources.directory.complete && checkpoint_allows(pod, sources.checkpoint, earlier);
        let due = since + if is_written { LISTED_TWICE } else { LONGEST_UNCONFIRMED };
        let is_over = is_new && now >= due;
        if !is_over {
            self.unconfirmed = Some(UnconfirmedPod { pod: pod.clone(), since, due, earlier });
        }
        is_over
    }

    /// The record once the kubelet no longer lists the pod. `version`: of the checkpoint.
    fn after_its_end(self, at: Monotonic, version: Option<FileStamp>) -> Self {
        let uid = self.identity.and_then(|identity| identity.uid);
        let removed = uid.map(|(_, uid)| RemovedPod { uid, at, version });
        Self { removed: removed.or(self.removed), ..Self::default() }
    }
}

impl Identity {
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

/// Whether the Pods API has all pods, and not this one.
fn is_gone(uid: &PodUid, directory: &PodDirectory) -> bool {
    directory.complete && directory.identity(uid).is_none()
}

/// The one pod that was given the devices which this one is listed with.
pub fn allocated_to(pod: &Pod, checkpoint: &CheckpointAllocations) -> Option<PodUid> {
    let uids: BTreeSet<_> = device_keys(pod).filter_map(|key| checkpoint.pods.get(&key)).collect();
    let mut uids = uids.into_iter();
    let uid = uids.next()?;
    if uids.next().is_none() { uid.clone() } else { None }
}

/// Whether a checkpoint other than `earlier` has all its plugin devices. Also true where it can have none: without a checkpoint, and
/// for a pod with claims only.
fn checkpoint_allows(pod: &Pod, checkpoint: &CheckpointAllocations, earlier: Option<FileStamp>) -> bool {
    let mut keys = device_keys(pod).peekable();
    checkpoint.devices.is_none()
        || keys.peek().is_none()
        || checkpoint.version != earlier && keys.all(|key| checkpoint.pods.contains_key(&key))
}

/// Under which the checkpoint has its devices.
fn device_keys(pod: &Pod) -> impl Iterator<Item = CheckpointKey> {
    pod.containers.iter().flat_map(|container| {
        let name = &container.reference.container;
        container.devices.iter().map(|device| (Arc::clone(name), device.resource.clone(), device.id.clone()))
    })
}

/// `None`: the Pods API does not have the pod.
fn has_ended(pod: &Pod, directory: &PodDirectory) -> Option<bool> {
    if !directory.complete {
        return None;
    }
    let identity = match &pod.uid {
        Some(uid) => directory.identity(uid)?,
        None => directory.pods.values().find(|identity| identity.pod == pod.reference && !identity.terminal)?,
    };
    Some(identity.terminal)
}

/// Whether two pods of one name may be the same: their UIDs are equal where both are known.
fn may_be_same(one: &Pod, other: &Pod) -> bool {
    one.uid.is_none() || other.uid.is_none() || one.uid == other.uid
}

#[cfg(test)]
mod tests;
