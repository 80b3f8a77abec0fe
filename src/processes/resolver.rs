//! The owners of processes, with a bounded cache.
//!
//! In: process IDs, `/proc`, pods of the Pods API and of the log directories. Out: an owner for each, and the identities of pods.
//! Does not use: threads, channels.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::cgroup::CgroupOwner;
use super::files::{ProcFiles, Sighting};
use crate::domain::model::{
    ContainerId, ContainerRef, Monotonic, Owner, PodDirectory, PodIdentity, PodLogs, PodRef, PodUid, Process,
    ProcessKey, UnknownOwner,
};

/// The most processes that are resolved on one node.
const MOST_PROCESSES: usize = 4096;
/// A process may still be put into its cgroup, and a container's name may appear later: read again after this long.
const RESCAN: Duration = Duration::from_secs(5);
/// A pod that is no longer listed is remembered for this long, and while it has processes.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Finds owners. Caches results for the requested processes only.
pub struct Resolver {
    files: ProcFiles,
    known: BTreeMap<u32, Known>,
    /// When the Pods API or the log directories last had each pod.
    listed: BTreeMap<PodUid, Monotonic>,
    pods: Pods,
}

struct Known {
    key: ProcessKey,
    seen: Result<Vec<Sighting>, UnknownOwner>,
    mps_daemon: Option<u32>,
    first_seen: Monotonic,
    read_at: Monotonic,
    /// It has ended.
    gone: bool,
    /// A container or pod; kept after the pod and its process end.
    owner: Option<Owner>,
}

/// The published pods, and what they were made from.
#[derive(Default)]
struct Pods {
    directory: Arc<PodDirectory>,
    logged: Arc<BTreeMap<PodUid, PodRef>>,
    by_name: Arc<BTreeMap<PodRef, Arc<PodIdentity>>>,
}

impl Resolver {
    pub fn new(proc_root: &Path) -> Self {
        Self {
            files: ProcFiles::new(proc_root),
            known: BTreeMap::new(),
            listed: BTreeMap::new(),
            pods: Pods::default(),
        }
    }

    /// Whether process ids here are the host's.
    pub fn sees_the_host(&self) -> bool {
        self.files.are_the_hosts()
    }

    /// The current state of the requested processes, with all of them. Drops all others.
    pub fn resolve(
        &mut self,
        now: Monotonic,
        pids: &BTreeSet<u32>,
        directory: &PodDirectory,
        logs: &PodLogs,
    ) -> BTreeMap<u32, Process> {
        self.known.retain(|pid, _| pids.contains(pid));
        let mut processes = BTreeMap::new();
        for (position, pid) in pids.iter().copied().enumerate() {
            let is_resolved = position < MOST_PROCESSES;
            if let Err(reason) = if is_resolved { self.update(now, pid) } else { Err(UnknownOwner::NotResolved) } {
                processes.insert(pid, Process { key: None, owner: Owner::Unknown(reason), mps_daemon: None });
            }
        }
        self.remember_listed(now, directory, logs);
        let names = Names { directory, logs, listed: &self.listed };
        for (pid, known) in &mut self.known {
            let owner = match &known.seen {
                Ok(sightings) => names.owner(sightings, known.first_seen),
                Err(reason) => Owner::Unknown(*reason),
            };
            let owner = match (owner, &known.owner) {
                // It ended with its pod, to which its use belongs.
                (Owner::EndedPod { .. }, Some(owner)) if known.gone => owner.clone(),
                // Its pod may have started after the log directories were read.
                (Owner::EndedPod { .. }, None) if !directory.complete && logs.is_older_than(known.first_seen) => {
                    Owner::Unknown(UnknownOwner::NotResolved)
                }
                (owner, _) => owner,
            };
            if matches!(owner, Owner::Container(_) | Owner::Pod(_)) && known.owner.as_ref() != Some(&owner) {
                known.owner = Some(owner.clone());
            }
            processes.insert(*pid, Process { key: Some(known.key), owner, mps_daemon: known.mps_daemon });
        }
        processes
    }

