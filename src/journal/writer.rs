//! The journal's thread.
//!
//! In: snapshots, by way of the tracker. Out: records on disk, and the state of the journal. No lock is held during
//! disk access.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::allocation_tracker::{AllocationTracker, PROGRESS};
use super::directory;
use super::store::{Bounds, FILE, Store, StoreError};
use crate::clock::Clock;
use crate::domain::model::{JournalState, Monotonic, Snapshot};
use crate::files;
use crate::tasks::NoThread;

/// The file that the writing agent locks.
const LOCK: &str = "allocations.lock";
/// The longest pause after a failure, and between two attempts to lock a directory that another agent has locked.
const RETRY: Duration = Duration::from_secs(5);
/// The time between two deletions of holdings over the bounds, which are sizes and days.
const PRUNE: Duration = Duration::from_secs(60 * 60);
/// The time after which a disk is reported as hanging; a write takes milliseconds.
const HANGS: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    pub directory: PathBuf,
    pub bounds: Bounds,
}

/// Why nothing is written.
#[derive(Debug, thiserror::Error)]
enum WriterError {
    /// Another agent writes. This is no failure: a rolling update starts the next agent before the last one ends.
    #[error("another podmeter writes to {}; waiting until it ends", .0.display())]
    Locked(PathBuf),
    /// A failure, as a sentence for the log and the page.
    #[error("{0}")]
    Failed(String),
}

/// The running journal: it observes every snapshot, and writes on a separate thread.
#[derive(Debug)]
pub struct Journal {
    feed: JournalFeed,
    thread: JoinHandle<()>,
}

/// Passes snapshots to the journal. The journal ends when all feeds are dropped.
#[derive(Clone, Debug)]
pub struct JournalFeed {
    shared: Arc<JournalShared>,
    wake: SyncSender<()>,
}

/// State of the thread and the readers. No lock of it is held during disk access.
#[derive(Debug)]
pub(super) struct JournalShared {
    pub settings: JournalSettings,
    pub tracker: Mutex<AllocationTracker>,
    state: Mutex<JournalState>,
    /// The start of a disk access; `None`: none is in progress.
    busy_since: Mutex<Option<Monotonic>>,
    clock: Clock,
}

impl Journal {
    /// Starts the journal without access to the disk: problems with it are in the state.
    pub fn start(settings: JournalSettings, clock: Clock) -> Result<Self, NoThread> {
        let (feed, mut writer, woken) = Self::parts(settings, clock);
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || writer.run(&woken))?;
        Ok(Self { feed, thread })
    }

    fn parts(settings: JournalSettings, clock: Clock) -> (JournalFeed, JournalWriter, Receiver<()>) {
        let (wake, woken) = sync_channel(1);
        let shared = Arc::new(JournalShared {
            settings,
            tracker: Mutex::default(),
            state: Mutex::default(),
            busy_since: Mutex::default(),
            clock,
        });
        let writer =
            JournalWriter { shared: Arc::clone(&shared), lock: None, store: None, database: None, pruned: None };
        (JournalFeed { shared, wake }, writer, woken)
    }

    pub fn feed(&self) -> JournalFeed {
        self.feed.clone()
    }

    /// A reader, for queries and the journal's state.
    pub fn reader(&self) -> JournalReader {
        JournalReader(Arc::clone(&self.feed.shared))
    }

    /// Writes all records and returns when they are on disk or cannot be. Waits until all other feeds are dropped.
    pub fn stop(self) {
        self.feed.shared.tracker.lock().requeue_all();
        drop(self.feed);
        let _ = self.thread.join();
    }
}

impl JournalFeed {
    /// Updates the records in memory, without access to the disk.
    pub fn observe(&self, snapshot: &Snapshot) {
        let urgent = self.shared.tracker.lock().observe(snapshot);
        // A full channel means that the thread is awake already.
        if urgent && matches!(self.wake.try_send(()), Err(TrySendError::Disconnected(()))) {
            let problem = "the journal's thread has ended unexpectedly; restart podmeter and report this";
            self.shared.set_problem(Some(problem.into()));
        }
    }
}

/// Reads what the journal has written and what still waits.
#[derive(Clone, Debug)]
pub struct JournalReader(pub(super) Arc<JournalShared>);

impl JournalReader {
    pub fn state(&self) -> JournalState {
        let mut state = self.0.state.lock().clone();
        state.dropped = self.0.tracker.lock().dropped;
        let busy_since = *self.0.busy_since.lock();
        let waiting = busy_since.map(|began| self.0.clock.now().monotonic.since(began));
        if let Some(waiting) = waiting.filter(|waiting| *waiting > HANGS) {
            state.problem =
                Some(format!("the disk has not responded for {} s; check the disk", waiting.as_secs()).into());
        }
        state
    }
}

impl JournalShared {
    pub fn file(&self) -> PathBuf {
        self.settings.directory.join(FILE)
    }

    fn set_problem(&self, problem: Option<String>) {
        let mut state = self.state.lock();
        if state.problem.as_deref() == problem.as_deref() {
            return;
        }
        let directory = self.settings.directory.display();
        match &problem {
            Some(problem) => tracing::warn!(%directory, problem, "the journal of allocations is not written"),
            None => tracing::info!(%directory, "the journal of allocations is written again"),
        }
        state.problem = problem.map(Into::into);
    }
}

struct JournalWriter {
    shared: Arc<JournalShared>,
    lock: Option<File>,
    store: Option<Store>,
    /// The `files::id` of the open database.
    database: Option<(u64, u64)>,
    pruned: Option<Monotonic>,
}

