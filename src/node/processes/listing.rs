//! The pods that have a log directory.
//!
//! In: `/var/log/pods`, the UIDs that are needed. Out: the pod of each UID, read no more often than needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::pod_logs::parse_directory;
use crate::domain::model::{FileStamp, Monotonic, PodRef, PodUid};
use crate::files;

/// A directory is read again after this long, regardless of its time stamp: on some file systems it is coarse.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// And never twice within this time. To read some hundred names takes a tenth of a millisecond.
const PAUSE: Duration = Duration::from_millis(200);
/// More entries than this no node has; the rest is left unread.
const MOST: usize = 16_384;

/// The pods in the names of the kubelet's log directories, read no more often than needed.
pub struct Listing {
    pub root: PathBuf,
    read: Option<ListingRead>,
    /// Needed, and absent in the last read: no reason to read again.
    missed: BTreeSet<PodUid>,
    /// Rises whenever the entries are others than before.
    pub generation: u64,
}

struct ListingRead {
    at: Monotonic,
    /// Of the directory.
    stamp: Option<FileStamp>,
    entries: Result<BTreeMap<PodUid, PodRef>, std::io::Error>,
}

impl Listing {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), read: None, missed: BTreeSet::new(), generation: 0 }
    }

    /// Reads the directory if it has changed, if it was read long ago, or if a needed key is not known yet.
    pub fn refresh(&mut self, now: Monotonic, wanted: &BTreeSet<PodUid>) {
        let stamp = std::fs::metadata(&self.root).ok().map(|metadata| files::stamp(&metadata));
        let due = self.read.as_ref().is_none_or(|read| {
            let age = now.since(read.at);
            let known = |key: &PodUid| self.missed.contains(key) || read.has(key);
            age >= READ_AGAIN || (age >= PAUSE && (read.stamp != stamp || !wanted.iter().all(known)))
        });
        if !due {
            return;
        }
        let read = ListingRead { at: now, stamp, entries: self.read_entries() };
        self.missed = wanted.iter().filter(|key| !read.has(key)).cloned().collect();
        let before = self.read.replace(read);
        if before.and_then(|before| before.entries.ok()).as_ref() != self.entries() {
            self.generation += 1;
        }
    }

    pub fn get(&self, key: &PodUid) -> Option<&PodRef> {
        self.entries()?.get(key)
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

impl ListingRead {
    fn has(&self, key: &PodUid) -> bool {
        self.entries.as_ref().is_ok_and(|entries| entries.contains_key(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: u32) -> PodUid {
        PodUid::new(format!("00000000-0000-4000-8000-{number:012}"))
    }

    #[test]
    fn it_is_read_when_it_changed_or_something_new_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let mut listing = Listing::new(directory.path());
        let make = |name: &str| std::fs::create_dir(directory.path().join(name)).unwrap();
        let wanted = |numbers: &[u32]| numbers.iter().copied().map(uid).collect::<BTreeSet<_>>();
        make(&format!("default_a_{}", uid(1)));
        make("x");
        listing.refresh(Monotonic::from_secs(1), &wanted(&[]));
        assert_eq!(listing.entries().unwrap().len(), 1);
        assert_eq!(listing.generation, 1);
        make(&format!("default_b_{}", uid(2)));
        listing.refresh(Monotonic::from_millis(1100), &wanted(&[2]));
        assert_eq!(listing.get(&uid(2)), None, "not twice within the pause");
        listing.refresh(Monotonic::from_secs(2), &wanted(&[2]));
        assert_eq!(listing.get(&uid(2)), Some(&PodRef::new("default", "b")));
        assert_eq!(listing.generation, 2);
        let read_at = |listing: &Listing| listing.read.as_ref().unwrap().at;
        listing.refresh(Monotonic::from_secs(3), &wanted(&[3]));
        assert_eq!(read_at(&listing), Monotonic::from_secs(3), "something new is wanted");
        listing.refresh(Monotonic::from_secs(4), &wanted(&[3]));
        assert_eq!(read_at(&listing), Monotonic::from_secs(3), "it was read and is not there");
        listing.refresh(Monotonic::from_secs(13), &wanted(&[]));
        assert_eq!(read_at(&listing), Monotonic::from_secs(13), "long ago");
        assert_eq!(listing.generation, 2, "nothing is new");
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_empty_one() {
        let mut listing = Listing::new(Path::new("/nowhere/at/all"));
        listing.refresh(Monotonic::default(), &BTreeSet::new());
        assert!(listing.entries().is_none() && listing.problem().is_some());
    }
}
