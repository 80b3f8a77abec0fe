//! The driver's energy counter, which restarts with the driver and with the GPU, and of which one reading may be wrong.

use super::plausible;
use crate::domain::model::Monotonic;

/// A reading: its time, and millijoules.
type Reading = (Monotonic, u64);

#[derive(Debug, Default)]
pub struct EnergyCounter {
    /// The last reading that continued from the one before.
    accepted: Option<Reading>,
    /// A later reading that did not: after a restart the next one continues from it.
    unconfirmed: Option<Reading>,
}

impl EnergyCounter {
    /// Adds a reading. Returns the time of the reading that it continues from, if any, and the joules since then.
    pub fn add_reading(&mut self, at: Monotonic, counter: u64) -> Option<(Monotonic, f64)> {
        let gain = |before: Option<Reading>| {
            let (then, before) = before?;
            let joules = counter.checked_sub(before)? as f64 / 1000.0;
            (joules <= plausible::POWER.most() * (at.since(then).as_secs_f64() + 1.0)).then_some((then, joules))
        };
        // A running counter rises: one that stays at a wrong value has not restarted.
        let since_restart = || gain(self.unconfirmed).filter(|(_, joules)| *joules > 0.0);
        let gained = gain(self.accepted).or_else(since_restart);
        let reading = Some((at, counter));
        (self.accepted, self.unconfirmed) = if gained.is_some() { (reading, None) } else { (self.accepted, reading) };
        gained
    }

    /// Whether the last reading was a restart or a fault: the next one shows which.
    pub fn is_unconfirmed(&self) -> bool {
        self.unconfirmed.is_some()
    }

    /// The last accepted value, in millijoules.
    pub fn value(&self) -> Option<u64> {
        self.accepted.map(|(_, counter)| counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the value and the gain after each of the readings, which are in joules, once a second.
    fn check(readings: &[(u64, Option<u64>, Option<f64>)]) {
        let mut energy = EnergyCounter::default();
        for (second, (joules, value, gain)) in (1..).zip(readings) {
            let gained = energy.add_reading(Monotonic::from_secs(second), joules.saturating_mul(1000));
            let value = value.map(|joules| joules * 1000);
            assert_eq!((energy.value(), gained.map(|(_, joules)| joules)), (value, *gain), "reading {second}");
        }
    }

    #[test]
    fn a_low_or_high_reading_is_no_restart() {
        for wrong in [0, 5, u64::MAX] {
            check(&[
                (900_000_000, None, None),
                (900_000_600, Some(900_000_600), Some(600.0)),
                (wrong, Some(900_000_600), None),
                (900_001_800, Some(900_001_800), Some(1200.0)),
                (wrong, Some(900_001_800), None),
                (wrong, Some(900_001_800), None),
                (900_003_600, Some(900_003_600), Some(1800.0)),
            ]);
        }
        // The counter has just started.
        check(&[
            (1000, None, None),
            (1600, Some(1600), Some(600.0)),
            (0, Some(1600), None),
            (2800, Some(2800), Some(1200.0)),
        ]);
    }

    #[test]
    fn a_fall_from_which_the_counter_continues_is_a_restart() {
        check(&[
            (900_000_000, None, None),
            (900_000_600, Some(900_000_600), Some(600.0)),
            (300, Some(900_000_600), None),
            (900, Some(900), Some(600.0)),
            (1500, Some(1500), Some(600.0)),
            // A second restart.
            (100, Some(1500), None),
            (700, Some(700), Some(600.0)),
        ]);
    }

    #[test]
    fn a_wrong_first_reading_hides_no_later_value() {
        check(&[(u64::MAX, None, None), (900, None, None), (1500, Some(1500), Some(600.0))]);
    }
}
