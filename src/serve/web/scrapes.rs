//! Scrapes, measured by the routes. Their durations are in the next snapshot; their number tells the ledger that the final
//! counters of an ended container were scraped.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

use crate::domain::model::DurationHistogram;

#[derive(Clone, Debug, Default)]
pub struct Scrapes {
    durations: Arc<Mutex<DurationHistogram>>,
    count: Counter,
}

impl Scrapes {
    /// Records the duration of a GET or HEAD of `/metrics` or `/metrics/dcgm`.
    pub fn record_duration(&self, duration: Duration) {
        self.durations.lock().observe(duration);
    }

    pub fn durations(&self) -> DurationHistogram {
        self.durations.lock().clone()
    }

    /// Counts a GET of `/metrics`: only its response has the counters of containers.
    pub fn count_scrape(&self) {
        self.count.inc();
    }

    pub fn count(&self) -> u64 {
        self.count.get()
    }
}
