//! Finds, loads, initialises and shuts down the driver library.

use std::ffi::OsStr;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

use super::attempt::{self, Attempts};
use super::presence::Presence;
use super::search::{LibrarySearch, PLACES, is_absence};
use super::statistics::Statistics;
use super::{codes, elf};
use crate::hardware::source::Failure;

/// The loaded and initialised driver library. It is shut down when the last `Arc` is dropped.
pub struct Library {
    pub symbols: NvmlLib,
    pub statistics: Arc<Statistics>,
    /// The last two fields: they are dropped after the library has been unloaded.
    pub open: Arc<()>,
    presence: Presence,
}

/// Where to find the library, and what to do around its loading.
#[derive(Default)]
pub struct Loading {
    pub search: LibrarySearch,
    /// Called before the loader, which may hang.
    pub prepare: Option<Box<dyn Fn() + Send>>,
    pub attempts: Option<Attempts>,
}

/// The driver's handle of a GPU or a MIG device.
#[derive(Clone, Copy, Debug)]
pub struct Handle(pub nvmlDevice_t);

// SAFETY: a handle is a token that the driver looks up; NVML is documented as safe to call from several threads.
unsafe impl Send for Handle {}
// SAFETY: as above; a shared handle cannot be changed through.
unsafe impl Sync for Handle {}

impl Library {
    /// Loads the first candidate that loads, and initialises it.
    pub fn open(loading: &Loading, statistics: &Arc<Statistics>) -> Result<Arc<Self>, Failure> {
        let search = &loading.search;
        let mut refused = None;
        if let Some(prepare) = &loading.prepare {
            prepare();
        }
        let search_path = std::env::var_os("LD_LIBRARY_PATH");
        for candidate in search.candidates() {
            let file = attempt::file_of(&candidate, search_path.as_deref(), &PLACES);
            if let Err(problem) = elf::check(&file) {
                refused = refused.or(Some(format!("{}: {problem}", file.display())));
                continue;
            }
            if let Some(attempts) = loading.attempts.as_ref().filter(|_| file.exists()) {
                attempts.begin(&file)?;
            }
            let presence = Presence::begin();
            // SAFETY: loading runs the library's initialisers; it is the driver's own, or the one that was configured.
            match unsafe { NvmlLib::new(&candidate) } {
                Ok(symbols) => {
                    presence.is_loaded();
                    let initialised = Self::initialise(symbols, presence, &candidate, Arc::clone(statistics));
                    loading.attempts.iter().for_each(Attempts::end);
                    return initialised;
                }
                Err(error) => {
                    loading.attempts.iter().for_each(Attempts::end);
                    let error = error.to_string();
                    refused = refused.or((!is_absence(&candidate, &error)).then_some(error));
                }
            }
        }
        Err(Failure {
            call: "dlopen",
            code: "library_not_found",
            reason: match refused {
                Some(error) => format!("the driver library was found and could not be loaded: {error}"),
                None => search.description(),
            },
            remedy: "install the NVIDIA driver on this node, mount it into the container below a --driver-root, \
                     or name the library with --nvml-library",
        })
    }

    fn initialise(
        symbols: NvmlLib,
        presence: Presence,
        path: &OsStr,
        statistics: Arc<Statistics>,
    ) -> Result<Arc<Self>, Failure> {
        let started = statistics.start();
        let code = match symbols.nvmlInit_v2.as_ref() {
            // SAFETY: takes no argument; the symbol has just been loaded.
            Ok(init) => unsafe { init() },
            Err(_) => codes::FUNCTION_NOT_FOUND,
        };
        statistics.record("nvmlInit_v2", code, started);
        if code != codes::SUCCESS {
            presence.is_being_unloaded();
            drop(symbols);
            return Err(Failure {
                call: "nvmlInit_v2",
                code: codes::name(code),
                reason: format!("{} cannot be initialised: {} ({code})", path.to_string_lossy(), codes::name(code)),
                remedy: codes::remedy(code),
            });
        }
        Ok(Arc::new(Self { symbols, statistics, open: Arc::default(), presence }))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Ok(shutdown) = self.symbols.nvmlShutdown.as_ref() {
            let started = self.statistics.start();
            // SAFETY: there is no other reference, so no call is under way.
            let code = unsafe { shutdown() };
            self.statistics.record("nvmlShutdown", code, started);
        }
        self.presence.is_being_unloaded();
    }
}
