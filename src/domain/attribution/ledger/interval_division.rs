//! The division of one interval among the device's holders in it.

use std::collections::BTreeMap;

use super::audit::Audit;
use super::clock::Interval;
use super::device::HolderKey;
use super::division::{DivisionBasis, Holder, Part, Stretch, add_known, reason_or_ended};
use super::holder_account::{Covered, Gain, HolderAccount, Span};
use super::partition::Partitions;
use super::spread;
use super::weights::Gains;
use crate::domain::model::{DividedQuantity, Monotonic, Unattributed, UnattributedReason};

/// An interval, and what it is divided by.
pub struct IntervalDivision<'a> {
    pub interval: &'a Interval,
    pub partitions: Option<&'a Partitions<'a>>,
    pub gains: Option<Gains>,
    pub idle_watts: Option<f64>,
    /// Part of the interval in which it is known whether the device was busy.
    pub covered_ratio: f64,
    /// A holding has ended since the pass before.
    pub has_ended: bool,
}

/// When one account held the device in an interval, and its gain.
pub struct HeldTime<'a> {
    pub key: &'a HolderKey,
    pub holder: &'a mut HolderAccount,
    pub spans: Vec<Span>,
    pub gain: Gain,
}

/// Of the holders that held the device between `from` and `to`, with what is allocated of it.
pub fn held_times(
    holders: &mut BTreeMap<HolderKey, HolderAccount>,
    from: Monotonic,
    to: Monotonic,
) -> Vec<HeldTime<'_>> {
    let mut held = vec![];
    for (key, holder) in holders {
        let spans = holder.take(from, to);
        let mut gain = Gain::default();
        for span in &spans {
            let seconds = span.length().as_secs_f64();
            gain.held += seconds;
            add_known(&mut gain.allocated, span.held_share.share.map(|share| share * seconds));
        }
        if !spans.is_empty() {
            held.push(HeldTime { key, holder, spans, gain });
        }
    }
    held
}

/// A stretch of an interval and its holders, as places in the list of all holders and as input of the division.
pub struct Held {
    pub seconds: f64,
    pub indices: Vec<(usize, Option<f64>)>,
    pub holders: Vec<Holder>,
}

