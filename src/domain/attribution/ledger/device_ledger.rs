//! The ledger of one GPU. In: intervals and gaps, weights. Out: an entry for each account, and unattributed use. A gap
//! is time in which the device was not read: it is allocated, and neither busy nor idle. Does not know how readings become
//! intervals (`interval`) and values of the moment (`present`).

use std::collections::BTreeMap;

use super::account::{AccountEntry, HolderAccount};
use super::interval::{DeviceClock, IdlePower, InstanceActivity, Interval, is_nothing};
use super::parts::{Audit, Part, add_known, reason_or_ended};
use super::segments::{HeldTime, IntervalSegment, WeightedInterval, cut};
use super::weights::{MigWeights, UsedSmTime};
use crate::domain::attribution::owners::DeviceProcesses;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    ContainerRef, DeviceTotals, DividedQuantity, GpuUuid, Moment, Monotonic, UnallocatedUse, Unattributed,
    UnattributedReason,
};

/// Pages that have shown the final figures of an account before it may go.
const FINAL_PAGES: u64 = 2;

/// One GPU: its clock, its current and former holders, and its unattributed use.
#[derive(Debug, Default)]
pub struct DeviceLedger {
    pub clock: DeviceClock,
    pub accounts: BTreeMap<HoldingKey, HolderAccount>,
    pub unattributed: Unattributed,
    pub used_sm_time: UsedSmTime,
    pub idle_power: IdlePower,
    pub activity: InstanceActivity,
    gap: OpenGap,
    /// Since when each pod has run here without holding the GPU.
    pub unallocated_since: BTreeMap<UnallocatedUse, Monotonic>,
    /// The time accounted last was not read.
    pub in_gap: bool,
    /// Of the MIG devices, by their slices, for which the driver has no sum.
    mig_busy_seconds: Option<f64>,
    /// Some of the MIG devices reported nothing in the time accounted last.
    has_unknown_mig_devices: bool,
    /// Of a holding.
    pub last_end: Option<Monotonic>,
    /// The last two that read memory, the later first.
    pub passes: [Monotonic; 2],
}

/// A gap that is not over: its holders, in seconds of the device as its energy will be divided.
#[derive(Debug, Default)]
struct OpenGap {
    seconds: f64,
    holders: BTreeMap<HoldingKey, f64>,
    unattributed: BTreeMap<UnattributedReason, f64>,
}

impl OpenGap {
    /// The time of other holders becomes unattributed.
    fn forget_all_but(&mut self, accounts: &BTreeMap<HoldingKey, HolderAccount>) {
        let unattributed = &mut self.unattributed;
        self.holders.retain(|key, seconds| {
            let is_known = accounts.contains_key(key);
            if !is_known {
                *unattributed.entry(UnattributedReason::Unknown).or_default() += *seconds;
            }
            is_known
        });
    }
}

impl DeviceLedger {
    pub fn new(gpu: &GpuUuid, now: Moment) -> Self {
        Self {
            clock: DeviceClock::starting(now.monotonic),
            unattributed: Unattributed { gpu: gpu.clone(), created: now.unix, ..Unattributed::default() },
            ..Self::default()
        }
    }

    /// The first reading is where counting starts; earlier holders are still accounted as having it allocated. The gap
    /// before it is never closed: totals start now and have none of its energy.
    pub fn begin(&mut self, totals: &DeviceTotals, mig: Option<&MigWeights<'_>>, now: Moment) {
        self.add_gap(self.clock.accounted, totals.through, mig, now);
        self.gap = OpenGap::default();
        self.clock.begin(totals);
    }

    pub fn published(&self) -> Unattributed {
        let mut divided = self.clock.divided();
        add_known(&mut divided.busy_seconds, self.mig_busy_seconds);
        divided.busy_seconds = divided.busy_seconds.filter(|_| !self.has_unknown_mig_devices);
        Unattributed { divided, ..self.unattributed.clone() }
    }

