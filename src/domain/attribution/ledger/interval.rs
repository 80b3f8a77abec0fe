//! The readings of one device as intervals. In: its totals. Out: the time since it was last accounted, as the end of a
//! gap and an interval with busy seconds and joules; the activity of its GPU instances; its idle power. Does not use
//! holders.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::model::{DeviceTotals, Divided, Monotonic, ReadingGaps};

/// Whether the seconds are only a remainder of rounding.
pub fn is_nothing(seconds: f64) -> bool {
    seconds < 1e-9
}

/// The time up to which one device is accounted, and its totals at that time.
#[derive(Debug, Default)]
pub struct DeviceClock {
    pub accounted: Monotonic,
    /// Whether a pass has read it; counting starts with the first.
    pub read: bool,
    /// Whether `accounted` has advanced without readings, so that the next one ends a gap.
    late: bool,
    busy_seconds: Option<f64>,
    energy_joules: Option<f64>,
    uncovered_seconds: f64,
    gaps: ReadingGaps,
}

/// The last part of a gap, which was not accounted before. It may be empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GapEnd {
    pub from: Monotonic,
    pub to: Monotonic,
    /// The energy of the whole gap, which may have begun before `from`.
    pub energy_joules: Option<f64>,
}

/// The time without a gap between two readings; it may be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    pub from: Monotonic,
    pub to: Monotonic,
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    /// The part of its time for which the driver gave no samples.
    pub uncovered_seconds: f64,
    /// The busy seconds of time that can no longer be attributed.
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

    /// Applies the first reading: no time before it is covered.
    pub fn begin(&mut self, totals: &DeviceTotals) {
        self.read = true;
        self.late = false;
        self.accounted = totals.complete_until;
        (self.uncovered_seconds, self.gaps) = (totals.uncovered_seconds, totals.gaps);
    }

    /// Advances to `now` without a reading. Returns the previous time.
    pub fn skip_to(&mut self, now: Monotonic) -> Monotonic {
        self.late = true;
        std::mem::replace(&mut self.accounted, now)
    }

    /// The time since the clock last moved, as the end of a gap and the interval after it. `busy` and `energy`: the totals,
    /// where they are amounts.
    ///
    /// | the totals have a new gap | `late` | gap | interval | energy of gaps | other energy |
    /// |---|---|---|---|---|---|
    /// | no | no | none | all | unattributed: its gap is closed | the interval's |
    /// | no | yes | all | empty | the gap's | the gap's |
    /// | yes | either | up to the end of the new gap | the rest | the gap's | the interval's; with an empty rest the gap's |
    ///
    /// The totals may have the energy of a gap a reading after the gap itself: where the driver's counter could not be read
    /// at its end, or had a wrong value. Busy time is of the interval.
    pub fn advance(
        &mut self,
        totals: &DeviceTotals,
        busy: Option<f64>,
        energy: Option<f64>,
    ) -> (Option<GapEnd>, Interval) {
        let complete_until = totals.complete_until;
        let from = std::mem::replace(&mut self.accounted, complete_until);
        let was_late = std::mem::take(&mut self.late);
        let before = std::mem::replace(&mut self.gaps, totals.gaps);
        let has_new_gap = totals.gaps.until > before.until;
        let start = match (has_new_gap, was_late) {
            (false, false) => from,
            (false, true) => complete_until,
            (true, _) => totals.gaps.until.clamp(from, complete_until),
        };
        let uncovered = totals.uncovered_seconds - self.uncovered_seconds - (totals.gaps.seconds - before.seconds);
        self.uncovered_seconds = totals.uncovered_seconds;
        let mut interval = Interval {
            from: start,
            to: complete_until,
            uncovered_seconds: uncovered.max(0.0).min(complete_until.since(start).as_secs_f64()),
            ..Interval::default()
        };
        let mut gap = (has_new_gap || was_late).then_some(GapEnd { from, to: start, energy_joules: None });
        let of_gaps = totals.gaps.energy_joules - before.energy_joules;
        self.set_energy(energy, of_gaps, gap.as_mut(), &mut interval);
        self.set_busy(busy, &mut interval);
        (gap, interval)
    }

    fn set_energy(&mut self, total: Option<f64>, of_gaps: f64, gap: Option<&mut GapEnd>, interval: &mut Interval) {
        let Some(total) = total else { return };
        let Some(before) = self.energy_joules.replace(total) else {
            // A total starts when it is first read: its value then is unattributed.
            interval.unattributed_energy_joules = total;
            return;
        };
        let energy = (total - before).max(0.0);
        let is_empty = interval.from == interval.to;
        let of_gaps = if is_empty { energy } else { of_gaps.clamp(0.0, energy) };
        interval.energy_joules = (!is_empty).then_some(energy - of_gaps);
        match gap {
            Some(gap) => gap.energy_joules = Some(of_gaps),
            None => interval.unattributed_energy_joules = of_gaps,
        }
    }

    /// Sets the busy time. What the driver reports of a gap is unattributed: its time is neither busy nor idle.
    fn set_busy(&mut self, total: Option<f64>, interval: &mut Interval) {
        let Some(total) = total else { return };
        let Some(before) = self.busy_seconds.replace(total) else {
            interval.unattributed_busy_seconds = total;
            return;
        };
        let due = (total - before).max(0.0);
        let covered = interval.seconds() - interval.uncovered_seconds;
        let divided = due.min(covered.max(0.0));
        interval.busy_seconds = (!is_nothing(covered)).then_some(divided);
        // A remainder of rounding is divided with the next interval.
        let left = due - divided;
        self.busy_seconds = Some(if is_nothing(left) { total - left } else { total });
        interval.unattributed_busy_seconds = if is_nothing(left) { 0.0 } else { left };
    }

    /// The device's totals when it was last accounted.
    pub fn divided(&self) -> Divided {
        Divided { busy_seconds: self.busy_seconds, energy_joules: self.energy_joules }
    }
}

