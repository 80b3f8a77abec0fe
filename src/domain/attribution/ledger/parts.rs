//! Divides one segment into parts. In: the segment and its weights. Out: a part for each holder, and by reason what no
//! holder has; they add up to the segment, which `Audit` checks. Does not use: accounts, and other segments.

use std::collections::BTreeMap;

use strum::IntoEnumIterator;

use super::interval::is_nothing;
use super::segments::{IntervalSegment, ROUNDING, SegmentHolder};
use super::weights::{MigWeight, Weights};
use crate::domain::model::{DividedQuantity, UnattributedReason};

/// The relative error of floating point, as the amounts that are summed are of similar size.
const TOLERANCE: f64 = 1e-9;

/// Adds an amount; the sum is known once one amount is.
pub fn add_known(sum: &mut Option<f64>, amount: Option<f64>) {
    if let Some(amount) = amount {
        *sum.get_or_insert(0.0) += amount;
    }
}

/// The reason, or `Ended` where the use may be that of a holding that has ended: use and holdings are read at different
/// times.
///
/// | use | `has_ended`: a holding has ended since |
/// |---|---|
/// | busy time, energy | the start of the interval |
/// | memory | the last but one pass that read it |
/// | processes, energy of a gap | not considered |
pub fn reason_or_ended(reason: UnattributedReason, has_ended: bool) -> UnattributedReason {
    use UnattributedReason::{Ended, NotAllocated, TerminatedPod, Unknown};
    match reason {
        NotAllocated | TerminatedPod | Unknown if has_ended => Ended,
        reason => reason,
    }
}

/// Busy seconds and joules of a holder, or of use that belongs to none. `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    pub busy: Option<f64>,
    pub energy: Option<f64>,
}

/// The parts of a segment, which add up to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    pub holders: Vec<Part>,
    pub unattributed: BTreeMap<UnattributedReason, Part>,
}

/// Holders by position in the segment, each with a fraction. One may occur several times.
pub type HolderFractions = Vec<(usize, f64)>;

impl Part {
    fn of_energy(joules: f64) -> Self {
        Self { busy: None, energy: Some(joules) }
    }

    fn times(self, fraction: f64) -> Self {
        Self { busy: self.busy.map(|seconds| seconds * fraction), energy: self.energy.map(|joules| joules * fraction) }
    }

    pub fn add(&mut self, other: Self) {
        add_known(&mut self.busy, other.busy);
        add_known(&mut self.energy, other.energy);
    }
}

impl Parts {
    fn add(&mut self, part: Part, holders: &HolderFractions) {
        for (position, fraction) in holders {
            self.holders[*position].add(part.times(*fraction));
        }
    }

    fn add_unattributed(&mut self, reason: UnattributedReason, part: Part) {
        self.unattributed.entry(reason).or_default().add(part);
    }
}

impl IntervalSegment {
    pub fn divide(&self) -> Parts {
        let mut parts = Parts { holders: vec![Part::default(); self.holders.len()], ..Parts::default() };
        match &self.weights {
            Weights::MigDevices(devices) => self.divide_by_mig_device(devices, &mut parts),
            Weights::Processes(others) => self.divide_by_process(others, &mut parts),
            // As `Processes` without SM time: idle power is `idle`; the rest too in a segment without work, else `unknown`.
            Weights::Holdings if self.holders.is_empty() => self.divide_by_process(&BTreeMap::new(), &mut parts),
            Weights::Holdings => parts.add(Part { busy: self.busy, energy: self.energy }, &self.holders_of(None)),
        }
        parts
    }

    /// The part of the segment's energy that each holder gets without SM time and activity: by slices, else by weight. One of four
    /// slots alone gets all.
    pub fn energy_fractions(&self) -> HolderFractions {
        let Weights::MigDevices(devices) = &self.weights else { return self.holders_of(None) };
        let of_device = |(position, device): (usize, &MigWeight)| {
            let fraction_of_gpu = device.fraction;
            self.holders_of_mig_device(position).into_iter().map(move |(holder, part)| (holder, part * fraction_of_gpu))
        };
        devices.iter().enumerate().flat_map(of_device).collect()
    }