    /// Updates `known` for one process; `Err` for one that is not in it and whose key cannot be read.
    fn update(&mut self, now: Monotonic, pid: u32) -> Result<(), UnknownOwner> {
        let key = match self.files.key(pid) {
            Ok(key) => key,
            // A process that has ended keeps its owner for as long as device readings include it.
            Err(reason) => {
                let Some(known) = self.known.get_mut(&pid) else { return Err(reason) };
                known.gone = reason == UnknownOwner::Gone;
                return Ok(());
            }
        };
        let Some(known) = self.known.get_mut(&pid).filter(|known| known.key == key) else {
            let (seen, mps_daemon) = (self.files.sightings(key), self.files.mps_daemon(pid));
            let known = Known { key, seen, mps_daemon, first_seen: now, read_at: now, gone: false, owner: None };
            self.known.insert(pid, known);
            return Ok(());
        };
        known.gone = false;
        if known.is_final() || now.since(known.read_at) < RESCAN {
            return Ok(());
        }
        known.read_at = now;
        let seen = self.files.sightings(key);
        if !shows_less(&seen, &known.seen) {
            (known.seen, known.mps_daemon) = (seen, self.files.mps_daemon(pid));
        }
        Ok(())
    }

    /// A pod that was listed once has ended when it no longer is.
    fn remember_listed(&mut self, now: Monotonic, directory: &PodDirectory, logs: &PodLogs) {
        let seen = self.known.values().filter_map(|known| known.seen.as_ref().ok()).flatten();
        let uids: BTreeSet<&PodUid> = seen.filter_map(Sighting::uid).collect();
        let of_api = directory.pods.values().flat_map(|pod| [Some(&pod.uid), pod.runtime_uid.as_ref()]).flatten();
        for uid in of_api.chain(logs.pods.keys()) {
            match self.listed.get_mut(uid) {
                Some(at) => *at = now,
                None => drop(self.listed.insert(uid.clone(), now)),
            }
        }
        self.listed.retain(|uid, at| now.since(*at) < REMEMBERED || uids.contains(uid));
    }

    /// The running pods by name.
    pub fn pods(&mut self, directory: &Arc<PodDirectory>, logs: &PodLogs) -> Arc<BTreeMap<PodRef, Arc<PodIdentity>>> {
        if !Arc::ptr_eq(&self.pods.directory, directory) || !Arc::ptr_eq(&self.pods.logged, &logs.pods) {
            let by_name = Arc::new(logs.running_pods(directory));
            self.pods = Pods { directory: Arc::clone(directory), logged: Arc::clone(&logs.pods), by_name };
        }
        Arc::clone(&self.pods.by_name)
    }
}

impl Known {
    /// Its owner is final while it runs.
    fn is_final(&self) -> bool {
        let own = self.seen.as_ref().ok().and_then(|seen| seen.first());
        let Some(Sighting { owner: CgroupOwner::Pod { container, .. }, mounts, .. }) = own else { return false };
        container.is_none() || mounts.as_ref().is_some_and(|mounts| mounts.container.is_some())
    }
}

/// A process that ends leaves its cgroup before it leaves `/proc`, and its parents may end before it: it keeps its owner.
fn shows_less(now: &Result<Vec<Sighting>, UnknownOwner>, before: &Result<Vec<Sighting>, UnknownOwner>) -> bool {
    let (now, before) = (now.as_deref().unwrap_or_default(), before.as_deref().unwrap_or_default());
    let names_pod = |seen: &[Sighting]| seen.iter().any(|sighting| sighting.uid().is_some());
    !before.is_empty() && !names_pod(now) && (now.is_empty() || names_pod(before))
}

impl Sighting {
    /// The identity from the cgroup, or from mounts where the cgroup names no pod.
    fn uid(&self) -> Option<&PodUid> {
        match &self.owner {
            CgroupOwner::Pod { uid, .. } => Some(uid),
            CgroupOwner::Container(_) => self.mounts.as_ref().map(|mounts| &mounts.uid),
            CgroupOwner::Host => None,
        }
    }

