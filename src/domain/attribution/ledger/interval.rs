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

/// Decides which time of one device is covered, uncovered or a gap, by what `DeviceTotals` promises. Has the time up to which the
/// device is accounted, and its totals then.
///
/// | time | kind |
/// |---|---|
/// | before the first reading; readings are late (`skip_late`); the totals count it as a gap | a gap |
/// | of an interval, without samples, where the GPU is not partitioned | uncovered |
/// | the rest of an interval | covered |
///
/// Of a partitioned GPU each MIG device is covered or not: one without activity has parts without busy time, which
/// `AccountEntry::add` does not count as covered.
#[derive(Debug, Default)]
pub struct DeviceClock {
    accounted: Monotonic,
    last: AccountedTime,
    /// What the last reading had of gaps and of uncovered time. `None`: there was none; counting starts with the first.
    last_reading: Option<(ReadingGaps, f64)>,
    /// The device's totals when it was last accounted.
    pub divided: Divided,
}

/// The kind of the time that a device clock moved over last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AccountedTime {
    /// At the end an interval, or nothing: the first reading may be of no later time than the holdings.
    #[default]
    Read,
    /// Readings are late. The next one ends the gap.
    OpenGap,
    /// A gap that a reading has ended.
    EndedGap,
}

/// Time that was not read, since the clock last moved. It may be empty. At a first reading that is older than the holdings it ends
/// before it begins, and the clock moves back to the reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    pub from: Monotonic,
    pub to: Monotonic,
    /// Whether a gap begins here. False: it continues one of which a part was accounted while readings were late.
    pub begins: bool,
}