    /// The holders of a MIG device; where it has none, those of the GPU.
    fn holders_of_mig_device(&self, position: usize) -> HolderFractions {
        let holders = self.holders_of(Some(position));
        if holders.is_empty() { self.holders_of(None) } else { holders }
    }

    /// The holders of a MIG device, or with `None` of the GPU, by `HoldingTerms::weight`; the fractions add up to 1.
    fn holders_of(&self, mig: Option<usize>) -> HolderFractions {
        let holders = || self.holders.iter().enumerate().filter(|(_, holder)| holder.mig == mig);
        let sum: f64 = holders().map(|(_, holder)| holder.terms.weight).sum();
        holders().map(|(position, holder)| (position, holder.terms.weight / sum)).collect()
    }

    /// Whether there is an exclusive holder, which also gets use of no known process, and idle power.
    fn has_exclusive_holder(&self) -> bool {
        matches!(&self.holders[..], [SegmentHolder { terms, .. }] if terms.exclusive)
    }

    /// Divides by SM time what is above idle power. Without any it is the exclusive holder's, else unattributed.
    fn divide_by_process(&self, others: &BTreeMap<UnattributedReason, f64>, parts: &mut Parts) {
        let idle = self.energy.map(|energy| self.idle_energy.unwrap_or(0.0).min(energy));
        let work = Part { busy: self.busy, energy: self.energy.zip(idle).map(|(energy, idle)| energy - idle) };
        let is_exclusive = self.has_exclusive_holder();
        let all = self.sm_seconds();
        let fraction = |sm_seconds: f64| match is_exclusive {
            _ if all > 0.0 => sm_seconds / all,
            true => 1.0,
            false => 0.0,
        };
        let holders = self.holders.iter().enumerate();
        parts.add(work, &holders.map(|(position, holder)| (position, fraction(holder.sm_seconds))).collect());
        if all > 0.0 {
            for (reason, sm_seconds) in others {
                parts.add_unattributed(*reason, work.times(fraction(*sm_seconds)));
            }
        } else if !is_exclusive {
            let is_idle = self.busy.is_some_and(is_nothing);
            let of_energy = if is_idle { UnattributedReason::Idle } else { UnattributedReason::Unknown };
            parts.add_unattributed(UnattributedReason::Unknown, Part { energy: None, ..work });
            parts.add_unattributed(of_energy, Part { busy: None, ..work });
        }
        let idle = Part { busy: None, energy: idle };
        if is_exclusive {
            parts.holders[0].add(idle);
        } else {
            parts.add_unattributed(UnattributedReason::Idle, idle);
        }
    }

    /// Gives each MIG device its work as busy time, and a part of the energy, which its holders get.
    fn divide_by_mig_device(&self, devices: &[MigWeight], parts: &mut Parts) {
        // A partitioned GPU has no device total of busy time; if one appears, it is unattributed.
        if let Some(busy) = self.busy.filter(|busy| *busy > 0.0) {
            parts.add_unattributed(UnattributedReason::Unknown, Part { busy: Some(busy), energy: None });
        }
        let joules = self.energy.map(|energy| self.divide_mig_energy(energy, devices, parts));
        for (position, device) in devices.iter().enumerate() {
            let energy = joules.as_ref().map(|joules| joules[position]);
            let part = Part { busy: device.work().map(|work| work * self.seconds), energy };
            let holders = self.holders_of_mig_device(position);
            match (device.active, energy) {
                _ if !holders.is_empty() => parts.add(part, &holders),
                (Some(_), _) => parts.add_unattributed(device.unheld_reason, part),
                (None, Some(energy)) => self.add_unmeasured(device.unheld_reason, device.fraction, energy, parts),
                (None, None) => {}
            }
        }
    }