/// The totals of the GPU instances of one device when it was last accounted.
#[derive(Debug, Default)]
pub struct InstanceActivity {
    complete_until: Monotonic,
    busy_seconds: BTreeMap<u32, f64>,
}

impl InstanceActivity {
    /// The part of the time since the last call, or since the last gap, in which each GPU instance was busy, 0 to 1.
    /// Instances that report nothing are absent.
    pub fn ratios(&mut self, totals: &DeviceTotals) -> BTreeMap<u32, f64> {
        let mut before = std::mem::replace(&mut self.busy_seconds, totals.instance_busy_seconds.clone());
        let mut from = std::mem::replace(&mut self.complete_until, totals.complete_until);
        if totals.gaps.until > from {
            // A new reader restarts the counts of the instances.
            before.clear();
            from = totals.gaps.until;
        }
        let length = totals.complete_until.since(from).as_secs_f64();
        if length <= 0.0 {
            return BTreeMap::new();
        }
        let ratio = |(number, now): (&u32, &f64)| {
            let before = before.get(number).copied().unwrap_or(0.0);
            let increase = if *now < before { *now } else { now - before };
            (*number, (increase / length).clamp(0.0, 1.0))
        };
        totals.instance_busy_seconds.iter().map(ratio).collect()
    }
}

/// The idle time after which a past reading weighs half.
const IDLE_POWER_HALF_LIFE: Duration = Duration::from_secs(300);
/// The least idle time: the energy counter moves in steps of up to 0.1 s.
const LEAST_IDLE_TIME: Duration = Duration::from_secs(1);

/// The power of one board with nothing running: the mean over the time in which it was not busy at all, with older
/// readings weighing less. A board that was never idle has no known idle power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IdlePower {
    seconds: f64,
    joules: f64,
}

impl IdlePower {
    pub fn add(&mut self, seconds: f64, joules: f64) {
        let fade = 0.5_f64.powf(seconds / IDLE_POWER_HALF_LIFE.as_secs_f64());
        self.seconds = self.seconds * fade + seconds;
        self.joules = self.joules * fade + joules;
    }

    #[must_use]
    pub fn watts(&self) -> Option<f64> {
        (self.seconds >= LEAST_IDLE_TIME.as_secs_f64()).then(|| self.joules / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_activity_is_the_mean_since_the_last_call() {
        let mut activity = InstanceActivity::default();
        let totals = |second, instances: &[(u32, f64)]| DeviceTotals {
            complete_until: Monotonic::from_secs(second),
            instance_busy_seconds: instances.iter().copied().collect(),
            ..DeviceTotals::default()
        };
        activity.ratios(&totals(10, &[(1, 4.0)]));
        assert_eq!(activity.ratios(&totals(14, &[(1, 6.0), (2, 1.0)])), [(1, 0.5), (2, 0.25)].into());
        assert_eq!(activity.ratios(&totals(15, &[(2, 1.0)])), [(2, 0.0)].into());
        assert_eq!(activity.ratios(&totals(16, &[(1, 0.5)])), [(1, 0.5)].into(), "it began anew");
        let after_gap = |second, until, instances: &[(u32, f64)]| DeviceTotals {
            gaps: ReadingGaps { until: Monotonic::from_secs(until), ..ReadingGaps::default() },
            ..totals(second, instances)
        };
        assert_eq!(activity.ratios(&after_gap(60, 60, &[])), [].into(), "the gap has no ratio");
        assert_eq!(activity.ratios(&after_gap(62, 60, &[(1, 1.0)])), [(1, 0.5)].into());
        assert_eq!(activity.ratios(&after_gap(94, 90, &[(1, 2.0)])), [(1, 0.5)].into(), "the gap is not its time");
    }

    #[test]
    fn idle_power_is_unknown_before_a_second_of_idleness_and_older_readings_weigh_less() {
        let mut power = IdlePower::default();
        power.add(0.6, 60.0);
        assert_eq!(power.watts(), None);
        power.add(0.6, 60.0);
        assert!((power.watts().unwrap() - 100.0).abs() < 1e-9);
        (0..3000).for_each(|_| power.add(1.0, 60.0));
        assert!((power.watts().unwrap() - 60.0).abs() < 0.1, "{power:?}");
    }
}
