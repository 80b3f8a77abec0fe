//! Counts and times NVML calls, by name.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use parking_lot::{Mutex, MutexGuard};

use super::codes;
use crate::clock::Clock;
use crate::model::{DurationHistogram, Monotonic};

/// One NVML call since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStatistics {
    pub count: u64,
    /// Codes other than success.
    pub codes: BTreeMap<&'static str, u64>,
}

/// Counts every call, over all sessions. Shared by all threads.
#[derive(Debug, Default)]
pub struct Statistics {
    calls: Mutex<BTreeMap<&'static str, Call>>,
    /// `None`: calls are not timed.
    clock: Option<Clock>,
}

#[derive(Debug, Default)]
struct Call {
    count: u64,
    codes: BTreeMap<&'static str, u64>,
    durations: DurationHistogram,
}

impl Statistics {
    pub fn new(clock: Option<Clock>) -> Self {
        Self { calls: Mutex::default(), clock }
    }

    pub fn start(&self) -> Option<Monotonic> {
        self.clock.map(|clock| clock.now().monotonic)
    }

    pub fn record(&self, name: &'static str, code: nvmlReturn_t, started: Option<Monotonic>) {
        let latency = self.clock.zip(started).map(|(clock, started)| clock.now().monotonic.since(started));
        let mut calls = self.lock();
        let call = calls.entry(name).or_default();
        if let Some(latency) = latency {
            call.durations.observe(latency);
        }
        call.count += 1;
        if code != codes::SUCCESS {
            *call.codes.entry(codes::name(code)).or_default() += 1;
        }
    }

    pub fn all(&self) -> BTreeMap<&'static str, CallStatistics> {
        let summary = |call: &Call| CallStatistics { count: call.count, codes: call.codes.clone() };
        self.lock().iter().map(|(name, call)| (*name, summary(call))).collect()
    }

    /// `None` unless calls are timed.
    pub fn durations(&self) -> Option<BTreeMap<&'static str, DurationHistogram>> {
        self.clock.is_some().then(|| self.lock().iter().map(|(name, call)| (*name, call.durations.clone())).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Call>> {
        self.calls.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_code() {
        let statistics = Statistics::new(None);
        for code in [codes::NOT_SUPPORTED, codes::SUCCESS, codes::NOT_SUPPORTED, codes::UNKNOWN] {
            statistics.record("a", code, None);
        }
        let all = statistics.all();
        assert_eq!(all["a"].codes, [("not_supported", 2), ("unknown", 1)].into());
        assert_eq!(all["a"].count, 4);
    }

    #[test]
    fn durations_are_kept_where_configured() {
        let statistics = Statistics::new(Some(Clock::start()));
        for _ in 0..3 {
            let started = statistics.start();
            statistics.record("a", codes::NOT_SUPPORTED, started);
        }
        assert_eq!(statistics.durations().unwrap()["a"].count(), 3, "a refusal takes time, too");
        assert_eq!(Statistics::new(None).durations(), None);
    }
}
