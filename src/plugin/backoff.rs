//! Pauses between attempts to register. Pure: the random number is an argument.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(30);

/// Pauses that double with each failure, with jitter, so that many nodes do not try at the same time.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// `random` is any number: jitter of up to half the pause.
    pub fn pause(&mut self, random: u64) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = whole / 2;
        let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX);
        half + Duration::from_micros(random % (spread + 1))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        for random in [0, u64::MAX, 12_345_678] {
            let mut backoff = Backoff::default();
            let pauses: Vec<Duration> = (0..100).map(|_| backoff.pause(random)).collect();
            assert!(pauses[0] >= FIRST / 2 && pauses[0] <= FIRST, "{:?}", pauses[0]);
            for (failures, pause) in pauses.iter().enumerate() {
                let whole = FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST);
                assert!(*pause >= whole / 2 && *pause <= whole, "{failures}: {pause:?}");
            }
            assert!(pauses[99] >= LONGEST / 2);
            backoff.reset();
            assert!(backoff.pause(random) <= FIRST);
        }
    }
}