/// The time without a gap between two readings; it may be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    pub from: Monotonic,
    pub to: Monotonic,
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    /// The energy of the last gap, of which a part may have come with an earlier reading. `None`: this reading has none; it may be
    /// unknown.
    pub gap_energy_joules: Option<f64>,
    /// The part of its time for which there are no samples.
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

    /// Whether a pass has read the device.
    pub const fn is_read(&self) -> bool {
        self.last_reading.is_some()
    }

    /// Whether the time accounted last was not read.
    pub const fn is_in_gap(&self) -> bool {
        matches!(self.last, AccountedTime::OpenGap | AccountedTime::EndedGap)
    }

    /// Whether totals have time that is not accounted yet. Those of the first pass count whatever its time.
    pub fn is_news(&self, totals: &DeviceTotals) -> bool {
        totals.last_pass().is_some_and(|pass| !self.is_read() || pass > self.accounted)
    }

    /// Advances to `now` without a reading where the time not accounted is longer than `readings_late`.
    pub fn skip_late(&mut self, now: Monotonic, readings_late: Duration) -> Option<Gap> {
        if now.since(self.accounted) <= readings_late {
            return None;
        }
        let from = std::mem::replace(&mut self.accounted, now);
        let before = std::mem::replace(&mut self.last, AccountedTime::OpenGap);
        Some(Gap { from, to: now, begins: before != AccountedTime::OpenGap })
    }

    /// Advances to a reading. Returns the time since the clock last moved, as the end of a gap and the interval after it.
    /// `divided`: the totals, where they are amounts.
    ///
    /// | the totals have a new gap | the last reading | gap | interval | energy of gaps | other energy |
    /// |---|---|---|---|---|---|
    /// | either | none | all | empty | none: the totals begin now | unattributed |
    /// | no | accounted | none | all | the last gap's | the interval's |
    /// | no | late: in `OpenGap` | all | empty | the gap's | the gap's |
    /// | yes | either | up to the end of the new gap | the rest | the gap's | the interval's; with an empty rest the gap's |
    ///
    /// Busy time is of the interval.
    pub fn advance(
        &mut self,
        totals: &DeviceTotals,
        divided: Divided,
        is_partitioned: bool,
    ) -> (Option<Gap>, Interval) {
        let to = totals.complete_until;
        let from = std::mem::replace(&mut self.accounted, to);
        let last_reading = self.last_reading.replace((totals.gaps, totals.uncovered_seconds));
        let (before, uncovered_before) = last_reading.unwrap_or((totals.gaps, totals.uncovered_seconds));
        let gap_until = if totals.gaps.until > before.until {
            Some(totals.gaps.until.clamp(from, to))
        } else {
            (last_reading.is_none() || self.last == AccountedTime::OpenGap).then_some(to)
        };
        let gap = gap_until.map(|to| Gap { from, to, begins: self.last != AccountedTime::OpenGap });
        let start = gap_until.unwrap_or(from);
        let is_read = start < to || (to <= from && self.last == AccountedTime::Read);
        self.last = if is_read { AccountedTime::Read } else { AccountedTime::EndedGap };
        let uncovered = totals.uncovered_seconds - uncovered_before - (totals.gaps.seconds - before.seconds);
        let uncovered_seconds = uncovered.max(0.0).min(to.since(start).as_secs_f64());
        let mut interval = Interval { from: start, to, uncovered_seconds, ..Interval::default() };
        let of_gaps = totals.gaps.energy_joules - before.energy_joules;
        self.set_energy(divided.energy_joules, of_gaps, &mut interval);
        self.set_busy(divided.busy_seconds, &mut interval);
        if is_partitioned {
            interval.uncovered_seconds = 0.0;
        }
        (gap, interval)
    }

    fn set_energy(&mut self, total: Option<f64>, of_gaps: f64, interval: &mut Interval) {
        let Some(total) = total else { return };
        let Some(before) = self.divided.energy_joules.replace(total) else {
            // A total starts when it is first read: its value then is unattributed.
            interval.unattributed_energy_joules = total;
            return;
        };
        let energy = (total - before).max(0.0);
        let is_empty = interval.from == interval.to;
        let of_gaps = if is_empty { energy } else { of_gaps.clamp(0.0, energy) };
        interval.energy_joules = (!is_empty).then_some(energy - of_gaps);
        interval.gap_energy_joules = (of_gaps > 0.0).then_some(of_gaps);
    }

    /// Sets the busy time. What the driver reports of a gap is unattributed: its time is neither busy nor idle.
    fn set_busy(&mut self, total: Option<f64>, interval: &mut Interval) {
        let Some(total) = total else { return };
        let Some(before) = self.divided.busy_seconds.replace(total) else {
            interval.unattributed_busy_seconds = total;
            return;
        };
        let due = (total - before).max(0.0);
        let covered = interval.seconds() - interval.uncovered_seconds;
        let divided = due.min(covered.max(0.0));
        interval.busy_seconds = (!is_nothing(covered)).then_some(divided);
        // A remainder of rounding is divided with the next interval.
        let left = due - divided;
        self.divided.busy_seconds = Some(if is_nothing(left) { total - left } else { total });
        interval.unattributed_busy_seconds = if is_nothing(left) { 0.0 } else { left };
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
    fn each_event_moves_a_clock_to_its_kind_of_time() {
        let at = Monotonic::from_secs;
        let gap = |from, to, begins| Some(Gap { from: at(from), to: at(to), begins });
        let totals = |until, gap_until| {
            let gaps = ReadingGaps { until: at(gap_until), ..ReadingGaps::default() };
            DeviceTotals { complete_until: at(until), gaps, ..DeviceTotals::default() }
        };
        let read = |clock: &mut DeviceClock, until, gap_until| {
            let (gap, interval) = clock.advance(&totals(until, gap_until), Divided::default(), false);
            (gap, (interval.from, interval.to), clock.is_in_gap())
        };
        let mut clock = DeviceClock::starting(at(10));
        assert_eq!(clock.skip_late(at(15), Duration::from_secs(5)), None);
        assert_eq!(read(&mut clock, 16, 0), (gap(10, 16, true), (at(16), at(16)), true), "the first reading");
        assert_eq!(read(&mut clock, 20, 0), (None, (at(16), at(20)), false), "an interval");
        assert_eq!(clock.skip_late(at(26), Duration::from_secs(5)), gap(20, 26, true), "late");
        assert_eq!(clock.skip_late(at(32), Duration::from_secs(5)), gap(26, 32, false), "still late");
        assert!(clock.is_in_gap() && !clock.is_news(&totals(32, 0)) && clock.is_news(&totals(33, 0)));
        assert_eq!(read(&mut clock, 34, 0), (gap(32, 34, false), (at(34), at(34)), true), "the end of late readings");
        assert_eq!(read(&mut clock, 40, 36), (gap(34, 36, true), (at(36), at(40)), false), "a gap of the totals");
        let mut clock = DeviceClock::starting(at(10));
        assert_eq!(read(&mut clock, 9, 0), (gap(10, 9, true), (at(9), at(9)), false), "read before it is held");
    }

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
