//! Time in which the device was not read: it is allocated, and neither busy nor idle.

use std::collections::BTreeMap;

use super::audit::Audit;
use super::books::{held_times, stretches};
use super::device::{Device, Tenant};
use super::division::{Evidence, Stretch};
use super::entry::Entry;
use super::partition::Partitions;
use crate::model::{Moment, Monotonic, Quantity, Reason};

/// A silence that is not over: who held the device, in seconds of the device as its energy will be divided.
#[derive(Debug, Default)]
pub struct Silence {
    seconds: f64,
    holders: BTreeMap<Tenant, f64>,
    unattributed: BTreeMap<Reason, f64>,
}

impl Silence {
    /// What the others held is nobody's.
    pub fn forget_all_but(&mut self, entries: &BTreeMap<Tenant, Entry>) {
        let unattributed = &mut self.unattributed;
        self.holders.retain(|tenant, seconds| {
            let is_known = entries.contains_key(tenant);
            if !is_known {
                *unattributed.entry(Reason::Unknown).or_default() += *seconds;
            }
            is_known
        });
    }
}

impl Device {
    /// Nothing was read between `from` and `to`.
    pub fn be_silent(&mut self, from: Monotonic, to: Monotonic, partitions: Option<&Partitions<'_>>, now: Moment) {
        if to <= from {
            return;
        }
        self.is_silent = true;
        let parts = partitions.map(Partitions::parts);
        let mut held = held_times(&mut self.entries, from, to);
        for stretch in stretches((from, to), &held, None, partitions) {
            // One watt: its joules are seconds of the device.
            let division = Stretch {
                seconds: stretch.seconds,
                busy: None,
                energy: Some(stretch.seconds),
                idle_energy: None,
                holders: &stretch.holders,
                evidence: parts.as_deref().map_or(Evidence::Holding, Evidence::Partitions),
            }
            .divide();
            self.silence.seconds += stretch.seconds;
            for ((index, _), seconds) in stretch.indices.iter().zip(division.energy) {
                let tenant = held[*index].tenant;
                *self.silence.holders.entry(tenant.clone()).or_default() += seconds.unwrap_or(0.0);
            }
            for (reason, seconds) in division.unattributed_energy {
                *self.silence.unattributed.entry(reason).or_default() += seconds;
            }
        }
        for time in &mut held {
            time.entry.gain(&time.gain, 0.0, now.unix);
        }
    }

    /// The silence is over, and the device's own counter tells what it drew in it. That is divided by holding; what nobody
    /// held is idle as far as the board's idle power goes.
    pub fn end_silence(&mut self, joules: Option<f64>, audit: &mut Audit) {
        let silence = std::mem::take(&mut self.silence);
        let Some(joules) = joules else { return };
        let unattributed = &mut self.unattributed.energy_joules;
        unattributed.entry(Reason::Idle).or_default();
        let unknown = unattributed.entry(Reason::Unknown).or_default();
        if silence.seconds <= 0.0 {
            *unknown += joules;
            return;
        }
        let watts = joules / silence.seconds;
        let idle_watts = self.idle_power.watts().unwrap_or(0.0).min(watts);
        let held = silence.holders.values().map(|seconds| seconds * watts);
        let unheld = silence.unattributed.values().map(|seconds| seconds * watts);
        audit.check(Quantity::Energy, joules, held.chain(unheld));
        for (tenant, seconds) in silence.holders {
            match self.entries.get_mut(&tenant) {
                Some(entry) => entry.add_energy(Some(seconds * watts)),
                None => *unattributed.entry(Reason::Unknown).or_default() += seconds * watts,
            }
        }
        for (reason, seconds) in silence.unattributed {
            *unattributed.entry(Reason::Idle).or_default() += seconds * idle_watts;
            *unattributed.entry(reason).or_default() += seconds * (watts - idle_watts);
        }
    }
}
