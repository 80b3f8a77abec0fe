//! Counts how often the driver is known to have been loaded. That a session ends and another begins proves nothing.

use std::sync::Arc;

use crate::model::DriverInfo;

/// What a driver says that is not loaded, at the opening.
const AWAY: [&str; 3] = ["driver_not_loaded", "uninitialized", "library_not_found"];

#[derive(Debug, Default)]
pub struct Loads {
    count: u64,
    version: Option<Arc<str>>,
    /// It was not loaded when it was last to be opened.
    away: bool,
}

impl Loads {
    pub fn count(&self) -> u64 {
        self.count
    }

    /// It could not be opened.
    pub fn refused(&mut self, code: &str) {
        self.away |= AWAY.contains(&code);
    }

    /// It is open, and is this.
    pub fn found(&mut self, driver: Option<&DriverInfo>) {
        let version = driver.map(|driver| &driver.driver_version);
        let is_other = version.is_some() && self.version.is_some() && version != self.version.as_ref();
        if self.count == 0 || is_other || self.away {
            self.count += 1;
        }
        self.away = false;
        if let Some(version) = version {
            self.version = Some(Arc::clone(version));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_proves_a_loading_counts() {
        let driver =
            |version: &str| DriverInfo { driver_version: version.into(), cuda_version: None, nvml_version: None };
        let mut loads = Loads::default();
        loads.refused("library_not_found");
        loads.found(Some(&driver("580.1")));
        assert_eq!(loads.count(), 1, "the first");
        loads.found(Some(&driver("580.1")));
        loads.found(None);
        loads.refused("operating_system");
        loads.refused("lib_rm_version_mismatch");
        loads.found(Some(&driver("580.1")));
        assert_eq!(loads.count(), 1, "opened anew, no more");
        loads.found(Some(&driver("590.2")));
        assert_eq!(loads.count(), 2, "another version");
        for code in AWAY {
            loads.refused(code);
        }
        loads.found(Some(&driver("590.2")));
        assert_eq!(loads.count(), 3, "it was away");
    }
}
