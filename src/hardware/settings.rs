//! Intervals, time limits and roots of the hardware threads.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::gpu_state::Staleness;
use crate::domain::model::PciBusId;
use crate::domain::periods::{RELEASE_LIMIT, readings_late};

#[derive(Clone, Debug)]
pub struct HardwareSettings {
    /// The period of the fast tier.
    pub sample_interval: Duration,
    /// The period of the fast tier of watched GPUs, unless the usual one is shorter; and of held GPUs' processes.
    pub watched_interval: Duration,
    /// The period of the processes of other GPUs, by which those that do not answer are found.
    pub probe_interval: Duration,
    pub medium_interval: Duration,
    pub slow_interval: Duration,
    /// A call that has not returned after this time is stuck.
    pub watchdog: Duration,
    /// The first and the longest wait before the driver is opened again.
    pub reopen: (Duration, Duration),
    /// The first and the longest wait before a lost GPU is queried again.
    pub lost_retry: (Duration, Duration),
    pub sys_root: PathBuf,
    /// The PCI addresses of cards that do not count as the node's GPUs.
    pub ignored_gpus: BTreeSet<PciBusId>,
    /// Root of the NVIDIA kernel driver's files about GPUs that the library does not list.
    pub proc_root: PathBuf,
    /// A release that takes longer is answered with what keeps the driver open.
    pub release_limit: Duration,
}

impl Default for HardwareSettings {
    fn default() -> Self {
        Self {
            sample_interval: Duration::from_secs(10),
            watched_interval: Duration::from_secs(1),
            probe_interval: Duration::from_secs(5),
            medium_interval: Duration::from_secs(15),
            slow_interval: Duration::from_secs(60),
            watchdog: Duration::from_secs(10),
            reopen: (Duration::from_millis(500), Duration::from_secs(10)),
            lost_retry: (Duration::from_secs(1), Duration::from_secs(30)),
            sys_root: PathBuf::from("/sys"),
            ignored_gpus: BTreeSet::new(),
            proc_root: PathBuf::from("/proc"),
            release_limit: RELEASE_LIMIT,
        }
    }
}

impl HardwareSettings {
    pub fn shortest_interval(&self) -> Duration {
        self.sample_interval.min(self.watched_interval)
    }

    /// The age of the readings beyond which the time of their GPU is uncovered.
    pub fn readings_late(&self) -> Duration {
        readings_late(self.sample_interval)
    }

    /// The age of each tier's values beyond which they are withdrawn.
    pub fn staleness(&self) -> Staleness {
        Staleness { fast: self.sample_interval * 3, medium: self.medium_interval * 3, slow: self.slow_interval * 3 }
    }

    /// Reads every GPU as if it were watched.
    #[must_use]
    pub fn all_watched(self) -> Self {
        Self { sample_interval: self.shortest_interval(), ..self }
    }

    /// Divides all intervals and limits, except that of a release.
    #[must_use]
    pub fn sped_up(self, times: u32) -> Self {
        let times = times.max(1);
        let both = |(first, longest): (Duration, Duration)| (first / times, longest / times);
        Self {
            sample_interval: self.sample_interval / times,
            watched_interval: self.watched_interval / times,
            probe_interval: self.probe_interval / times,
            medium_interval: self.medium_interval / times,
            slow_interval: self.slow_interval / times,
            watchdog: self.watchdog / times,
            reopen: both(self.reopen),
            lost_retry: both(self.lost_retry),
            ..self
        }
    }
}
