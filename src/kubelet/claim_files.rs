//! The files that DRA drivers keep on the node about the claims that the kubelet lists: which hardware a claim's device
//! is, whether the claim only observes it, and how much of it the claim consumes.
//!
//! In: claims, the drivers' directories. Out: each claim's record. Does not use: the inventory; what a record means is
//! decided where devices are joined.

pub(crate) mod formats;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::formats::RecordedDevice;
use super::checkpoint::{DEADLINE, LARGEST, PARSING};
use crate::domain::model::{Allocations, ClaimAllocation, ClaimDevice, ClaimHardware, ClaimRecord, ClaimSource};
use crate::files;
use crate::tasks::SlowRead;

/// The driver whose checkpoint has a known format.
const NVIDIA: &str = "gpu.nvidia.com";
/// The sources that are files.
const SOURCES: [ClaimSource; 3] = [ClaimSource::Metadata, ClaimSource::Checkpoint, ClaimSource::Cdi];
/// Bytes of all files that one pass reads; a claim has a few thousand.
const LARGEST_SUM: u64 = 8 << 20;
/// Requests of a claim that are read; a claim has at most 32.
const REQUESTS: usize = 64;

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDirectories {
    /// `plugins` under the kubelet's root, with a directory for each driver.
    pub plugins: PathBuf,
    pub cdi: PathBuf,
    /// The host's `/proc`.
    pub proc: PathBuf,
}

/// Parses the content of one file, with `PARSING` locked where it parses; the error is for people.
type Parse<'a> = dyn Fn(&[u8]) -> Result<Vec<RecordedDevice>, String> + 'a;
type Records = BTreeMap<ClaimDevice, ClaimRecord>;
/// The problems of the files that cannot be read or parsed.
type Problems = BTreeMap<(ClaimSource, PathBuf), String>;
/// How many files cannot be read, by source.
pub type UnreadableFiles = BTreeMap<&'static str, u64>;

/// The records of the claims that are listed or in use. A claim keeps its record where a file is gone or cannot be read:
/// its hardware does not change while it exists.
#[derive(Debug)]
pub struct ClaimFiles {
    directories: ClaimDirectories,
    records: Records,
    problems: Problems,
    /// The files that could not be read or parsed the last time. `None` where no claim is listed.
    pub unreadable: Option<Arc<UnreadableFiles>>,
    reading: SlowRead<(Records, Problems)>,
    is_late: bool,
}

impl ClaimFiles {
    pub fn new(directories: ClaimDirectories) -> Self {
        let (records, problems) = (Records::new(), Problems::new());
        Self { directories, records, problems, unreadable: None, reading: SlowRead::idle(), is_late: false }
    }

    /// Adds to each listed claim what the files record of it. The claims of `accepted` keep their records: a kubelet that
    /// has just started does not list all claims.
    pub async fn complete(&mut self, allocations: &mut Allocations, accepted: Option<&Allocations>) {
        let listed = claims(allocations);
        let in_use = accepted.map(claims).unwrap_or_default();
        self.records.retain(|claim, _| listed.contains(claim) || in_use.contains(claim));
        if listed.is_empty() {
            self.unreadable = None;
            return;
        }
        for (claim, read) in self.read(listed).await {
            let record = self.records.entry(claim).or_default();
            record.hardware.extend(read.hardware);
            record.allocation = read.allocation.or(record.allocation.take());
        }
        let containers = allocations.pods.iter_mut().flat_map(|pod| &mut pod.containers);
        for claim in containers.flat_map(|container| &mut container.claims) {
            claim.record = self.records.get(claim).cloned().unwrap_or_default();
        }
    }

    /// Nothing while the file system does not answer.
    async fn read(&mut self, claims: BTreeSet<ClaimDevice>) -> Records {
        let directories = self.directories.clone();
        match self.reading.answer(DEADLINE, move || read(&directories, &claims)).await {
            Some(Ok((records, problems))) => {
                let mut unreadable = UnreadableFiles::from(SOURCES.map(|source| (source.into_str(), 0)));
                for ((source, file), problem) in &problems {
                    *unreadable.entry(source.into_str()).or_default() += 1;
                    if self.problems.get(&(*source, file.clone())) != Some(problem) {
                        let (source, file) = (source.into_str(), file.display());
                        tracing::warn!(%file, source, problem, "a file about DRA claims cannot be read: new claims are joined without it");
                    }
                }
                (self.problems, self.unreadable, self.is_late) = (problems, Some(Arc::new(unreadable)), false);
                return records;
            }
            Some(Err(error)) => tracing::warn!(%error, "the files of DRA drivers cannot be read"),
            None if std::mem::replace(&mut self.is_late, true) => {}
            None => {
                let ClaimDirectories { plugins, cdi, .. } = &self.directories;
                tracing::warn!(
                    plugins = %plugins.display(), cdi = %cdi.display(),
                    "a file system has not answered within {} s: new claims are joined by device name",
                    DEADLINE.as_secs()
                );
            }
        }
        // The files are not known: each source counts as one.
        self.unreadable = Some(Arc::new(SOURCES.map(|source| (source.into_str(), 1)).into()));
        Records::new()
    }
}

