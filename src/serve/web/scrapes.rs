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
    /// Of `/metrics` and `/metrics/dcgm`, by GET or HEAD.
    pub fn record_duration(&self, duration: Duration) {
        self.durations.lock().observe(duration);
    }

    pub fn durations(&self) -> DurationHistogram {
        self.durations.lock().clone()
    }

    /// Of `/metrics`, by GET: only these have the counters of containers.
    pub fn count_scrape(&self) {
        self.count.inc();
    }

    pub fn count(&self) -> u64 {
        self.count.get()
    }
}
