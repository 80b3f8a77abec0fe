//! Present values of the current holders, from fresh readings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::audit::Audit;
use super::device::{Device, HolderKey};
use super::division::reason_or_ended;
use super::memory::{MemoryDivision, Pool};
use super::partition::reading_of;
use super::weights::holder_of;
use crate::domain::attribution::owners::{DeviceProcesses, OwnedProcess};
use crate::domain::model::{
    Account, Attribution, ContainerRef, DeviceReadings, DividedQuantity, Gpu, GpuUuid, Holding, Medium, Monotonic,
    Owner, PodRef, SharingForm, UnallocatedUse, UnattributedReason,
};

/// A process of a pod that does not hold the GPU is reported after this time.
const FOREIGN: Duration = Duration::from_secs(30);

/// What is known of one GPU now.
pub struct Present<'a> {
    pub gpu: Option<&'a Gpu>,
    pub readings: Option<&'a DeviceReadings>,
    pub processes: Option<&'a DeviceProcesses>,
}

/// Of a whole GPU, or of a slot on it. NVIDIA's MPS daemon limits each client to its slot's part, in whole MiB.
fn limit_of(memory_bytes: u64, holding: &Holding) -> Option<u64> {
    match holding.sharing {
        SharingForm::Mps => Some((memory_bytes as f64 * holding.share?) as u64 >> 20 << 20),
        _ => Some(memory_bytes),
    }
}

impl Device {
    /// Updates the gauges.
    pub fn gauge(&mut self, present: &Present<'_>, audit: &mut Audit) {
        let stamped = present.readings.and_then(|readings| readings.medium.as_ref());
        if let Some(stamped) = stamped.filter(|stamped| stamped.at > self.passes[0]) {
            self.passes = [stamped.at, self.passes[0]];
        }
        let medium = stamped.map(|stamped| &stamped.value);
        let by_process = present.processes.is_some_and(|processes| processes.has_sm_seconds);
        for ((_, mig), holder) in &mut self.holders {
            let busy_part = holder.busy_part;
            let account = &mut holder.account;
            clear(account);
            let Some(holding) = &mut account.holding else { continue };
            let instance = medium.zip(mig.as_ref()).and_then(|(medium, mig)| reading_of(medium, mig));
            // A GPU instance of several compute instances: its figures are not this container's alone.
            let alone = instance.filter(|instance| instance.members.len() == 1 && holding.sharing == SharingForm::Mig);
            let gpm = match holding.sharing {
                SharingForm::Exclusive => medium.map(|medium| &medium.gpm),
                _ => alone.map(|instance| &instance.gpm),
            };
            account.sm_active_ratio = gpm.and_then(|gpm| gpm.sm_active);
            account.dram_active_ratio = gpm.and_then(|gpm| gpm.dram_active);
            let part = mig.as_ref().zip(present.gpu).and_then(|(mig, gpu)| gpu.mig_device(mig));
            let device = present.gpu.and_then(|gpu| crate::domain::model::busy_ratio(gpu, present.readings, part));
            // A holder that has the device alone is as busy as the device.
            (account.utilization_ratio, account.device_utilization_ratio) = match (holding.sharing, holding.share) {
                (SharingForm::Exclusive, _) => (device, device),
                (SharingForm::Mig, share) => (device, device.zip(share).map(|(busy, share)| busy * share)),
                (_, share) => {
                    // The driver's sample and the interval differ by a moment: one value is divided, so that they add up.
                    let of_gpu = match (device, mig) {
                        (Some(busy), None) if busy > 0.0 => busy_part.map(|part| busy * part),
                        (Some(_), None) => Some(0.0),
                        (device, _) => busy_part.filter(|_| device.is_some()),
                    };
                    (of_gpu.zip(share).map(|(busy, share)| (busy / share).min(1.0)), of_gpu)
                }
            };
            account.memory_limit_bytes = match mig {
                Some(_) => part.and_then(|part| part.memory_bytes),
                None => present.gpu.and_then(|gpu| limit_of(gpu.memory_bytes?, holding)),
            };
            // Of a GPU that was never read nothing is attributed.
            holding.attribution = self.clock.read.then_some(match (mig, holding.sharing) {
                _ if self.in_gap => Attribution::Estimated,
                (Some(_), _) => Attribution::Estimated,
                (None, SharingForm::Exclusive) => Attribution::Exclusive,
                (None, _) if by_process => Attribution::Process,
                (None, _) => Attribution::EqualShare,
            });
        }
        self.count_processes(present);
        self.divide_memory(present, medium, audit);
    }

