//! Cuts an interval into segments with constant holders, and divides its busy time and energy among the segments. In: the
//! interval, when each account held the device, the weights. Out: segments. Does not use: accounts.
//!
//! A segment without a holder counts as idle where possible: holders do the work. Where SM time by process is known,
//! a segment was as busy as its holders' processes; those of others count by its length.

use std::time::Duration;

use super::interval::{Interval, is_nothing};
use super::weights::{MigWeight, MigWeights, SmWeights, Weights};
use crate::domain::holders::HoldingKey;
use crate::domain::model::Monotonic;

/// The largest remainder of rounding.
pub const ROUNDING: f64 = 1e-12;

/// The parts of a `Holding` that decide how use is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HoldingTerms {
    /// The fraction of the GPU held; `None` while the number of slots of the device is unknown.
    pub fraction: Option<f64>,
    /// The weight, from `Holding::weight`.
    pub weight: f64,
    /// Whether it is the only container to which the whole GPU is allocated.
    pub exclusive: bool,
}

/// A time in which one account held the device on the same terms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub from: Monotonic,
    pub to: Monotonic,
    pub terms: HoldingTerms,
}

/// When one account held the device in an interval.
pub struct HeldTime<'a> {
    pub key: &'a HoldingKey,
    pub spans: Vec<Span>,
}

impl HeldTime<'_> {
    fn seconds(&self) -> f64 {
        self.spans.iter().map(|span| span.length().as_secs_f64()).sum()
    }
}

impl Span {
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }

    /// The part of the span between `from` and `to`.
    pub fn between(self, from: Monotonic, to: Monotonic) -> Option<Self> {
        let span = Self { from: self.from.max(from), to: self.to.min(to), ..self };
        (span.from < span.to).then_some(span)
    }

    fn covers(&self, from: Monotonic, to: Monotonic) -> bool {
        self.from <= from && to <= self.to
    }
}

/// A time in which no holding begins or ends, with the device's use in it and the weights that divide the use.
#[derive(Clone, Debug)]
pub struct IntervalSegment {
    pub seconds: f64,
    pub holders: Vec<SegmentHolder>,
    pub busy: Option<f64>,
    pub energy: Option<f64>,
    /// The energy that the board would have used with nothing running; `None` while that is unknown.
    pub idle_energy: Option<f64>,
    pub weights: Weights,
}

impl IntervalSegment {
    /// The SM time of all processes; 0 where use is not divided by it.
    pub fn sm_seconds(&self) -> f64 {
        let others = match &self.weights {
            Weights::Processes(others) => others.values().sum(),
            Weights::Holdings | Weights::MigDevices(_) => 0.0,
        };
        self.holders.iter().map(|holder| holder.sm_seconds).sum::<f64>() + others
    }
}

/// One holder in a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentHolder {
    /// The position of its `HeldTime` among those of the interval; its `AccountEntry` has the same.
    pub held_time: usize,
    pub terms: HoldingTerms,
    /// The SM time of its processes; 0 where processes are unknown.
    pub sm_seconds: f64,
    /// Its MIG device, by position in `MigWeights`.
    pub mig: Option<usize>,
}

/// Cuts the time between `from` and `to` wherever a holding begins or ends.
pub fn cut(
    (from, to): (Monotonic, Monotonic),
    held_times: &[HeldTime<'_>],
    sm: Option<&SmWeights>,
    mig: Option<&MigWeights<'_>>,
) -> Vec<IntervalSegment> {
    let mut bounds = vec![from, to];
    bounds.extend(held_times.iter().flat_map(|time| time.spans.iter().flat_map(|span| [span.from, span.to])));
    bounds.sort_unstable();
    bounds.dedup();
    let mig_positions: Vec<Option<usize>> =
        held_times.iter().map(|time| time.key.mig.as_ref().and_then(|uuid| mig?.position(uuid))).collect();
    let length = to.since(from).as_secs_f64();
    let mut segments = vec![];
    for bounds in bounds.windows(2) {
        let [from, to] = [bounds[0], bounds[1]];
        let seconds = to.since(from).as_secs_f64();
        let mut holders = vec![];
        for (held_time, time) in held_times.iter().enumerate() {
            let Some(span) = time.spans.iter().find(|span| span.covers(from, to)) else { continue };
            if time.key.mig.is_some() && mig_positions[held_time].is_none() {
                continue; // its MIG device was removed, or the slices of the GPU's MIG devices are unknown
            }
            let sm_seconds = sm.map_or(0.0, |sm| sm.holders[held_time] * (seconds / time.seconds()));
            let mig = mig_positions[held_time];
            holders.push(SegmentHolder { held_time, terms: span.terms, sm_seconds, mig });
        }
        let weights = match (mig, sm) {
            (Some(mig), _) => Weights::MigDevices(mig.weights.clone()),
            (None, Some(sm)) => {
                let part = seconds / length;
                Weights::Processes(sm.others.iter().map(|(reason, all)| (*reason, all * part)).collect())
            }
            (None, None) => Weights::Holdings,
        };
        segments.push(IntervalSegment { seconds, holders, busy: None, energy: None, idle_energy: None, weights });
    }
    segments
}

/// An interval, and the weights that divide it.
pub struct WeightedInterval<'a> {
    pub interval: &'a Interval,
    pub sm: Option<SmWeights>,
    pub mig: Option<&'a MigWeights<'a>>,
    pub idle_watts: Option<f64>,
}