    /// Divides an interval among the device's holders in it.
    pub fn account(
        &mut self,
        interval: &Interval,
        processes: Option<&DeviceProcesses>,
        mig: Option<&MigWeights<'_>>,
        now: Moment,
        audit: &mut Audit,
    ) {
        self.add_unattributed(interval, processes.is_some_and(|processes| processes.has_sm_seconds));
        let length = interval.seconds();
        if length <= 0.0 {
            // The SM time up to here is of time that is not divided.
            self.used_sm_time.weights(processes, &[], now.monotonic);
            return;
        }
        self.in_gap = false;
        let (held, accounts) = drain_held_times(&mut self.accounts, interval.from, interval.to);
        let mut entries: Vec<AccountEntry> = held.iter().map(|time| AccountEntry::unused(&time.spans)).collect();
        let mut busy_whole = mig.map(|_| length);
        if interval.busy_seconds.is_some() || interval.energy_joules.is_some() || mig.is_some() {
            let containers: Vec<&ContainerRef> = held.iter().map(|time| &time.key.container).collect();
            let sm = self.used_sm_time.weights(processes, &containers, now.monotonic);
            // Samples are of the whole device; MIG activity is of its part.
            let covered_ratio = if mig.is_some() { 1.0 } else { interval.covered_ratio() };
            let idle_watts = self.idle_power.watts();
            let weighted = WeightedInterval { interval, sm, mig, idle_watts, covered_ratio };
            let has_ended = self.last_end >= Some(interval.from);
            let sums = divide(&weighted, has_ended, &held, &mut entries, &mut self.unattributed, audit);
            busy_whole = busy_whole.or(sums.busy);
            let has_unknown = |mig: &MigWeights<'_>| mig.weights.iter().any(|weight| weight.active.is_none());
            self.has_unknown_mig_devices = mig.is_some_and(|mig| mig.weights.is_empty() || has_unknown(mig));
            if mig.is_some() {
                let of_whole = interval.busy_seconds.unwrap_or(0.0);
                add_known(&mut self.mig_busy_seconds, sums.busy.map(|busy| (busy - of_whole).max(0.0)));
            }
            let is_covered = mig.is_some() || is_nothing(interval.uncovered_seconds);
            if let (true, false, Part { busy: Some(busy), energy: Some(energy) }) =
                (is_covered, self.has_unknown_mig_devices, sums)
                && is_nothing(busy)
            {
                self.idle_power.add(length, energy);
            }
        }
        accounts.into_iter().zip(&entries).for_each(|(account, entry)| account.add(entry, busy_whole, now.unix));
    }

    /// Adds what cannot be attributed; every reason but `ended` starts at zero.
    fn add_unattributed(&mut self, interval: &Interval, by_process: bool) {
        let unattributed = &mut self.unattributed;
        for reason in UnattributedReason::OF_PROCESSES.into_iter().filter(|_| by_process) {
            if interval.busy_seconds.is_some() {
                unattributed.busy_seconds.entry(reason).or_default();
            }
            if interval.energy_joules.is_some() {
                unattributed.energy_joules.entry(reason).or_default();
            }
        }
        if interval.busy_seconds.is_some() || interval.unattributed_busy_seconds > 0.0 {
            *unattributed.busy_seconds.entry(UnattributedReason::Unknown).or_default() +=
                interval.unattributed_busy_seconds;
        }
        if interval.energy_joules.is_some() || interval.unattributed_energy_joules > 0.0 {
            unattributed.energy_joules.entry(UnattributedReason::Idle).or_default();
            *unattributed.energy_joules.entry(UnattributedReason::Unknown).or_default() +=
                interval.unattributed_energy_joules;
        }
    }

    /// Final figures are kept for the retention, and until so many pages had them.
    pub fn forget(&mut self, now: Monotonic, retention: std::time::Duration, scrapes: u64) {
        for account in self.accounts.values_mut().filter(|account| account.is_final()) {
            account.final_since_scrape.get_or_insert(scrapes);
        }
        self.accounts.retain(|_, holder| match (holder.account.ended, holder.final_since_scrape) {
            (Some(ended), Some(since)) => now.since(ended.monotonic) < retention || scrapes < since + FINAL_PAGES,
            _ => true,
        });
        self.gap.forget_all_but(&self.accounts);
    }

