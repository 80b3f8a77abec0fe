//! The ledger of one GPU. In: its readings and processes, holdings. Out: an entry for each account, and unattributed use. `interval`
//! makes readings intervals, and `present` values of the moment. Does not use other GPUs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::account::{AccountEntry, HolderAccount};
use super::gap::GapSeconds;
use super::interval::{DeviceClock, Gap, IdlePower, InstanceActivity, Interval, is_nothing};
use super::parts::{Audit, Part, add_known, reason_or_ended};
use super::segments::{HeldTime, WeightedInterval, cut};
use super::weights::{MigWeight, MigWeights, SmIncreases, SmWeights, UsedSmTime};
use crate::domain::attribution::owners::{DeviceProcesses, OwnedProcess};
use crate::domain::attribution::retention::Retention;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    ContainerRef, DeviceReadings, DeviceTotals, Divided, DividedQuantity, Gpu, GpuUuid, Moment, Monotonic, Owner,
    UnallocatedUse, Unattributed, UnattributedReason,
};

/// The inputs of one GPU at one moment; each is absent where it is unknown.
pub struct DeviceInputs<'a> {
    pub gpu: Option<&'a Gpu>,
    pub readings: Option<&'a DeviceReadings>,
    pub processes: Option<&'a DeviceProcesses>,
}

/// One GPU: its clock, its current and former holders, and its unattributed use.
#[derive(Debug, Default)]
pub struct DeviceLedger {
    pub clock: DeviceClock,
    pub accounts: BTreeMap<HoldingKey, HolderAccount>,
    pub unattributed: Unattributed,
    used_sm_time: UsedSmTime,
    pub idle_power: IdlePower,
    /// Whether the last interval has no energy, as where the counter was not read: it comes with that of the next one.
    lacks_energy: bool,
    activity: InstanceActivity,
    gap_seconds: GapSeconds,
    pub present: PresentState,
    /// Whether the driver has ever reported the SM time of clients as that of the MPS server.
    pub has_mps_server: bool,
    /// The sum of the work of the MIG devices, which no total of the driver has.
    mig_busy_seconds: Option<f64>,
    /// Whether some MIG devices reported nothing in the time accounted last.
    has_unknown_mig_devices: bool,
    /// When a holding last ended.
    pub last_end: Option<Monotonic>,
}

/// The state that `present` keeps from one moment to the next.
#[derive(Debug, Default)]
pub struct PresentState {
    /// The time since which each pod has run here without holding the GPU.
    pub unallocated_since: BTreeMap<UnallocatedUse, Monotonic>,
    /// The last two passes that read memory, the later first.
    pub memory_passes: [Monotonic; 2],
}

impl DeviceLedger {
    pub fn new(gpu: &GpuUuid, now: Moment) -> Self {
        Self {
            clock: DeviceClock::starting(now.monotonic),
            unattributed: Unattributed { gpu: gpu.clone(), created: now.unix, ..Unattributed::default() },
            ..Self::default()
        }
    }

    pub fn published(&self) -> Unattributed {
        let mut divided = self.clock.divided;
        add_known(&mut divided.busy_seconds, self.mig_busy_seconds);
        divided.busy_seconds = divided.busy_seconds.filter(|_| !self.has_unknown_mig_devices);
        Unattributed { divided, ..self.unattributed.clone() }
    }

    /// Accounts for the time up to the readings, and up to now where they are late and the device is held.
    pub fn account_readings(
        &mut self,
        inputs: &DeviceInputs<'_>,
        now: Moment,
        readings_late: Duration,
        audit: &mut Audit,
    ) {
        let totals = inputs.readings.map(|readings| &readings.totals);
        if let Some(totals) = totals.filter(|totals| self.clock.is_news(totals)) {
            self.account_totals(totals, inputs, now, audit);
        }
        let is_held = self.accounts.values().any(|holder| !holder.is_final());
        if is_held && let Some(gap) = self.clock.skip_late(now.monotonic, readings_late) {
            self.add_gap(&gap, inputs.gpu, now);
        }
    }

