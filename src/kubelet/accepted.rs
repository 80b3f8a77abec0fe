//! From answers of the kubelet to the allocations that are published: UIDs and the records of claims are added,
//! pods that the kubelet may still reject are held back, and the settle rule decides what is removed.
//!
//! In: answers, and further sources of pods. Out: the accepted allocations. It calls no kubelet.

pub(super) mod pod_uid;
mod settle;
mod unconfirmed;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use self::pod_uid::{PodUids, UidSources};
use self::settle::Settle;
use super::checkpoint::CheckpointFile;
use super::claim_files::{ClaimDirectories, ClaimFiles};
use super::pods::PodSources;
use crate::domain::model::{Allocations, Monotonic, Pod, PodDirectory, PodRef};

pub use unconfirmed::Unconfirmed;

pub(super) struct AcceptedAllocations {
    pub settle: Settle,
    pub unconfirmed: Unconfirmed,
    pub checkpoint: CheckpointFile,
    pub claim_files: ClaimFiles,
    uids: PodUids,
    sources: PodSources,
    /// As the kubelet gave it.
    answer: Allocations,
}

impl AcceptedAllocations {
    pub fn new(device_plugin_directory: &Path, claim_directories: ClaimDirectories, sources: PodSources) -> Self {
        Self {
            settle: Settle::default(),
            unconfirmed: Unconfirmed::default(),
            checkpoint: CheckpointFile::new(device_plugin_directory),
            claim_files: ClaimFiles::new(claim_directories),
            uids: PodUids::default(),
            sources,
            answer: Allocations::default(),
        }
    }

    /// What is accepted after an answer of `List`.
    pub async fn observe(&mut self, now: Monotonic, answer: Allocations) -> Arc<Allocations> {
        self.answer = answer;
        let accepted = self.accept(now).await;
        self.unconfirmed.answered(self.checkpoint.read.version);
        accepted
    }

    /// The same after an answer about one pod; the others are as they were. `None`: the kubelet has no such active pod.
    /// Not an answer of `List`: the versions of `unconfirmed` stay.
    pub async fn observe_pod(&mut self, now: Monotonic, reference: &PodRef, pod: Option<Pod>) -> Arc<Allocations> {
        let mut pods: BTreeMap<PodRef, Pod> =
            std::mem::take(&mut self.answer.pods).into_iter().map(|pod| (pod.reference.clone(), pod)).collect();
        match pod {
            Some(pod) => drop(pods.insert(reference.clone(), pod)),
            None => drop(pods.remove(reference)),
        }
        self.answer.pods = pods.into_values().collect();
        self.accept(now).await
    }

    /// The last answer again, because UIDs or the state of pods are known better. `None` where that can change nothing,
    /// or the answer has not settled and a repetition of it would be taken for another one.
    pub async fn reconsider(&mut self, now: Monotonic) -> Option<Arc<Allocations>> {
        let accepted = self.settle.accepted.as_ref().filter(|_| self.settle.is_settled())?;
        let is_open = self.unconfirmed.due().is_some() || accepted.pods.iter().any(|pod| pod.uid.is_none());
        let before = is_open.then(|| Arc::clone(accepted))?;
        let now = self.accept(now).await;
        (!Arc::ptr_eq(&before, &now)).then_some(now)
    }

    async fn accept(&mut self, now: Monotonic) -> Arc<Allocations> {
        let checkpoint = self.checkpoint.refresh().await;
        let directory = Arc::clone(&self.sources.directory.borrow());
        let from_pod_logs = self.sources.logs.borrow().running_pods(&directory);
        let sources = UidSources { checkpoint: &checkpoint, directory: &directory, from_pod_logs: &from_pod_logs };
        let is_whole = self.settle.is_settled();
        let mut answer = self.answer.clone();
        self.claim_files.complete(&mut answer, self.settle.accepted.as_deref()).await;
        self.uids.identify(now, &mut answer, is_whole, &sources);
        if is_whole {
            self.unconfirmed.hold_back(now, &mut answer, self.settle.accepted.as_deref(), &directory, &checkpoint);
        } else {
            self.unconfirmed = Unconfirmed::default();
        }
        self.settle.observe(now, answer)
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
        let holders = self.settle.accepted.iter().flat_map(|accepted| &accepted.pods).filter(|pod| pod.has_devices());
        holders.filter(has_ended).map(|pod| pod.reference.clone()).collect()
    }
}
