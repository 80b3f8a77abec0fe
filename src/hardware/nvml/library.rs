//! Finds, loads, initialises and shuts down the driver library.

use std::ffi::OsString;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};

use super::codes;
use super::search::{LibrarySearch, is_absence};
use super::statistics::Statistics;
use crate::hardware::source::Failure;

/// A library that is not initialised.
pub struct Loaded {
    symbols: NvmlLib,
    path: OsString,
}

/// The loaded and initialised driver library. It is shut down when the last `Arc` is dropped.
pub struct Library {
    pub symbols: NvmlLib,
    pub statistics: Arc<Statistics>,
    /// The last field: it is dropped after the library has been unloaded.
    pub open_marker: Arc<()>,
}

/// The driver's handle of a GPU or a MIG device.
#[derive(Clone, Copy, Debug)]
pub struct Handle(pub nvmlDevice_t);

// SAFETY: a handle is a token that the driver looks up; NVML is documented as safe to call from several threads.
unsafe impl Send for Handle {}
// SAFETY: as above; a shared handle cannot be changed through.
unsafe impl Sync for Handle {}

impl Loaded {
    /// The first candidate that loads.
    pub fn find(search: &LibrarySearch) -> Result<Self, Failure> {
        let mut refused = None;
        for path in search.candidates() {
            // SAFETY: loading runs the library's initialisers; it is the driver's own, or the one that was configured.
            match unsafe { NvmlLib::new(&path) } {
                Ok(symbols) => return Ok(Self { symbols, path }),
                Err(error) => {
                    let error = error.to_string();
                    refused = refused.or((!is_absence(&path, &error)).then_some(error));
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

    pub fn initialise(self, statistics: Arc<Statistics>) -> Result<Arc<Library>, Failure> {
        let started = statistics.start();
        let code = match self.symbols.nvmlInit_v2.as_ref() {
            // SAFETY: takes no argument; the symbol belongs to a library that stays loaded meanwhile.
            Ok(init) => unsafe { init() },
            Err(_) => codes::FUNCTION_NOT_FOUND,
        };
        statistics.record("nvmlInit_v2", started);
        if code != codes::SUCCESS {
            let (path, name) = (self.path.to_string_lossy(), codes::name(code));
            return Err(Failure {
                call: "nvmlInit_v2",
                code: name,
                reason: format!("{path} cannot be initialised: {name} ({code})"),
                remedy: codes::remedy(code),
            });
        }
        Ok(Arc::new(Library { symbols: self.symbols, statistics, open_marker: Arc::default() }))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if let Ok(shutdown) = self.symbols.nvmlShutdown.as_ref() {
            let started = self.statistics.start();
            // SAFETY: there is no other reference, so no call is under way.
            unsafe { shutdown() };
            self.statistics.record("nvmlShutdown", started);
        }
    }
}