    fn id(&self) -> Option<&ContainerId> {
        match &self.owner {
            CgroupOwner::Pod { container, .. } => container.as_ref(),
            CgroupOwner::Container(id) => Some(id),
            CgroupOwner::Host => None,
        }
    }
}

/// All sources of names.
struct Names<'a> {
    directory: &'a PodDirectory,
    logs: &'a PodLogs,
    listed: &'a BTreeMap<PodUid, Monotonic>,
}

impl Names<'_> {
    /// The nearest running pod. `first_seen`: the process.
    fn owner(&self, sightings: &[Sighting], first_seen: Monotonic) -> Owner {
        let mut none = Owner::Host;
        for sighting in sightings {
            match (self.owner_by(sighting, first_seen), &none) {
                (owner @ (Owner::Container(_) | Owner::Pod(_)), _) => return owner,
                (owner @ Owner::EndedPod { .. }, Owner::Host | Owner::Unknown(_)) => none = owner,
                (owner @ Owner::Unknown(_), Owner::Host) => none = owner,
                _ => {}
            }
        }
        none
    }

    fn owner_by(&self, sighting: &Sighting, first_seen: Monotonic) -> Owner {
        if let Some(uid) = sighting.uid() {
            return self.in_pod(uid, sighting, first_seen);
        }
        let Some(id) = sighting.id() else { return Owner::Host };
        let named = |identity: &&Arc<PodIdentity>| identity.containers.contains_key(id) && !identity.terminal;
        if let Some(identity) = self.directory.pods.values().find(named) {
            return self.in_pod(identity.uid_in_cgroups(), sighting, first_seen);
        }
        // The kubelet's containers have the kubelet's mounts: this one is not the kubelet's.
        if sighting.mounts_failed { Owner::Unknown(UnknownOwner::Unreadable) } else { Owner::Host }
    }

    fn in_pod(&self, uid: &PodUid, sighting: &Sighting, first_seen: Monotonic) -> Owner {
        let identity = self.directory.identity(uid);
        let logged = self.logs.pods.get(uid);
        // A pod from a manifest has two UIDs: that of its cgroup and that of the API.
        let is_in_logs =
            logged.is_some() || identity.is_some_and(|identity| self.logs.pods.contains_key(&identity.uid));
        let logs_are_read = self.logs.is_read();
        let ended = || {
            let pod = identity.map(|identity| &identity.pod).or(logged).cloned();
            Owner::EndedPod { uid: uid.clone(), pod }
        };
        let pod = match identity {
            Some(identity) if identity.terminal => return ended(),
            // The list of the Pods API may be old; then the log directories show which pods were removed.
            Some(_) if !self.directory.complete && logs_are_read && !is_in_logs => return ended(),
            Some(identity) => &identity.pod,
            None if self.directory.complete && logged.is_some() => return ended(),
            None => match logged {
                Some(pod) => pod,
                None if !self.directory.complete && !logs_are_read => return Owner::Unknown(UnknownOwner::NoNames),
                None if self.listed.contains_key(uid) => return ended(),
                // Its pod may have started after the log directories were read.
                None if !self.directory.complete && self.logs.is_older_than(first_seen) => {
                    return Owner::Unknown(UnknownOwner::NotResolved);
                }
                // A pod of another kubelet, such as one that runs in a pod.
                None => return Owner::Host,
            },
        };
        // The kubelet's data on an ID takes precedence over a process's mounts.
        let mounted = sighting.mounts.as_ref().and_then(|mounts| mounts.container.as_ref());
        let by_id = sighting.id().and_then(|id| identity.and_then(|identity| identity.containers.get(id)).or(mounted));
        match by_id {
            // Another pod may have the name by now: the UID identifies the owner.
            Some(container) => Owner::Container(ContainerRef::in_pod(pod, container).with_uid(Some(uid.clone()))),
            None => Owner::Pod(pod.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
