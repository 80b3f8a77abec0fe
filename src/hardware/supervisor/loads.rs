//! Counts how often the driver was loaded, from failed openings and lists of the GPUs.

use std::sync::Arc;

use crate::domain::model::DriverInfo;
use crate::hardware::source::FailureCause;

/// Counts the certain loads of the driver: the end of a session and the start of another prove none.
#[derive(Debug, Default)]
pub struct DriverLoads {
    pub count: u64,
    version: Option<Arc<str>>,
    /// Whether an opening since the last list found it not loaded.
    was_unloaded: bool,
}

impl DriverLoads {
    /// Applies a failed opening.
    pub fn refused(&mut self, cause: FailureCause) {
        self.was_unloaded |= cause == FailureCause::DriverNotLoaded;
    }

    /// Applies a list that an opening or an inspection has read.
    pub fn listed(&mut self, driver: Option<&DriverInfo>) {
        let version = driver.map(|driver| &driver.driver_version);
        let is_other = version.is_some() && self.version.is_some() && version != self.version.as_ref();
        if self.count == 0 || is_other || self.was_unloaded {
            self.count += 1;
        }
        self.was_unloaded = false;
        if let Some(version) = version {
            self.version = Some(Arc::clone(version));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certain_loads_count() {
        let driver =
            |version: &str| DriverInfo { driver_version: version.into(), cuda_version: None, nvml_version: None };
        let mut loads = DriverLoads::default();
        loads.refused(FailureCause::DriverNotLoaded);
        loads.listed(Some(&driver("580.1")));
        assert_eq!(loads.count, 1, "the first");
        loads.listed(Some(&driver("580.1")));
        loads.listed(None);
        loads.refused(FailureCause::Other);
        loads.listed(Some(&driver("580.1")));
        assert_eq!(loads.count, 1, "opened again only");
        loads.listed(Some(&driver("590.2")));
        assert_eq!(loads.count, 2, "another version");
        loads.refused(FailureCause::DriverNotLoaded);
        loads.listed(Some(&driver("590.2")));
        assert_eq!(loads.count, 3, "it was unloaded");
    }
}
