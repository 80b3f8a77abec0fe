//! The ledger divides device totals into per-container counters by allocation. It is the only state of attribution.
//!
//! Each device has its own clock, at the time to which its readings are complete. When a reading moves that clock
//! on, the interval it covers is cut into stretches wherever a holding begins or ends, and each stretch gets its part
//! of the interval by time (`interval_division`). A stretch has
//!
//! - A, allocated: what its holders hold of the device, in seconds (1, 1 of the slots, slices of a MIG device),
//! - B, busy seconds, and E, joules,
//!
//! and is divided by what is known of it (`division`):
//!
//! | known | B | E |
//! |---|---|---|
//! | one exclusive holder | the holder's, less other processes' by SM time | the same; idle power is the holder's |
//! | several, SM time by process | by SM time | idle power is `idle`, the rest by SM time |
//! | several, no SM time | equal parts | equal parts |
//! | MIG with GPM | activity of the part × its slices | idle power is `idle`, the rest like B |
//! | MIG without | not known | by slices |
//! | no holder | `unknown`, or by SM time | idle power is `idle`, the rest like B |
//! | not read (`gap`) | not known; what the driver reports of it later is `unknown` | by holding, where the energy counter spans it |
//!
//! Everything else is unattributed, with a reason, so that shares and unattributed part add up to the device (`audit`).
//! M, memory, is of a moment and divided by process lists (`memory`). Seconds and joules before the first sight of a
//! total are unattributed (`clock`).
//!
//! An interval counts as read when both of its ends are of the same session. All other time is a gap: the driver was
//! released or reloaded, the GPU was lost, a call hung, readings are late, or a new reader began. It is allocated and
//! uncovered. Uncovered too is time in a session for which the driver gives no samples, and all time of a device that
//! reports no busy time. Idle power is learned from read intervals alone, covered by samples, in which the device
//! was not busy (`idle_power`).
//!
//! For each holder, allocated = busy + idle + uncovered − borrowed. A slot that was busier than its part has borrowed
//! the difference.

mod activity;
mod audit;
mod clock;
mod device;
mod division;
mod gap;
mod gauges;
mod holder_account;
mod idle_power;
mod interval_division;
mod memory;
mod partition;
mod spread;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::audit::Audit;
use self::clock::Advance;
use self::device::{Device, HolderKey};
use self::gap::OpenGap;
use self::gauges::Present;
use self::holder_account::HolderAccount;
use self::partition::Partitions;
use super::join::Join;
use super::owners::DeviceProcesses;
use crate::domain::model::{
    Account, DeviceReadings, DeviceTotals, DividedQuantity, Gpu, GpuUuid, Inventory, Moment, Monotonic, UnallocatedUse,
    Unattributed,
};

/// Ended accounts on a node that is never scraped: beyond this many the longest-ended are removed.
const ENDED_LIMIT: usize = 4096;

#[derive(Debug)]
pub struct Ledger {
    /// Past this a device without new readings is accounted by the wall clock: held, but not known to be busy or
    /// idle.
    readings_late: Duration,
    /// Observations so far.
    sequence: u64,
    devices: BTreeMap<GpuUuid, Device>,
    audit: Audit,
}

/// The inputs at one moment.
pub struct Observation<'a> {
    pub now: Moment,
    pub join: &'a Join,
    pub inventory: &'a Inventory,
    pub readings: &'a BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    /// By GPU; one that is not in it has no process data.
    pub processes: &'a BTreeMap<GpuUuid, DeviceProcesses>,
    /// How long an ended account stays.
    pub retention: Duration,
    /// Pages delivered so far; an ended account stays until two of them had it.
    pub scrapes: u64,
}

/// The ledger at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerOutput {
    /// By GPU, container, MIG device.
    pub accounts: Vec<Account>,
    /// By GPU: those whose readings were seen.
    pub unattributed: Vec<Unattributed>,
    pub unallocated_uses: Vec<UnallocatedUse>,
    /// Every quantity, from 0.
    pub violations: BTreeMap<DividedQuantity, u64>,
}

impl Ledger {
    pub fn new(readings_late: Duration) -> Self {
        Self { readings_late, sequence: 0, devices: BTreeMap::new(), audit: Audit::default() }
    }