/// The claims that the kubelet lists, without their records.
fn claims(allocations: &Allocations) -> BTreeSet<ClaimDevice> {
    let claims = allocations.containers().flat_map(|container| &container.claims);
    claims.map(|claim| ClaimDevice { record: ClaimRecord::default(), ..claim.clone() }).collect()
}

/// What the files record of each claim, and which of them cannot be read.
fn read(directories: &ClaimDirectories, claims: &BTreeSet<ClaimDevice>) -> (Records, Problems) {
    let mut files = FileReader { bytes_left: LARGEST_SUM, problems: Problems::new() };
    let mut of_nvidia: BTreeMap<&str, Vec<&ClaimDevice>> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| is_of_nvidia(claim)) {
        of_nvidia.entry(claim.device.as_str()).or_default().push(claim);
    }
    let is_wanted = |recorded: &RecordedDevice| {
        of_nvidia.get(&*recorded.device).is_some_and(|claims| claims.iter().any(|claim| is_of(recorded, claim)))
    };
    let parse = |bytes: &[u8]| {
        let _one_at_a_time = PARSING.lock();
        formats::checkpoint(bytes, &is_wanted)
    };
    let read_checkpoint = || files.read(ClaimSource::Checkpoint, nvidia_checkpoint(directories), &parse);
    let checkpoint = (!of_nvidia.is_empty()).then(read_checkpoint).unwrap_or_default();
    let mut records = Records::new();
    for claim in claims {
        let mut record = ClaimRecord::default();
        let names = [&claim.driver, &claim.claim_namespace, &claim.claim];
        if names.into_iter().chain(&claim.claim_uid).all(|name| is_file_name(name)) {
            for recorded in read_metadata(&mut files, directories, claim) {
                add_recorded(&mut record, claim, ClaimSource::Metadata, &recorded);
            }
            if is_of_nvidia(claim) {
                add_recorded(&mut record, claim, ClaimSource::Checkpoint, &checkpoint);
            }
            if let Some(uid) = &claim.claim_uid {
                let recorded = read_cdi(&mut files, directories, &claim.driver, uid);
                add_recorded(&mut record, claim, ClaimSource::Cdi, &recorded);
            }
        }
        records.insert(claim.clone(), record);
    }
    (records, files.problems)
}

/// Reads files up to a sum of bytes.
struct FileReader {
    bytes_left: u64,
    problems: Problems,
}

impl FileReader {
    /// Nothing of a file that is not there, or that cannot be read or parsed: that is a problem.
    fn read(&mut self, source: ClaimSource, path: PathBuf, parse: &Parse<'_>) -> Vec<RecordedDevice> {
        let limit = self.bytes_left.min(LARGEST);
        let parsed = match files::read_changed(&path, &mut None, limit) {
            Ok(bytes) => {
                let bytes = bytes.unwrap_or_default();
                self.bytes_left -= bytes.len() as u64;
                parse(&bytes)
            }
            Err(error) if is_absent(&error) => Ok(vec![]),
            Err(error) if limit < LARGEST && error.kind() == ErrorKind::FileTooLarge => {
                Err(format!("{error}: the files of all claims may have {LARGEST_SUM}"))
            }
            Err(error) => Err(error.to_string()),
        };
        parsed.unwrap_or_else(|problem| {
            self.problems.insert((source, path), problem);
            vec![]
        })
    }
}

/// The metadata of each request of the claim.
fn read_metadata(
    files: &mut FileReader,
    directories: &ClaimDirectories,
    claim: &ClaimDevice,
) -> Vec<Vec<RecordedDevice>> {
    let metadata = directories.plugins.join(&*claim.driver).join("dra-device-metadata");
    let requests = metadata.join(format!("{}_{}", claim.claim_namespace, claim.claim));
    match request_directories(&requests) {
        Ok(requests) => {
            let files_of_requests = requests.into_iter().map(|request| request.join("metadata.json"));
            let parse = |bytes: &[u8]| {
                let _one_at_a_time = PARSING.lock();
                formats::metadata(bytes)
            };
            files_of_requests.map(|path| files.read(ClaimSource::Metadata, path, &parse)).collect()
        }
        Err(error) => {
            files.problems.insert((ClaimSource::Metadata, requests), error.to_string());
            vec![]
        }
    }
}

