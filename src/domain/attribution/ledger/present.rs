//! The present values of the accounts of one GPU. In: fresh readings, processes with their owners. Out: gauges of each
//! holder, memory by holder and by reason, pods that use the GPU without holding it. Does not use intervals.
//!
//! What a holder does now is what its counters gained in the last ten seconds that were read. Memory has an owner where a process
//! list names it; without one, only an exclusive holder is known to use it. Of memory that a GPU shares with the CPU, the
//! driver has an amount for each process alone: these add up to what is divided.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::account::HolderAccount;
use super::device_ledger::DeviceLedger;
use super::parts::{Audit, reason_or_ended};
use super::weights::holder_of;
use crate::domain::attribution::owners::{DeviceProcesses, OwnedProcess};
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    Account, Attribution, ContainerRef, DeviceReadings, DividedQuantity, Gpu, GpuUuid, Holding, InstanceReading,
    Medium, MigUuid, Monotonic, Owner, SharingForm, UnallocatedUse, UnattributedReason, busy_ratio,
};

/// The time after which a process of a pod that does not hold the GPU is reported: its allocation may be listed later.
const UNALLOCATED_AFTER: Duration = Duration::from_secs(30);

/// The present inputs of one GPU.
pub struct PresentInputs<'a> {
    pub gpu: Option<&'a Gpu>,
    pub readings: Option<&'a DeviceReadings>,
    pub processes: Option<&'a DeviceProcesses>,
}

impl DeviceLedger {
    /// Sets the gauges of each account, `attribution` of each holding, and unattributed memory and processes.
    pub fn update_gauges(&mut self, present: &PresentInputs<'_>, audit: &mut Audit) {
        let stamped = present.readings.and_then(|readings| readings.medium.as_ref());
        if let Some(stamped) = stamped.filter(|stamped| stamped.at > self.present.memory_passes[0]) {
            self.present.memory_passes = [stamped.at, self.present.memory_passes[0]];
        }
        let medium = stamped.map(|stamped| &stamped.value);
        let by_process = present.processes.is_some_and(|processes| processes.has_sm_seconds);
        for (HoldingKey { mig, .. }, holder) in &mut self.accounts {
            clear(&mut holder.account);
            set_gauges(holder, mig.as_ref(), present, medium, self.present.memory_passes[1]);
            let Some(holding) = &mut holder.account.holding else { continue };
            // Of a GPU without a pass nothing is attributed.
            holding.attribution = self.clock.is_read().then_some(match (mig, holding.sharing) {
                (Some(_), _) => Attribution::Estimated,
                _ if self.clock.is_in_gap() || is_partitioned(present.gpu) => Attribution::Estimated,
                (None, SharingForm::Mps) if self.has_mps_server => Attribution::Estimated,
                (None, _) if by_process => Attribution::Process,
                (None, SharingForm::Exclusive) => Attribution::Exclusive,
                (None, _) => Attribution::EqualShare,
            });
        }
        self.count_processes(present);
        self.divide_memory(present, medium, audit);
    }

    fn count_processes(&mut self, present: &PresentInputs<'_>) {
        self.unattributed.processes.clear();
        let Some(processes) = present.processes else { return };
        self.unattributed.processes.insert(UnattributedReason::Unknown, 0);
        self.unattributed.processes.extend(UnattributedReason::OF_PROCESSES.map(|reason| (reason, 0)));
        let holders: Vec<HoldingKey> = self.holding().cloned().collect();
        let mut counts: BTreeMap<&HoldingKey, u64> = holders.iter().map(|key| (key, 0)).collect();
        let by_instance = HoldersByInstance::new(&holders, present);
        for process in processes.processes.iter().filter(|process| process.running) {
            let (keys, containers) = by_instance.of(process);
            match holder_of(process, containers) {
                Ok(position) => *counts.entry(keys[position]).or_default() += 1,
                Err(reason) => *self.unattributed.processes.entry(reason).or_default() += 1,
            }
        }
        for (key, count) in counts {
            if let Some(holder) = self.accounts.get_mut(key) {
                holder.account.processes = Some(count);
            }
        }
    }