    fn count_processes(&mut self, present: &Present<'_>) {
        self.unattributed.processes.clear();
        let Some(processes) = present.processes else { return };
        for reason in [
            UnattributedReason::Host,
            UnattributedReason::NotAllocated,
            UnattributedReason::TerminatedPod,
            UnattributedReason::Unknown,
        ] {
            self.unattributed.processes.insert(reason, 0);
        }
        let holders: Vec<HolderKey> = self.holding().cloned().collect();
        let mut counts = vec![0; holders.len()];
        for process in processes.processes.iter().filter(|process| process.running) {
            let (places, containers) = self::inside(&holders, present.gpu, process.gpu_instance);
            match holder_of(process, &containers) {
                Ok(place) => counts[places[place]] += 1,
                Err(reason) => *self.unattributed.processes.entry(reason).or_default() += 1,
            }
        }
        for (key, count) in holders.iter().zip(counts) {
            if let Some(holder) = self.holders.get_mut(key) {
                holder.account.processes = Some(count);
            }
        }
    }

    fn divide_memory(&mut self, present: &Present<'_>, medium: Option<&Medium>, audit: &mut Audit) {
        self.unattributed.memory_bytes.clear();
        let Some(medium) = medium else { return };
        let holders: Vec<HolderKey> = self.holding().cloned().collect();
        let running: Option<Vec<&OwnedProcess>> =
            present.processes.map(|processes| processes.processes.iter().filter(|process| process.running).collect());
        let mut unattributed = BTreeMap::new();
        if present.processes.is_some() && (medium.memory.is_some() || !medium.instances.is_empty()) {
            let reasons = [
                UnattributedReason::Driver,
                UnattributedReason::Host,
                UnattributedReason::NotAllocated,
                UnattributedReason::TerminatedPod,
            ];
            unattributed.extend(reasons.map(|reason| (reason, 0)));
        }
        let mut of_instances = 0;
        for instance in &medium.instances {
            let Some(memory) = instance.memory else { continue };
            of_instances += memory.used;
            let processes: Option<Vec<&OwnedProcess>> = running.as_ref().map(|running| {
                let inside = |process: &&&OwnedProcess| process.gpu_instance == Some(instance.gpu_instance);
                running.iter().filter(inside).copied().collect()
            });
            let (places, containers) = self::inside(&holders, present.gpu, Some(instance.gpu_instance));
            let sole = instance.members.len() == 1 && self.is_sole(&holders, &places, SharingForm::Mig);
            let pool = Pool { used: memory.used, holders: &containers, sole, processes: processes.as_deref() };
            self.give(&holders, &places, &pool, &mut unattributed, audit);
        }
        match medium.memory {
            Some(memory) if medium.instances.is_empty() => {
                let (places, containers) = self::inside(&holders, present.gpu, None);
                let sole = self.is_sole(&holders, &places, SharingForm::Exclusive);
                let pool = Pool { used: memory.used, holders: &containers, sole, processes: running.as_deref() };
                self.give(&holders, &places, &pool, &mut unattributed, audit);
            }
            // The parts are exact, but are read a moment after the device total.
            Some(memory) => {
                *unattributed.entry(UnattributedReason::Driver).or_default() +=
                    memory.used.saturating_sub(of_instances);
            }
            None => {}
        }
        self.unattributed.memory_bytes = unattributed;
    }

