//! The kubelet's log directories, whose names have the UIDs of pods: a source beside the Pods API.
//!
//! In: `/var/log/pods`. Out: `PodLogs`, published when its pods change. Does not use: what is logged, the kubelet's sockets.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::model::{FileStamp, Moment, Monotonic, PodLogs, PodRef, PodUid, is_dns_label};
use crate::files;
use crate::tasks;

/// How often the time stamp of the directory is read, and the directory if that has changed: some hundred names take a tenth
/// of a millisecond.
const PERIOD: Duration = Duration::from_secs(1);
/// Seconds in which a second change may leave the time stamp as it is: on some file systems it is coarse.
const COARSE_SECONDS: f64 = 2.0;
/// The most entries that are read: no node has more.
const MOST: usize = 16_384;
/// The longest name that Kubernetes gives a pod.
const LONGEST_POD: usize = 253;

/// Publishes the pods with log directories for as long as the task runs.
pub async fn watch(root: PathBuf, clock: Clock, publish: watch::Sender<Arc<PodLogs>>) {
    let mut reader = PodLogsReader { root, unchanged: None };
    loop {
        let (now, last) = (clock.now(), Arc::clone(&publish.borrow()));
        let problem = format!("{}: reading it hangs", reader.root.display());
        let read = move || (reader.refresh(now, &last), reader);
        let late = || {
            tracing::warn!("{problem}");
            publish.send_modify(|logs| Arc::make_mut(logs).problem = Some(problem.as_str().into()));
        };
        let done = tasks::blocking(read, late).await;
        let Ok((logs, returned)) = done.inspect_err(|error| tracing::error!(%error, "the reader of pod logs panicked"))
        else {
            return;
        };
        reader = returned;
        publish.send_if_modified(|published| {
            let differs =
                (&published.pods, &published.latest, &published.problem) != (&logs.pods, &logs.latest, &logs.problem);
            *published = Arc::new(logs);
            differs
        });
        tokio::time::sleep(PERIOD).await;
    }
}

struct PodLogsReader {
    root: PathBuf,
    /// The stamp of the directory as it was last read; `None` where it may change and keep that stamp, and after a failure.
    unchanged: Option<FileStamp>,
}

impl PodLogsReader {
    /// Reads the directory if it has changed since `last`.
    fn refresh(&mut self, now: Moment, last: &PodLogs) -> PodLogs {
        let stamp = std::fs::metadata(&self.root).ok().map(|metadata| files::stamp(&metadata));
        if stamp.is_some() && stamp == self.unchanged {
            return PodLogs { as_of: Some(now.monotonic), ..last.clone() };
        }
        let read = read(&self.root, now.monotonic);
        let is_final = |stamp: &FileStamp| now.unix.0 - stamp.modified.0 as f64 > COARSE_SECONDS;
        self.unchanged = stamp.filter(|stamp| read.problem.is_none() && is_final(stamp));
        // The same pods keep their allocation: it is compared by address.
        let pods = if read.pods == last.pods { Arc::clone(&last.pods) } else { read.pods };
        PodLogs { pods, ..read }
    }
}

/// Reads the names of the directories once.
pub fn read(root: &Path, now: Monotonic) -> PodLogs {
    let (pods, problem) = match read_names(root) {
        Ok(pods) => (pods, None),
        Err(error) => (BTreeMap::new(), Some(format!("{}: {error}", root.display()).into())),
    };
    let changed = |pod: &PodRef, uid: &PodUid| {
        let name = format!("{}_{}_{uid}", pod.namespace, pod.pod);
        std::fs::metadata(root.join(name)).and_then(|metadata| metadata.modified()).ok()
    };
    let mut latest: BTreeMap<PodRef, PodUid> = BTreeMap::new();
    for (uid, pod) in &pods {
        let is_later = |other: &PodUid| changed(pod, other) <= changed(pod, uid);
        if latest.get(pod).is_none_or(is_later) {
            latest.insert(pod.clone(), uid.clone());
        }
    }
    PodLogs { as_of: Some(now), pods: Arc::new(pods), latest: Arc::new(latest), problem }
}

fn read_names(root: &Path) -> io::Result<BTreeMap<PodUid, PodRef>> {
    let entry = |entry: std::fs::DirEntry| parse_directory(entry.file_name().to_str()?);
    let entries = std::fs::read_dir(root)?.take(MOST);
    entries.filter_map(|found| found.map(entry).transpose()).collect()
}

/// `<namespace>_<pod>_<uid>`, a directory below `/var/log/pods`.
fn parse_directory(name: &str) -> Option<(PodUid, PodRef)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let valid = parts.next().is_none() && is_dns_label(namespace) && is_pod(pod);
    PodUid::parse(uid).filter(|_| valid).map(|uid| (uid, PodRef::new(namespace, pod)))
}

/// A DNS subdomain, near enough: no path and no separator of ours gets through.
fn is_pod(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= LONGEST_POD && name.bytes().all(is_allowed) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::UnixSeconds;

    const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
    const BARE: &str = "229836ee3ad078911e99a2b8134d6713";

    fn uid(number: u32) -> PodUid {
        PodUid::new(format!("00000000-0000-4000-8000-{number:012}"))
    }

    #[test]
    fn it_is_read_when_it_changed_and_until_its_stamp_shows_each_change() {
        let directory = tempfile::tempdir().unwrap();
        let mut reader = PodLogsReader { root: directory.path().to_owned(), unchanged: None };
        let make = |name: &str| std::fs::create_dir(directory.path().join(name)).unwrap();
        let modified = || files::stamp(&std::fs::metadata(directory.path()).unwrap()).modified.0 as f64;
        let at = |second, unix| Moment { monotonic: Monotonic::from_secs(second), unix: UnixSeconds(unix) };
        make(&format!("default_a_{}", uid(1)));
        make("x");
        let first = reader.refresh(at(1, modified()), &PodLogs::default());
        assert_eq!((first.pods.len(), reader.unchanged.is_some()), (1, false), "a moment after the change");
        assert!(first.is_older_than(Monotonic::from_secs(2)) && !first.is_older_than(Monotonic::from_secs(1)));
        let again = reader.refresh(at(4, modified() + 3.0), &first);
        assert!(Arc::ptr_eq(&again.pods, &first.pods) && reader.unchanged.is_some());
        let skipped = reader.refresh(at(5, modified() + 4.0), &PodLogs::default());
        assert!(skipped.pods.is_empty() && skipped.as_of == Some(Monotonic::from_secs(5)), "it is not read");
        let before = std::fs::File::open(directory.path()).unwrap();
        before.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        make(&format!("default_b_{}", uid(2)));
        let changed = reader.refresh(at(6, modified() + 3.0), &again);
        assert_eq!(changed.pods.get(&uid(2)), Some(&PodRef::new("default", "b")));
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_empty_one() {
        let logs = read(Path::new("/nowhere/at/all"), Monotonic::default());
        assert!(!logs.is_read() && logs.problem.is_some());
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