impl WeightedInterval<'_> {
    /// The segments, with their parts of the interval's busy time and energy.
    pub fn segments(&self, held_times: &[HeldTime<'_>]) -> Vec<IntervalSegment> {
        let mut segments = cut((self.interval.from, self.interval.to), held_times, self.sm.as_ref(), self.mig);
        let lengths: Vec<f64> = segments.iter().map(|segment| segment.seconds).collect();
        let limits: Vec<f64> = lengths.iter().map(|seconds| seconds * self.interval.covered_ratio()).collect();
        let busy = self.interval.busy_seconds;
        let busy = busy.map(|busy| divide_up_to_limits(busy, &limits, &busy_weights(&segments)));
        if let Some(mig) = self.mig {
            set_mig_activity(&mig.weights, &lengths, &mut segments);
        }
        let work = match self.mig {
            None => busy.clone(),
            Some(_) => segments.iter().map(mig_work).collect(),
        };
        let energy = self.interval.energy_joules;
        let energy = energy.map(|energy| divide_energy(energy, self.idle_watts, &lengths, work.as_deref()));
        for (number, segment) in segments.iter_mut().enumerate() {
            segment.busy = busy.as_ref().map(|busy| busy[number]);
            segment.energy = energy.as_ref().map(|energy| energy[number]);
            segment.idle_energy = self.idle_watts.map(|watts| watts * segment.seconds);
        }
        segments
    }
}

/// The weights of segments for busy time: SM time where there is any, else the time with a holder.
fn busy_weights(segments: &[IntervalSegment]) -> Vec<f64> {
    let weights: Vec<f64> = segments.iter().map(IntervalSegment::sm_seconds).collect();
    if weights.iter().any(|weight| *weight > 0.0) {
        return weights;
    }
    let held = |segment: &IntervalSegment| if segment.holders.is_empty() { 0.0 } else { segment.seconds };
    segments.iter().map(held).collect()
}

/// Divides `amount` by weight, up to the limit of each. What exceeds the limits of those with a weight goes to
/// the others, by limit.
fn divide_up_to_limits(amount: f64, limits: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut filled = vec![0.0; limits.len()];
    let mut left = amount;
    let mut open: Vec<usize> = (0..limits.len()).filter(|position| weights[*position] > 0.0).collect();
    while !open.is_empty() {
        let sum: f64 = open.iter().map(|position| weights[*position]).sum();
        let part = |position: usize| left * weights[position] / sum;
        let (full, others): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|position| part(**position) > limits[**position]);
        if full.is_empty() {
            open.iter().for_each(|position| filled[*position] = part(*position));
            return filled;
        }
        for position in full {
            filled[position] = limits[position];
            left -= limits[position];
        }
        open = others;
    }
    if left > amount * ROUNDING {
        let is_unweighted = |position: &usize| weights[*position] <= 0.0;
        let mut rest: Vec<usize> = (0..limits.len()).filter(is_unweighted).collect();
        if rest.is_empty() {
            rest = (0..limits.len()).collect();
        }
        let sum: f64 = rest.iter().map(|position| limits[*position]).sum();
        rest.into_iter().for_each(|position| filled[position] += left * limits[position] / sum);
    }
    filled
}

