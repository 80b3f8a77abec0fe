//! Pods that have been given devices and may still be rejected. The kubelet lists a pod's devices while it admits the
//! pod, and a pod that it rejects for its second container was listed with those of its first. So a pod that newly has
//! devices is a holder only once it has been admitted: the Pods API has it, or it was listed twice.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::model::{Allocations, Monotonic, Pod, PodDirectory, PodRef, PodUid};

/// Listed twice, so far apart. An admission that fails does so within milliseconds, unless a plugin is slow.
const LISTED_TWICE: Duration = Duration::from_millis(200);
/// A pod that the Pods API should list and does not is accepted after this long.
const PODS_API_LATE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Unconfirmed {
    /// Since when each is listed with devices, and when it is accepted without confirmation.
    pods: BTreeMap<(PodRef, Option<PodUid>), (Monotonic, Monotonic)>,
}

impl Unconfirmed {
    /// No pod that stays listed is held back for longer.
    pub const LONGEST: Duration = PODS_API_LATE;

    /// Takes out of `answer` the pods that hold devices, are not in `believed` and may still be rejected.
    pub fn hold_back(
        &mut self,
        now: Monotonic,
        answer: &mut Allocations,
        believed: Option<&Allocations>,
        directory: &PodDirectory,
    ) {
        let before = std::mem::take(&mut self.pods);
        answer.pods.retain(|pod| {
            if !pod.has_devices() || believed.is_some_and(|believed| holds_in(believed, pod)) {
                return true;
            }
            let wait = match admission(pod, directory) {
                Some(AdmissionState::Admitted) => return true,
                // Rejected, or ended before it was observed.
                Some(AdmissionState::Ended) => return false,
                None if directory.complete => PODS_API_LATE,
                None => LISTED_TWICE,
            };
            let key = (pod.reference.clone(), pod.uid.clone());
            let since = before.get(&key).map_or(now, |(since, _)| *since);
            let due = since + wait;
            if now >= due {
                return true;
            }
            self.pods.insert(key, (since, due));
            false
        });
    }

    /// When an answer would confirm one of them.
    pub fn due(&self) -> Option<Monotonic> {
        self.pods.values().map(|(_, due)| *due).min()
    }
}

enum AdmissionState {
    Admitted,
    Ended,
}

/// `None`: the Pods API does not have the pod.
fn admission(pod: &Pod, directory: &PodDirectory) -> Option<AdmissionState> {
    if !directory.complete {
        return None;
    }
    let identity = match &pod.uid {
        Some(uid) => directory.identity(uid)?,
        None => directory.pods.values().find(|identity| identity.pod == pod.reference && !identity.terminal)?,
    };
    Some(if identity.terminal { AdmissionState::Ended } else { AdmissionState::Admitted })
}

fn holds_in(believed: &Allocations, pod: &Pod) -> bool {
    let same = |before: &Pod| before.uid.is_none() || pod.uid.is_none() || before.uid == pod.uid;
    believed.pod(&pod.reference).is_some_and(|before| before.has_devices() && same(before))
}

#[cfg(test)]
mod tests;
