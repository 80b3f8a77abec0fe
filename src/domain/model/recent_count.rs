//! Counts of the last five minutes.

use std::collections::VecDeque;
use std::time::Duration;

use super::Monotonic;

/// Counts the events of the last five minutes, in bounded memory. Time is an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentCount {
    /// The time of the first event of each step, and the events of that step.
    steps: VecDeque<(Monotonic, u64)>,
}

impl RecentCount {
    /// The window, which is dcgm-exporter's default.
    pub const WINDOW: Duration = Duration::from_secs(300);
    /// Events closer together than this end their time in the window together.
    const STEP: Duration = Duration::from_secs(5);

    /// Adds events; those that are reported late count at the time of the last ones.
    pub fn add(&mut self, at: Monotonic, events: u64) {
        match self.steps.back_mut() {
            Some((began, count)) if at.since(*began) < Self::STEP => *count = count.saturating_add(events),
            _ => self.steps.push_back((at, events)),
        }
        self.steps.retain(|(began, _)| is_recent(*began, at));
    }

    pub fn at(&self, now: Monotonic) -> u64 {
        let recent = self.steps.iter().filter(|(began, _)| is_recent(*began, now));
        recent.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

fn is_recent(at: Monotonic, now: Monotonic) -> bool {
    now.since(at) < RecentCount::WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_count_for_five_minutes() {
        let mut recent = RecentCount::default();
        for second in (0..1_000).step_by(10) {
            recent.add(Monotonic::from_secs(second), 1);
        }
        let counts = [990, 999, 1_000, 1_285, 1_290].map(|second| recent.at(Monotonic::from_secs(second)));
        assert_eq!(counts, [30, 30, 29, 1, 0]);
    }

    #[test]
    fn memory_is_bounded_however_many_events_there_are() {
        let mut recent = RecentCount::default();
        for tenth in 0..36_000 {
            recent.add(Monotonic::from_millis(100 * tenth), 2);
        }
        recent.add(Monotonic::from_secs(10), 1);
        assert_eq!(recent.steps.len(), 60);
        assert_eq!(recent.at(Monotonic::from_secs(3_600)), 2 * 10 * 295 + 1);
    }
}
