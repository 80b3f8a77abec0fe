use std::collections::BTreeMap;

use super::activity::Activity;
use super::audit::Audit;
use super::clock::{DeviceClock, Interval};
use super::division::{add_known, is_nothing};
use super::gap::OpenGap;
use super::holder_account::HolderAccount;
use super::idle_power::IdlePower;
use super::interval_division::{IntervalDivision, held_times};
use super::partition::Partitions;
use super::weights::Weights;
use crate::domain::attribution::owners::DeviceProcesses;
use crate::domain::model::{
    ContainerRef, GpuUuid, MigUuid, Moment, Monotonic, UnallocatedUse, Unattributed, UnattributedReason,
};

pub type HolderKey = (ContainerRef, Option<MigUuid>);

/// One GPU: its clock, its current and former holders, and its unattributed use.
#[derive(Debug, Default)]
pub struct Device {
    pub clock: DeviceClock,
    pub holders: BTreeMap<HolderKey, HolderAccount>,
    pub unattributed: Unattributed,
    pub weights: Weights,
    pub idle_power: IdlePower,
    pub activity: Activity,
    pub gap: OpenGap,
    /// Since when each pod has run here without holding the GPU.
    pub foreign: BTreeMap<UnallocatedUse, Monotonic>,
    /// The time accounted last was not read.
    pub in_gap: bool,
    /// Of the MIG devices, by their slices, for which the driver has no sum.
    parts_busy_seconds: Option<f64>,
    /// Some of the MIG devices reported nothing in the time accounted last.
    has_unknown_parts: bool,
    /// Of a holding.
    pub last_end: Option<Monotonic>,
    /// The last two that read memory, the later first.
    pub passes: [Monotonic; 2],
}

impl Device {
    pub fn new(gpu: &GpuUuid, now: Moment) -> Self {
        Self {
            clock: DeviceClock::starting(now.monotonic),
            unattributed: Unattributed { gpu: gpu.clone(), created: now.unix, ..Unattributed::default() },
            ..Self::default()
        }
    }

    pub fn published(&self) -> Unattributed {
        let mut divided = self.clock.divided();
        add_known(&mut divided.busy_seconds, self.parts_busy_seconds);
        divided.busy_seconds = divided.busy_seconds.filter(|_| !self.has_unknown_parts);
        Unattributed { divided, ..self.unattributed.clone() }
    }

    /// Divides an interval among the device's holders in it.
    pub fn account(
        &mut self,
        interval: &Interval,
        processes: Option<&DeviceProcesses>,
        partitions: Option<&Partitions<'_>>,
        now: Moment,
        audit: &mut Audit,
    ) {
        self.remain(interval, processes.is_some_and(|processes| processes.has_sm_seconds));
        let length = interval.seconds();
        if length <= 0.0 {
            // The SM time up to here is of time that is not divided.
            self.weights.gains(processes, &[], now.monotonic);
            return;
        }
        self.in_gap = false;
        let mut held = held_times(&mut self.holders, interval.from, interval.to);
        let is_read = interval.busy_seconds.is_some() || interval.energy_joules.is_some();
        // Samples are of the whole device; MIG activity is of its part.
        let covered_ratio = if partitions.is_some() { 1.0 } else { interval.covered_ratio() };
        let mut busy_whole = partitions.map(|_| length);
        if is_read || partitions.is_some() {
            let gains = {
                let containers: Vec<&ContainerRef> = held.iter().map(|time| &time.key.0).collect();
                self.weights.gains(processes, &containers, now.monotonic)
            };
            let division = IntervalDivision {
                interval,
                partitions,
                gains,
                idle_watts: self.idle_power.watts(),
                covered_ratio,
                has_ended: self.last_end >= Some(interval.from),
            };
            let (busy, energy) = division.divide(&mut held, &mut self.unattributed, audit);
            busy_whole = busy_whole.or(busy);
            let has_unknown = |partitions: &Partitions<'_>| partitions.parts.iter().any(|part| part.active.is_none());
            self.has_unknown_parts = partitions.is_some_and(|one| one.parts.is_empty() || has_unknown(one));
            if partitions.is_some() {
                let of_whole = interval.busy_seconds.unwrap_or(0.0);
                add_known(&mut self.parts_busy_seconds, busy.map(|busy| (busy - of_whole).max(0.0)));
            }
            if !self.has_unknown_parts
                && (partitions.is_some() || is_nothing(interval.uncovered_seconds))
                && busy.is_some_and(is_nothing)
                && let Some(energy) = energy
            {
                self.idle_power.add(length, energy);
            }
        }
        for time in &mut held {
            time.holder.gain(&time.gain, busy_whole, now.unix);
        }
    }

    /// Adds what cannot be attributed; every possible reason starts at zero.
    fn remain(&mut self, interval: &Interval, by_process: bool) {
        let unattributed = &mut self.unattributed;
        if by_process {
            let reasons =
                [UnattributedReason::Host, UnattributedReason::NotAllocated, UnattributedReason::TerminatedPod];
            for reason in reasons.iter().filter(|_| interval.busy_seconds.is_some()) {
                unattributed.busy_seconds.entry(*reason).or_default();
            }
            for reason in reasons.iter().filter(|_| interval.energy_joules.is_some()) {
                unattributed.energy_joules.entry(*reason).or_default();
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

    /// Final figures are kept for the retention, and until two pages had them.
    pub fn forget(&mut self, now: Monotonic, retention: std::time::Duration, scrapes: u64) {
        for holder in self.holders.values_mut().filter(|holder| holder.is_final()) {
            holder.final_since_scrape.get_or_insert(scrapes);
        }
        self.holders.retain(|_, holder| match (holder.account.ended, holder.final_since_scrape) {
            (Some(ended), Some(since)) => now.since(ended.monotonic) < retention || scrapes < since + 2,
            _ => true,
        });
        self.gap.forget_all_but(&self.holders);
    }
}
