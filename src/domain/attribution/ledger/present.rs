//! The present values of the accounts of one GPU. In: fresh readings, processes with their owners. Out: gauges of each
//! holder, memory by holder and by reason, pods that use the GPU without holding it. Does not use intervals.
//!
//! What a holder does now is what its counters gained in the last ten seconds that were read. Memory has an owner where a process
//! list names it; without one, only an exclusive holder is known to use it. Of memory that a GPU shares with the CPU, the
//! driver has an amount for each process alone: these add up to what is divided.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::account::HolderAccount;
use super::device_ledger::{DeviceInputs, DeviceLedger};
use super::parts::{Audit, reason_or_ended};
use super::weights::holder_of;
use crate::domain::attribution::owners::OwnedProcess;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    Account, Attribution, ContainerRef, DividedQuantity, Gpu, Holding, Medium, MigUuid, Monotonic, Owner, SharingForm,
    UnallocatedUse, UnattributedReason, busy_ratio,
};

/// The time after which a process of a pod that does not hold the GPU is reported: its allocation may be listed later.
const UNALLOCATED_AFTER: Duration = Duration::from_secs(30);

/// The inputs of one moment.
struct Present<'a> {
    inputs: &'a DeviceInputs<'a>,
    medium: Option<&'a Medium>,
    /// The processes that run; `None` where processes are unknown.
    running: Option<Vec<RunningProcess<'a>>>,
}

struct RunningProcess<'a> {
    process: &'a OwnedProcess,
    /// The holder of the GPU, or of the process's GPU instance, that it belongs to.
    holder: Result<HoldingKey, UnattributedReason>,
}

impl DeviceLedger {
    /// Sets the gauges of each account, `attribution` of each holding, and unattributed memory and processes. Returns the pods that
    /// have run here, or in a GPU instance here, for some time and do not hold it.
    pub fn update_present(
        &mut self,
        inputs: &DeviceInputs<'_>,
        now: Monotonic,
        audit: &mut Audit,
    ) -> Vec<UnallocatedUse> {
        let stamped = inputs.readings.and_then(|readings| readings.medium.as_ref());
        if let Some(stamped) = stamped.filter(|stamped| stamped.at > self.present.memory_passes[0]) {
            self.present.memory_passes = [stamped.at, self.present.memory_passes[0]];
        }
        let medium = stamped.map(|stamped| &stamped.value);
        let present = Present { inputs, medium, running: self.running(inputs) };
        self.set_gauges(&present);
        self.count_processes(&present);
        self.divide_memory(&present, audit);
        self.unallocated_uses(&present, now)
    }

