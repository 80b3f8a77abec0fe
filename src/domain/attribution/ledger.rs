//! The ledger divides the use of each device among its holders. In: at each moment the holdings, readings and
//! processes. Out: an account for each holder and device, unattributed use, violations. Does not use the sources of its
//! inputs. `docs/attribution.md` has its law.
//!
//! `hardware::gpu_state` makes the totals of the readings: no total falls, gaps are marked in them, and busy time that samples report
//! too late is in the next reading.
//!
//! | step | input | output | module |
//! |---|---|---|---|
//! | 1 | readings | an interval with busy seconds and joules; a gap | `interval` |
//! | 2 | processes, MIG devices | the interval's weights | `weights` |
//! | 3 | the interval, its weights, holdings | segments with constant holders, each with its weights | `segments` |
//! | 4 | a segment | parts, which add up to it | `parts` |
//! | 5 | parts | entries of accounts, unattributed use | `device_ledger`, `account` |
//! | gap | its segments, at its end its joules | joules by holder | `gap` |
//!
//! `present` has what is of a moment: memory, utilization, processes. Imports go one way: `interval`, `weights`, `segments`,
//! `parts`, `gap`, `account`, `device_ledger`, `present`; each uses only those before it.
//!
//! | type | what |
//! |---|---|
//! | `HoldingKey`, `Holding` | a container and its device; how it holds that |
//! | `HoldingTerms`, `Span`, `HeldTime` | the part of a `Holding` that divides use; a time with it; all times of one account in an interval |
//! | `SegmentHolder` | one account in one segment, with its weights |
//! | `AccountEntry` | what one account gets of an interval |
//! | `HolderAccount` | the account, and the time held that is not accounted yet |
//!
//! An interval was read at both ends in one session. All other time is a gap: the driver was released or reloaded, the
//! GPU was lost, a call hung, readings are late, or a new reader began. A gap is allocated and uncovered. So is time for
//! which the driver gives no samples, and all time of a device that reports no busy time.

mod account;
mod device_ledger;
mod gap;
mod interval;
mod parts;
mod present;
mod segments;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::account::HolderAccount;
use self::device_ledger::DeviceLedger;
use self::parts::Audit;
use self::present::PresentInputs;
use self::weights::MigWeights;
use super::owners::DeviceProcesses;
use super::retention::Retention;
use crate::domain::holders::{HoldingKey, Holdings};
use crate::domain::model::{
    Account, DeviceReadings, Divided, DividedQuantity, Gpu, GpuUuid, Inventory, Moment, Monotonic, UnallocatedUse,
    Unattributed,
};

/// The most ended accounts: beyond that the longest-ended are removed, as on a node that is never scraped.
const ENDED_LIMIT: usize = 4096;

#[derive(Debug)]
pub struct Ledger {
    /// The age of the readings beyond which a held device is accounted up to now: allocated, and neither busy nor idle.
    readings_late: Duration,
    /// The number of observations so far.
    sequence: u64,
    devices: BTreeMap<GpuUuid, DeviceLedger>,
    audit: Audit,
}

/// The inputs at one moment.
pub struct Observation<'a> {
    pub now: Moment,
    pub holdings: &'a Holdings,
    pub inventory: &'a Inventory,
    pub readings: &'a BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    /// The processes of each GPU; a GPU without process data has no entry.
    pub processes: &'a BTreeMap<GpuUuid, DeviceProcesses>,
    pub retention: Retention,
}

