//! Counts the host's processes for `doctor`. Each is read once.

use std::io;
use std::path::Path;

use super::cgroup::CgroupOwner;
use super::files::ProcFiles;
use crate::domain::model::UnknownOwner;

/// The most processes that are read. A node has thousands.
const MOST: usize = 20_000;

/// How many processes of the host can be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCounts {
    /// Whether these are the host's process ids.
    pub of_the_host: bool,
    pub processes: usize,
    /// Those whose cgroup names a pod.
    pub in_pods: usize,
    /// Those whose cgroup could not be read, but for those that ended meanwhile.
    pub unreadable: usize,
}

/// Reads every process under `proc_root` once.
pub fn count_processes(proc_root: &Path) -> io::Result<ProcessCounts> {
    let files = ProcFiles::new(proc_root);
    let mut seen = ProcessCounts { of_the_host: files.are_the_hosts(), ..ProcessCounts::default() };
    let pids = std::fs::read_dir(proc_root)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.take(MOST) {
        match files.cgroup_owner(pid) {
            Ok(owner) => {
                seen.processes += 1;
                seen.in_pods += usize::from(matches!(owner, CgroupOwner::Pod { .. }));
            }
            Err(UnknownOwner::Gone) => {}
            Err(_) => (seen.processes, seen.unreadable) = (seen.processes + 1, seen.unreadable + 1),
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_pods_and_unreadable_ones_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: &str, cgroup: Option<&str>| {
            let directory = root.path().join(pid);
            std::fs::create_dir(&directory).unwrap();
            match cgroup {
                Some(text) => std::fs::write(directory.join("cgroup"), text).unwrap(),
                None => std::fs::create_dir(directory.join("cgroup")).unwrap(),
            }
        };
        process("10", Some("0::/kubepods.slice/kubepods-pod8f5d2c1e_90ab_4cde_8123_456789abcdef.slice/x\n"));
        process("11", Some("0::/system.slice/sshd.service\n"));
        process("12", None);
        process("self", Some(""));
        let seen = count_processes(root.path()).unwrap();
        assert_eq!(seen, ProcessCounts { of_the_host: false, processes: 3, in_pods: 1, unreadable: 1 });
        assert!(count_processes(Path::new("/nonexistent")).is_err());
    }
}
