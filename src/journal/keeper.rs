use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::chronicle::{Chronicle, PROGRESS};
use super::directory;
use super::store::{Bounds, FILE, Store, StoreError};
use crate::clock::Clock;
use crate::model::{JournalState, Monotonic, Snapshot};

/// Held by the one agent that writes.
const LOCK: &str = "allocations.lock";
/// After a failure; another agent's lock is looked at as often.
const RETRY: Duration = Duration::from_secs(5);
const PRUNE: Duration = Duration::from_secs(60 * 60);
/// A write takes milliseconds; a disk that takes so long is said to hang.
const HANGS: Duration = Duration::from_secs(30);
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub directory: PathBuf,
    pub bounds: Bounds,
}

/// The journal at work: it is told of every snapshot, and writes on a thread of its own.
#[derive(Debug)]
pub struct Journal {
    watcher: Watcher,
    thread: JoinHandle<()>,
}

/// Tells the journal of snapshots. The journal ends when none of them is left.
#[derive(Clone, Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    wake: SyncSender<()>,
}

/// What the thread and its askers both see. Nobody holds a lock of it while a disk is waited for.
#[derive(Debug)]
pub(super) struct Shared {
    pub settings: Settings,
    pub chronicle: Mutex<Chronicle>,
    state: Mutex<JournalState>,
    /// Milliseconds since the agent's start at which the disk was asked for something, 0: it is not.
    asked: AtomicU64,
    /// The thread is no more.
    ended: AtomicBool,
    clock: Clock,
}

impl Journal {
    /// Touches no disk itself: that there is none to write to is seen in the state, not here.
    pub fn start(settings: Settings, clock: Clock) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let shared = Arc::new(Shared {
            settings,
            chronicle: Mutex::default(),
            state: Mutex::default(),
            asked: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            clock,
        });
        let mut keeper = Keeper { shared: Arc::clone(&shared), lock: None, store: None, pruned: None };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
            crate::threads::prepare();
            keeper.run(&woken);
        })?;
        Ok(Self { watcher: Watcher { shared, wake }, thread })
    }

    #[must_use]
    pub fn watcher(&self) -> Watcher {
        self.watcher.clone()
    }

    /// For whoever asks what is in it, and how it fares.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(Arc::clone(&self.watcher.shared))
    }

    /// Writes what it knows, and returns when that is on disk or cannot be. Waits for other watchers to go.
    pub fn stop(self) {
        self.watcher.shared.chronicle.lock().all_wait();
        drop(self.watcher);
        let _ = self.thread.join();
    }
}

