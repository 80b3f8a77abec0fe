//! The ledger divides the use of each device among its holders. In: at each moment the holdings, readings and
//! processes. Out: an account for each holder and device, unattributed use, violations. Does not use the sources of its
//! inputs. `docs/attribution.md` has its law.
//!
//! `DeviceTotals` (`model/reading.rs`) has what the totals of readings promise: read it first. `holders::HoldersState` describes where
//! holdings come from, and `OwnersState` the owners of processes.
//!
//! | step | input | output | module |
//! |---|---|---|---|
//! | 1 | readings | an interval with busy seconds and joules; a gap | `interval` |
//! | 2 | processes, MIG devices | the interval's weights | `weights` |
//! | 3 | the interval, its weights, holdings | segments with constant holders, each with its weights | `segments` |
//! | 4 | a segment | parts, which add up to it | `parts` |
//! | 5 | parts | entries of accounts, unattributed use | `device_ledger`, `account` |
//! | gap | its segments, its joules with a reading | joules by holder | `gap` |
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
//! All time of a device is intervals and gaps. A gap is marked in the totals, or it is time before the first reading, or time since the
//! last one once readings are late. It is allocated and uncovered. So is time for which the driver gives no samples, and all time
//! of a device that reports no busy time.

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
use self::device_ledger::{DeviceInputs, DeviceLedger};
use self::parts::Audit;
use super::owners::DeviceProcesses;
use super::retention::Retention;
use crate::domain::holders::{HoldingKey, Holdings};
use crate::domain::model::{
    Account, DeviceReadings, DividedQuantity, GpuUuid, Inventory, Moment, Monotonic, UnallocatedUse, Unattributed,
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
        let now = observation.now;
        // Time up to now belongs to the previous holders; the new allocations apply from now on.
        self.update_holders(observation);
        for (gpu, readings) in observation.readings {
            if readings.totals.last_pass().is_some() && !self.devices.contains_key(gpu) {
                self.devices.insert(gpu.clone(), DeviceLedger::new(gpu, now));
            }
        }
        let mut unallocated_uses = vec![];
        for (gpu, device) in &mut self.devices {
            let inputs = DeviceInputs {
                gpu: observation.inventory.gpus.get(gpu),
                readings: observation.readings.get(gpu).map(|readings| &**readings),
                processes: observation.processes.get(gpu),
            };
            device.account_readings(&inputs, now, self.readings_late, &mut self.audit);
            unallocated_uses.extend(device.update_present(&inputs, now.monotonic, &mut self.audit));
            device.forget(now.monotonic, observation.retention);
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

#[cfg(test)]
mod tests;