impl JournalWriter {
    fn run(&mut self, woken: &Receiver<()>) {
        let mut wait = Duration::ZERO;
        loop {
            let ending = matches!(woken.recv_timeout(wait), Err(RecvTimeoutError::Disconnected));
            // At the end a failure is tried once more: files that were removed or replaced are opened again.
            let outcome = self.work().or_else(|error| if ending { self.work() } else { Err(error) });
            wait = match outcome {
                Ok(()) => {
                    self.shared.set_problem(None);
                    PROGRESS
                }
                Err(error) => {
                    self.shared.state.lock().errors += u64::from(matches!(error, WriterError::Failed(_)));
                    self.shared.set_problem(Some(error.to_string()));
                    RETRY
                }
            };
            if ending {
                return;
            }
        }
    }

    /// Writes the records that wait.
    fn work(&mut self) -> Result<(), WriterError> {
        *self.shared.busy_since.lock() = Some(self.shared.clock.now().monotonic);
        let outcome = self.check_in_place().and_then(|()| self.open()).and_then(|()| self.write());
        *self.shared.busy_since.lock() = None;
        let file = self.store.as_ref().and_then(|_| self.shared.file().metadata().ok());
        self.shared.state.lock().size_bytes = file.map(|file| file.len());
        outcome
    }

    /// Checks that lock and database are still at their paths, and closes them otherwise. A lock on a file that was
    /// removed or replaced, perhaps with its directory, excludes no other agent; such a database has no readers.
    fn check_in_place(&mut self) -> Result<(), WriterError> {
        let id_at = |path: PathBuf| path.metadata().ok().map(|found| files::id(&found));
        let locked = id_at(self.shared.settings.directory.join(LOCK));
        let is_replaced = |lock: &mut File| lock.metadata().ok().map(|opened| files::id(&opened)) != locked;
        let lock_was_replaced = self.lock.take_if(is_replaced).is_some();
        let database_was_replaced = self.store.is_some() && id_at(self.shared.file()) != self.database;
        if !lock_was_replaced && !database_was_replaced {
            return Ok(());
        }
        self.store = None;
        let directory = self.shared.settings.directory.display();
        Err(WriterError::Failed(format!(
            "{directory}: {LOCK} or {FILE} was removed or replaced; both are opened again"
        )))
    }

    fn open(&mut self) -> Result<(), WriterError> {
        if self.store.is_some() {
            return Ok(());
        }
        let directory = &self.shared.settings.directory;
        if self.lock.is_none() {
            self.lock = Some(lock_directory(directory)?);
        }
        let file = self.shared.file();
        let bounds = self.shared.settings.bounds;
        let opened = Store::open(&file, bounds).and_then(|store| store.open_records().map(|records| (store, records)));
        let (store, (open, last)) = match opened {
            Ok(opened) => opened,
            Err(error @ StoreError::Failed(_)) => {
                return Err(WriterError::Failed(format!("{}: {error}", file.display())));
            }
            Err(error) => {
                let store = self.begin_new(&file, &error).map_err(WriterError::Failed)?;
                self.shared.state.lock().errors += 1;
                (store, Default::default())
            }
        };
        self.shared.tracker.lock().load(open, last, self.shared.clock.now());
        self.database = file.metadata().ok().map(|opened| files::id(&opened));
        self.store = Some(store);
        Ok(())
    }

    /// Renames a file that cannot be used and creates a new one in its place.
    fn begin_new(&mut self, file: &Path, error: &StoreError) -> Result<Store, String> {
        let renamed_to = set_aside(file, self.shared.clock.now().unix.0)
            .map_err(|cause| format!("{}: {error}; and it cannot be renamed: {cause}", file.display()))?;
        tracing::error!(
            file = %file.display(),
            problem = %error,
            renamed_to = %renamed_to.display(),
            "the journal of allocations cannot be used; it was renamed and a new one begun"
        );
        Store::open(file, self.shared.settings.bounds).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn write(&mut self) -> Result<(), WriterError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let now = self.shared.clock.now();
        let due = self.pruned.is_none_or(|last| now.monotonic.since(last) >= PRUNE);
        let records = self.shared.tracker.lock().to_write();
        let outcome = if records.is_empty() { Ok(()) } else { store.write(&records) };
        let outcome = outcome.and_then(|()| if due { store.prune(now.unix.0) } else { Ok(()) });
        match outcome {
            Ok(()) => {
                self.pruned = if due { Some(now.monotonic) } else { self.pruned };
                self.shared.tracker.lock().written(&records);
                self.shared.state.lock().written += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.store = None;
                let file = self.shared.file();
                Err(WriterError::Failed(format!("{}: {error}; check the disk under --state-dir", file.display())))
            }
        }
    }
}

fn lock_directory(directory: &Path) -> Result<File, WriterError> {
    directory::prepare(directory).map_err(WriterError::Failed)?;
    let path = directory.join(LOCK);
    let failed = |error: std::io::Error| {
        let problem = format!("{}: {error}; give --state-dir a directory that podmeter may write to", path.display());
        WriterError::Failed(problem)
    };
    let file = files::open(&path, files::OWNER_ONLY).map_err(failed)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(WriterError::Locked(directory.to_owned())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Renames the file to a name that is free. SQLite's rollback journal goes with it: it must not be applied to the next
/// file.
fn set_aside(file: &Path, now: f64) -> std::io::Result<PathBuf> {
    let with = |suffix: &str| PathBuf::from([file.as_os_str(), suffix.as_ref()].join(std::ffi::OsStr::new("")));
    let mut suffix = format!(".damaged-{now:.0}");
    while with(&suffix).symlink_metadata().is_ok() {
        suffix.push('a');
    }
    match std::fs::rename(with("-journal"), with(&format!("{suffix}-journal"))) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::rename(file, with(&suffix))?;
    Ok(with(&suffix))
}

#[cfg(test)]
mod tests;
