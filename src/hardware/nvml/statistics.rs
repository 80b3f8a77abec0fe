//! Counts and times NVML calls, by name.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper_sys::bindings::nvmlReturn_t;
use parking_lot::{Mutex, MutexGuard};

use super::codes;
use crate::clock::Clock;
use crate::model::{DurationHistogram, Monotonic};

/// The newest latencies kept for each call.
const LATENCIES: usize = 512;

/// One NVML call since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallStatistics {
    pub count: u64,
    /// True once it has succeeded for any GPU; `None` until it succeeds or is unsupported.
    pub supported: Option<bool>,
    /// Codes other than success.
    pub codes: BTreeMap<&'static str, u64>,
    /// Median of the newest calls; only when latencies are recorded.
    pub p50: Option<Duration>,
    pub p99: Option<Duration>,
}

/// Counts every call, over all sessions. Shared by all threads.
#[derive(Debug, Default)]
pub struct Statistics {
    calls: Mutex<BTreeMap<&'static str, Call>>,
    /// `None`: calls are not timed.
    clock: Option<Clock>,
    keeps: Keeps,
}

/// The data kept of timed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keeps {
    /// The newest latencies, for quantiles.
    #[default]
    Latencies,
    /// Counts by duration.
    Durations,
}

#[derive(Debug, Default)]
struct Call {
    count: u64,
    supported: Option<bool>,
    codes: BTreeMap<&'static str, u64>,
    latencies: Vec<Duration>,
    durations: DurationHistogram,
}

impl Statistics {
    pub fn new(clock: Option<Clock>) -> Self {
        Self { calls: Mutex::default(), clock, keeps: Keeps::default() }
    }

    pub fn with_durations(clock: Clock) -> Self {
        Self { keeps: Keeps::Durations, ..Self::new(Some(clock)) }
    }

    pub fn start(&self) -> Option<Monotonic> {
        self.clock.map(|clock| clock.now().monotonic)
    }

    pub fn record(&self, name: &'static str, code: nvmlReturn_t, started: Option<Monotonic>) {
        let latency = self.clock.zip(started).map(|(clock, started)| clock.now().monotonic.since(started));
        let mut calls = self.lock();
        let call = calls.entry(name).or_default();
        if let (Some(latency), Keeps::Durations) = (latency, self.keeps) {
            call.durations.observe(latency);
        } else if let Some(latency) = latency {
            let slot = usize::try_from(call.count).unwrap_or_default() % LATENCIES;
            match call.latencies.get_mut(slot) {
                Some(oldest) => *oldest = latency,
                None => call.latencies.push(latency),
            }
        }
        call.count += 1;
        match code {
            codes::SUCCESS => call.supported = Some(true),
            codes::NOT_SUPPORTED | codes::FUNCTION_NOT_FOUND => {
                call.supported.get_or_insert(false);
            }
            _ => {}
        }
        if code != codes::SUCCESS {
            *call.codes.entry(codes::name(code)).or_default() += 1;
        }
    }

    pub fn all(&self) -> BTreeMap<&'static str, CallStatistics> {
        self.lock().iter().map(|(name, call)| (*name, call.summary())).collect()
    }

    /// `None` unless durations are kept.
    pub fn durations(&self) -> Option<BTreeMap<&'static str, DurationHistogram>> {
        let kept = self.clock.is_some() && self.keeps == Keeps::Durations;
        kept.then(|| self.lock().iter().map(|(name, call)| (*name, call.durations.clone())).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Call>> {
        self.calls.lock()
    }
}

impl Call {
    fn summary(&self) -> CallStatistics {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let quantile = |percent: usize| sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)));
        CallStatistics {
            count: self.count,
            supported: self.supported,
            codes: self.codes.clone(),
            p50: quantile(50).copied(),
            p99: quantile(99).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_supported_if_it_succeeded_on_any_gpu() {
        let statistics = Statistics::new(None);
        for code in [codes::NOT_SUPPORTED, codes::SUCCESS, codes::NOT_SUPPORTED, codes::UNKNOWN] {
            statistics.record("a", code, None);
        }
        statistics.record("b", codes::NOT_SUPPORTED, None);
        statistics.record("c", codes::NO_DATA, None);
        let all = statistics.all();
        assert_eq!([all["a"].supported, all["b"].supported, all["c"].supported], [Some(true), Some(false), None]);
        assert_eq!(all["a"].codes, [("not_supported", 2), ("unknown", 1)].into());
        assert_eq!((all["a"].count, all["a"].p50), (4, None));
    }

    #[test]
    fn durations_are_kept_where_configured() {
        let statistics = Statistics::with_durations(Clock::start());
        for _ in 0..3 {
            let started = statistics.start();
            statistics.record("a", codes::NOT_SUPPORTED, started);
        }
        assert_eq!(statistics.durations().unwrap()["a"].count(), 3, "a refusal takes time, too");
        assert!(statistics.lock()["a"].latencies.is_empty());
        assert_eq!(Statistics::new(Some(Clock::start())).durations(), None);
    }

    #[test]
    fn latencies_are_bounded() {
        let statistics = Statistics::new(Some(Clock::start()));
        for _ in 0..2 * LATENCIES {
            let started = statistics.start();
            statistics.record("a", codes::SUCCESS, started);
        }
        assert_eq!(statistics.lock()["a"].latencies.len(), LATENCIES);
        assert!(statistics.all()["a"].p50 <= statistics.all()["a"].p99);
    }
}