/// The ledger at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerOutput {
    /// The accounts, sorted by GPU, container and MIG device.
    pub accounts: Vec<Account>,
    /// The unattributed use of each GPU that has been read, sorted by GPU.
    pub unattributed: Vec<Unattributed>,
    pub unallocated_uses: Vec<UnallocatedUse>,
    /// The violations of every quantity, from 0.
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
        self.account_readings(observation);
        let now = observation.now.monotonic;
        let mut unallocated_uses = vec![];
        for (gpu, device) in &mut self.devices {
            let present = PresentInputs {
                gpu: observation.inventory.gpus.get(gpu),
                readings: observation.readings.get(gpu).map(|readings| &**readings),
                processes: observation.processes.get(gpu),
            };
            device.update_gauges(&present, &mut self.audit);
            unallocated_uses.extend(device.unallocated_uses(&present, gpu, now));
            device.forget(now, observation.retention);
        }
        self.forget_surplus();
        let holders = self.devices.values().flat_map(|device| device.accounts.values());
        let read = self.devices.values().filter(|device| device.clock.is_read());
        LedgerOutput {
            accounts: holders.map(|holder| holder.account.clone()).collect(),
            unattributed: read.map(DeviceLedger::published).collect(),
            unallocated_uses,
            violations: self.audit.violations().clone(),
        }
    }

    fn update_holders(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        self.sequence += 1;
        for (key, holding) in &observation.holdings.by_key {
            let device = self.devices.entry(key.gpu.clone()).or_insert_with(|| DeviceLedger::new(&key.gpu, now));
            if let Some(holder) = device.accounts.get_mut(key) {
                holder.hold(holding, now, self.sequence);
            } else {
                device.accounts.insert(key.clone(), HolderAccount::opened(key, holding, now, self.sequence));
            }
        }
        for device in self.devices.values_mut() {
            for holder in device.accounts.values_mut() {
                if holder.close_unless_seen(self.sequence, now) {
                    device.last_end = Some(now.monotonic);
                }
            }
        }
    }

    /// Moves the device clocks, and accounts for what each moved over.
    fn account_readings(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        for (gpu, readings) in observation.readings {
            let Some(complete_until) = readings.totals.last_pass() else { continue };
            let device = self.devices.entry(gpu.clone()).or_insert_with(|| DeviceLedger::new(gpu, now));
            if device.clock.has_accounted(complete_until) {
                continue;
            }
            let processes = observation.processes.get(gpu);
            let known_gpu = observation.inventory.gpus.get(gpu);
            // The first reading counts too, as a ratio is of the time since the reading before.
            let active = device.activity.ratios(&readings.totals);
            let mig = MigWeights::new(known_gpu, &active, processes);
            let divided = Divided {
                busy_seconds: self.audit.amount(DividedQuantity::Busy, readings.totals.busy_seconds),
                energy_joules: self.audit.amount(DividedQuantity::Energy, readings.totals.energy_joules),
            };
            let (gap, interval) = device.clock.advance(&readings.totals, divided, mig.is_some());
            if let Some(gap) = gap {
                device.add_gap(&gap, unmeasured(known_gpu).as_ref(), now);
            }
            let increases = device.used_sm_time.advance(processes, &readings.totals);
            device.account(&interval, increases, mig.as_ref(), now, &mut self.audit);
        }
        for (gpu, device) in &mut self.devices {
            let held = device.accounts.values().any(|holder| !holder.is_final());
            if held && let Some(gap) = device.clock.skip_late(now.monotonic, self.readings_late) {
                device.add_gap(&gap, unmeasured(observation.inventory.gpus.get(gpu)).as_ref(), now);
            }
        }
    }

    fn forget_surplus(&mut self) {
        let accounts = self.devices.values().flat_map(|device| &device.accounts);
        let ended = accounts.filter_map(|(key, holder)| Some((holder.account.ended?.monotonic, &key.gpu, key)));
        let mut ended: Vec<(Monotonic, &GpuUuid, &HoldingKey)> = ended.collect();
        let Some(surplus) = ended.len().checked_sub(ENDED_LIMIT) else { return };
        ended.sort();
        let surplus: Vec<HoldingKey> = ended.into_iter().take(surplus).map(|(_, _, key)| key.clone()).collect();
        for key in surplus {
            if let Some(device) = self.devices.get_mut(&key.gpu) {
                device.remove_account(&key);
            }
        }
    }
}

/// The MIG devices of a GPU in time without readings.
fn unmeasured(gpu: Option<&Gpu>) -> Option<MigWeights<'_>> {
    MigWeights::new(gpu, &BTreeMap::new(), None)
}

#[cfg(test)]
mod tests;