    fn divide_memory(&mut self, present: &PresentInputs<'_>, medium: Option<&Medium>, audit: &mut Audit) {
        self.unattributed.memory_bytes.clear();
        let Some(medium) = medium else { return };
        let mut unattributed = BTreeMap::new();
        if present.processes.is_some() && (medium.memory.is_some() || !medium.instances.is_empty()) {
            unattributed.insert(UnattributedReason::Driver, 0);
            unattributed.extend(UnattributedReason::OF_PROCESSES.map(|reason| (reason, 0)));
        }
        let mut used_by_instances = 0;
        for instance in &medium.instances {
            let Some(memory) = instance.memory else { continue };
            used_by_instances += memory.used;
            let sole_sharing = (instance.members.len() == 1).then_some(SharingForm::Mig);
            let of_instance = Some(instance.gpu_instance);
            self.attribute_memory(memory.used, of_instance, sole_sharing, present, &mut unattributed, audit);
        }
        match medium.memory {
            Some(memory) if medium.instances.is_empty() => {
                let sole_sharing = Some(SharingForm::Exclusive);
                self.attribute_memory(memory.used, None, sole_sharing, present, &mut unattributed, audit);
            }
            // The parts are exact, but are read a moment after the device total. The use of one that is not read is in the rest.
            Some(memory) => {
                let rest = memory.used.saturating_sub(used_by_instances);
                let all_read = medium.instances.iter().all(|instance| instance.memory.is_some());
                let reason = if all_read { UnattributedReason::Driver } else { UnattributedReason::Unknown };
                *unattributed.entry(reason).or_default() += rest;
            }
            None => self.attribute_unified_memory(present, medium, &mut unattributed, audit),
        }
        self.unattributed.memory_bytes = unattributed;
    }

    /// Attributes the memory of the processes, where the GPU has no separate memory; not after a reading that failed.
    fn attribute_unified_memory(
        &mut self,
        present: &PresentInputs<'_>,
        medium: &Medium,
        unattributed: &mut BTreeMap<UnattributedReason, u64>,
        audit: &mut Audit,
    ) {
        let is_unified = medium.instances.is_empty() && present.gpu.is_some_and(|gpu| gpu.memory_bytes.is_none());
        let Some(processes) = present.processes.filter(|_| is_unified) else { return };
        let running = processes.processes.iter().filter(|process| process.running);
        let used = running.filter_map(|process| process.memory_bytes).sum();
        self.attribute_memory(used, None, None, present, unattributed, audit);
        // No process accounts for nothing of it.
        unattributed.retain(|_, bytes| *bytes > 0);
    }

    /// The memory of one GPU instance, or of the whole GPU. What no process has of it is a sole holder's whose sharing is
    /// `sole_sharing`.
    fn attribute_memory(
        &mut self,
        used: u64,
        instance: Option<u32>,
        sole_sharing: Option<SharingForm>,
        present: &PresentInputs<'_>,
        unattributed: &mut BTreeMap<UnattributedReason, u64>,
        audit: &mut Audit,
    ) {
        let holders: Vec<HoldingKey> = self.holding().cloned().collect();
        let (keys, containers) = holders_in(&holders, present.gpu, instance);
        // Without processes, what was in use before the holding may be another's.
        let is_exclusive = |holder: &HolderAccount| {
            holder.account.holding.as_ref().map(|holding| holding.sharing) == sole_sharing
                && (present.processes.is_some() || holder.held_since <= self.present.memory_passes[0])
        };
        let is_sole = matches!(&keys[..], [key] if is_exclusive(&self.accounts[key]));
        let is_in =
            |process: &&OwnedProcess| process.running && (instance.is_none() || process.gpu_instance == instance);
        let processes: Option<Vec<&OwnedProcess>> =
            present.processes.map(|processes| processes.processes.iter().filter(is_in).collect());
        let memory = UsedMemory { used, holders: &containers, is_sole, processes: processes.as_deref() };
        let MemoryDivision { holders: shares, unattributed: rest } = memory.divide();
        let parts = shares.iter().flatten().chain(rest.values()).map(|bytes| *bytes as f64);
        audit.check(DividedQuantity::Memory, memory.used as f64, parts);
        for (key, share) in keys.into_iter().zip(shares) {
            if let Some(holder) = self.accounts.get_mut(key) {
                holder.account.memory_used_bytes = share;
            }
        }
        for (reason, bytes) in rest {
            *unattributed.entry(reason_or_ended(reason, self.has_ended())).or_default() += bytes;
        }
    }

