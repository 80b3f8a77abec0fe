use std::ffi::OsStr;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

use super::codes;
use super::search::{LibrarySearch, is_absence};
use super::statistics::Statistics;
use crate::hardware::source::Failure;

/// The loaded and initialised driver library. Whoever calls it holds an `Arc`: it is closed when nobody does.
pub struct Library {
    pub symbols: NvmlLib,
    pub statistics: Arc<Statistics>,
    /// The last field: it goes once the library has been unloaded.
    pub open: Arc<()>,
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
    pub fn open(search: &LibrarySearch, statistics: &Arc<Statistics>) -> Result<Arc<Self>, Failure> {
        let mut refused = None;
        for candidate in search.candidates() {
            // SAFETY: loading runs the library's initialisers; it is the driver's own, or the one that was asked for.
            match unsafe { NvmlLib::new(&candidate) } {
                Ok(symbols) => return Self::initialise(symbols, &candidate, Arc::clone(statistics)),
                Err(error) => {
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

    fn initialise(symbols: NvmlLib, path: &OsStr, statistics: Arc<Statistics>) -> Result<Arc<Self>, Failure> {
        let started = statistics.start();
        let code = match symbols.nvmlInit_v2.as_ref() {
            // SAFETY: takes no argument; the symbol has just been loaded.
            Ok(init) => unsafe { init() },
            Err(_) => codes::FUNCTION_NOT_FOUND,
        };
        statistics.record("nvmlInit_v2", code, started);
        if code != codes::SUCCESS {
            return Err(Failure {
                call: "nvmlInit_v2",
                code: codes::name(code),
                reason: format!("{} does not start: {} ({code})", path.to_string_lossy(), codes::name(code)),
                remedy: codes::remedy(code),
            });
        }
        Ok(Arc::new(Self { symbols, statistics, open: Arc::default() }))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Ok(shutdown) = self.symbols.nvmlShutdown.as_ref() {
            let started = self.statistics.start();
            // SAFETY: the last user has gone, so no call is in flight.
            let code = unsafe { shutdown() };
            self.statistics.record("nvmlShutdown", code, started);
        }
    }
}
