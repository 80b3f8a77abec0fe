//! From answers of the kubelet to the allocations that are published: which of the listed pods are accepted.
//!
//! In: answers, files of the kubelet and of DRA drivers, further sources of pods. Out: the accepted allocations. It calls no
//! kubelet. `ListedPods` decides about each pod, `Settle` about what an answer lacks; both are pure.
//!
//! | what | state | until | reason |
//! |---|---|---|---|
//! | UID of a pod | unknown | a source has it | `List` has no UIDs, and a new pod may reuse the name of a removed one (every StatefulSet does so) |
//! | | known | it is removed | |
//! | admission of a pod | unconfirmed: it holds nothing, and nothing of it is given to others | it is admitted, as far as a source shows that | the kubelet lists a pod's devices while it admits the pod, and a pod that it rejects for another device was listed with its first |
//! | | accepted | a settled answer does not list it | |
//! | | rejected: it holds nothing, and what it is listed with may be given to others | it is not listed | the Pods API has it as ended |
//! | a pod no longer listed | removed: its UID is not used for the next pod of the name | `UID_NOT_REUSED` | the checkpoint and the log directories still have it |
//! | all pods | fresh, after each connection | the first answer | the answer may be of a kubelet that has just started: it lists nothing, then some of its pods, then all |
//! | | waiting: what an answer lists is accepted at once, unless the Pods API has it as ended; nothing is removed, no pod is unconfirmed | the answer stays the same for `SETTLE`, or `SETTLE_EMPTY`; or `SETTLE_AT_LAST` | |
//! | | waiting for up to `LONGEST_WITHOUT_API_PODS`; pods of manifests are removed as after an answer that has settled | the answer has pods of the API server, or nothing shows that accepted ones are left | until the kubelet reaches the API server, it lists only pods of manifests, while the others run on |
//! | | settled: each answer is whole | the connection is lost or reopened | |
//!
//! | source of a UID | trusted | because |
//! |---|---|---|
//! | the kubelet's device checkpoint | first | written for each allocation, before the container starts |
//! | Pods API | second | complete, but a pod comes into it only after its admission |
//! | pod-log directories, or the Pods API before it was lost | last | made when the pod starts; its predecessor's may remain |
//!
//! | source of an admission | the pod is accepted |
//! |---|---|
//! | the Pods API | once the API has it, or after `LONGEST_UNCONFIRMED` |
//! | else the checkpoint, written when a container has all its devices | once it is listed twice and the checkpoint has its devices, or after `LONGEST_UNCONFIRMED` |
//! | neither, or the pod has claims only | once it is listed twice, `LISTED_TWICE` apart |

mod listed_pods;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use self::listed_pods::{ListedPods, OtherSources};
use super::checkpoint::CheckpointFile;
use super::claim_files::ClaimFiles;
use super::pods::PodSources;
use super::watch::KubeletSettings;
use crate::domain::model::{
    Allocations, ClaimDevice, Container, DeviceId, Monotonic, Pod, PodDirectory, PodRef, PodUid,
};
use crate::domain::periods::LISTS_NONE_AT_START;

/// How long the UID of a removed pod is not used for the next pod of its name. It is limited: a pod from a
/// manifest keeps its UID.
const UID_NOT_REUSED: Duration = Duration::from_secs(30);
/// Listed twice, at least so far apart. An admission that fails does so within milliseconds, unless a plugin is slow.
const LISTED_TWICE: Duration = Duration::from_millis(200);
/// Two equal answers with this much time between them are accepted in full.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// An answer takes longer that has no accepted holder, nor another one: a kubelet that cannot reach its container runtime lists no pod,
/// and one that cannot reach the API server those of its manifests. The limit is for where `lacks_api_pods` has no evidence.
const SETTLE_EMPTY: Duration = LISTS_NONE_AT_START;
/// A node whose pods change all the time never gives two equal answers; a kubelet that has run this long has all its
/// pods.
const SETTLE_AT_LAST: Duration = Duration::from_secs(10);
/// Holders are kept for so long while the API server seems not to be reached. It is limited: a holder may have ended while the kubelet
/// was down, and its log directory stays as long as its Pod object, which without the Pods API shows no end.
const LONGEST_WITHOUT_API_PODS: Duration = Duration::from_hours(24);