    /// Whether a holding has ended since the last but one pass that read memory.
    fn has_ended(&self) -> bool {
        self.last_end >= Some(self.present.memory_passes[1])
    }

    /// Pods that have run here, or in a GPU instance here, for some time and do not hold it. A process may be seen shortly
    /// before the allocation that it belongs to.
    pub fn unallocated_uses(
        &mut self,
        present: &PresentInputs<'_>,
        gpu: &GpuUuid,
        now: Monotonic,
    ) -> Vec<UnallocatedUse> {
        let Some(processes) = present.processes else { return vec![] };
        let holders: Vec<HoldingKey> = self.holding().cloned().collect();
        let by_instance = HoldersByInstance::new(&holders, present);
        let is_unallocated = |process: &&OwnedProcess| {
            holder_of(process, &by_instance.of(process).1) == Err(UnattributedReason::NotAllocated)
        };
        let pod_and_container = |process: &OwnedProcess| match &process.owner {
            Owner::Container(one) => Some((one.pod_ref(), Some(one.container.clone()))),
            Owner::Pod(pod) => Some((pod.clone(), None)),
            _ => None,
        };
        let running = processes.processes.iter().filter(|process| process.running);
        let pods = running.filter(is_unallocated).filter_map(pod_and_container);
        let uses: BTreeSet<UnallocatedUse> =
            pods.map(|(pod, container)| UnallocatedUse { pod, container, gpu: gpu.clone() }).collect();
        self.present.unallocated_since.retain(|one, _| uses.contains(one));
        let mut since = |one: &UnallocatedUse| *self.present.unallocated_since.entry(one.clone()).or_insert(now);
        uses.into_iter().filter(|one| now.since(since(one)) >= UNALLOCATED_AFTER).collect()
    }

    fn holding(&self) -> impl Iterator<Item = &HoldingKey> {
        self.accounts.iter().filter(|(_, holder)| holder.account.holding.is_some()).map(|(key, _)| key)
    }
}

/// Sets the gauges of one holder. `gpm_from`: the start of the time of which the last GPM ratios are the mean.
fn set_gauges(
    holder: &mut HolderAccount,
    mig: Option<&MigUuid>,
    present: &PresentInputs<'_>,
    medium: Option<&Medium>,
    gpm_from: Monotonic,
) {
    let account = &mut holder.account;
    let Some(holding) = &account.holding else { return };
    let instance = medium.zip(mig).and_then(|(medium, mig)| instance_of(medium, mig));
    // A GPU instance of several compute instances: its readings are not this container's alone.
    let alone = instance.filter(|instance| instance.members.len() == 1 && holding.sharing == SharingForm::Mig);
    // The driver has no GPM ratios by process. SM time is no weight for them: it does not count how many SMs a process uses.
    let is_own = !is_partitioned(present.gpu) && holder.others_until <= gpm_from;
    let gpm = match holding.sharing {
        SharingForm::Exclusive => medium.filter(|_| is_own).map(|medium| &medium.gpm),
        _ => alone.map(|instance| &instance.gpm),
    };
    account.sm_active_ratio = gpm.and_then(|gpm| gpm.sm_active);
    account.dram_active_ratio = gpm.and_then(|gpm| gpm.dram_active);
    let mig_device = mig.zip(present.gpu).and_then(|(mig, gpu)| gpu.mig_device(mig));
    let device = present.gpu.and_then(|gpu| busy_ratio(gpu, present.readings, mig_device));
    account.gpu_utilization_ratio = device.and_then(|_| holder.recent_use.ratio());
    let of_held = account.gpu_utilization_ratio.zip(holding.fraction);
    account.utilization_ratio = of_held.map(|(busy, fraction)| (busy / fraction).min(1.0));
    account.memory_limit_bytes = match mig {
        Some(_) => mig_device.and_then(|device| device.memory_bytes),
        None => present.gpu.and_then(|gpu| memory_limit(gpu.memory_bytes?, holding)),
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

fn instance_of<'a>(medium: &'a Medium, mig: &MigUuid) -> Option<&'a InstanceReading> {
    medium.instances.iter().find(|instance| instance.members.contains(mig))
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

/// The holders in each GPU instance, or with `None` all.
struct HoldersByInstance<'a>(BTreeMap<Option<u32>, (Vec<&'a HoldingKey>, Vec<&'a ContainerRef>)>);

impl<'a> HoldersByInstance<'a> {
    fn new(holders: &'a [HoldingKey], present: &PresentInputs<'_>) -> Self {
        let processes = present.processes.iter().flat_map(|processes| &processes.processes);
        let instances: BTreeSet<Option<u32>> = processes.map(|process| process.gpu_instance).collect();
        Self(instances.into_iter().map(|instance| (instance, holders_in(holders, present.gpu, instance))).collect())
    }

    fn of(&self, process: &OwnedProcess) -> &(Vec<&'a HoldingKey>, Vec<&'a ContainerRef>) {
        &self.0[&process.gpu_instance]
    }
}

/// The holders in one GPU instance, or with `None` all, and their containers. A holder of the whole GPU is in no instance:
/// only what cannot be read by process, busy time and energy, is divided among such.
fn holders_in<'a>(
    holders: &'a [HoldingKey],
    gpu: Option<&Gpu>,
    instance: Option<u32>,
) -> (Vec<&'a HoldingKey>, Vec<&'a ContainerRef>) {
    let instance_of = |key: &HoldingKey| Some(gpu?.mig_device(key.mig.as_ref()?)?.gpu_instance);
    let is_in = |key: &&HoldingKey| instance.is_none() || instance_of(key) == instance;
    holders.iter().filter(is_in).map(|key| (key, &key.container)).unzip()
}

