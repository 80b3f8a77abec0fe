//! From answers of the kubelet to the allocations that are published: which of the listed pods are accepted.
//!
//! In: answers, files of the kubelet and of DRA drivers, further sources of pods. Out: the accepted allocations. It calls no
//! kubelet. `listed_pods` and `settle` decide and are pure; each pod's name has one record, and all of an answer one state.
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
//! | | waiting: what an answer lists is accepted at once, nothing is removed, no pod is unconfirmed | the answer stays the same for `SETTLE`, or `SETTLE_EMPTY`; or `SETTLE_AT_LAST` | |
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
mod settle;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use self::listed_pods::{ListedPods, OtherSources};
use super::checkpoint::CheckpointFile;
use super::claim_files::{ClaimDirectories, ClaimFiles};
use super::pods::PodSources;
use crate::domain::model::{Allocations, Monotonic, Pod, PodDirectory, PodRef};
use crate::domain::periods::LISTS_NONE_AT_START;

/// How long the UID of a removed pod is not used for the next pod of its name. It is limited: a pod from a
/// manifest keeps its UID.
const UID_NOT_REUSED: Duration = Duration::from_secs(30);
/// Listed twice, at least so far apart. An admission that fails does so within milliseconds, unless a plugin is slow.
const LISTED_TWICE: Duration = Duration::from_millis(200);
/// Two equal answers with this much time between them are accepted in full.
pub(super) const SETTLE: Duration = Duration::from_secs(1);
/// An answer takes longer that has no accepted holder, nor another one: a kubelet that cannot reach its container runtime lists no pod,
/// and one that cannot reach the API server those of its manifests.
const SETTLE_EMPTY: Duration = LISTS_NONE_AT_START;
/// A node whose pods change all the time never gives two equal answers; a kubelet that has run this long has all its
/// pods.
const SETTLE_AT_LAST: Duration = Duration::from_secs(10);

pub(super) struct AcceptedAllocations {
    pub pods: ListedPods,
    pub checkpoint: CheckpointFile,
    pub claim_files: ClaimFiles,
    sources: PodSources,
    /// The last answer, unchanged.
    answer: Allocations,
}

impl AcceptedAllocations {
    pub fn new(device_plugin_directory: &Path, claim_directories: ClaimDirectories, sources: PodSources) -> Self {
        Self {
            pods: ListedPods::default(),
            checkpoint: CheckpointFile::new(device_plugin_directory),
            claim_files: ClaimFiles::new(claim_directories),
            sources,
            answer: Allocations::default(),
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
        let mut pods: BTreeMap<PodRef, Pod> =
            std::mem::take(&mut self.answer.pods).into_iter().map(|pod| (pod.reference.clone(), pod)).collect();
        match pod {
            Some(pod) => drop(pods.insert(reference.clone(), pod)),
            None => drop(pods.remove(reference)),
        }
        self.answer.pods = pods.into_values().collect();
        self.accept(now, false).await
    }

    /// The last answer again, because UIDs or the state of pods are known better. `None` where that can change nothing,
    /// or the answer has not settled and a repetition of it would be taken for another one.
    pub async fn reconsider(&mut self, now: Monotonic) -> Option<Arc<Allocations>> {
        let accepted = self.pods.settle.accepted.as_ref().filter(|_| self.pods.settle.is_settled())?;
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
        self.claim_files.complete(&mut answer, self.pods.settle.accepted.as_deref()).await;
        self.pods.observe(now, answer, is_new, &sources)
    }

    /// The holders that have ended, or may have, between two states of the Pods API.
    pub fn ended(&self, before: &PodDirectory, now: &PodDirectory) -> Vec<PodRef> {
        if !before.complete || !now.complete {
            return vec![];
        }
        let has_ended = |pod: &&Pod| {
            let of = |directory: &'_ PodDirectory| Some(directory.identity(pod.uid.as_ref()?)?.terminal);
            match (of(before), of(now)) {
                (was_terminal, Some(true)) => was_terminal != Some(true),
                (was_known, None) => was_known.is_some(),
                (_, Some(false)) => false,
            }
        };
        let holders =
            self.pods.settle.accepted.iter().flat_map(|accepted| &accepted.pods).filter(|pod| pod.has_devices());
        holders.filter(has_ended).map(|pod| pod.reference.clone()).collect()
    }
}
