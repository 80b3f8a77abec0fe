use std::path::PathBuf;
use std::time::Duration;

/// When what is read, and what counts as too long.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Period of the fast tier.
    pub sample_interval: Duration,
    pub medium_interval: Duration,
    pub slow_interval: Duration,
    /// A call that has not come back after this is stuck.
    pub watchdog: Duration,
    /// First and longest wait before the driver is opened again.
    pub reopen: (Duration, Duration),
    /// First and longest wait before a lost GPU is asked again.
    pub lost_retry: (Duration, Duration),
    pub sys_root: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sample_interval: Duration::from_secs(1),
            medium_interval: Duration::from_secs(10),
            slow_interval: Duration::from_secs(60),
            watchdog: Duration::from_secs(10),
            reopen: (Duration::from_millis(500), Duration::from_secs(10)),
            lost_retry: (Duration::from_secs(1), Duration::from_secs(30)),
            sys_root: PathBuf::from("/sys"),
        }
    }
}