pub(super) struct AcceptedAllocations {
    pub settle: Settle,
    pub pods: ListedPods,
    pub checkpoint: CheckpointFile,
    pub claim_files: ClaimFiles,
    sources: PodSources,
    /// The last answer, unchanged.
    answer: Allocations,
    /// Since when it lacks the pods of the API server; logged as it begins.
    lacks_api_pods_since: Option<Monotonic>,
    /// With which the kubelet ends the name of a pod from a manifest, if `node_name` is the node's: for pods without a UID.
    manifest_suffix: String,
}

impl AcceptedAllocations {
    pub fn new(settings: &KubeletSettings, sources: PodSources) -> Self {
        Self {
            settle: Settle::default(),
            pods: ListedPods::default(),
            checkpoint: CheckpointFile::new(&settings.device_plugin_directory),
            claim_files: ClaimFiles::new(settings.claim_directories.clone()),
            sources,
            answer: Allocations::default(),
            lacks_api_pods_since: None,
            manifest_suffix: format!("-{}", settings.node_name.to_lowercase()),
        }
    }

    /// What is accepted after an answer of `List`.
    pub async fn observe(&mut self, now: Monotonic, answer: Allocations) -> Arc<Allocations> {
        self.answer = answer;
        let accepted = self.accept(now, true).await;
        self.pods.answered(self.checkpoint.read.version);
        accepted
    }

    /// The same after an answer about one pod; the others are as they were. `None`: the kubelet has no such active pod.
    /// Not an answer of `List`: the versions of the checkpoint stay.
    pub async fn observe_pod(&mut self, now: Monotonic, reference: &PodRef, pod: Option<Pod>) -> Arc<Allocations> {
        let pods = &mut self.answer.pods;
        pods.retain(|listed| listed.reference != *reference);
        pods.extend(pod);
        pods.sort_by(|one, other| one.reference.cmp(&other.reference));
        self.accept(now, false).await
    }

    /// The last answer again, because UIDs or the state of pods are known better. `None` where that can change nothing,
    /// or the answer has not settled and a repetition of it would be taken for another one.
    pub async fn reconsider(&mut self, now: Monotonic) -> Option<Arc<Allocations>> {
        let accepted = self.settle.accepted.as_ref().filter(|_| self.settle.is_settled())?;
        let is_open = self.pods.unconfirmed_due().is_some() || accepted.pods.iter().any(|pod| pod.uid.is_none());
        let before = is_open.then(|| Arc::clone(accepted))?;
        let now = self.accept(now, false).await;
        (!Arc::ptr_eq(&before, &now)).then_some(now)
    }

    /// `is_new`: the answer is one of `List` that the kubelet has just given.
    async fn accept(&mut self, now: Monotonic, is_new: bool) -> Arc<Allocations> {
        let checkpoint = self.checkpoint.refresh().await;
        let directory = Arc::clone(&self.sources.directory.borrow());
        let from_pod_logs = self.sources.logs.borrow().running_pods(&directory);
        let sources = OtherSources { checkpoint: &checkpoint, directory: &directory, from_pod_logs: &from_pod_logs };
        let mut answer = self.answer.clone();
        self.claim_files.complete(&mut answer, self.settle.accepted.as_deref()).await;
        let accepted = self.settle.accepted.as_deref();
        self.pods.track(now, &mut answer, accepted, (self.settle.is_settled(), is_new), &sources);
        let lacks_api_pods = !self.settle.is_settled() && self.lacks_api_pods(&answer, &sources);
        if lacks_api_pods && self.lacks_api_pods_since.is_none() {
            tracing::info!(
                "the kubelet has no pods of the API server yet: the holders stay until it has, or for a day"
            );
        }
        let since = self.lacks_api_pods_since.filter(|_| lacks_api_pods).unwrap_or(now);
        self.lacks_api_pods_since = lacks_api_pods.then_some(since);
        self.settle.observe(now, answer, lacks_api_pods && now.since(since) < LONGEST_WITHOUT_API_PODS)
    }