    /// Moves the clock to the totals, and accounts for what it moved over.
    fn account_totals(&mut self, totals: &DeviceTotals, inputs: &DeviceInputs<'_>, now: Moment, audit: &mut Audit) {
        // The first reading counts too, as a ratio is of the time since the reading before.
        let active = self.activity.ratios(totals);
        let mig = MigWeights::new(inputs.gpu, &active, inputs.processes);
        let divided = Divided {
            busy_seconds: audit.amount(DividedQuantity::Busy, totals.busy_seconds),
            energy_joules: audit.amount(DividedQuantity::Energy, totals.energy_joules),
        };
        let (gap, interval) = self.clock.advance(totals, divided, mig.is_some());
        if let Some(gap) = gap {
            self.add_gap(&gap, inputs.gpu, now);
        }
        let increases = self.used_sm_time.advance(inputs.processes, totals);
        self.account(&interval, increases, mig.as_ref(), now, audit);
    }

    /// Divides an interval among the device's holders in it. `increases`: the SM time in it.
    fn account(
        &mut self,
        interval: &Interval,
        increases: Option<SmIncreases<'_>>,
        mig: Option<&MigWeights<'_>>,
        now: Moment,
        audit: &mut Audit,
    ) {
        if let Some(joules) = interval.gap_energy_joules {
            self.add_gap_energy(joules, audit);
        }
        self.add_unattributed(interval, increases.is_some());
        let by_server =
            |(process, sm_seconds): &(&OwnedProcess, f64)| process.owner == Owner::MpsServer && *sm_seconds > 0.0;
        self.has_mps_server |= increases.as_ref().is_some_and(|increases| increases.iter().any(by_server));
        if interval.seconds() <= 0.0 {
            return;
        }
        let (held_times, accounts) = drain_held_times(&mut self.accounts, interval.from, interval.to);
        let mut entries: Vec<AccountEntry> = held_times.iter().map(|time| AccountEntry::unused(&time.spans)).collect();
        let is_divided = interval.busy_seconds.is_some() || interval.energy_joules.is_some() || mig.is_some();
        let mut sums = Part::default();
        if is_divided {
            let containers: Vec<&ContainerRef> = held_times.iter().map(|time| &time.key.container).collect();
            let weighted = WeightedInterval {
                interval,
                sm: increases.map(|increases| SmWeights::new(&increases, &containers)),
                mig,
                idle_watts: self.idle_power.watts(),
            };
            let has_ended = self.last_end >= Some(interval.from);
            sums = divide(&weighted, has_ended, &held_times, &mut entries, &mut self.unattributed, audit);
        }
        accounts.into_iter().zip(&entries).for_each(|(account, entry)| account.add(entry, sums.busy, interval.to, now));
        if is_divided {
            self.add_sums(sums, interval, mig);
        }
    }

    /// Adds the work of MIG devices in an interval's sums, and idle power where it is known that nothing was busy.
    fn add_sums(&mut self, sums: Part, interval: &Interval, mig: Option<&MigWeights<'_>>) {
        self.has_unknown_mig_devices = mig.is_some_and(|mig| !mig.all_report());
        if mig.is_some() {
            let of_gpu = interval.busy_seconds.unwrap_or(0.0);
            add_known(&mut self.mig_busy_seconds, sums.busy.map(|busy| (busy - of_gpu).max(0.0)));
        }
        let lacks_energy = interval.energy_joules.is_none_or(|joules| joules <= 0.0);
        let is_of_interval = !std::mem::replace(&mut self.lacks_energy, lacks_energy) && !lacks_energy;
        if let (Some(busy), Some(energy)) = (sums.busy, sums.energy)
            && is_of_interval
            && is_nothing(interval.uncovered_seconds)
            && !self.has_unknown_mig_devices
            && is_nothing(busy)
        {
            self.idle_power.add(interval.seconds(), energy);
        }
    }

