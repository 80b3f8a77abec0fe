//! Scrapes, measured by the routes. Their durations are in the next snapshot; their number tells the ledger that the final
//! figures of an ended container were scraped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::model::DurationHistogram;

#[derive(Clone, Debug, Default)]
pub struct Scrapes {
    durations: Arc<Mutex<DurationHistogram>>,
    count: Arc<AtomicU64>,
}

impl Scrapes {
    /// Of `/metrics` and `/metrics/dcgm`, by GET or HEAD.
    pub fn record_duration(&self, duration: Duration) {
        self.durations.lock().observe(duration);
    }

    pub fn durations(&self) -> DurationHistogram {
        self.durations.lock().clone()
    }

    /// Of `/metrics`, by GET: only these have the counters of containers.
    pub fn count_scrape(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}