    /// Whether the kubelet has no pods of the API server yet: `answer` has none, and an accepted one is left. Of a removed Pod
    /// object the log directory goes, but devices may stay in the checkpoint: that counts only where log directories are not read.
    fn lacks_api_pods(&self, answer: &Allocations, sources: &OtherSources<'_>) -> bool {
        let has_suffix = |pod: &Pod| pod.reference.pod.ends_with(&self.manifest_suffix);
        let is_of_manifest = |pod: &Pod| pod.uid.as_ref().map_or_else(|| has_suffix(pod), PodUid::is_of_manifest);
        let logs_are_read = self.sources.logs.borrow().is_read();
        let is_left = |pod: &Pod, uid: &PodUid| match sources.from_pod_logs.get(&pod.reference) {
            Some(logged) => !logged.terminal && logged.uid_in_cgroups() == uid,
            None => !logs_are_read && listed_pods::allocated_to(pod, sources.checkpoint).as_ref() == Some(uid),
        };
        let mut of_api = self.holders().filter(|pod| !is_of_manifest(pod));
        answer.pods.iter().all(is_of_manifest)
            && of_api.any(|pod| pod.uid.as_ref().is_some_and(|uid| is_left(pod, uid)))
    }

    /// The holders that have ended, or may have, between two states of the Pods API.
    pub fn ended(&self, before: &PodDirectory, now: &PodDirectory) -> Vec<PodRef> {
        if !before.complete || !now.complete {
            return vec![];
        }
        let has_ended = |pod: &&Pod| {
            let of = |directory: &'_ PodDirectory| Some(directory.identity(pod.uid.as_ref()?)?.terminal);
            let is_terminal = of(now);
            is_terminal != Some(false) && is_terminal != of(before)
        };
        self.holders().filter(has_ended).map(|pod| pod.reference.clone()).collect()
    }

    fn holders(&self) -> impl Iterator<Item = &Pod> {
        self.settle.accepted.iter().flat_map(|accepted| &accepted.pods).filter(|pod| pod.has_devices())
    }
}

/// Decides which allocations to accept after each answer of the kubelet.
#[derive(Debug, Default)]
pub(super) struct Settle {
    /// The last result.
    pub accepted: Option<Arc<Allocations>>,
    state: SettleState,
}

#[derive(Debug, Default)]
enum SettleState {
    /// Connected, no answer yet.
    #[default]
    Fresh,
    Waiting {
        first_answer: Monotonic,
        answer: Allocations,
        answer_since: Monotonic,
    },
    Settled,
}

impl Settle {
    /// The connection was lost or reopened: the next answer may be the first of a kubelet that has just started.
    pub fn reconnected(&mut self) {
        self.state = SettleState::Fresh;
    }

    pub fn is_settled(&self) -> bool {
        matches!(self.state, SettleState::Settled)
    }

    /// What is accepted after `answer`, given at `at`. `lacks_api_pods`: it counts as the first one, unless one has settled, except
    /// for pods of manifests.
    pub fn observe(&mut self, at: Monotonic, answer: Allocations, lacks_api_pods: bool) -> Arc<Allocations> {
        let (first_answer, answer_since) = match &self.state {
            SettleState::Settled => (None, at),
            SettleState::Waiting { first_answer, answer: before, answer_since } => (
                Some(if lacks_api_pods { at } else { *first_answer }),
                if *before == answer { *answer_since } else { at },
            ),
            SettleState::Fresh => (Some(at), at),
        };
        let emptied = self.accepted.as_deref().is_some_and(|accepted| lacks_all_holders(&answer, accepted));
        let is_repeated = |since| at.since(since) >= if emptied { SETTLE_EMPTY } else { SETTLE };
        let settled = first_answer.is_none_or(|first_answer| {
            is_repeated(answer_since.max(first_answer)) || (!emptied && at.since(first_answer) >= SETTLE_AT_LAST)
        });
        let is_removed = |pod: &Pod| {
            let of_manifest = pod.uid.as_ref().is_some_and(PodUid::is_of_manifest);
            lacks_api_pods && of_manifest && is_repeated(answer_since) && answer.pod(&pod.reference).is_none()
        };
        let mut result = answer.clone();
        if let Some(accepted) = self.accepted.as_deref().filter(|_| !settled) {
            result = merge(accepted, &answer);
            result.pods.retain(|pod| !is_removed(pod));
        }
        let unchanged = self.accepted.take().filter(|accepted| **accepted == result);
        let accepted = unchanged.unwrap_or_else(|| Arc::new(result));
        self.state = match first_answer {
            Some(first_answer) if !settled => SettleState::Waiting { first_answer, answer, answer_since },
            _ => SettleState::Settled,
        };
        self.accepted = Some(Arc::clone(&accepted));
        accepted
    }
}

