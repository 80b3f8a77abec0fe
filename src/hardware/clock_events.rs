//! Counts how often each clock event reason was active in the last five minutes, and how often it became active.
//!
//! In: medium readings with their time. Out: the same readings with the counts. Does not use: drivers, clocks.

use std::collections::BTreeMap;

use crate::domain::model::{Medium, Monotonic, RecentCount};

/// One GPU's clock event reasons since the agent started.
#[derive(Debug, Default)]
pub struct ClockEvents {
    reasons: BTreeMap<&'static str, ReasonCounts>,
}

#[derive(Debug, Default)]
struct ReasonCounts {
    active: RecentCount,
    /// Whether it was active in the last reading; `None` after a gap.
    was_active: Option<bool>,
    starts: u64,
}

impl ClockEvents {
    /// Adds the counts to a reading. In the first reading, and the first after a gap, no reason becomes active.
    pub fn count(&mut self, at: Monotonic, medium: &mut Medium) {
        for (name, reason) in &mut self.reasons {
            reason.was_active = reason.was_active.filter(|_| medium.clock_events.contains_key(name));
        }
        for (name, is_active) in &medium.clock_events {
            let reason = self.reasons.entry(name).or_default();
            if *is_active {
                reason.active.add(at, 1);
            }
            reason.starts += u64::from(*is_active && reason.was_active == Some(false));
            reason.was_active = Some(*is_active);
        }
        let reasons = || self.reasons.iter().map(|(name, reason)| (*name, reason));
        medium.clock_event_samples = reasons().map(|(name, reason)| (name, reason.active.at(at))).collect();
        medium.clock_event_starts = reasons().map(|(name, reason)| (name, reason.starts)).collect();
    }

    /// Begins a gap, until the next reading.
    pub fn interrupt(&mut self) {
        self.reasons.values_mut().for_each(|reason| reason.was_active = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: &str = "idle";

    /// The samples and starts of the reason after each reading; `None`: a reading without it.
    fn counts(readings: &[(u64, Option<bool>)]) -> Vec<(u64, u64)> {
        let mut events = ClockEvents::default();
        let count = |(second, is_active): &(u64, Option<bool>)| {
            let clock_events = is_active.map(|is_active| (IDLE, is_active)).into_iter().collect();
            let mut medium = Medium { clock_events, ..Medium::default() };
            events.count(Monotonic::from_secs(*second), &mut medium);
            (medium.clock_event_samples[IDLE], medium.clock_event_starts[IDLE])
        };
        readings.iter().map(count).collect()
    }

    #[test]
    fn only_a_reason_that_was_seen_inactive_becomes_active() {
        let (yes, no) = (Some(true), Some(false));
        let readings = [(0, yes), (10, no), (20, yes), (30, yes), (40, no), (50, None), (60, yes), (70, no), (80, yes)];
        let starts: Vec<u64> = counts(&readings).into_iter().map(|(_, starts)| starts).collect();
        assert_eq!(starts, [0, 0, 1, 1, 1, 1, 1, 1, 2]);
    }

    #[test]
    fn samples_are_of_the_last_five_minutes() {
        let mut readings: Vec<_> = (0..60).map(|number| (10 * number, Some(true))).collect();
        readings.push((600, Some(false)));
        readings.push((880, Some(false)));
        readings.push((890, Some(false)));
        let samples: Vec<u64> = counts(&readings).into_iter().map(|(samples, _)| samples).collect();
        assert_eq!((samples[0], samples[28], samples[29], samples[59]), (1, 29, 30, 30));
        assert_eq!(samples[60..], [29, 1, 0]);
    }
}
