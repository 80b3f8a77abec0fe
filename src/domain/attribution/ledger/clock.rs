use super::division::is_nothing;
use crate::domain::model::{DeviceTotals, Divided, Gaps, Monotonic};

/// Busy time that the driver has reported for time the clock has not reached yet.
const CARRY_LIMIT_SECONDS: f64 = 2.0;

/// Up to when one device is accounted, and what its totals were then.
#[derive(Debug, Default)]
pub struct DeviceClock {
    pub accounted: Monotonic,
    /// Whether a reading has been seen; the first one is where counting starts.
    pub read: bool,
    /// `accounted` has advanced without readings.
    late: bool,
    busy_seconds: Option<f64>,
    energy_joules: Option<f64>,
    uncovered_seconds: f64,
    gaps: Gaps,
    busy_carry: f64,
}

/// The time since the clock last moved: first a gap, where there was one, then an interval that was read
/// at both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advance {
    pub gap: Option<Gap>,
    pub interval: Interval,
}

/// The end of a gap of the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    pub from: Monotonic,
    pub to: Monotonic,
    /// The energy of the whole gap, which may have begun before `from`.
    pub energy_joules: Option<f64>,
}

/// Time that was read at both ends by the same session; perhaps none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    pub from: Monotonic,
    pub to: Monotonic,
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    /// The part of its time for which the driver gave no samples.
    pub uncovered_seconds: f64,
    /// Of time that can no longer be attributed.
    pub unattributed_busy_seconds: f64,
    pub unattributed_energy_joules: f64,
}

impl Interval {
    pub fn seconds(&self) -> f64 {
        self.to.since(self.from).as_secs_f64()
    }

    /// The part of its time that samples cover.
    pub fn covered_ratio(&self) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { (1.0 - self.uncovered_seconds / seconds).clamp(0.0, 1.0) } else { 0.0 }
    }
}

impl DeviceClock {
    pub fn starting(at: Monotonic) -> Self {
        Self { accounted: at, ..Self::default() }
    }

    /// The first reading: nothing before it is covered.
    pub fn begin(&mut self, totals: &DeviceTotals) {
        self.read = true;
        self.late = false;
        self.accounted = totals.through;
        (self.uncovered_seconds, self.gaps) = (totals.uncovered_seconds, totals.gaps);
    }

    /// Advances to `now` without a reading. Returns the previous time.
    pub fn skip_to(&mut self, now: Monotonic) -> Monotonic {
        self.late = true;
        std::mem::replace(&mut self.accounted, now)
    }

    /// `busy` and `energy`: the totals, where they are amounts.
    pub fn advance(&mut self, totals: &DeviceTotals, busy: Option<f64>, energy: Option<f64>) -> Advance {
        let through = totals.through;
        let from = std::mem::replace(&mut self.accounted, through);
        let was_late = std::mem::take(&mut self.late);
        let before = std::mem::replace(&mut self.gaps, totals.gaps);
        let has_gap = totals.gaps.until > before.until;
        let gap_until = match (has_gap, was_late) {
            (true, _) => totals.gaps.until.clamp(from, through),
            (false, true) => through,
            (false, false) => from,
        };
        let uncovered = totals.uncovered_seconds - self.uncovered_seconds - (totals.gaps.seconds - before.seconds);
        self.uncovered_seconds = totals.uncovered_seconds;
        let mut interval = Interval {
            from: gap_until,
            to: through,
            uncovered_seconds: uncovered.max(0.0).min(through.since(gap_until).as_secs_f64()),
            ..Interval::default()
        };
        let in_gap = has_gap || was_late;
        let mut gap = in_gap.then_some(Gap { from, to: gap_until, energy_joules: None });
        // A total starts when it is first seen: what it had before is unattributed.
        let of_gaps = |energy| (totals.gaps.energy_joules - before.energy_joules).clamp(0.0, energy);
        match (gain(&mut self.energy_joules, energy), &mut gap) {
            (Some((true, energy)), None) => {
                // The busy time of a gap that is divided already.
                interval.unattributed_energy_joules = of_gaps(energy);
                interval.energy_joules = Some(energy - interval.unattributed_energy_joules);
            }
            (Some((true, energy)), Some(gap)) => {
                let of_gaps = of_gaps(energy);
                let of_gap = if gap_until < through { of_gaps } else { energy };
                gap.energy_joules = Some(of_gap);
                interval.energy_joules = (gap_until < through).then_some(energy - of_gap);
            }
            (Some((false, energy)), _) => interval.unattributed_energy_joules = energy,
            (None, _) => {}
        }
        match gain(&mut self.busy_seconds, busy) {
            Some((true, busy)) => self.divide_busy(busy, in_gap, &mut interval),
            Some((false, busy)) => interval.unattributed_busy_seconds = busy,
            None => {}
        }
        Advance { gap, interval }
    }

    /// Samples come in steps of a sixth of a second or more, and up to two seconds late: what one interval has too much
    /// of, the next has too little. What the driver reports of a gap is unattributed: its time is neither busy nor
    /// idle.
    fn divide_busy(&mut self, gain: f64, in_gap: bool, interval: &mut Interval) {
        let due = gain + self.busy_carry;
        let covered = interval.seconds() - interval.uncovered_seconds;
        let taken = due.min(covered.max(0.0));
        self.busy_carry = if in_gap { 0.0 } else { (due - taken).min(CARRY_LIMIT_SECONDS) };
        interval.busy_seconds = (!is_nothing(covered)).then_some(taken);
        interval.unattributed_busy_seconds = due - taken - self.busy_carry;
    }

    /// What the device's totals were when it was last accounted, less what is not divided yet.
    pub fn divided(&self) -> Divided {
        Divided {
            busy_seconds: self.busy_seconds.map(|busy| (busy - self.busy_carry).max(0.0)),
            energy_joules: self.energy_joules,
        }
    }

    /// Reported by the driver, and not divided yet.
    #[cfg(test)]
    pub fn busy_carry(&self) -> f64 {
        self.busy_carry
    }
}

/// What a total has gained since it was last seen, and whether it was seen before.
fn gain(last: &mut Option<f64>, total: Option<f64>) -> Option<(bool, f64)> {
    let total = total?;
    Some(match last.replace(total) {
        Some(before) => (true, (total - before).max(0.0)),
        None => (false, total),
    })
}
