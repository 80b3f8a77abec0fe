//! Gaps: time in which the device was not read. It is allocated, and neither busy nor idle.

use std::collections::BTreeMap;

use super::audit::Audit;
use super::device::{Device, HolderKey};
use super::division::{DivisionBasis, Stretch, add_known};
use super::holder_account::HolderAccount;
use super::interval_division::{held_times, stretches};
use super::partition::Partitions;
use crate::domain::model::{DividedQuantity, Moment, Monotonic, UnattributedReason};

/// A gap that is not over: its holders, in seconds of the device as its energy will be divided.
#[derive(Debug, Default)]
pub struct OpenGap {
    seconds: f64,
    holders: BTreeMap<HolderKey, f64>,
    unattributed: BTreeMap<UnattributedReason, f64>,
}

impl OpenGap {
    /// The time of other holders becomes unattributed.
    pub fn forget_all_but(&mut self, holders: &BTreeMap<HolderKey, HolderAccount>) {
        let unattributed = &mut self.unattributed;
        self.holders.retain(|key, seconds| {
            let is_known = holders.contains_key(key);
            if !is_known {
                *unattributed.entry(UnattributedReason::Unknown).or_default() += *seconds;
            }
            is_known
        });
    }
}

impl Device {
    /// Nothing was read between `from` and `to`.
    pub fn add_gap(&mut self, from: Monotonic, to: Monotonic, partitions: Option<&Partitions<'_>>, now: Moment) {
        if to <= from {
            return;
        }
        self.in_gap = true;
        let mut held = held_times(&mut self.holders, from, to);
        for stretch in stretches((from, to), &held, None, partitions) {
            // One watt: its joules are seconds of the device.
            let division = Stretch {
                seconds: stretch.seconds,
                busy: None,
                energy: Some(stretch.seconds),
                idle_energy: None,
                holders: &stretch.holders,
                basis: partitions.map_or(DivisionBasis::Holding, |all| DivisionBasis::Partitions(&all.parts)),
            }
            .divide();
            self.gap.seconds += stretch.seconds;
            for ((index, _), seconds) in stretch.indices.iter().zip(division.energy) {
                let key = held[*index].key;
                *self.gap.holders.entry(key.clone()).or_default() += seconds.unwrap_or(0.0);
            }
            for (reason, seconds) in division.unattributed_energy {
                *self.gap.unattributed.entry(reason).or_default() += seconds;
            }
        }
        for time in &mut held {
            time.holder.gain(&time.gain, None, now.unix);
        }
    }

    /// The gap is over, and the device's counter has its energy. That is divided by holding; what has no holder is idle
    /// up to the board's idle power.
    pub fn close_gap(&mut self, joules: Option<f64>, audit: &mut Audit) {
        let gap = std::mem::take(&mut self.gap);
        let Some(joules) = joules else { return };
        let unattributed = &mut self.unattributed.energy_joules;
        unattributed.entry(UnattributedReason::Idle).or_default();
        let unknown = unattributed.entry(UnattributedReason::Unknown).or_default();
        if gap.seconds <= 0.0 {
            *unknown += joules;
            return;
        }
        let watts = joules / gap.seconds;
        let idle_watts = self.idle_power.watts().unwrap_or(0.0).min(watts);
        let held = gap.holders.values().map(|seconds| seconds * watts);
        let unheld = gap.unattributed.values().map(|seconds| seconds * watts);
        audit.check(DividedQuantity::Energy, joules, held.chain(unheld));
        for (key, seconds) in gap.holders {
            match self.holders.get_mut(&key) {
                Some(holder) => add_known(&mut holder.account.figures.energy_joules, Some(seconds * watts)),
                None => *unattributed.entry(UnattributedReason::Unknown).or_default() += seconds * watts,
            }
        }
        for (reason, seconds) in gap.unattributed {
            *unattributed.entry(UnattributedReason::Idle).or_default() += seconds * idle_watts;
            *unattributed.entry(reason).or_default() += seconds * (watts - idle_watts);
        }
    }
}
