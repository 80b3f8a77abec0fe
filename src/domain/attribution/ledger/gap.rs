//! The energy of a gap: of time in which the device was not read. In: its segments as the clock passes over them, and its joules,
//! with the reading that ends it or a later one. Out: the joules by holder. Does not use accounts, and does not decide what a gap is
//! (`DeviceClock`).
//!
//! The seconds of a gap are kept until the next one begins. Energy that the totals have then is not known to be of the earlier gap: it
//! is divided with that of the later one.

use std::collections::BTreeMap;

use super::segments::{HeldTime, IntervalSegment, ROUNDING};
use crate::domain::holders::HoldingKey;
use crate::domain::model::UnattributedReason;

/// The seconds of the last gap.
#[derive(Debug, Default)]
pub struct GapSeconds {
    seconds: f64,
    /// The seconds whose energy each account gets.
    holders: BTreeMap<HoldingKey, f64>,
    /// Those of accounts that have been removed.
    removed_seconds: f64,
}

impl GapSeconds {
    /// Adds a segment. `held_times`: the times by which it was cut.
    pub fn add(&mut self, segment: &IntervalSegment, held_times: &[HeldTime<'_>]) {
        self.seconds += segment.seconds;
        for (position, fraction) in segment.energy_fractions() {
            let key = held_times[segment.holders[position].held_time].key;
            *self.holders.entry(key.clone()).or_default() += segment.seconds * fraction;
        }
    }

    pub fn remove_account(&mut self, key: &HoldingKey) {
        self.removed_seconds += self.holders.remove(key).unwrap_or(0.0);
    }

    /// Divides joules by its seconds. Those of time without a holder are `idle` up to the board's idle power, else `unknown`; those of
    /// holders whose accounts are removed are `ended`.
    pub fn divide(&self, joules: f64, idle_watts: Option<f64>) -> Vec<(Result<&HoldingKey, UnattributedReason>, f64)> {
        use UnattributedReason::{Ended, Idle, Unknown};
        if self.seconds <= 0.0 {
            return vec![(Err(Unknown), joules)];
        }
        let watts = joules / self.seconds;
        let idle_watts = idle_watts.unwrap_or(0.0).min(watts);
        let unheld = self.seconds - self.holders.values().sum::<f64>() - self.removed_seconds;
        let unheld = if unheld > ROUNDING * self.seconds { unheld } else { 0.0 };
        let mut parts: Vec<_> = self.holders.iter().map(|(key, seconds)| (Ok(key), seconds * watts)).collect();
        parts.extend([(Err(Idle), unheld * idle_watts), (Err(Unknown), unheld * (watts - idle_watts))]);
        if self.removed_seconds > 0.0 {
            parts.push((Err(Ended), self.removed_seconds * watts));
        }
        parts
    }
}