    fn is_sole(&self, holders: &[HolderKey], places: &[usize], sharing: SharingForm) -> bool {
        let [place] = places else { return false };
        let holding = self.holders.get(&holders[*place]).and_then(|holder| holder.account.holding.as_ref());
        holding.is_some_and(|holding| holding.sharing == sharing)
    }

    fn give(
        &mut self,
        holders: &[HolderKey],
        places: &[usize],
        pool: &Pool<'_>,
        unattributed: &mut BTreeMap<UnattributedReason, u64>,
        audit: &mut Audit,
    ) {
        let MemoryDivision { holders: shares, unattributed: rest } = pool.divide();
        let parts = shares.iter().flatten().chain(rest.values()).map(|bytes| *bytes as f64);
        audit.check(DividedQuantity::Memory, pool.used as f64, parts);
        for (place, share) in places.iter().zip(shares) {
            if let Some(holder) = self.holders.get_mut(&holders[*place]) {
                holder.account.memory_used_bytes = share;
            }
        }
        for (reason, bytes) in rest {
            *unattributed.entry(reason_or_ended(reason, self.has_ended())).or_default() += bytes;
        }
    }

    /// A holding has ended since the last but one pass that read memory.
    fn has_ended(&self) -> bool {
        self.last_end >= Some(self.passes[1])
    }

    /// Pods that have run here for some time and hold nothing here. A process may be seen shortly before the
    /// allocation that it belongs to.
    pub fn unallocated_uses(
        &mut self,
        processes: &DeviceProcesses,
        gpu: &GpuUuid,
        now: Monotonic,
    ) -> Vec<UnallocatedUse> {
        let containers: Vec<&ContainerRef> = self.holding().map(|key| &key.0).collect();
        let outside = |process: &&OwnedProcess| {
            process.running && holder_of(process, &containers) == Err(UnattributedReason::NotAllocated)
        };
        let name = |process: &OwnedProcess| match &process.owner {
            Owner::Container(one) => Some((PodRef::new(&one.namespace, &one.pod), Some(one.container.clone()))),
            Owner::Pod(pod) => Some((pod.clone(), None)),
            _ => None,
        };
        let uses: BTreeSet<UnallocatedUse> = processes
            .processes
            .iter()
            .filter(outside)
            .filter_map(name)
            .map(|(pod, container)| UnallocatedUse { pod, container, gpu: gpu.clone() })
            .collect();
        self.foreign.retain(|one, _| uses.contains(one));
        let mut has_lasted = |one: &UnallocatedUse| {
            let since = *self.foreign.entry(one.clone()).or_insert(now);
            now.since(since) >= FOREIGN
        };
        uses.into_iter().filter(|one| has_lasted(one)).collect()
    }

    fn holding(&self) -> impl Iterator<Item = &HolderKey> {
        self.holders.iter().filter(|(_, holder)| holder.account.holding.is_some()).map(|(key, _)| key)
    }
}

fn clear(account: &mut Account) {
    account.utilization_ratio = None;
    account.device_utilization_ratio = None;
    account.sm_active_ratio = None;
    account.dram_active_ratio = None;
    account.memory_used_bytes = None;
    account.memory_limit_bytes = None;
    account.processes = None;
}

/// Holders of a part of one GPU instance (or anything, where it is not known which instance): places and containers.
fn inside<'a>(
    holders: &'a [HolderKey],
    gpu: Option<&Gpu>,
    instance: Option<u32>,
) -> (Vec<usize>, Vec<&'a ContainerRef>) {
    let fits = |(_, mig): &HolderKey| match (instance, mig) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(instance), Some(mig)) => {
            gpu.is_some_and(|gpu| gpu.mig_devices.iter().any(|one| one.uuid == *mig && one.gpu_instance == instance))
        }
    };
    holders.iter().enumerate().filter(|(_, key)| fits(key)).map(|(place, key)| (place, &key.0)).unzip()
}