    /// Nothing was read between `from` and `to`.
    pub fn add_gap(&mut self, from: Monotonic, to: Monotonic, mig: Option<&MigWeights<'_>>, now: Moment) {
        if to <= from {
            return;
        }
        self.in_gap = true;
        let (held, accounts) = drain_held_times(&mut self.accounts, from, to);
        for segment in cut((from, to), &held, None, mig) {
            // `divide` divides joules. One for each second, they are seconds of the device, by holder.
            let segment = IntervalSegment { energy: Some(segment.seconds), ..segment };
            let parts = segment.divide();
            self.gap.seconds += segment.seconds;
            for (holder, part) in segment.holders.iter().zip(parts.holders) {
                let key = held[holder.account].key;
                *self.gap.holders.entry(key.clone()).or_default() += part.energy.unwrap_or(0.0);
            }
            for (reason, part) in parts.unattributed {
                *self.gap.unattributed.entry(reason).or_default() += part.energy.unwrap_or(0.0);
            }
        }
        for (account, time) in accounts.into_iter().zip(&held) {
            account.add(&AccountEntry::unused(&time.spans), None, now.unix);
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
            match self.accounts.get_mut(&key) {
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

/// The accounts that held the device between `from` and `to`, and when.
fn drain_held_times(
    accounts: &mut BTreeMap<HoldingKey, HolderAccount>,
    from: Monotonic,
    to: Monotonic,
) -> (Vec<HeldTime<'_>>, Vec<&mut HolderAccount>) {
    let held =
        accounts.iter_mut().map(|(key, account)| (HeldTime { key, spans: account.drain_spans(from, to) }, account));
    held.filter(|(time, _)| !time.spans.is_empty()).unzip()
}

/// Divides an interval, segment by segment, and adds the parts to the entries. Returns the sums of the device.
fn divide(
    weighted: &WeightedInterval<'_>,
    has_ended: bool,
    held: &[HeldTime<'_>],
    entries: &mut [AccountEntry],
    unattributed: &mut Unattributed,
    audit: &mut Audit,
) -> Part {
    let (mut sums, mut unattributed_sums) = (Part::default(), Part::default());
    for segment in weighted.segments(held) {
        let parts = segment.divide();
        for (holder, part) in segment.holders.iter().zip(parts.holders) {
            let covered_seconds = segment.seconds * weighted.covered_ratio;
            entries[holder.account].add(part, holder.held.fraction, covered_seconds);
            sums.add(part);
        }
        for (reason, part) in parts.unattributed {
            let reason = reason_or_ended(reason, has_ended);
            if let Some(busy) = part.busy {
                *unattributed.busy_seconds.entry(reason).or_default() += busy;
            }
            if let Some(energy) = part.energy {
                *unattributed.energy_joules.entry(reason).or_default() += energy;
            }
            sums.add(part);
            unattributed_sums.add(part);
        }
    }
    let mig_work = weighted.mig.map_or(0.0, |mig| {
        mig.weights.iter().map(|weight| weight.active.unwrap_or(0.0) * weight.fraction).sum::<f64>()
    });
    let busy = weighted.interval.busy_seconds.unwrap_or(0.0) + mig_work * weighted.interval.seconds();
    let energy = weighted.interval.energy_joules.unwrap_or(0.0);
    let shares = |amount: fn(&AccountEntry) -> Option<f64>| entries.iter().filter_map(amount);
    let busy_parts = shares(|entry| entry.part.busy).chain(unattributed_sums.busy);
    audit.check(DividedQuantity::Busy, busy, busy_parts);
    let energy_parts = shares(|entry| entry.part.energy).chain(unattributed_sums.energy);
    audit.check(DividedQuantity::Energy, energy, energy_parts);
    sums
}
