//! Times NVML calls, by name.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::model::{DurationHistogram, Monotonic};

/// Every call since the agent started, over all sessions. Shared by all threads.
#[derive(Debug, Default)]
pub struct Statistics {
    calls: Mutex<BTreeMap<&'static str, DurationHistogram>>,
    /// `None`: calls are not timed.
    clock: Option<Clock>,
}

impl Statistics {
    pub fn timed(clock: Clock) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    pub fn start(&self) -> Option<Monotonic> {
        self.clock.map(|clock| clock.now().monotonic)
    }

    /// A refusal takes time, too.
    pub fn record(&self, name: &'static str, started: Option<Monotonic>) {
        if let Some((clock, started)) = self.clock.zip(started) {
            let latency = clock.now().monotonic.since(started);
            self.calls.lock().entry(name).or_default().observe(latency);
        }
    }

    /// `None` unless calls are timed.
    pub fn durations(&self) -> Option<BTreeMap<&'static str, DurationHistogram>> {
        self.clock.is_some().then(|| self.calls.lock().clone())
    }
}
