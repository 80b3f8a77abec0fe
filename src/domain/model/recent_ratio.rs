//! The active part of the last ten seconds that were read, which is what "now" means everywhere.

use std::collections::VecDeque;

/// A mean over the last ten seconds that were read. Time that was not read is no part of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecentRatio {
    /// The seconds that were read and the active ones of them, of each interval, the oldest first.
    intervals: VecDeque<(f64, f64)>,
}

const WINDOW_SECONDS: f64 = 10.0;

impl RecentRatio {
    pub fn add(&mut self, seconds: f64, active: f64) {
        if seconds > 0.0 && active.is_finite() {
            self.intervals.push_back((seconds, active.max(0.0)));
        }
        let mut sum: f64 = self.intervals.iter().map(|(seconds, _)| seconds).sum();
        while let Some((oldest, _)) = self.intervals.front()
            && sum - oldest >= WINDOW_SECONDS
        {
            sum -= oldest;
            self.intervals.pop_front();
        }
    }

    /// The mean, 0 to 1; `None` before the first interval. The oldest interval counts as far as it is in the window,
    /// the newest as a whole, also where it is longer.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let (mut seconds, mut active) = (0.0, 0.0);
        for (length, of_it) in self.intervals.iter().rev() {
            let part = if seconds > 0.0 { ((WINDOW_SECONDS - seconds) / length).clamp(0.0, 1.0) } else { 1.0 };
            seconds += length * part;
            active += of_it * part;
        }
        // The driver's samples are not in step with the readings.
        (seconds > 0.0).then(|| (active / seconds).min(1.0))
    }

    /// Begins anew, as after time that was not read.
    pub fn clear(&mut self) {
        self.intervals.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ten_seconds_count_and_of_the_oldest_interval_its_part() {
        let mut recent = RecentRatio::default();
        assert_eq!(recent.ratio(), None, "nothing is read");
        recent.add(0.0, 0.0);
        assert_eq!(recent.ratio(), None, "no time is read");
        recent.add(4.0, 4.0);
        assert_eq!(recent.ratio(), Some(1.0), "less than ten seconds");
        recent.add(8.0, 0.0);
        assert_eq!(recent.ratio(), Some(0.2), "two of the four");
        recent.add(2.0, 1.0);
        assert_eq!((recent.ratio(), recent.intervals.len()), (Some(0.1), 2));
        recent.add(30.0, 15.0);
        assert_eq!((recent.ratio(), recent.intervals.len()), (Some(0.5), 1), "the newest counts whole");
        recent.add(1.0, 1.25);
        assert_eq!(recent.ratio(), Some(0.575), "of the long one nine seconds");
        recent.clear();
        assert_eq!(recent.ratio(), None);
        recent.add(1.0, 1.2);
        assert_eq!(recent.ratio(), Some(1.0), "never more than all");
    }
}