    /// The energy of each MIG device. Where all report activity, idle power is unattributed and the rest divided by
    /// work; else all is divided by slices.
    fn divide_mig_energy(&self, energy: f64, devices: &[MigWeight], parts: &mut Parts) -> Vec<f64> {
        let work: Option<Vec<f64>> = devices.iter().map(MigWeight::work).collect();
        if let Some(work) = work.filter(|work| !work.is_empty()) {
            let sum: f64 = work.iter().sum();
            let idle = if sum > 0.0 { self.idle_energy.unwrap_or(0.0).min(energy) } else { energy };
            parts.add_unattributed(UnattributedReason::Idle, Part::of_energy(idle));
            return work.iter().map(|work| if sum > 0.0 { (energy - idle) * work / sum } else { 0.0 }).collect();
        }
        let left = 1.0 - devices.iter().map(|device| device.fraction).sum::<f64>();
        if left > ROUNDING {
            self.add_unmeasured(UnattributedReason::Unknown, left, energy * left, parts);
        }
        devices.iter().map(|device| energy * device.fraction).collect()
    }

    /// Adds the energy of a fraction of the GPU that has neither a holder nor activity: `idle` up to its idle power.
    fn add_unmeasured(&self, reason: UnattributedReason, fraction: f64, energy: f64, parts: &mut Parts) {
        let idle = self.idle_energy.map_or(0.0, |idle| idle * fraction).min(energy);
        parts.add_unattributed(UnattributedReason::Idle, Part::of_energy(idle));
        parts.add_unattributed(reason, Part::of_energy(energy - idle));
    }
}

/// Counts where parts do not add up to the whole, or are no amounts at all. That is always a defect: of podmeter, or of
/// a reading that is no number.
#[derive(Debug)]
pub struct Audit {
    violations: BTreeMap<DividedQuantity, u64>,
}

impl Default for Audit {
    fn default() -> Self {
        Self { violations: DividedQuantity::iter().map(|quantity| (quantity, 0)).collect() }
    }
}

impl Audit {
    pub fn violations(&self) -> &BTreeMap<DividedQuantity, u64> {
        &self.violations
    }

    /// The total, unless it is no amount, which counts.
    pub fn amount(&mut self, quantity: DividedQuantity, total: Option<f64>) -> Option<f64> {
        let total = total?;
        if total.is_finite() && total >= 0.0 {
            return Some(total);
        }
        self.count(quantity);
        None
    }

    /// Checks that the parts add up to the whole.
    pub fn check(&mut self, quantity: DividedQuantity, whole: f64, parts: impl Iterator<Item = f64>) {
        let (mut sum, mut sound) = (0.0, true);
        for part in parts {
            sum += part;
            sound &= part.is_finite() && part >= 0.0;
        }
        if !sound || (sum - whole).abs() > TOLERANCE * whole.abs() {
            self.count(quantity);
        }
    }

    fn count(&mut self, quantity: DividedQuantity) {
        *self.violations.entry(quantity).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_add_up_is_counted_by_quantity() {
        let mut audit = Audit::default();
        audit.check(DividedQuantity::Busy, 1.0, [0.25, 0.75].into_iter());
        audit.check(DividedQuantity::Energy, 0.3, [0.1, 0.2].into_iter());
        assert!(audit.violations().values().all(|count| *count == 0), "rounding is none");
        audit.check(DividedQuantity::Busy, 1.0, [0.25, 0.5].into_iter());
        audit.check(DividedQuantity::Energy, 1.0, [2.0, -1.0].into_iter());
        audit.check(DividedQuantity::Memory, 1.0, [f64::NAN].into_iter());
        assert_eq!(audit.amount(DividedQuantity::Memory, Some(f64::INFINITY)), None);
        assert_eq!(audit.violations().values().copied().collect::<Vec<_>>(), [1, 1, 2]);
    }
}