/// The memory of a GPU, or of one GPU instance.
pub struct UsedMemory<'a> {
    pub used: u64,
    /// The holders, sorted by container.
    pub holders: &'a [&'a ContainerRef],
    /// Whether there is one holder, which has all of it exclusively.
    pub is_sole: bool,
    /// The processes that run in it; `None` where processes are unknown.
    pub processes: Option<&'a [&'a OwnedProcess]>,
}

/// The division of the memory in use; its parts add up to that.
#[derive(Debug, Default, PartialEq)]
pub struct MemoryDivision {
    /// The bytes of each holder; `None`: unknown.
    pub holders: Vec<Option<u64>>,
    pub unattributed: BTreeMap<UnattributedReason, u64>,
}

impl UsedMemory<'_> {
    pub fn divide(&self) -> MemoryDivision {
        let Some(processes) = self.processes else {
            let (holders, unattributed) = if self.is_sole {
                (vec![Some(self.used)], BTreeMap::new())
            } else {
                (vec![None; self.holders.len()], BTreeMap::from([(UnattributedReason::Unknown, self.used)]))
            };
            return MemoryDivision { holders, unattributed };
        };
        let mut holders = vec![Some(0_u64); self.holders.len()];
        let mut unattributed: BTreeMap<UnattributedReason, u64> = BTreeMap::new();
        let (mut has_unknown, mut has_own) = (false, false);
        let known = processes.iter().filter_map(|process| process.memory_bytes);
        let sum: u128 = known.map(u128::from).sum();
        for process in processes {
            let holder = holder_of(process, self.holders);
            let Some(bytes) = process.memory_bytes else {
                has_unknown = true;
                if let Ok(position) = holder {
                    holders[position] = None;
                }
                continue;
            };
            let bytes = self.scaled(bytes, sum);
            match holder {
                Ok(position) => {
                    has_own = true;
                    holders[position] = holders[position].map(|held| held + bytes);
                }
                Err(reason) => *unattributed.entry(reason).or_default() += bytes,
            }
        }
        let listed: u64 = holders.iter().flatten().chain(unattributed.values()).sum();
        let rest = self.used.saturating_sub(listed);
        match (&mut holders[..], self.is_sole && has_own) {
            ([holder], true) if !has_unknown => *holder = holder.map(|held| held + rest),
            // What a process with an unknown figure has is in here.
            _ if has_unknown => *unattributed.entry(UnattributedReason::Unknown).or_default() += rest,
            _ => *unattributed.entry(UnattributedReason::Driver).or_default() += rest,
        }
        MemoryDivision { holders, unattributed }
    }

    /// The list is read a moment apart from `used`: where it adds up to more, shares are scaled to `used`.
    fn scaled(&self, bytes: u64, sum: u128) -> u64 {
        if sum <= u128::from(self.used) {
            return bytes;
        }
        u64::try_from(u128::from(bytes) * u128::from(self.used) / sum).unwrap_or(self.used)
    }
}
