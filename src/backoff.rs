//! Pauses between attempts: each failure doubles the next pause. Pure: without a clock, and the random number is an
//! argument.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new((first, longest): (Duration, Duration)) -> Self {
        Self { first, longest, next: first }
    }

    /// The pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Shortens the pause by up to half, so that many nodes do not try at the same time. `random` is any number.
pub fn with_jitter(pause: Duration, random: u64) -> Duration {
    let half = pause / 2;
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX - 1);
    half + Duration::from_micros(random % (spread + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let milliseconds = Duration::from_millis;
        let mut backoff = Backoff::new((milliseconds(50), milliseconds(300)));
        let pauses: Vec<_> = (0..5).map(|_| backoff.pause()).collect();
        assert_eq!(pauses, [50, 100, 200, 300, 300].map(milliseconds));
        backoff.reset();
        assert_eq!([backoff.pause(), backoff.pause()], pauses[..2]);
    }

    #[test]
    fn jitter_is_up_to_half_of_the_pause() {
        let pause = Duration::from_secs(30);
        for random in [0, 7, 15_000_000, 12_345_678_901, u64::MAX] {
            let shortened = with_jitter(pause, random);
            assert!(shortened >= pause / 2 && shortened <= pause, "{shortened:?}");
        }
        assert_eq!(with_jitter(Duration::ZERO, 5), Duration::ZERO);
    }
}