impl Watcher {
    /// Computes only.
    pub fn observe(&self, snapshot: &Snapshot) {
        let urgent = self.shared.chronicle.lock().observe(snapshot);
        if self.shared.ended.load(Ordering::Relaxed) {
            self.shared
                .say(Some("its thread has ended, which it never should; restart podmeter and report this".into()));
        } else if urgent {
            // Full: it is awake already.
            let _: Result<(), TrySendError<()>> = self.wake.try_send(());
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
pub struct Reader(pub(super) Arc<Shared>);

impl Reader {
    #[must_use]
    pub fn state(&self) -> JournalState {
        let mut state = self.0.state.lock().clone();
        state.dropped = self.0.chronicle.lock().dropped;
        let asked = Monotonic::from_millis(self.0.asked.load(Ordering::Relaxed));
        let waiting = self.0.clock.now().monotonic.since(asked);
        if asked != Monotonic::default() && waiting > HANGS {
            state.problem =
                Some(format!("the disk has not answered for {} s; see to the disk", waiting.as_secs()).into());
        }
        state
    }
}

impl Shared {
    pub fn file(&self) -> PathBuf {
        self.settings.directory.join(FILE)
    }

    fn say(&self, problem: Option<String>) {
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

struct Keeper {
    shared: Arc<Shared>,
    lock: Option<File>,
    store: Option<Store>,
    pruned: Option<Monotonic>,
}

impl Keeper {
    fn run(&mut self, woken: &Receiver<()>) {
        let mut wait = Duration::ZERO;
        loop {
            let ending = matches!(woken.recv_timeout(wait), Err(RecvTimeoutError::Disconnected));
            match self.work() {
                Ok(()) => {
                    self.shared.say(None);
                    wait = PROGRESS;
                }
                Err(problem) => {
                    self.shared.state.lock().errors += u64::from(self.lock.is_some());
                    self.shared.say(Some(problem));
                    // What waits is kept; who wakes us meanwhile changes nothing.
                    wait = Duration::ZERO;
                    if !ending && pause(woken, self.shared.clock) {
                        let _ = self.work();
                        return;
                    }
                }
            }
            if ending {
                return;
            }
        }
    }

    /// Brings the disk up to what is known. The error is for people.
    fn work(&mut self) -> Result<(), String> {
        let now = self.shared.clock.now();
        let asked = u64::try_from(now.monotonic.as_duration().as_millis()).unwrap_or(u64::MAX).max(1);
        self.shared.asked.store(asked, Ordering::Relaxed);
        let outcome = self.open().and_then(|()| self.write());
        self.shared.asked.store(0, Ordering::Relaxed);
        let size = self.store.as_ref().and_then(|store| store.size().ok());
        self.shared.state.lock().size_bytes = size;
        outcome
    }

    fn open(&mut self) -> Result<(), String> {
        if self.store.is_some() {
            return Ok(());
        }
        let directory = &self.shared.settings.directory;
        // On a file that was removed, with its directory perhaps, it keeps nobody out.
        self.lock.take_if(|lock| lock.metadata().is_ok_and(|file| file.nlink() == 0));
        if self.lock.is_none() {
            self.lock = Some(take_lock(directory)?);
        }
        let file = self.shared.file();
        let bounds = self.shared.settings.bounds;
        let opened = Store::open(&file, bounds).and_then(|store| store.open_records().map(|records| (store, records)));
        let (store, (open, last)) = match opened {
            Ok(opened) => opened,
            Err(error @ StoreError::Failed(_)) => return Err(format!("{}: {error}", file.display())),
            Err(error) => (self.begin_new(&file, &error)?, Default::default()),
        };
        if open.damaged > 0 {
            tracing::warn!(file = %file.display(), lost = open.damaged, "open holdings in the journal are unreadable");
        }
        let now = self.shared.clock.now();
        let mut chronicle = self.shared.chronicle.lock();
        if chronicle.is_loaded() {
            // The file is another than before, perhaps: what we know is newer in any case.
            chronicle.all_wait();
        } else {
            chronicle.load(open.records, last, now);
        }
        drop(chronicle);
        self.store = Some(store);
        Ok(())
    }

    /// Renames a file that cannot be used and begins a new one in its place.
    fn begin_new(&mut self, file: &Path, error: &StoreError) -> Result<Store, String> {
        self.shared.state.lock().errors += 1;
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

    fn write(&mut self) -> Result<(), String> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let now = self.shared.clock.now();
        let due = self.pruned.is_none_or(|last| now.monotonic.since(last) >= PRUNE);
        let records = self.shared.chronicle.lock().take();
        let outcome = if records.is_empty() { Ok(()) } else { store.write(&records) };
        let outcome = outcome.and_then(|()| if due { store.prune(now.unix.0).map(drop) } else { Ok(()) });
        match outcome {
            Ok(()) => {
                self.pruned = if due { Some(now.monotonic) } else { self.pruned };
                self.shared.chronicle.lock().written();
                self.shared.state.lock().written += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.shared.chronicle.lock().give_back(records);
                self.store = None;
                if matches!(error, StoreError::Damaged(_)) {
                    // The check at the opening does not see all damage: a file that it passes would fail here each time.
                    return self.begin_new(&self.shared.file(), &error).map(drop);
                }
                Err(format!("{}: {error}; see to the disk under --state-dir", self.shared.file().display()))
            }
        }
    }
}

/// Until it is time to try again; true when the agent ends meanwhile. News is no reason to try earlier.
fn pause(woken: &Receiver<()>, clock: Clock) -> bool {
    let due = clock.now().monotonic + RETRY;
    loop {
        let left = due.since(clock.now().monotonic);
        if left.is_zero() {
            return false;
        }
        if woken.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
            return true;
        }
    }
}

pub(super) fn take_lock(directory: &Path) -> Result<File, String> {
    directory::prepare(directory)?;
    let path = directory.join(LOCK);
    let said = |error: std::io::Error| {
        format!("{}: {error}; give --state-dir a directory that podmeter may write to", path.display())
    };
    let file = directory::open(&path).map_err(said)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(format!("another podmeter writes to {}; waiting until it ends", directory.display()))
        }
        Err(error) => Err(said(error.into())),
    }
}

/// Renames the file to a name that is free. SQLite's rollback journal goes with it: it must not be applied to the next file.
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
