//! When the last counters of what has ended are removed.

use std::time::Duration;

use crate::domain::model::Monotonic;

/// The number of scrapes that must have had the last counters before they are removed.
const FINAL_SCRAPES: u64 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// How long last counters stay at least.
    pub time: Duration,
    /// The number of scrapes so far.
    pub scrapes: u64,
}

impl Retention {
    /// Whether counters are to be removed whose holding ended, or whose last XID came, at `since`, and that were final when there
    /// had been `scrapes` scrapes.
    pub fn is_over(self, now: Monotonic, (since, scrapes): (Monotonic, u64)) -> bool {
        now.since(since) >= self.time && self.scrapes >= scrapes + FINAL_SCRAPES
    }
}