    fn running<'a>(&self, inputs: &DeviceInputs<'a>) -> Option<Vec<RunningProcess<'a>>> {
        let processes = &inputs.processes?.processes;
        let mut holders: BTreeMap<Option<u32>, (Vec<&HoldingKey>, Vec<&ContainerRef>)> = BTreeMap::new();
        let with_holder = |process: &'a OwnedProcess| {
            let instance = process.gpu_instance;
            let (keys, containers) = holders
                .entry(instance)
                .or_insert_with(|| self.holders_in(inputs.gpu, instance).map(|key| (key, &key.container)).unzip());
            let holder = holder_of(process, containers).map(|position| keys[position].clone());
            RunningProcess { process, holder }
        };
        Some(processes.iter().filter(|process| process.running).map(with_holder).collect())
    }

    /// The holders in one GPU instance, or with `None` all, sorted by container. A holder of the whole GPU is in no instance: only what
    /// cannot be read by process, busy time and energy, is divided among such.
    fn holders_in(&self, gpu: Option<&Gpu>, instance: Option<u32>) -> impl Iterator<Item = &HoldingKey> {
        let instance_of = move |key: &HoldingKey| Some(gpu?.mig_device(key.mig.as_ref()?)?.gpu_instance);
        let is_in = move |key: &HoldingKey| instance.is_none() || instance_of(key) == instance;
        let holders = self.accounts.iter().filter(|(_, holder)| holder.account.holding.is_some());
        holders.map(|(key, _)| key).filter(move |key| is_in(key))
    }

    fn set_gauges(&mut self, present: &Present<'_>) {
        let by_process = present.inputs.processes.is_some_and(|processes| processes.has_sm_seconds);
        for (HoldingKey { mig, .. }, holder) in &mut self.accounts {
            clear(&mut holder.account);
            set_gauges(holder, mig.as_ref(), present, self.present.memory_passes[1]);
            let Some(holding) = &mut holder.account.holding else { continue };
            // Of a GPU without a pass nothing is attributed.
            let is_partitioned = mig.is_some() || is_partitioned(present.inputs.gpu);
            holding.attribution = self.clock.is_read().then_some(match holding.sharing {
                _ if is_partitioned || self.clock.is_in_gap() => Attribution::Estimated,
                SharingForm::Mps if self.has_mps_server => Attribution::Estimated,
                _ if by_process => Attribution::Process,
                SharingForm::Exclusive => Attribution::Exclusive,
                _ => Attribution::EqualShare,
            });
        }
    }

    fn count_processes(&mut self, present: &Present<'_>) {
        let counts = &mut self.unattributed.processes;
        counts.clear();
        let Some(running) = &present.running else { return };
        counts.insert(UnattributedReason::Unknown, 0);
        counts.extend(UnattributedReason::OF_PROCESSES.map(|reason| (reason, 0)));
        for holder in self.accounts.values_mut().filter(|holder| holder.account.holding.is_some()) {
            holder.account.processes = Some(0);
        }
        for RunningProcess { holder, .. } in running {
            match holder {
                Ok(key) => {
                    let count = self.accounts.get_mut(key).and_then(|holder| holder.account.processes.as_mut());
                    count.into_iter().for_each(|count| *count += 1);
                }
                Err(reason) => *counts.entry(*reason).or_default() += 1,
            }
        }
    }

    fn divide_memory(&mut self, present: &Present<'_>, audit: &mut Audit) {
        self.unattributed.memory_bytes.clear();
        let Some(medium) = present.medium else { return };
        if present.running.is_some() && (medium.memory.is_some() || !medium.instances.is_empty()) {
            let reasons = [UnattributedReason::Driver].into_iter().chain(UnattributedReason::OF_PROCESSES);
            self.unattributed.memory_bytes = reasons.map(|reason| (reason, 0)).collect();
        }
        let mut used_by_instances = 0;
        for instance in &medium.instances {
            let Some(memory) = instance.memory else { continue };
            used_by_instances += memory.used;
            let sole_sharing = (instance.members.len() == 1).then_some(SharingForm::Mig);
            self.attribute_memory(memory.used, Some(instance.gpu_instance), sole_sharing, present, audit);
        }
        match medium.memory {
            Some(memory) if medium.instances.is_empty() => {
                self.attribute_memory(memory.used, None, Some(SharingForm::Exclusive), present, audit);
            }
            // The parts are exact, but are read a moment after the device total. The use of one that is not read is in the rest.
            Some(memory) => {
                let rest = memory.used.saturating_sub(used_by_instances);
                let all_read = medium.instances.iter().all(|instance| instance.memory.is_some());
                let reason = if all_read { UnattributedReason::Driver } else { UnattributedReason::Unknown };
                *self.unattributed.memory_bytes.entry(reason).or_default() += rest;
            }
            None => self.attribute_unified_memory(present, medium, audit),
        }
    }

    /// Attributes the memory of the processes, where the GPU has no separate memory; not after a reading that failed.
    fn attribute_unified_memory(&mut self, present: &Present<'_>, medium: &Medium, audit: &mut Audit) {
        let is_unified =
            medium.instances.is_empty() && present.inputs.gpu.is_some_and(|gpu| gpu.memory_bytes.is_none());
        let Some(running) = present.running.as_ref().filter(|_| is_unified) else { return };
        let used = running.iter().filter_map(|running| running.process.memory_bytes).sum();
        self.attribute_memory(used, None, None, present, audit);
        // No process accounts for nothing of it.
        self.unattributed.memory_bytes.retain(|_, bytes| *bytes > 0);
    }

    /// The memory of one GPU instance, or of the whole GPU. What no process has of it is a sole holder's whose sharing is
    /// `sole_sharing`.
    fn attribute_memory(
        &mut self,
        used: u64,
        instance: Option<u32>,
        sole_sharing: Option<SharingForm>,
        present: &Present<'_>,
        audit: &mut Audit,
    ) {
        let holders: Vec<HoldingKey> = self.holders_in(present.inputs.gpu, instance).cloned().collect();
        // Without processes, what was in use before the holding may be another's.
        let is_exclusive = |holder: &HolderAccount| {
            holder.account.holding.as_ref().map(|holding| holding.sharing) == sole_sharing
                && (present.running.is_some() || holder.held_since <= self.present.memory_passes[0])
        };
        let is_sole = matches!(&holders[..], [key] if is_exclusive(&self.accounts[key]));
        let is_in = |running: &&RunningProcess<'_>| instance.is_none() || running.process.gpu_instance == instance;
        let running = present.running.as_ref().map(|running| running.iter().filter(is_in).collect::<Vec<_>>());
        let MemoryDivision { holders, unattributed } = MemoryDivision::new(used, holders, is_sole, running.as_deref());
        let parts = holders.values().flatten().chain(unattributed.values()).map(|bytes| *bytes as f64);
        audit.check(DividedQuantity::Memory, used as f64, parts);
        for (key, share) in holders {
            if let Some(holder) = self.accounts.get_mut(&key) {
                holder.account.memory_used_bytes = share;
            }
        }
        // Whether a holding has ended since the last but one pass that read memory.
        let has_ended = self.last_end >= Some(self.present.memory_passes[1]);
        for (reason, bytes) in unattributed {
            *self.unattributed.memory_bytes.entry(reason_or_ended(reason, has_ended)).or_default() += bytes;
        }
    }

    /// The pods that have run here for some time without holding the GPU. A process may be seen shortly before the allocation that it
    /// belongs to.
    fn unallocated_uses(&mut self, present: &Present<'_>, now: Monotonic) -> Vec<UnallocatedUse> {
        let Some(running) = &present.running else { return vec![] };
        let unallocated = running.iter().filter(|one| one.holder == Err(UnattributedReason::NotAllocated));
        let pods = unallocated.filter_map(|RunningProcess { process, .. }| match &process.owner {
            Owner::Container(one) => Some((one.pod_ref(), Some(one.container.clone()))),
            Owner::Pod(pod) => Some((pod.clone(), None)),
            _ => None,
        });
        let gpu = &self.unattributed.gpu;
        let uses: BTreeSet<UnallocatedUse> =
            pods.map(|(pod, container)| UnallocatedUse { pod, container, gpu: gpu.clone() }).collect();
        self.present.unallocated_since.retain(|one, _| uses.contains(one));
        let mut since = |one: &UnallocatedUse| *self.present.unallocated_since.entry(one.clone()).or_insert(now);
        uses.into_iter().filter(|one| now.since(since(one)) >= UNALLOCATED_AFTER).collect()
    }
}

