//! How long metrics pages took, and how many had container counters: the routes record it,
//! the agent puts it into the next snapshot.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::model::DurationHistogram;

/// How long each page of metrics took, HEAD and dcgm-exporter's included, and how many pages had container counters.
#[derive(Clone, Debug, Default)]
pub struct ScrapeDurations(Arc<Mutex<(DurationHistogram, u64)>>);

impl ScrapeDurations {
    pub fn record(&self, duration: Duration) {
        self.0.lock().0.observe(duration);
    }

    /// Counts a page with container counters.
    pub fn count_page(&self) {
        self.0.lock().1 += 1;
    }

    /// Pages with container counters that were made.
    pub fn pages(&self) -> u64 {
        self.0.lock().1
    }

    pub fn snapshot(&self) -> DurationHistogram {
        self.0.lock().0.clone()
    }
}
