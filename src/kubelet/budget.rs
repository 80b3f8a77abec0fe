use std::time::Duration;

use crate::model::Monotonic;

/// Calls per second that the kubelet sees from us on average, beside one for each allocation that the bundled plugin grants.
/// Its own limit of 100 is shared by all its clients.
const CALLS_PER_SECOND: f64 = 2.0;
/// Calls that may come together after a quiet time: a changed allocation is on the page at once.
const BURST: f64 = 4.0;

/// A token bucket over the kubelet's patience.
#[derive(Debug)]
pub struct Budget {
    tokens: f64,
    at: Monotonic,
}

impl Budget {
    pub fn new(now: Monotonic) -> Self {
        Self { tokens: BURST, at: now }
    }

    /// How long to wait before the next call may be made; zero when it may be made now.
    pub fn wait(&mut self, now: Monotonic) -> Duration {
        self.refill(now);
        Duration::from_secs_f64(((1.0 - self.tokens) / CALLS_PER_SECOND).max(0.0))
    }

    /// How long to wait before a call leaves another one to be made right after it.
    pub fn wait_for_two(&mut self, now: Monotonic) -> Duration {
        self.refill(now);
        Duration::from_secs_f64(((2.0 - self.tokens) / CALLS_PER_SECOND).max(0.0))
    }

    /// Counts one call.
    pub fn spend(&mut self, now: Monotonic) {
        self.refill(now);
        self.tokens -= 1.0;
    }

    /// One call more: the kubelet has done something that only a look can show.
    pub fn earn(&mut self, now: Monotonic) {
        self.refill(now);
        self.tokens = (self.tokens + 1.0).min(BURST);
    }

    fn refill(&mut self, now: Monotonic) {
        self.tokens = (self.tokens + now.since(self.at).as_secs_f64() * CALLS_PER_SECOND).min(BURST);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greedy_caller_makes_two_calls_a_second() {
        let mut budget = Budget::new(Monotonic::default());
        let mut calls = 0;
        for milliseconds in 0..60_000 {
            let now = Monotonic::from_millis(milliseconds);
            if budget.wait(now).is_zero() {
                budget.spend(now);
                calls += 1;
            }
        }
        assert!((120..=124).contains(&calls), "{calls}");
    }

    #[test]
    fn what_is_earned_is_spent_at_once_and_never_hoarded() {
        let now = Monotonic::from_secs(60);
        let mut budget = Budget::new(now);
        for _ in 0..4 {
            budget.spend(now);
        }
        budget.earn(now);
        assert!(budget.wait(now).is_zero());
        for _ in 0..100 {
            budget.earn(now);
        }
        let free = (0..10).take_while(|_| budget.wait(now).is_zero().then(|| budget.spend(now)).is_some()).count();
        assert_eq!(free, 4);
    }

    #[test]
    fn after_a_quiet_time_a_burst_needs_no_waiting() {
        let now = Monotonic::from_secs(60);
        let mut budget = Budget::new(Monotonic::default());
        let free = (0..10).take_while(|_| budget.wait(now).is_zero().then(|| budget.spend(now)).is_some()).count();
        assert_eq!(free, 4);
        assert_eq!(budget.wait(now), Duration::from_millis(500));
    }
}
