//! How one stretch of a device's time is divided. A stretch is time in which no holding begins or ends.

use std::collections::BTreeMap;

use crate::domain::model::UnattributedReason;

/// Seconds that are only what rounding left.
pub fn is_nothing(seconds: f64) -> bool {
    seconds < 1e-9
}

/// The sum is known once one amount is.
pub fn add_known(sum: &mut Option<f64>, amount: Option<f64>) {
    if let Some(amount) = amount {
        *sum.get_or_insert(0.0) += amount;
    }
}

/// The reason, or `Ended` while the use may be that of a holding that ended less than two passes ago: the use of a
/// device and its holdings are read at different times.
pub fn reason_or_ended(reason: UnattributedReason, has_ended: bool) -> UnattributedReason {
    match reason {
        UnattributedReason::NotAllocated | UnattributedReason::TerminatedPod | UnattributedReason::Unknown
            if has_ended =>
        {
            UnattributedReason::Ended
        }
        reason => reason,
    }
}

/// One holder in a stretch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holder {
    /// The only container to which the whole device is allocated.
    pub exclusive: bool,
    /// In equal parts.
    pub weight: f64,
    /// Of its processes; 0 where processes are not known.
    pub sm_seconds: f64,
    /// Its MIG device, as a place in `Device::Partitioned`.
    pub part: Option<usize>,
}

/// What the device did in a stretch, and the data by which it is attributed.
pub struct Stretch<'a> {
    pub seconds: f64,
    pub busy: Option<f64>,
    pub energy: Option<f64>,
    /// What the board would have drawn with nothing running; `None` while that is unknown.
    pub idle_energy: Option<f64>,
    pub holders: &'a [Holder],
    pub basis: DivisionBasis<'a>,
}

#[derive(Clone, Copy)]
pub enum DivisionBasis<'a> {
    /// Only the holders are known.
    Holding,
    /// SM-seconds of processes that belong to no holder; each holder has its own.
    Processes(&'a BTreeMap<UnattributedReason, f64>),
    Partitions(&'a [Part]),
}

/// One MIG device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Of the GPU's compute.
    pub fraction: f64,
    /// How busy it was, 0 to 1; `None` without GPM.
    pub active: Option<f64>,
    /// Its reason while it has no holder.
    pub unheld: UnattributedReason,
}

/// Adds up to the stretch.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// By holder. `None`: not known.
    pub busy: Vec<Option<f64>>,
    pub energy: Vec<Option<f64>>,
    pub unattributed_busy: BTreeMap<UnattributedReason, f64>,
    pub unattributed_energy: BTreeMap<UnattributedReason, f64>,
}

