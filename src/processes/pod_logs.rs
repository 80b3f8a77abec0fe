//! The kubelet's log directories, whose names map UIDs to pods.
//!
//! In: `/var/log/pods`, the UIDs that are wanted. Out: the pod of each UID, read no more often than needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroup::is_uid;
use super::mountinfo::is_name;
use crate::domain::model::{FileStamp, Monotonic, PodRef, PodUid};
use crate::files;

/// A directory is read again after this long, regardless of its time stamp: on some file systems it is coarse.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// And never twice within this time. To read some hundred names takes a tenth of a millisecond.
const PAUSE: Duration = Duration::from_millis(200);
/// More entries than this no node has; the rest is left unread.
const MOST: usize = 16_384;
/// The longest name that Kubernetes gives a pod.
const LONGEST_POD: usize = 253;

/// The pods in the names of the kubelet's log directories, read no more often than needed.
pub struct PodLogs {
    pub root: PathBuf,
    read: Option<PodLogsRead>,
    /// Wanted, and absent in the last read: no reason to read again.
    missed: BTreeSet<PodUid>,
    /// Rises whenever the entries are others than before.
    pub generation: u64,
}

struct PodLogsRead {
    at: Monotonic,
    /// Of the directory.
    stamp: Option<FileStamp>,
    entries: Result<BTreeMap<PodUid, PodRef>, std::io::Error>,
}

impl PodLogs {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), read: None, missed: BTreeSet::new(), generation: 0 }
    }

    /// Reads the directory if it has changed, if it was read long ago, or if a wanted UID is not known yet.
    pub fn refresh(&mut self, now: Monotonic, wanted: &BTreeSet<PodUid>) {
        let stamp = std::fs::metadata(&self.root).ok().map(|metadata| files::stamp(&metadata));
        let due = self.read.as_ref().is_none_or(|read| {
            let age = now.since(read.at);
            let known = |uid: &PodUid| self.missed.contains(uid) || read.has(uid);
            age >= READ_AGAIN || (age >= PAUSE && (read.stamp != stamp || !wanted.iter().all(known)))
        });
        if !due {
            return;
        }
        let read = PodLogsRead { at: now, stamp, entries: self.read_entries() };
        self.missed = wanted.iter().filter(|uid| !read.has(uid)).cloned().collect();
        let before = self.read.replace(read);
        if before.and_then(|before| before.entries.ok()).as_ref() != self.entries() {
            self.generation += 1;
        }
    }

    pub fn get(&self, uid: &PodUid) -> Option<&PodRef> {
        self.entries()?.get(uid)
    }

    /// Whether it was read before `moment`.
    pub fn is_older_than(&self, moment: Monotonic) -> bool {
        self.read.as_ref().is_none_or(|read| read.at < moment)
    }

    /// `None`: the directory cannot be read.
    pub fn entries(&self) -> Option<&BTreeMap<PodUid, PodRef>> {
        self.read.as_ref()?.entries.as_ref().ok()
    }

    /// Why it cannot be read.
    pub fn problem(&self) -> Option<&std::io::Error> {
        self.read.as_ref()?.entries.as_ref().err()
    }

    fn read_entries(&self) -> Result<BTreeMap<PodUid, PodRef>, std::io::Error> {
        let entry = |entry: std::fs::DirEntry| parse_directory(entry.file_name().to_str()?);
        let entries = std::fs::read_dir(&self.root)?.take(MOST);
        entries.filter_map(|found| found.map(entry).transpose()).collect()
    }
}

impl PodLogsRead {
    fn has(&self, uid: &PodUid) -> bool {
        self.entries.as_ref().is_ok_and(|entries| entries.contains_key(uid))
    }
}

/// `<namespace>_<pod>_<uid>`, a directory below `/var/log/pods`.
pub fn parse_directory(name: &str) -> Option<(PodUid, PodRef)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let valid = parts.next().is_none() && is_name(namespace) && is_pod(pod) && is_uid(uid);
    valid.then(|| (PodUid::from(uid), PodRef::new(namespace, pod)))
}

/// A DNS subdomain, near enough: no path and no separator of ours gets through.
fn is_pod(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= LONGEST_POD && name.bytes().all(is_allowed) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
    const BARE: &str = "229836ee3ad078911e99a2b8134d6713";

    fn uid(number: u32) -> PodUid {
        PodUid::new(format!("00000000-0000-4000-8000-{number:012}"))
    }

    #[test]
    fn it_is_read_when_it_changed_or_something_new_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let mut logs = PodLogs::new(directory.path());
        let make = |name: &str| std::fs::create_dir(directory.path().join(name)).unwrap();
        let wanted = |numbers: &[u32]| numbers.iter().copied().map(uid).collect::<BTreeSet<_>>();
        make(&format!("default_a_{}", uid(1)));
        make("x");
        logs.refresh(Monotonic::from_secs(1), &wanted(&[]));
        assert_eq!(logs.entries().unwrap().len(), 1);
        assert_eq!(logs.generation, 1);
        make(&format!("default_b_{}", uid(2)));
        logs.refresh(Monotonic::from_millis(1100), &wanted(&[2]));
        assert_eq!(logs.get(&uid(2)), None, "not twice within the pause");
        logs.refresh(Monotonic::from_secs(2), &wanted(&[2]));
        assert_eq!(logs.get(&uid(2)), Some(&PodRef::new("default", "b")));
        assert_eq!(logs.generation, 2);
        let read_at = |logs: &PodLogs| logs.read.as_ref().unwrap().at;
        logs.refresh(Monotonic::from_secs(3), &wanted(&[3]));
        assert_eq!(read_at(&logs), Monotonic::from_secs(3), "something new is wanted");
        logs.refresh(Monotonic::from_secs(4), &wanted(&[3]));
        assert_eq!(read_at(&logs), Monotonic::from_secs(3), "it was read and is not there");
        logs.refresh(Monotonic::from_secs(13), &wanted(&[]));
        assert_eq!(read_at(&logs), Monotonic::from_secs(13), "long ago");
        assert_eq!(logs.generation, 2, "nothing is new");
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_empty_one() {
        let mut logs = PodLogs::new(Path::new("/nowhere/at/all"));
        logs.refresh(Monotonic::default(), &BTreeSet::new());
        assert!(logs.entries().is_none() && logs.problem().is_some());
    }

    #[test]
    fn a_directory_has_the_name_and_the_uid_of_a_pod() {
        for (namespace, pod, uid) in
            [("default", "web-0", UID), ("kube-system", "etcd-node.example.com", BARE), ("a", "1.2", UID)]
        {
            let found = parse_directory(&format!("{namespace}_{pod}_{uid}"));
            assert_eq!(found, Some((uid.into(), PodRef::new(namespace, pod))));
        }
        for name in [
            "",
            "default_web",
            "lost+found",
            &format!("default_{UID}"),
            &format!("a_b_c_{UID}"),
            &format!("a_b_{UID}_c"),
            &format!("_b_{UID}"),
            &format!("a__{UID}"),
            &format!("a_.._{UID}"),
            &format!("A_b_{UID}"),
            &format!("a_b_{}", UID.replace('-', "_")),
        ] {
            assert_eq!(parse_directory(name), None, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived(name in "(?s).{0,120}") {
            let _ = parse_directory(&name);
        }
    }
}