/// Cuts the time between `from` and `to` wherever a holding begins or ends.
pub fn stretches(
    (from, to): (Monotonic, Monotonic),
    held: &[HeldTime<'_>],
    gains: Option<&Gains>,
    partitions: Option<&Partitions<'_>>,
) -> Vec<Held> {
    let mut bounds = vec![from, to];
    bounds.extend(held.iter().flat_map(|time| time.spans.iter().flat_map(|span| [span.from, span.to])));
    bounds.sort_unstable();
    bounds.dedup();
    let held_seconds: Vec<f64> =
        held.iter().map(|time| time.spans.iter().map(|span| span.length().as_secs_f64()).sum()).collect();
    let places: Vec<Option<usize>> =
        held.iter().map(|time| time.key.1.as_ref().and_then(|mig| partitions?.place(mig))).collect();
    let stretch = |bounds: &[Monotonic]| {
        let [from, to] = [bounds[0], bounds[1]];
        let seconds = to.since(from).as_secs_f64();
        let (mut indices, mut holders) = (vec![], vec![]);
        for (index, time) in held.iter().enumerate() {
            let Some(span) = time.spans.iter().find(|span| span.covers(from, to)) else { continue };
            if time.key.1.is_some() && places[index].is_none() {
                continue; // its MIG device no longer exists
            }
            let weight = gains.map_or(0.0, |gains| gains.holders[index] / held_seconds[index]);
            indices.push((index, span.held_share.share));
            holders.push(Holder {
                exclusive: span.held_share.exclusive,
                weight: span.held_share.weight,
                sm_seconds: weight * seconds,
                part: places[index],
            });
        }
        Held { seconds, indices, holders }
    };
    bounds.windows(2).map(stretch).collect()
}

/// What each stretch has of its interval.
struct Spread {
    busy: Option<Vec<f64>>,
    energy: Option<Vec<f64>>,
    parts: Option<Vec<Vec<Part>>>,
}

impl IntervalDivision<'_> {
    fn spread(&self, stretches: &[Held]) -> Spread {
        let lengths: Vec<f64> = stretches.iter().map(|stretch| stretch.seconds).collect();
        let parts = self.partitions.map(|partitions| {
            let is_of = |holder: &Holder, part| holder.part.is_none_or(|held| held == part);
            spread::parts(&partitions.parts, &lengths, |number, part| {
                stretches[number].holders.iter().any(|holder| is_of(holder, part))
            })
        });
        let rooms: Vec<f64> = lengths.iter().map(|seconds| seconds * self.covered_ratio).collect();
        let busy = self.interval.busy_seconds.map(|busy| spread::pour(busy, &rooms, &self.weights(stretches)));
        let work = match &parts {
            None => busy.clone(),
            Some(parts) => {
                let of = |(parts, seconds): (&Vec<Part>, &f64)| {
                    parts.iter().map(|part| Some(part.active? * part.fraction * seconds)).sum::<Option<f64>>()
                };
                parts.iter().zip(&lengths).map(of).collect()
            }
        };
        let energy = self.interval.energy_joules;
        let energy = energy.map(|energy| spread::energy(energy, self.idle_watts, &lengths, work.as_deref()));
        Spread { busy, energy, parts }
    }

    /// By SM time where there is any, else by the time with a holder.
    fn weights(&self, stretches: &[Held]) -> Vec<f64> {
        let length = self.interval.seconds();
        if let Some(gains) = &self.gains {
            let others: f64 = gains.others.values().sum();
            let of = |stretch: &Held| {
                let holders: f64 = stretch.holders.iter().map(|holder| holder.sm_seconds).sum();
                holders + others * stretch.seconds / length
            };
            let weights: Vec<f64> = stretches.iter().map(of).collect();
            if weights.iter().any(|weight| *weight > 0.0) {
                return weights;
            }
        }
        let held = |stretch: &Held| if stretch.holders.is_empty() { 0.0 } else { stretch.seconds };
        stretches.iter().map(held).collect()
    }

    /// Divides stretch by stretch. Returns the device's busy seconds and joules in all.
    pub fn divide(
        &self,
        held: &mut [HeldTime<'_>],
        unattributed: &mut Unattributed,
        audit: &mut Audit,
    ) -> (Option<f64>, Option<f64>) {
        let length = self.interval.seconds();
        let bounds = (self.interval.from, self.interval.to);
        let stretches = stretches(bounds, held, self.gains.as_ref(), self.partitions);
        let spread = self.spread(&stretches);
        let (mut busy_sum, mut energy_sum) = (None, None);
        let (mut unattributed_busy, mut unattributed_energy) = (0.0, 0.0);
        for (number, Held { seconds, indices, holders }) in stretches.iter().enumerate() {
            let seconds = *seconds;
            let others: Option<BTreeMap<UnattributedReason, f64>> = self.gains.as_ref().map(|gains| {
                gains.others.iter().map(|(reason, weight)| (*reason, weight * seconds / length)).collect()
            });
            let division = Stretch {
                seconds,
                busy: spread.busy.as_ref().map(|busy| busy[number]),
                energy: spread.energy.as_ref().map(|energy| energy[number]),
                idle_energy: self.idle_watts.map(|watts| watts * seconds),
                holders,
                basis: match (&spread.parts, &others) {
                    (Some(parts), _) => DivisionBasis::Partitions(&parts[number]),
                    (None, Some(others)) => DivisionBasis::Processes(others),
                    (None, None) => DivisionBasis::Holding,
                },
            }
            .divide();
            for (place, (index, share)) in indices.iter().enumerate() {
                let gain = &mut held[*index].gain;
                let (busy, energy) = (division.busy[place], division.energy[place]);
                if let Some((busy, share)) = busy.zip(*share) {
                    let covered = gain.covered.get_or_insert(Covered::default());
                    covered.allocated += share * seconds * self.covered_ratio;
                    covered.busy += busy;
                }
                add_known(&mut gain.busy, busy);
                add_known(&mut gain.energy, energy);
                add_known(&mut busy_sum, busy);
                add_known(&mut energy_sum, energy);
            }
            for (reason, busy) in division.unattributed_busy {
                *unattributed.busy_seconds.entry(reason_or_ended(reason, self.has_ended)).or_default() += busy;
                add_known(&mut busy_sum, Some(busy));
                unattributed_busy += busy;
            }
            for (reason, energy) in division.unattributed_energy {
                *unattributed.energy_joules.entry(reason_or_ended(reason, self.has_ended)).or_default() += energy;
                add_known(&mut energy_sum, Some(energy));
                unattributed_energy += energy;
            }
        }
        let of_parts = self.partitions.map_or(0.0, |partitions| {
            let work = partitions.parts.iter().map(|part| part.active.unwrap_or(0.0) * part.fraction).sum::<f64>();
            work * length
        });
        let shares = |read: fn(&Gain) -> Option<f64>| held.iter().filter_map(move |time| read(&time.gain));
        let whole = self.interval.busy_seconds.unwrap_or(0.0) + of_parts;
        audit.check(DividedQuantity::Busy, whole, shares(|gain| gain.busy).chain([unattributed_busy]));
        let whole = self.interval.energy_joules.unwrap_or(0.0);
        audit.check(DividedQuantity::Energy, whole, shares(|gain| gain.energy).chain([unattributed_energy]));
        (busy_sum, energy_sum)
    }
}