/// Sets the gauges of one holder. `gpm_from`: the start of the time of which the last GPM ratios are the mean.
fn set_gauges(holder: &mut HolderAccount, mig: Option<&MigUuid>, present: &Present<'_>, gpm_from: Monotonic) {
    let account = &mut holder.account;
    let Some(holding) = &account.holding else { return };
    let (gpu, medium) = (present.inputs.gpu, present.medium);
    let mut instances = medium.into_iter().flat_map(|medium| &medium.instances);
    let instance = mig.and_then(|mig| instances.find(|instance| instance.members.contains(mig)));
    // A GPU instance of several compute instances: its readings are not this container's alone.
    let alone = instance.filter(|instance| instance.members.len() == 1 && holding.sharing == SharingForm::Mig);
    // The driver has no GPM ratios by process. SM time is no weight for them: it does not count how many SMs a process uses.
    let is_own = !is_partitioned(gpu) && holder.others_until <= gpm_from;
    let gpm = match holding.sharing {
        SharingForm::Exclusive => medium.filter(|_| is_own).map(|medium| &medium.gpm),
        _ => alone.map(|instance| &instance.gpm),
    };
    account.sm_active_ratio = gpm.and_then(|gpm| gpm.sm_active);
    account.dram_active_ratio = gpm.and_then(|gpm| gpm.dram_active);
    let mig_device = mig.zip(gpu).and_then(|(mig, gpu)| gpu.mig_device(mig));
    let device = gpu.and_then(|gpu| busy_ratio(gpu, present.inputs.readings, mig_device));
    account.gpu_utilization_ratio = device.and_then(|_| holder.recent_use.ratio());
    let of_held = account.gpu_utilization_ratio.zip(holding.fraction);
    account.utilization_ratio = of_held.map(|(busy, fraction)| (busy / fraction).min(1.0));
    account.memory_limit_bytes = match mig {
        Some(_) => mig_device.and_then(|device| device.memory_bytes),
        None => gpu.and_then(|gpu| memory_limit(gpu.memory_bytes?, holding)),
    };
}

