//! Pods that have been given devices and may still be rejected. The kubelet lists a pod's devices while it admits the
//! pod, and a pod that it rejects for another device was listed with its first. So a pod that newly has devices is a
//! holder only once it has been admitted, as far as a source shows that:
//!
//! | source | it is a holder |
//! |---|---|
//! | the Pods API | once the API has it, or after ten seconds |
//! | else the checkpoint | once it is listed twice and the checkpoint has its devices, or after ten seconds |
//! | neither | once it is listed twice |
//!
//! The kubelet writes the checkpoint when a container has all its devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::pod_uid::CheckpointAllocations;
use crate::domain::model::{Allocations, FileStamp, Monotonic, Pod, PodDirectory, PodRef};

/// Listed twice, at least so far apart. An admission that fails does so within milliseconds, unless a plugin is slow.
const LISTED_TWICE: Duration = Duration::from_millis(200);
/// A pod that the Pods API or the checkpoint should have and has not is accepted after this long: a plugin may be slow.
const LATE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Unconfirmed {
    pods: BTreeMap<PodRef, HeldBack>,
    /// Of the checkpoint, as it was read before the previous answer.
    version_before: Option<FileStamp>,
    /// As it was read after the previous answer: it may have devices of pods that only the next answer lists.
    version_after: Option<FileStamp>,
}

#[derive(Debug)]
struct HeldBack {
    pod: Pod,
    /// Since when it is listed with devices.
    since: Monotonic,
    /// From when on an answer that lists it is accepted.
    due: Monotonic,
    /// The checkpoint from before it was listed: what that has of its devices is another pod's.
    earlier: Option<FileStamp>,
}

impl Unconfirmed {
    /// No pod that stays listed is held back for longer.
    pub const LONGEST: Duration = LATE;

    /// Removes from `answer` the pods that hold devices, are not in `accepted` and may still be rejected.
    pub fn hold_back(
        &mut self,
        now: Monotonic,
        answer: &mut Allocations,
        accepted: Option<&Allocations>,
        directory: &PodDirectory,
        checkpoint: &CheckpointAllocations,
    ) {
        let mut before = std::mem::take(&mut self.pods);
        answer.pods.retain(|pod| {
            if !pod.has_devices() || accepted.is_some_and(|accepted| holds_in(accepted, pod)) {
                return true;
            }
            let same =
                |waiting: &HeldBack| waiting.pod.uid.is_none() || pod.uid.is_none() || waiting.pod.uid == pod.uid;
            let waiting = before.remove(&pod.reference).filter(same);
            let (since, earlier) = waiting.map_or((now, self.version_before), |held| (held.since, held.earlier));
            // In the Pods API it is admitted, or has ended: rejected, or before it was observed.
            if let Some(has_ended) = has_ended(pod, directory) {
                return !has_ended;
            }
            let is_written = !directory.complete && is_written(pod, checkpoint, earlier);
            let due = since + if is_written { LISTED_TWICE } else { LATE };
            if now >= due {
                return true;
            }
            self.pods.insert(pod.reference.clone(), HeldBack { pod: pod.clone(), since, due, earlier });
            false
        });
    }

    /// After each answer of `List`, with the version of the checkpoint that was read after it.
    pub fn answered(&mut self, version: Option<FileStamp>) {
        self.version_before = std::mem::replace(&mut self.version_after, version);
    }

    /// Those that are held back.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|waiting| &waiting.pod)
    }

    /// When the first of them is due.
    pub fn due(&self) -> Option<Monotonic> {
        self.pods.values().map(|waiting| waiting.due).min()
    }
}

/// Whether a checkpoint other than `earlier` has all its plugin devices. Also true without a checkpoint, and for a pod
/// with claims only.
fn is_written(pod: &Pod, checkpoint: &CheckpointAllocations, earlier: Option<FileStamp>) -> bool {
    let mut held = pod.containers.iter().flat_map(|container| {
        let name = &container.reference.container;
        container.devices.iter().map(|device| (Arc::clone(name), device.resource.clone(), device.id.clone()))
    });
    let Some(first) = held.next().filter(|_| checkpoint.devices.is_some()) else { return true };
    checkpoint.version != earlier && std::iter::once(first).chain(held).all(|key| checkpoint.pods.contains_key(&key))
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

fn holds_in(accepted: &Allocations, pod: &Pod) -> bool {
    let same = |before: &Pod| before.uid.is_none() || pod.uid.is_none() || before.uid == pod.uid;
    accepted.pod(&pod.reference).is_some_and(|before| before.has_devices() && same(before))
}

#[cfg(test)]
mod tests;
