//! Where to search for the driver library.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

const LIBRARY: &str = "libnvidia-ml.so.1";

/// Where distributions, driver containers and GKE's installer put the library, below a driver root.
const PLACES: [&str; 8] = [
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
    /// `--driver-root`: searched after the loader's own path.
    pub driver_roots: Vec<PathBuf>,
}

impl LibrarySearch {
    /// What to try to load, in order. The bare name uses the loader's path.
    #[must_use]
    pub fn candidates(&self) -> Vec<OsString> {
        if let Some(library) = &self.library {
            return vec![library.clone().into_os_string()];
        }
        let below = |root: &PathBuf| PLACES.map(|place| root.join(place).join(LIBRARY));
        let found = self.driver_roots.iter().flat_map(below).filter(|path| path.exists());
        std::iter::once(OsString::from(LIBRARY)).chain(found.map(PathBuf::into_os_string)).collect()
    }

    /// The searched places, for people.
    pub(super) fn description(&self) -> String {
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

/// True when the loader's error means that the candidate itself does not exist. Any other error is reported, as is a
/// missing library that the candidate needs.
pub fn is_absence(candidate: &OsStr, error: &str) -> bool {
    let own = error.strip_prefix(&*candidate.to_string_lossy());
    own.is_some_and(|rest| rest.starts_with(": cannot open shared object file: No such file"))
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