    /// Updates the ledger to `observation.now`.
    pub fn advance(&mut self, observation: &Observation<'_>) -> LedgerOutput {
        // Time up to now belongs to the previous holders; the new allocations apply from now on.
        self.update_holders(observation);
        self.account(observation);
        let now = observation.now.monotonic;
        let mut unallocated_uses = vec![];
        for (gpu, device) in &mut self.devices {
            let present = Present {
                gpu: observation.inventory.gpus.get(gpu),
                readings: observation.readings.get(gpu).map(|readings| &**readings),
                processes: observation.processes.get(gpu),
            };
            device.gauge(&present, &mut self.audit);
            unallocated_uses
                .extend(present.processes.map_or_else(Vec::new, |all| device.unallocated_uses(all, gpu, now)));
            device.forget(now, observation.retention, observation.scrapes);
        }
        self.forget_surplus();
        let holders = self.devices.values().flat_map(|device| device.holders.values());
        LedgerOutput {
            accounts: holders.map(|holder| holder.account.clone()).collect(),
            unattributed: self.devices.values().filter(|one| one.clock.read).map(Device::published).collect(),
            unallocated_uses,
            violations: self.audit.violations().clone(),
        }
    }

    fn update_holders(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        self.sequence += 1;
        for (key, holding) in &observation.join.holdings {
            let device = self.devices.entry(key.gpu.clone()).or_insert_with(|| Device::new(&key.gpu, now));
            match device.holders.get_mut(&(key.container.clone(), key.mig.clone())) {
                Some(holder) => holder.hold(holding, now, self.sequence),
                None => {
                    let holder = HolderAccount::opened(key, holding, now, self.sequence);
                    device.holders.insert((key.container.clone(), key.mig.clone()), holder);
                }
            }
        }
        for device in self.devices.values_mut() {
            for holder in device.holders.values_mut() {
                if holder.close_unless_seen(self.sequence, now) {
                    device.last_end = Some(now.monotonic);
                }
            }
        }
    }

    /// Moves the device clocks, and accounts for what each moved over.
    fn account(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        for (gpu, readings) in observation.readings {
            let device = self.devices.entry(gpu.clone()).or_insert_with(|| Device::new(gpu, now));
            let processes = observation.processes.get(gpu);
            let through = readings.totals.through;
            if device.clock.read && through <= device.clock.accounted {
                continue;
            }
            let known_gpu = observation.inventory.gpus.get(gpu);
            let active = device.activity.ratios(&readings.totals);
            if !device.clock.read {
                device.begin(&readings.totals, known_gpu, now);
            }
            let busy = self.audit.amount(DividedQuantity::Busy, readings.totals.busy_seconds);
            let energy = self.audit.amount(DividedQuantity::Energy, readings.totals.energy_joules);
            let Advance { gap, interval } = device.clock.advance(&readings.totals, busy, energy);
            if let Some(gap) = gap {
                device.add_gap(gap.from, gap.to, unread(known_gpu).as_ref(), now);
                device.close_gap(gap.energy_joules, &mut self.audit);
            }
            let partitions = Partitions::of(known_gpu, &active, processes);
            device.account(&interval, processes, partitions.as_ref(), now, &mut self.audit);
        }
        for (gpu, device) in &mut self.devices {
            let held = device.holders.values().any(|holder| !holder.is_final());
            if held && now.monotonic.since(device.clock.accounted) > self.readings_late {
                let since = device.clock.skip_to(now.monotonic);
                let partitions = unread(observation.inventory.gpus.get(gpu));
                device.add_gap(since, now.monotonic, partitions.as_ref(), now);
            }
        }
    }

    fn forget_surplus(&mut self) {
        let holders = || self.devices.values().flat_map(|device| device.holders.values());
        let surplus = holders().filter(|holder| holder.account.ended.is_some()).count().saturating_sub(ENDED_LIMIT);
        if surplus == 0 {
            return;
        }
        let mut by_end: Vec<(Monotonic, GpuUuid, HolderKey)> = vec![];
        for (gpu, device) in &self.devices {
            let ended = |(key, holder): (&HolderKey, &HolderAccount)| {
                Some((holder.account.ended?.monotonic, gpu.clone(), key.clone()))
            };
            by_end.extend(device.holders.iter().filter_map(ended));
        }
        by_end.sort();
        for (_, gpu, key) in by_end.into_iter().take(surplus) {
            if let Some(device) = self.devices.get_mut(&gpu) {
                device.holders.remove(&key);
            }
        }
    }
}

/// The MIG devices of a GPU in time for which they report nothing.
fn unread(gpu: Option<&Gpu>) -> Option<Partitions<'_>> {
    Partitions::of(gpu, &BTreeMap::new(), None)
}

impl Device {
    /// The first reading is where counting starts; earlier holders are still accounted as having it allocated.
    fn begin(&mut self, totals: &DeviceTotals, gpu: Option<&Gpu>, now: Moment) {
        self.add_gap(self.clock.accounted, totals.through, unread(gpu).as_ref(), now);
        self.gap = OpenGap::default();
        self.clock.begin(totals);
    }
}

#[cfg(test)]
mod tests;