fn is_partitioned(gpu: Option<&Gpu>) -> bool {
    gpu.is_some_and(|gpu| !gpu.mig_devices.is_empty())
}

/// The memory that a holder of a GPU or a slot may use: the GPU's, but NVIDIA's MPS daemon limits each client to its
/// slot's part, in whole MiB.
fn memory_limit(memory_bytes: u64, holding: &Holding) -> Option<u64> {
    match holding.sharing {
        SharingForm::Mps => Some((memory_bytes as f64 * holding.fraction?) as u64 >> 20 << 20),
        _ => Some(memory_bytes),
    }
}

fn clear(account: &mut Account) {
    account.utilization_ratio = None;
    account.gpu_utilization_ratio = None;
    account.sm_active_ratio = None;
    account.dram_active_ratio = None;
    account.memory_used_bytes = None;
    account.memory_limit_bytes = None;
    account.processes = None;
}

/// The division of memory in use; its parts add up to that.
struct MemoryDivision {
    /// The bytes of each holder; `None`: unknown.
    holders: BTreeMap<HoldingKey, Option<u64>>,
    unattributed: BTreeMap<UnattributedReason, u64>,
}

impl MemoryDivision {
    /// Divides the memory in use of a GPU, or of one GPU instance. `is_sole`: whether there is one holder, which has all of it
    /// exclusively. `running`: the processes in it; `None` where processes are unknown.
    fn new(used: u64, holders: Vec<HoldingKey>, is_sole: bool, running: Option<&[&RunningProcess<'_>]>) -> Self {
        let Some(running) = running else {
            let unattributed = if is_sole { BTreeMap::new() } else { [(UnattributedReason::Unknown, used)].into() };
            return Self {
                holders: holders.into_iter().map(|key| (key, is_sole.then_some(used))).collect(),
                unattributed,
            };
        };
        let mut division =
            Self { holders: holders.into_iter().map(|key| (key, Some(0))).collect(), unattributed: BTreeMap::new() };
        let (mut has_unknown, mut has_own) = (false, false);
        let known = running.iter().filter_map(|running| running.process.memory_bytes);
        let sum: u128 = known.map(u128::from).sum();
        for RunningProcess { process, holder } in running {
            match (holder, process.memory_bytes.map(|bytes| scaled(bytes, sum, used))) {
                (Ok(key), bytes) => {
                    has_own |= bytes.is_some();
                    has_unknown |= bytes.is_none();
                    let held = division.holders.entry(key.clone()).or_default();
                    *held = held.zip(bytes).map(|(held, bytes)| held + bytes);
                }
                (Err(reason), Some(bytes)) => *division.unattributed.entry(*reason).or_default() += bytes,
                (Err(_), None) => has_unknown = true,
            }
        }
        division.add_rest(used, is_sole && has_own, has_unknown);
        division
    }

    /// Adds what no process has. `has_unknown`: what a process with an unknown figure has is in it.
    fn add_rest(&mut self, used: u64, is_of_holder: bool, has_unknown: bool) {
        let listed: u64 = self.holders.values().flatten().chain(self.unattributed.values()).sum();
        let rest = used.saturating_sub(listed);
        let reason = if has_unknown { UnattributedReason::Unknown } else { UnattributedReason::Driver };
        if is_of_holder && !has_unknown {
            self.holders.values_mut().flatten().for_each(|held| *held += rest);
        } else {
            *self.unattributed.entry(reason).or_default() += rest;
        }
    }
}

/// The list is read a moment apart from `used`: where it adds up to more, shares are scaled to `used`.
fn scaled(bytes: u64, sum: u128, used: u64) -> u64 {
    if sum <= u128::from(used) {
        return bytes;
    }
    u64::try_from(u128::from(bytes) * u128::from(used) / sum).unwrap_or(used)
}
