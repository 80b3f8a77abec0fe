//! A rate limit, for calls of the kubelet.

use std::time::Duration;

use super::Monotonic;

/// A rate limit that permits bursts. Time is an argument.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled_at: Monotonic,
}

impl TokenBucket {
    pub fn full(per_second: f64, burst: f64, now: Monotonic) -> Self {
        Self { per_second, burst, tokens: burst, filled_at: now }
    }

    /// How long to wait until the bucket has `tokens`; zero when it has them now.
    pub fn wait_for(&mut self, tokens: f64, now: Monotonic) -> Duration {
        self.refill(now);
        Duration::from_secs_f64(((tokens - self.tokens) / self.per_second).max(0.0))
    }

    /// Consumes a token if there is one.
    pub fn try_consume(&mut self, now: Monotonic) -> bool {
        self.refill(now);
        let has_token = self.tokens >= 1.0;
        if has_token {
            self.tokens -= 1.0;
        }
        has_token
    }

    /// Consumes a token. Where there is none, the bucket owes it.
    pub fn consume(&mut self, now: Monotonic) {
        self.refill(now);
        self.tokens -= 1.0;
    }

    /// Adds a token, up to the burst.
    pub fn add(&mut self, now: Monotonic) {
        self.refill(now);
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }

    fn refill(&mut self, now: Monotonic) {
        self.tokens = (self.tokens + now.since(self.filled_at).as_secs_f64() * self.per_second).min(self.burst);
        self.filled_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_permitted_then_one_call_per_interval() {
        let mut bucket = TokenBucket::full(0.5, 3.0, Monotonic::default());
        let permitted: Vec<bool> = [0, 0, 0, 0, 1, 2, 3, 100, 100, 100, 100]
            .map(|seconds| bucket.try_consume(Monotonic::from_secs(seconds)))
            .into();
        assert_eq!(permitted, [true, true, true, false, false, true, false, true, true, true, false]);
    }

    #[test]
    fn the_wait_ends_when_the_tokens_are_there() {
        let now = Monotonic::from_secs(60);
        let mut bucket = TokenBucket::full(2.0, 4.0, Monotonic::default());
        for _ in 0..4 {
            assert!(bucket.wait_for(1.0, now).is_zero());
            bucket.consume(now);
        }
        assert_eq!(bucket.wait_for(1.0, now), Duration::from_millis(500));
        assert_eq!(bucket.wait_for(2.0, now), Duration::from_secs(1));
        bucket.consume(now);
        assert_eq!(bucket.wait_for(1.0, now), Duration::from_secs(1), "one is owed");
    }

    #[test]
    fn added_tokens_are_not_saved_beyond_the_burst() {
        let now = Monotonic::from_secs(60);
        let mut bucket = TokenBucket::full(2.0, 4.0, now);
        for _ in 0..4 {
            bucket.consume(now);
        }
        bucket.add(now);
        assert!(bucket.wait_for(1.0, now).is_zero());
        for _ in 0..100 {
            bucket.add(now);
        }
        assert_eq!((0..10).filter(|_| bucket.try_consume(now)).count(), 4);
    }
}
