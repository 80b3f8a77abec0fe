//! Finds, loads, initialises and shuts down the driver library, and times its calls.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use parking_lot::Mutex;

use super::codes;
use crate::clock::Clock;
use crate::domain::model::DurationHistogram;
use crate::hardware::source::{CallProblem, Failure};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Where distributions, driver containers and GKE's installer put the library, below a driver root.
const DIRECTORIES: [&str; 8] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib",
    "usr/lib",
];

/// Which driver library to load.
#[derive(Clone, Debug, Default)]
pub struct LibrarySearch {
    /// `--nvml-library`: only this one.
    pub library: Option<PathBuf>,
    /// `--driver-root`: searched after the loader's path.
    pub driver_roots: Vec<PathBuf>,
}

impl LibrarySearch {
    /// The files to try to load, in order. The bare name uses the loader's path.
    fn candidates(&self) -> Vec<OsString> {
        if let Some(library) = &self.library {
            return vec![library.clone().into_os_string()];
        }
        let below = |root: &PathBuf| DIRECTORIES.map(|directory| root.join(directory).join(LIBRARY));
        let found = self.driver_roots.iter().flat_map(below).filter(|path| path.exists());
        std::iter::once(OsString::from(LIBRARY)).chain(found.map(PathBuf::into_os_string)).collect()
    }

    /// Where the library was searched, as text for the operator.
    fn description(&self) -> String {
        match &self.library {
            Some(library) => format!("{} was not found", library.display()),
            None if self.driver_roots.is_empty() => format!("{LIBRARY} was not found on the loader's path"),
            None => {
                let roots: Vec<_> = self.driver_roots.iter().map(|root| root.display().to_string()).collect();
                format!("{LIBRARY} was not found on the loader's path or under {}", roots.join(", "))
            }
        }
    }
}

/// A library that is loaded, and not initialised. The crate does both in one call; it is loaded before, as a load may
/// hang with the loader locked: the supervisor distinguishes that from an initialisation that hangs.
pub struct Loaded {
    _symbols: NvmlLib,
    path: OsString,
}

/// The initialised driver library. It is shut down and unloaded when the last `Arc` is dropped: never while a thread is in a
/// call.
pub struct Library {
    pub nvml: ManuallyDrop<Nvml>,
    pub statistics: Arc<Statistics>,
    /// The last field: it is dropped after the library has been unloaded.
    pub open_marker: Arc<()>,
}

/// The driver's handle of a GPU or a MIG device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceHandle(pub nvmlDevice_t);

// SAFETY: a handle is a token that the driver looks up; NVML is documented as safe to call from several threads.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above; a shared handle cannot be changed.
unsafe impl Sync for DeviceHandle {}

impl Loaded {
    /// The first candidate that loads.
    pub fn find(search: &LibrarySearch) -> Result<Self, Failure> {
        let mut refused = None;
        for path in search.candidates() {
            // SAFETY: loading runs the library's initialisers; it is the driver's, or the one that was configured.
            match unsafe { NvmlLib::new(&path) } {
                Ok(symbols) => return Ok(Self { _symbols: symbols, path }),
                Err(error) => {
                    let error = error.to_string();
                    refused = refused.or((!is_absence(&path, &error)).then_some(error));
                }
            }
        }
        let reason = match refused {
            Some(error) => format!("the driver library was found and could not be loaded: {error}"),
            None => search.description(),
        };
        let remedy = "install the NVIDIA driver on this node, mount it into the container below a --driver-root, \
                      or name the library with --nvml-library";
        Err(codes::failure(CallProblem { call: "dlopen", code: "library_not_found" }, reason, remedy))
    }

    pub fn initialise(self, statistics: Arc<Statistics>) -> Result<Arc<Library>, Failure> {
        // The time includes the crate's call of nvmlSystemGetDriverVersion.
        let opened = statistics.time("nvmlInit_v2", || Nvml::builder().lib_path(&self.path).init());
        let nvml = opened.map_err(codes::of).map_err(|code| {
            let (path, name) = (self.path.to_string_lossy(), codes::name(code));
            let reason = format!("{path} cannot be initialised: {name} ({code})");
            codes::failure(CallProblem { call: "nvmlInit_v2", code: name }, reason, codes::remedy(code))
        })?;
        Ok(Arc::new(Library { nvml: ManuallyDrop::new(nvml), statistics, open_marker: Arc::default() }))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // Where the symbol is missing, the crate would panic: that library stays loaded.
        if self.nvml.lib().nvmlShutdown.is_ok() {
            // SAFETY: not used afterwards; there is no other reference, so no call is under way.
            self.statistics.time("nvmlShutdown", || unsafe { ManuallyDrop::drop(&mut self.nvml) });
        }
    }
}

/// Whether the loader's error means that the candidate itself does not exist. Any other error is reported, as is a
/// missing library that the candidate needs.
fn is_absence(candidate: &OsStr, error: &str) -> bool {
    let own = error.strip_prefix(&*candidate.to_string_lossy());
    own.is_some_and(|rest| rest.starts_with(": cannot open shared object file: No such file"))
}

/// The times of every call by name, since the agent started, over all sessions. Shared by all threads.
#[derive(Debug)]
pub struct Statistics {
    calls: Mutex<BTreeMap<&'static str, DurationHistogram>>,
    /// `None`: calls are not timed.
    clock: Option<Clock>,
}

impl Statistics {
    pub fn new(clock: Option<Clock>) -> Self {
        Self { calls: Mutex::default(), clock }
    }

    /// Makes a call and records its time, also where it is refused.
    pub fn time<T>(&self, name: &'static str, call: impl FnOnce() -> T) -> T {
        let Some(clock) = self.clock else { return call() };
        let started = clock.now().monotonic;
        let returned = call();
        let latency = clock.now().monotonic.since(started);
        self.calls.lock().entry(name).or_default().observe(latency);
        returned
    }

    /// The times of the calls by name; `None` unless calls are timed.
    pub fn durations(&self) -> Option<BTreeMap<&'static str, DurationHistogram>> {
        self.clock.is_some().then(|| self.calls.lock().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_is_the_only_one() {
        let search = LibrarySearch { library: Some("/opt/x.so".into()), driver_roots: vec!["/".into()] };
        assert_eq!(search.candidates(), [OsString::from("/opt/x.so")]);
    }

    #[test]
    fn roots_are_searched_in_order_after_the_loader() {
        let root = tempfile::tempdir().unwrap();
        let (driver, gke) = (root.path().join("driver"), root.path().join("gke"));
        let libraries = [driver.join("usr/lib/aarch64-linux-gnu").join(LIBRARY), gke.join("lib64").join(LIBRARY)];
        for library in &libraries {
            std::fs::create_dir_all(library.parent().unwrap()).unwrap();
            std::fs::write(library, "").unwrap();
        }
        let search = LibrarySearch { library: None, driver_roots: vec![driver, gke] };
        let expected: Vec<_> = std::iter::once(OsString::from(LIBRARY)).chain(libraries.map(PathBuf::into)).collect();
        assert_eq!(search.candidates(), expected);
    }

    #[test]
    fn a_library_that_exists_and_does_not_load_is_not_absent() {
        let loader = |text: &str| is_absence(OsStr::new(LIBRARY), text);
        assert!(loader("libnvidia-ml.so.1: cannot open shared object file: No such file or directory"));
        assert!(!loader("libgone.so: cannot open shared object file: No such file or directory"));
        assert!(!loader("libnvidia-ml.so.1: invalid ELF header"));
    }
}