fn read_cdi(files: &mut FileReader, directories: &ClaimDirectories, driver: &str, uid: &str) -> Vec<RecordedDevice> {
    let kind = format!("k8s.{driver}/claim");
    let path = directories.cdi.join(format!("k8s.{driver}-claim_{uid}.yaml"));
    let mig_minors = || fs::read_to_string(directories.proc.join("driver/nvidia-caps/mig-minors")).unwrap_or_default();
    let parse = |bytes: &[u8]| {
        let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let mig_minors = text.contains("nvidia-cap").then(mig_minors).unwrap_or_default();
        let _one_at_a_time = PARSING.lock();
        formats::cdi(text, &kind, uid, || formats::capability_nodes(&mig_minors))
    };
    files.read(ClaimSource::Cdi, path, &parse)
}

fn add_recorded(record: &mut ClaimRecord, claim: &ClaimDevice, source: ClaimSource, recorded: &[RecordedDevice]) {
    let of_claim: Vec<&RecordedDevice> = recorded.iter().filter(|recorded| is_of(recorded, claim)).collect();
    record.hardware.extend(agreed(&of_claim).map(|hardware| (source, hardware)));
    record.allocation = allocation(claim, &of_claim).or(record.allocation.take());
}

fn nvidia_checkpoint(directories: &ClaimDirectories) -> PathBuf {
    directories.plugins.join(NVIDIA).join("checkpoint.json")
}

/// Reads the files that NVIDIA's driver keeps for all claims; an error says why one cannot be read.
pub fn check_files(directories: &ClaimDirectories) -> [(PathBuf, Result<(), String>); 2] {
    let checkpoint = nvidia_checkpoint(directories);
    let content = files::read_changed(&checkpoint, &mut None, LARGEST).map_err(|error| error.to_string());
    let parsed = content.and_then(|bytes| formats::checkpoint(&bytes.unwrap_or_default(), &|_| false).map(drop));
    let listed = fs::read_dir(&directories.cdi).map(drop).map_err(|error| error.to_string());
    [(checkpoint, parsed), (directories.cdi.clone(), listed)]
}

/// Whether the files of `check_files` are about it.
pub fn is_of_nvidia(claim: &ClaimDevice) -> bool {
    &*claim.driver == NVIDIA
}

/// One for each request of the claim. None without metadata.
fn request_directories(claim: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(claim) {
        Ok(entries) => entries.take(REQUESTS).map(|entry| Ok(entry?.path())).collect(),
        Err(error) if is_absent(&error) => Ok(vec![]),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A DNS name or a UID; no way to another directory.
fn is_file_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
}

fn is_of(recorded: &RecordedDevice, claim: &ClaimDevice) -> bool {
    *recorded.device == *claim.device.as_str()
        && recorded.driver.as_ref().is_none_or(|driver| *driver == claim.driver)
        && recorded.pool.as_ref().is_none_or(|pool| *pool == claim.pool)
        && claim.claim_uid.as_ref().is_none_or(|uid| *uid == recorded.claim_uid)
}

/// Where the claim's UID is not known, the records of several claims of the device may be meant.
fn agreed(recorded: &[&RecordedDevice]) -> Option<ClaimHardware> {
    let mut named = recorded.iter().filter_map(|recorded| recorded.hardware.as_ref());
    let first = named.next()?;
    named.all(|other| other == first).then(|| first.clone())
}

/// What is consumed of all shares of the device that the claim has, or of the one that is listed.
fn allocation(claim: &ClaimDevice, recorded: &[&RecordedDevice]) -> Option<ClaimAllocation> {
    let of_claim = recorded.iter().filter_map(|recorded| Some((&recorded.claim_uid, recorded.allocation.as_ref()?)));
    let is_share = |id: &Option<Arc<str>>| id.is_none() || claim.share_id.is_none() || *id == claim.share_id;
    let shares: Vec<_> = of_claim.filter(|(_, share)| is_share(&share.share_id)).collect();
    let (uid, first) = shares.first()?;
    let is_one_claim = shares.iter().all(|(other, _)| other == uid);
    let admin_access = shares.iter().all(|(_, share)| share.admin_access);
    if !is_one_claim && shares.iter().any(|(_, share)| share.admin_access != first.admin_access) {
        return None;
    }
    let mut consumed = BTreeMap::new();
    let holding = shares.iter().filter(|(_, share)| is_one_claim && !share.admin_access);
    for (capacity, amount) in holding.flat_map(|(_, share)| &share.consumed) {
        let sum: &mut u64 = consumed.entry(Arc::clone(capacity)).or_default();
        *sum = sum.saturating_add(*amount);
    }
    Some(ClaimAllocation { admin_access, consumed })
}

#[cfg(test)]
mod tests;
