//! The energy of a gap: of time in which the device was not read. In: its segments as the clock passes over them, and the
//! joules once it has ended. Out: the joules by holder. Does not use accounts, and does not decide what a gap is
//! (`DeviceClock`).
//!
//! | step | when |
//! |---|---|
//! | `add` | readings are late, or the first reading after the gap shows its end |
//! | `release` | an account is removed |
//! | `divide` | the first reading after the gap: only this has its energy |

use std::collections::BTreeMap;

use super::segments::{HeldTime, IntervalSegment, ROUNDING};
use crate::domain::holders::HoldingKey;

/// The seconds of a gap so far.
#[derive(Debug, Default)]
pub struct GapSeconds {
    seconds: f64,
    /// The seconds whose energy each account gets.
    holders: BTreeMap<HoldingKey, f64>,
}

/// The joules of a gap.
#[derive(Debug, Default)]
pub struct GapEnergy {
    pub holders: BTreeMap<HoldingKey, f64>,
    /// The joules of time without a holder, up to the board's idle power.
    pub idle: f64,
    pub unknown: f64,
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

    /// Removes an account: its seconds have no holder then.
    pub fn release(&mut self, key: &HoldingKey) {
        self.holders.remove(key);
    }

    /// Divides the gap's energy by its seconds.
    pub fn divide(self, joules: f64, idle_watts: Option<f64>) -> GapEnergy {
        if self.seconds <= 0.0 {
            return GapEnergy { unknown: joules, ..GapEnergy::default() };
        }
        let watts = joules / self.seconds;
        let idle_watts = idle_watts.unwrap_or(0.0).min(watts);
        let unheld = self.seconds - self.holders.values().sum::<f64>();
        let unheld = if unheld > ROUNDING * self.seconds { unheld } else { 0.0 };
        GapEnergy {
            holders: self.holders.into_iter().map(|(key, seconds)| (key, seconds * watts)).collect(),
            idle: unheld * idle_watts,
            unknown: unheld * (watts - idle_watts),
        }
    }
}
