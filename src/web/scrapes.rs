use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::model::DurationHistogram;

/// How long scrapes took. The web room records, the agent copies it into the next snapshot.
#[derive(Clone, Debug, Default)]
pub struct ScrapeDurations(Arc<Mutex<DurationHistogram>>);

impl ScrapeDurations {
    pub fn record(&self, duration: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).observe(duration);
    }

    #[must_use]
    pub fn snapshot(&self) -> DurationHistogram {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
