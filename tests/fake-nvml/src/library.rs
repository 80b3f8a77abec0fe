//! The library's memory behind one lock: the machine, who initialised it, the handles, the allocated objects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{self, Micros};
use crate::codes::{Code, DRIVER_NOT_LOADED, UNINITIALIZED, UNKNOWN};
use crate::events::EventSet;
use crate::gpm::GpmSample;
use crate::handles::Handle;
use crate::history::History;
use crate::record::Record;
use crate::state::{Gpu, Machine};
use crate::watch::{self, Watch};

/// A file older than this only fills the ring of samples.
const OLDEST_STATE_MICROS: Micros = 20_000_000;

pub struct Library {
    watch: Watch,
    pub record: Record,
    /// nvmlInit minus nvmlShutdown.
    initialized: u32,
    /// The generation of the file when it was initialised.
    initialized_in: u64,
    /// The generation that the histories belong to.
    history_of: u64,
    histories: BTreeMap<String, History>,
    /// Up to when the histories were reported; nothing before it may change.
    reported: Micros,
    /// UUID by slot. A GPU always keeps its slot, so that its handle stays valid.
    slots: Vec<String>,
    pub gpm_samples: BTreeMap<u64, GpmSample>,
    pub event_sets: BTreeMap<u64, EventSet>,
    last_token: u64,
}

static LIBRARY: LazyLock<Mutex<Library>> = LazyLock::new(|| {
    let (state, calls) = watch::paths();
    Mutex::new(Library::new(state, calls.as_deref()))
});
/// A library that is unloaded leaves nothing behind, so that repeated loads can be measured.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unload;
/// It has no notifier: waits end at their timeout.
static NEVER: Condvar = Condvar::new();

/// The library, after it has read the file. The lock is held for the moment only, never while a call waits.
pub fn library() -> MutexGuard<'static, Library> {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    library.refresh();
    library
}

extern "C" fn unload() {
    // A process that ends may have a call under way, and needs nothing given back.
    if let Ok(mut library) = LIBRARY.try_lock() {
        *library = Library::new(PathBuf::new(), None);
    }
}

/// Lets time pass.
pub fn wait(micros: Micros) {
    static LOCK: Mutex<()> = Mutex::new(());
    let until = clock::now() + micros;
    let mut guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(left) = until.checked_sub(clock::now()).filter(|left| *left > 0) {
        let waited = NEVER.wait_timeout(guard, Duration::from_micros(left));
        guard = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl Library {
    fn new(state: PathBuf, calls: Option<&Path>) -> Self {
        Self {
            watch: Watch::new(state),
            record: Record::new(calls),
            initialized: 0,
            initialized_in: 0,
            history_of: 0,
            histories: BTreeMap::new(),
            reported: 0,
            slots: Vec::new(),
            gpm_samples: BTreeMap::new(),
            event_sets: BTreeMap::new(),
            last_token: 0,
        }
    }

    fn refresh(&mut self) {
        let Some(fresh) = self.watch.refresh() else { return };
        clock::stop_at(fresh.machine.clock_microseconds);
        let now = clock::now();
        let written = fresh.written.clamp(now.saturating_sub(OLDEST_STATE_MICROS), now).max(self.reported);
        if fresh.machine.generation != self.history_of {
            self.history_of = fresh.machine.generation;
            self.histories.clear();
        }
        for gpu in &fresh.machine.gpus {
            match self.histories.get_mut(&gpu.uuid) {
                Some(history) => history.add(written, gpu),
                None => {
                    self.histories.insert(gpu.uuid.clone(), History::new(written, gpu));
                }
            }
            if !self.slots.contains(&gpu.uuid) {
                self.slots.push(gpu.uuid.clone());
            }
        }
    }

    /// The machine, initialised or not.
    pub fn machine(&self) -> Option<Arc<Machine>> {
        self.watch.machine.clone()
    }

    /// What the GPU did up to now.
    pub fn history(&mut self, uuid: &str, now: Micros) -> Option<&History> {
        self.reported = self.reported.max(now);
        self.histories.get(uuid)
    }

    pub fn ready(&self) -> Result<Arc<Machine>, Code> {
        let machine = self.machine().ok_or(UNINITIALIZED)?;
        if self.initialized == 0 || machine.generation != self.initialized_in {
            return Err(UNINITIALIZED);
        }
        Ok(machine)
    }

    pub fn init(&mut self) -> Result<(), Code> {
        let machine = self.machine().ok_or(if self.watch.broken { UNKNOWN } else { DRIVER_NOT_LOADED })?;
        if machine.init != 0 {
            return Err(Code(machine.init));
        }
        if self.initialized == 0 {
            self.initialized_in = machine.generation;
        }
        self.initialized += 1;
        Ok(())
    }

    pub fn shutdown(&mut self) -> Result<(), Code> {
        self.initialized = self.initialized.checked_sub(1).ok_or(UNINITIALIZED)?;
        if self.initialized == 0 {
            self.gpm_samples.clear();
            self.event_sets.clear();
        }
        Ok(())
    }

    pub fn handle(&self, gpu: &Gpu) -> Result<Handle, Code> {
        let slot = self.slots.iter().position(|uuid| *uuid == gpu.uuid).ok_or(UNKNOWN)?;
        Ok(Handle::device(self.initialized_in, slot as u32))
    }

    /// The UUID behind a handle of this generation, whether the file still has that GPU or not.
    pub fn uuid(&self, handle: Handle) -> Option<&str> {
        let in_time = handle.generation() == Handle::device(self.initialized_in, 0).generation();
        self.slots.get(handle.slot() as usize).filter(|_| in_time).map(String::as_str)
    }

    /// An identifier of an object that the library allocates and frees.
    pub fn token(&mut self) -> u64 {
        self.last_token += 1;
        0x7f00_0000_0000_0000 | (self.last_token << 4)
    }
}
