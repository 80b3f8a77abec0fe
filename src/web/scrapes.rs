use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::model::DurationHistogram;

/// How long scrapes took. The server records it, the agent copies it into the next snapshot.
#[derive(Clone, Debug, Default)]
pub struct ScrapeDurations {
    durations: Arc<Mutex<DurationHistogram>>,
    pages: Arc<AtomicU64>,
}

impl ScrapeDurations {
    pub fn record(&self, duration: Duration) {
        self.durations.lock().observe(duration);
    }

    /// Counts a page with container counters.
    pub fn count_page(&self) {
        self.pages.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages with container counters that were sent.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn snapshot(&self) -> DurationHistogram {
        self.durations.lock().clone()
    }
}