/// Joules by segment: idle power by time, and the rest by work; without either, all by time. So no segment has less than its
/// `idle_energy`, unless the interval has less.
fn divide_energy(joules: f64, idle_watts: Option<f64>, lengths: &[f64], work: Option<&[f64]>) -> Vec<f64> {
    let length: f64 = lengths.iter().sum();
    let done: f64 = work.map_or(0.0, |work| work.iter().sum());
    let (Some(watts), Some(work), false) = (idle_watts, work, is_nothing(done)) else {
        return lengths.iter().map(|seconds| joules * seconds / length).collect();
    };
    let idle = (watts * length).min(joules);
    let part = |(seconds, work): (&f64, &f64)| idle * seconds / length + (joules - idle) * work / done;
    lengths.iter().zip(work).map(part).collect()
}

/// Gives each segment the activity of each MIG device in it: a device was active while it was held.
fn set_mig_activity(mig: &[MigWeight], lengths: &[f64], segments: &mut [IntervalSegment]) {
    let length: f64 = lengths.iter().sum();
    for (position, device) in mig.iter().enumerate() {
        let Some(active) = device.active else { continue };
        let is_held = |segment: &IntervalSegment| {
            segment.holders.iter().any(|holder| holder.mig.is_none_or(|held| held == position))
        };
        let held = |segment: &IntervalSegment| if is_held(segment) { segment.seconds } else { 0.0 };
        let held: Vec<f64> = segments.iter().map(held).collect();
        for (segment, seconds) in segments.iter_mut().zip(divide_up_to_limits(active * length, lengths, &held)) {
            if let Weights::MigDevices(devices) = &mut segment.weights {
                devices[position].active = Some(seconds / segment.seconds);
            }
        }
    }
}

/// GPU-seconds of work of a segment's MIG devices; `None` where one reports nothing.
fn mig_work(segment: &IntervalSegment) -> Option<f64> {
    let Weights::MigDevices(devices) = &segment.weights else { return None };
    devices.iter().map(|device| Some(device.work()? * segment.seconds)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::UnattributedReason;

    #[test]
    fn each_gets_its_weight_up_to_its_limit() {
        assert_eq!(divide_up_to_limits(0.5, &[1.0, 1.0], &[1.0, 3.0]), [0.125, 0.375]);
        assert_eq!(divide_up_to_limits(1.5, &[1.0, 1.0], &[1.0, 3.0]), [0.5, 1.0]);
        assert_eq!(divide_up_to_limits(0.75, &[0.5, 1.0], &[0.5, 0.0]), [0.5, 0.25], "the unheld time did the rest");
        assert_eq!(divide_up_to_limits(0.25, &[0.5, 1.0], &[0.0, 0.0]).iter().sum::<f64>(), 0.25);
        assert_eq!(divide_up_to_limits(0.0, &[0.5], &[0.0]), [0.0]);
    }

    #[test]
    fn joules_follow_the_work_above_idle_power() {
        assert_eq!(divide_energy(500.0, Some(100.0), &[1.0, 1.0], Some(&[0.75, 0.25])), [325.0, 175.0]);
        assert_eq!(divide_energy(500.0, None, &[1.0, 1.0], Some(&[0.75, 0.25])), [250.0, 250.0]);
        assert_eq!(divide_energy(100.0, Some(100.0), &[1.0, 1.0], Some(&[1.0, 0.0])), [50.0, 50.0]);
    }

    #[test]
    fn a_mig_device_was_active_while_it_was_held() {
        let device = MigWeight { fraction: 0.5, active: Some(0.25), unheld_reason: UnattributedReason::Unknown };
        let terms = HoldingTerms { fraction: None, weight: 1.0, exclusive: false };
        let holder = SegmentHolder { held_time: 0, terms, sm_seconds: 0.0, mig: Some(0) };
        let segment = |holders| {
            let weights = Weights::MigDevices(vec![device]);
            IntervalSegment { seconds: 1.0, holders, busy: None, energy: None, idle_energy: None, weights }
        };
        let mut segments = [segment(vec![]), segment(vec![holder])];
        set_mig_activity(&[device], &[1.0, 1.0], &mut segments);
        assert_eq!(segments.each_ref().map(mig_work), [Some(0.0), Some(0.25)]);
    }
}
