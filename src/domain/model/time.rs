//! Times: the agent's monotonic time and Unix time, and histograms of durations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time since the agent started, which never steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Monotonic(Duration);

impl Monotonic {
    pub const fn new(since_start: Duration) -> Self {
        Self(since_start)
    }

    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn from_millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }

    /// The time since `earlier`; zero when that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    #[must_use]
    pub const fn as_duration(self) -> Duration {
        self.0
    }
}

impl std::ops::Add<Duration> for Monotonic {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

/// The seconds since 1970-01-01 UTC. They may step: subtracted only for shown ages and for times kept across a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(pub f64);

/// One time on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Moment {
    pub monotonic: Monotonic,
    pub unix: UnixSeconds,
}

impl Moment {
    /// The Unix time of another moment, provided that the wall clock was not set between the two.
    #[must_use]
    pub fn unix_at(self, at: Monotonic) -> UnixSeconds {
        let later = at.since(self.monotonic).as_secs_f64() - self.monotonic.since(at).as_secs_f64();
        UnixSeconds(self.unix.0 + later)
    }
}

/// Durations counted in fixed buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationHistogram {
    counts: [u64; Self::BOUNDS.len() + 1],
    sum_seconds: f64,
}

impl DurationHistogram {
    /// The upper bounds in seconds: 250 µs (a local gRPC call) to 12.5 s (above every deadline), none a whole number:
    /// `le` of one is `1` in text 0.0.4 and `1.0` in the other formats.
    pub const BOUNDS: [f64; 10] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.25, 12.5];

    pub fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = Self::BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(Self::BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum_seconds += seconds;
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_seconds
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The buckets as (upper bound, observations in that bucket alone); the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        Self::BOUNDS.iter().copied().chain([f64::INFINITY]).zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_on_a_bound_falls_into_that_bucket() {
        let mut histogram = DurationHistogram::default();
        histogram.observe(Duration::from_micros(500));
        histogram.observe(Duration::from_secs(13));
        let filled: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.000_5, 1), (f64::INFINITY, 1)]);
        assert_eq!(histogram.count(), 2);
    }

    #[test]
    fn monotonic_differences_never_go_below_zero() {
        assert_eq!(Monotonic::from_secs(1).since(Monotonic::from_secs(2)), Duration::ZERO);
    }
}
