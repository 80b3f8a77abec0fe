//! The files of one process under `/proc`, each read up to a limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::cgroup::{self, CgroupOwner};
use super::mountinfo;
use super::stat::{self, Stat};
use crate::domain::model::{PodUid, ProcessKey, UnknownOwner};

/// A line: the name is 16 bytes of it, 64 on some kernels.
const STAT_LIMIT: u64 = 4 << 10;
/// A path of at most 4 KiB for each of some twelve hierarchies.
const CGROUP_LIMIT: u64 = 64 << 10;
/// A container's mounts are dozens; a process that mounts thousands does it after the runtime's.
const MOUNTINFO_LIMIT: u64 = 256 << 10;

/// A directory that is laid out as `/proc`.
#[derive(Clone, Debug)]
pub struct ProcFiles {
    root: PathBuf,
}

/// Some fifty lines; one grows with the groups of the process.
const STATUS_LIMIT: u64 = 64 << 10;
/// The most ancestors that are read; a container engine within a pod puts some ten between them.
const MOST_ANCESTORS: usize = 32;

/// A pod or container that a process is in, by its own cgroup or that of an ancestor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Never the host.
    pub owner: CgroupOwner,
    /// Read where the cgroup names a container; `None` where there are none of the kubelet's.
    pub mounts: Option<mountinfo::KubeletMounts>,
    /// They are needed and cannot be read.
    pub mounts_failed: bool,
}

impl ProcFiles {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Whether the process ids in here are the host's: only the host's process namespace has kernel threads, of which
    /// number 2 makes all others, and no process can pass for one.
    pub fn are_the_hosts(&self) -> bool {
        self.stat(2).is_ok_and(|stat| stat.kernel_thread)
    }

    pub fn key(&self, pid: u32) -> Result<ProcessKey, UnknownOwner> {
        Ok(ProcessKey { pid, start_ticks: self.stat(pid)?.start_ticks })
    }

    /// What this very process and its ancestors are in, the nearest first; nothing for a process of the host's.
    /// `NotResolved` when another process got its number meanwhile.
    ///
    /// What runs a container within a pod may put it into a cgroup outside of the pod's, but remains its ancestor.
    pub fn sightings(&self, key: ProcessKey) -> Result<Vec<Sighting>, UnknownOwner> {
        let own = self.cgroup_owner(key.pid)?;
        let mut sightings: Vec<Sighting> = self.sighting(key.pid, own).into_iter().collect();
        let mut child = self.stat(key.pid)?;
        for _ in 0..MOST_ANCESTORS {
            let pid = child.parent;
            let Ok(parent) = self.stat(pid) else { break };
            if pid == 0 || parent.start_ticks > child.start_ticks {
                break; // no ancestor is visible here, or another process has its number
            }
            let Ok(owner) = self.cgroup_owner(pid) else { break };
            if sightings.last().is_none_or(|nearest| nearest.owner != owner) {
                sightings.extend(self.sighting(pid, owner));
            }
            child = parent;
        }
        if self.key(key.pid)? == key { Ok(sightings) } else { Err(UnknownOwner::NotResolved) }
    }

    fn sighting(&self, pid: u32, owner: CgroupOwner) -> Option<Sighting> {
        let mounts = match &owner {
            CgroupOwner::Pod { uid, container: Some(_) } => self.mounts(pid, Some(uid)),
            CgroupOwner::Container(_) => self.mounts(pid, None),
            // A monitor's mounts are the host's.
            CgroupOwner::Pod { container: None, .. } => Ok(None),
            CgroupOwner::Host => return None,
        };
        Some(Sighting { owner, mounts_failed: mounts.is_err(), mounts: mounts.ok().flatten() })
    }

    /// `Process::mps_daemon`. Any process may take these names: they are evidence only with the daemon's own file.
    pub fn mps_daemon(&self, pid: u32) -> Option<u32> {
        let server = self.stat(pid).ok().filter(|stat| stat.is_mps)?;
        self.stat(server.parent).ok().filter(|stat| stat.is_mps)?;
        let status = self.read(server.parent, "status", STATUS_LIMIT).ok()?;
        // From the namespace of this `/proc` to the innermost.
        let ids =
            String::from_utf8_lossy(&status).lines().find_map(|line| Some(line.strip_prefix("NSpid:")?.to_owned()))?;
        ids.split_ascii_whitespace().next_back()?.parse().ok()
    }

    pub fn cgroup_owner(&self, pid: u32) -> Result<CgroupOwner, UnknownOwner> {
        Ok(cgroup::parse(&String::from_utf8_lossy(&self.read(pid, "cgroup", CGROUP_LIMIT)?)))
    }

    /// `uid`: only those of this pod.
    fn mounts(&self, pid: u32, uid: Option<&PodUid>) -> Result<Option<mountinfo::KubeletMounts>, UnknownOwner> {
        Ok(mountinfo::parse(&String::from_utf8_lossy(&self.read(pid, "mountinfo", MOUNTINFO_LIMIT)?), uid))
    }

    fn stat(&self, pid: u32) -> Result<Stat, UnknownOwner> {
        stat::parse(&self.read(pid, "stat", STAT_LIMIT)?).ok_or(UnknownOwner::Unreadable)
    }

    fn read(&self, pid: u32, file: &str, limit: u64) -> Result<Vec<u8>, UnknownOwner> {
        let path = self.root.join(pid.to_string()).join(file);
        let mut bytes = vec![];
        match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
            Ok(_) => Ok(bytes),
            // The directory was removed, or the process of the open file has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_PROCESS) => {
                Err(UnknownOwner::Gone)
            }
            Err(_) => Err(UnknownOwner::Unreadable),
        }
    }
}

/// ESRCH.
const NO_SUCH_PROCESS: i32 = 3;