impl Stretch<'_> {
    pub fn divide(&self) -> Division {
        let unknown = vec![None; self.holders.len()];
        let mut division = Division {
            busy: unknown.clone(),
            energy: unknown,
            unattributed_busy: BTreeMap::new(),
            unattributed_energy: BTreeMap::new(),
        };
        match self.basis {
            DivisionBasis::Partitions(parts) => self.by_partition(parts, &mut division),
            DivisionBasis::Processes(others) => self.by_process(others, &mut division),
            DivisionBasis::Holding if self.holders.is_empty() => self.by_process(&BTreeMap::new(), &mut division),
            DivisionBasis::Holding => {
                let sum: f64 = self.holders.iter().map(|holder| holder.weight).sum();
                for (place, holder) in self.holders.iter().enumerate() {
                    let part = holder.weight / sum;
                    division.busy[place] = self.busy.map(|busy| busy * part);
                    division.energy[place] = self.energy.map(|energy| energy * part);
                }
            }
        }
        division
    }

    fn by_process(&self, others: &BTreeMap<UnattributedReason, f64>, division: &mut Division) {
        // An exclusive holder also gets what no process explains.
        let sole = matches!(self.holders, [Holder { exclusive: true, .. }]);
        let sum = self.holders.iter().map(|holder| holder.sm_seconds).chain(others.values().copied()).sum::<f64>();
        let by_weight =
            |amount: f64, shares: &mut Vec<Option<f64>>, unattributed: &mut BTreeMap<UnattributedReason, f64>, rest| {
                for (share, holder) in shares.iter_mut().zip(self.holders) {
                    add_known(share, Some(if sum > 0.0 { amount * holder.sm_seconds / sum } else { 0.0 }));
                }
                if sum > 0.0 {
                    others.iter().for_each(|(reason, weight)| add(unattributed, *reason, amount * weight / sum));
                } else if sole {
                    add_known(&mut shares[0], Some(amount));
                } else {
                    add(unattributed, rest, amount);
                }
            };
        if let Some(busy) = self.busy {
            by_weight(busy, &mut division.busy, &mut division.unattributed_busy, UnattributedReason::Unknown);
        }
        if let Some(energy) = self.energy {
            let idle = self.idle_energy.unwrap_or(0.0).min(energy);
            let rest =
                if self.busy.is_some_and(is_nothing) { UnattributedReason::Idle } else { UnattributedReason::Unknown };
            by_weight(energy - idle, &mut division.energy, &mut division.unattributed_energy, rest);
            if sole {
                add_known(&mut division.energy[0], Some(idle));
            } else {
                add(&mut division.unattributed_energy, UnattributedReason::Idle, idle);
            }
        }
    }

    fn by_partition(&self, parts: &[Part], division: &mut Division) {
        // A partitioned GPU has no device total of busy time; if one appears, it is unattributed.
        if let Some(busy) = self.busy.filter(|busy| *busy > 0.0) {
            add(&mut division.unattributed_busy, UnattributedReason::Unknown, busy);
        }
        let works: Vec<f64> = parts.iter().map(|part| part.active.unwrap_or(0.0) * part.fraction).collect();
        let work: f64 = works.iter().sum();
        let is_known = !parts.is_empty() && parts.iter().all(|part| part.active.is_some());
        let energy = self.energy.unwrap_or(0.0);
        let idle = if is_known { self.idle_energy.unwrap_or(0.0).min(energy) } else { 0.0 };
        let mut left = 1.0;
        for (place, part) in parts.iter().enumerate() {
            left -= part.fraction;
            let busy = part.active.map(|_| works[place] * self.seconds);
            let weight = match is_known {
                false => part.fraction,
                true if work > 0.0 => works[place] / work,
                true => 0.0,
            };
            let energy = self.energy.map(|_| (energy - idle) * weight);
            self.hand_out(Some(place), part, busy, energy, division);
        }
        if self.energy.is_some() {
            if is_known && work <= 0.0 {
                add(&mut division.unattributed_energy, UnattributedReason::Idle, energy - idle);
            } else if !is_known && left > f64::EPSILON * 8.0 {
                self.unheld(UnattributedReason::Unknown, left, energy * left, division);
            }
            if is_known {
                add(&mut division.unattributed_energy, UnattributedReason::Idle, idle);
            }
        }
    }

    /// Attributes one MIG device's use to its holders, else to the holders of the whole GPU, else to none.
    fn hand_out(
        &self,
        place: Option<usize>,
        part: &Part,
        busy: Option<f64>,
        energy: Option<f64>,
        division: &mut Division,
    ) {
        let sum: f64 = self.holders.iter().filter(|holder| holder.part == place).map(|holder| holder.weight).sum();
        if sum > 0.0 {
            for (index, holder) in self.holders.iter().enumerate().filter(|(_, holder)| holder.part == place) {
                add_known(&mut division.busy[index], busy.map(|busy| busy * holder.weight / sum));
                add_known(&mut division.energy[index], energy.map(|energy| energy * holder.weight / sum));
            }
        } else if place.is_some() {
            self.hand_out(None, part, busy, energy, division);
        } else {
            if let Some(busy) = busy {
                add(&mut division.unattributed_busy, part.unheld, busy);
            }
            if let Some(energy) = energy {
                match part.active {
                    Some(_) => add(&mut division.unattributed_energy, part.unheld, energy),
                    None => self.unheld(part.unheld, part.fraction, energy, division),
                }
            }
        }
    }

    /// Energy of a fraction of the device without a holder or a measurement.
    fn unheld(&self, reason: UnattributedReason, fraction: f64, energy: f64, division: &mut Division) {
        let idle = self.idle_energy.map_or(0.0, |idle| idle * fraction).min(energy);
        add(&mut division.unattributed_energy, UnattributedReason::Idle, idle);
        add(&mut division.unattributed_energy, reason, energy - idle);
    }
}

fn add(unattributed: &mut BTreeMap<UnattributedReason, f64>, reason: UnattributedReason, amount: f64) {
    *unattributed.entry(reason).or_default() += amount;
}