/// Whether `answer` lists no accepted holder, nor another one; where none is accepted, no accepted pod.
fn lacks_all_holders(answer: &Allocations, accepted: &Allocations) -> bool {
    let has_holders = accepted.pods.iter().any(Pod::has_devices);
    let mut expected = accepted.pods.iter().filter(|pod| pod.has_devices() || !has_holders);
    !accepted.pods.is_empty()
        && !answer.pods.iter().any(Pod::has_devices)
        && expected.all(|pod| answer.pod(&pod.reference).is_none())
}

/// All that `answer` lists, and of `accepted` what it does not contradict: a device named under another container has
/// moved, everything else that is merely missing is kept.
fn merge(accepted: &Allocations, answer: &Allocations) -> Allocations {
    let (mut devices, mut claims) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for container in answer.containers() {
        for device in &container.devices {
            devices.entry((&device.resource, &device.id)).or_default().insert(&container.reference);
        }
        for claim in container.claims.iter().filter(|claim| !is_shareable(claim)) {
            claims.entry(claim_key(claim)).or_default().insert(&container.reference);
        }
    }
    let uncontradicted = |container: &Container| {
        let reference = &container.reference;
        let mut kept = container.clone();
        kept.devices.retain(|device| {
            devices.get(&(&device.resource, &device.id)).is_none_or(|holders| holders.contains(reference))
        });
        // A claim may be shared: the same claim under another container takes nothing away, another claim does.
        kept.claims.retain(|device| {
            is_shareable(device)
                || claims.get(&claim_key(device)).is_none_or(|holders| holders.contains(reference))
                || answer.containers().flat_map(|container| &container.claims).any(|other| other.is_same_share(device))
        });
        kept
    };
    let mut pods: BTreeMap<&PodRef, Pod> = answer.pods.iter().map(|pod| (&pod.reference, pod.clone())).collect();
    for before in &accepted.pods {
        match pods.get_mut(&before.reference) {
            None => {
                let containers = before.containers.iter().map(uncontradicted).collect();
                pods.insert(&before.reference, Pod { containers, ..before.clone() });
            }
            // Another pod under the same name: nothing of the old one is kept.
            Some(pod) if pod.uid.is_some() && before.uid.is_some() && pod.uid != before.uid => {}
            // Listed, but perhaps before the kubelet read its devices from the checkpoint.
            Some(pod) => {
                pod.uid = pod.uid.take().or_else(|| before.uid.clone());
                for container in &before.containers {
                    match pod.containers.iter_mut().find(|now| now.reference == container.reference) {
                        Some(now) if now.devices.is_empty() && now.claims.is_empty() => {
                            *now = uncontradicted(container);
                        }
                        Some(_) => {}
                        None => pod.containers.push(uncontradicted(container)),
                    }
                }
                pod.containers.sort_by(|a, b| a.reference.cmp(&b.reference));
            }
        }
    }
    Allocations { pods: pods.into_values().collect() }
}

/// An observer, or a claim of a part: others may have the same device.
fn is_shareable(claim: &ClaimDevice) -> bool {
    claim.is_observer() || claim.consumed().next().is_some()
}

/// The identity of a DRA device in its driver, independent of claims.
fn claim_key(device: &ClaimDevice) -> (&str, &str, &DeviceId, Option<&str>) {
    (&device.driver, &device.pool, &device.device, device.share_id.as_deref())
}

#[cfg(test)]
mod tests;