    /// Adds what cannot be attributed. Reasons that are possible with these readings start at zero, except `ended`.
    fn add_unattributed(&mut self, interval: &Interval, by_process: bool) {
        let Unattributed { busy_seconds, energy_joules, .. } = &mut self.unattributed;
        for reason in UnattributedReason::OF_PROCESSES.into_iter().filter(|_| by_process) {
            interval.busy_seconds.map(|_| busy_seconds.entry(reason).or_default());
            interval.energy_joules.map(|_| energy_joules.entry(reason).or_default());
        }
        if interval.busy_seconds.is_some() || interval.unattributed_busy_seconds > 0.0 {
            *busy_seconds.entry(UnattributedReason::Unknown).or_default() += interval.unattributed_busy_seconds;
        }
        if interval.energy_joules.is_some() || interval.unattributed_energy_joules > 0.0 {
            energy_joules.entry(UnattributedReason::Idle).or_default();
            *energy_joules.entry(UnattributedReason::Unknown).or_default() += interval.unattributed_energy_joules;
        }
    }

    /// Begins to count the scrapes of final counters, and removes the accounts whose holding has ended long ago.
    pub fn forget(&mut self, now: Monotonic, retention: Retention) {
        for holder in self.accounts.values_mut().filter(|holder| holder.is_final()) {
            holder.final_since_scrape.get_or_insert(retention.scrapes);
        }
        let is_over = |holder: &HolderAccount| holder.ended().is_some_and(|ended| retention.is_over(now, ended));
        let over = self.accounts.extract_if(.., |_, holder| is_over(holder));
        over.for_each(|(key, _)| self.gap_seconds.remove_account(&key));
    }

    pub fn remove_account(&mut self, key: &HoldingKey) {
        self.accounts.remove(key);
        self.gap_seconds.remove_account(key);
    }

    /// Adds the time of a gap as allocated and uncovered. Its energy comes with a reading.
    fn add_gap(&mut self, gap: &Gap, gpu: Option<&Gpu>, now: Moment) {
        if gap.begins {
            self.gap_seconds = GapSeconds::default();
        }
        if gap.to <= gap.from {
            return;
        }
        let (held_times, accounts) = drain_held_times(&mut self.accounts, gap.from, gap.to);
        // The activity of MIG devices is not known.
        let mig = MigWeights::new(gpu, &BTreeMap::new(), None);
        let segments = cut((gap.from, gap.to), &held_times, None, mig.as_ref());
        segments.iter().for_each(|segment| self.gap_seconds.add(segment, &held_times));
        for (account, time) in accounts.into_iter().zip(&held_times) {
            account.add(&AccountEntry::unused(&time.spans), None, gap.to, now);
        }
    }

    fn add_gap_energy(&mut self, joules: f64, audit: &mut Audit) {
        let parts = self.gap_seconds.divide(joules, self.idle_power.watts());
        // They add up as they are made; this finds a part that is negative or no number.
        audit.check(DividedQuantity::Energy, joules, parts.iter().map(|(_, joules)| *joules));
        for (holder, joules) in parts {
            match holder {
                Ok(key) => self.accounts.get_mut(key).into_iter().for_each(|holder| holder.add_gap_energy(joules)),
                Err(reason) => *self.unattributed.energy_joules.entry(reason).or_default() += joules,
            }
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
    held_times: &[HeldTime<'_>],
    entries: &mut [AccountEntry],
    unattributed: &mut Unattributed,
    audit: &mut Audit,
) -> Part {
    let (mut sums, mut unattributed_sums) = (Part::default(), Part::default());
    for segment in weighted.segments(held_times) {
        let parts = segment.divide();
        for (holder, part) in segment.holders.iter().zip(parts.holders) {
            let covered_seconds = segment.seconds * weighted.interval.covered_ratio();
            entries[holder.held_time].add(part, holder.terms.fraction, covered_seconds);
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
    let mig_work: f64 = weighted.mig.map_or(0.0, |mig| mig.weights.iter().filter_map(MigWeight::work).sum());
    let busy = weighted.interval.busy_seconds.unwrap_or(0.0) + mig_work * weighted.interval.seconds();
    let energy = weighted.interval.energy_joules.unwrap_or(0.0);
    let shares = |amount: fn(&AccountEntry) -> Option<f64>| entries.iter().filter_map(amount);
    let busy_parts = shares(|entry| entry.part.busy).chain(unattributed_sums.busy);
    audit.check(DividedQuantity::Busy, busy, busy_parts);
    let energy_parts = shares(|entry| entry.part.energy).chain(unattributed_sums.energy);
    audit.check(DividedQuantity::Energy, energy, energy_parts);
    sums
}
