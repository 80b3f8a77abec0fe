use crate::model::Monotonic;

/// The kubelet's token bucket for PodResources, shared by all clients and methods.
#[derive(Debug)]
pub struct Limiter {
    tokens: f64,
    filled: Monotonic,
}

const PER_SECOND: f64 = 100.0;
const BURST: f64 = 10.0;

impl Limiter {
    #[must_use]
    pub fn full(now: Monotonic) -> Self {
        Self { tokens: BURST, filled: now }
    }

    pub fn allow(&mut self, now: Monotonic) -> bool {
        self.tokens = (self.tokens + now.since(self.filled).as_secs_f64() * PER_SECOND).min(BURST);
        self.filled = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_at_once_then_one_every_ten_milliseconds() {
        let mut limiter = Limiter::full(Monotonic::from_millis(0));
        let mut allowed = |at| limiter.allow(Monotonic::from_millis(at));
        assert!((0..10).all(|_| allowed(0)));
        assert!(!allowed(0));
        assert!(!allowed(9));
        assert!(allowed(11));
        assert!(!allowed(11));
        assert_eq!((0..20).filter(|_| allowed(5000)).count(), 10);
    }
}
