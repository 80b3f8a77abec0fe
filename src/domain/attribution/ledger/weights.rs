//! The weights by which a segment is divided. In: the SM time of processes, the activity of MIG devices, owners. Out: SM
//! time by holder, and fraction and activity of each MIG device. Does not use: intervals and their amounts.

use std::collections::BTreeMap;

use crate::domain::attribution::owners::{DeviceProcesses, OwnedProcess};
use crate::domain::model::{ContainerRef, DeviceTotals, Gpu, MigDevice, MigUuid, Owner, PodRef, UnattributedReason};

/// The weights that divide a segment.
#[derive(Clone, Debug)]
pub enum Weights {
    /// Without SM time and MIG devices, use is divided by `HoldingTerms::weight`.
    Holdings,
    /// Use is divided by SM time: here that of processes without a holder; each holder has that of its processes.
    Processes(BTreeMap<UnattributedReason, f64>),
    /// Use is divided by the activity and the slices of each MIG device.
    MigDevices(Vec<MigWeight>),
}

/// The SM time of each process of one device that has been used.
#[derive(Debug, Default)]
pub struct UsedSmTime {
    /// The total of each process, by PID alone, because a process that can no longer be read has no start time.
    used: BTreeMap<u32, f64>,
}

/// The SM-seconds of each process in an interval.
pub type SmIncreases<'a> = Vec<(&'a OwnedProcess, f64)>;

/// The SM-seconds in an interval.
#[derive(Debug, Default, PartialEq)]
pub struct SmWeights {
    /// The SM-seconds of each holder.
    pub holders: Vec<f64>,
    pub others: BTreeMap<UnattributedReason, f64>,
}

impl UsedSmTime {
    /// Uses the SM time up to now, also of an interval that is not divided or whose processes have no known owners: it weighs
    /// nothing later. Returns that since the last call; `None` without owners, and where the driver reports none by process.
    /// What the totals no longer have is forgotten: a process that works again restarts at zero.
    pub fn advance<'a>(
        &mut self,
        processes: Option<&'a DeviceProcesses>,
        totals: &DeviceTotals,
    ) -> Option<SmIncreases<'a>> {
        let mut before = std::mem::take(&mut self.used);
        let totals = totals.process_sm_seconds.iter().flatten();
        let Some(processes) = processes.filter(|processes| processes.has_sm_seconds) else {
            self.used = totals.map(|(pid, total)| (*pid, *total)).collect();
            return None;
        };
        let increase = |process: &'a OwnedProcess| {
            let total = process.sm_seconds;
            // One that is listed twice is used up by the first.
            let used = self.used.insert(process.pid, total).or_else(|| before.remove(&process.pid)).unwrap_or(0.0);
            (process, if total < used { total } else { total - used })
        };
        let increases = processes.processes.iter().map(increase).collect();
        // The owner of these is not known yet: their use is divided once it is.
        self.used.extend(totals.filter_map(|(pid, _)| before.remove_entry(pid)));
        Some(increases)
    }
}

impl SmWeights {
    /// `holders` are sorted.
    pub fn new(increases: &SmIncreases<'_>, holders: &[&ContainerRef]) -> Self {
        let mut weights = Self { holders: vec![0.0; holders.len()], others: BTreeMap::new() };
        let mut of_mps_server = 0.0;
        for (process, sm_seconds) in increases.iter().filter(|(_, sm_seconds)| *sm_seconds > 0.0) {
            match holder_of(process, holders) {
                Ok(position) => weights.holders[position] += sm_seconds,
                Err(UnattributedReason::Driver) => of_mps_server += sm_seconds,
                Err(reason) => *weights.others.entry(reason).or_default() += sm_seconds,
            }
        }
        weights.add_mps_server(of_mps_server, increases, holders);
        weights
    }

    /// Adds the SM time of the MPS server to its clients: by their memory, equally where that is unknown.
    fn add_mps_server(&mut self, sm_seconds: f64, increases: &SmIncreases<'_>, holders: &[&ContainerRef]) {
        if sm_seconds <= 0.0 {
            return;
        }
        let mut memory = vec![0; holders.len()];
        for (process, _) in increases {
            if let (Ok(position), Some(bytes)) = (holder_of(process, holders), process.memory_bytes) {
                memory[position] += u128::from(bytes);
            }
        }
        if memory.iter().all(|bytes| *bytes == 0) {
            memory.fill(1);
        }
        let sum: u128 = memory.iter().sum();
        for (own, bytes) in self.holders.iter_mut().zip(&memory) {
            *own += sm_seconds * *bytes as f64 / sum as f64;
        }
        if holders.is_empty() {
            *self.others.entry(UnattributedReason::Unknown).or_default() += sm_seconds;
        }
    }
}

/// The weight of a MIG device, by which it gets busy time and its part of the GPU's energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MigWeight {
    /// The fraction of the GPU's compute slices.
    pub fraction: f64,
    /// How busy it was, 0 to 1; `None` without GPM.
    pub active: Option<f64>,
    /// Why its use is unattributed while it has no holder.
    pub unheld_reason: UnattributedReason,
}

impl MigWeight {
    /// The work, activity × slices, in GPU-seconds for each second.
    pub fn work(&self) -> Option<f64> {
        Some(self.active? * self.fraction)
    }
}

/// The MIG devices of one GPU, and what their GPU instances report. Both lists are empty while it is unknown which part
/// of the GPU each device is: then nothing is divided among them.
pub struct MigWeights<'a> {
    mig_devices: &'a [MigDevice],
    pub weights: Vec<MigWeight>,
}

impl<'a> MigWeights<'a> {
    /// The weights; `None` for a GPU that is not partitioned. `active`: the mean activity of the slices of each GPU
    /// instance, 0 to 1.
    pub fn new(gpu: Option<&'a Gpu>, active: &BTreeMap<u32, f64>, processes: Option<&DeviceProcesses>) -> Option<Self> {
        let gpu = gpu.filter(|gpu| !gpu.mig_devices.is_empty())?;
        let weight = |mig: &'a MigDevice| {
            let active = active.get(&mig.gpu_instance).map(|active| gpu.mig_activity(mig, *active));
            let unheld_reason = processes
                .map_or(UnattributedReason::Unknown, |processes| unheld_reason(&processes.processes, mig.gpu_instance));
            Some(MigWeight { fraction: gpu.slice_fraction(mig.slices)?, active, unheld_reason })
        };
        let Some(weights) = gpu.mig_devices.iter().map(weight).collect::<Option<Vec<_>>>() else {
            return Some(Self { mig_devices: &[], weights: vec![] });
        };
        Some(Self { mig_devices: &gpu.mig_devices, weights })
    }

    /// Whether each of the GPU's MIG devices has reported.
    pub fn all_report(&self) -> bool {
        !self.weights.is_empty() && self.weights.iter().all(|weight| weight.active.is_some())
    }

    pub fn position(&self, mig: &MigUuid) -> Option<usize> {
        self.mig_devices.iter().position(|device| device.uuid == *mig)
    }
}

/// Why the use of an instance that no container holds is unattributed. With several owners it is the first reason of
/// the enum, so that it is stable.
fn unheld_reason(processes: &[OwnedProcess], gpu_instance: u32) -> UnattributedReason {
    let running = |process: &&OwnedProcess| process.running && process.gpu_instance == Some(gpu_instance);
    let reason =
        |process: &OwnedProcess| process.owner.unattributed_reason().unwrap_or(UnattributedReason::NotAllocated);
    processes.iter().filter(running).map(reason).min().unwrap_or(UnattributedReason::Unknown)
}

/// The index of the holder that owns the process: its own container, else the first of its pod. A container that takes
/// part in the pod's use without being listed (an init or a debugging container) uses what the pod holds. What is left
/// of an earlier pod of the same name is not the present one's.
pub fn holder_of(process: &OwnedProcess, holders: &[&ContainerRef]) -> Result<usize, UnattributedReason> {
    let (namespace, pod, container) = match &process.owner {
        Owner::Container(container) => match holders.binary_search(&container) {
            Ok(position) => return Ok(position),
            Err(_) => (&container.namespace, &container.pod, Some(container)),
        },
        Owner::Pod(PodRef { namespace, pod }) => (namespace, pod, None),
        owner => return Err(owner.unattributed_reason().unwrap_or(UnattributedReason::Unknown)),
    };
    let first = holders.partition_point(|holder| (&holder.namespace, &holder.pod) < (namespace, pod));
    let of_name = holders.iter().enumerate().skip(first);
    let of_name = of_name.take_while(|(_, holder)| (&holder.namespace, &holder.pod) == (namespace, pod));
    let mut of_pod = of_name.clone().filter(|(_, holder)| container.is_none_or(|own| own.may_be_in_pod_of(holder)));
    let own = of_pod.clone().find(|(_, holder)| container.is_some_and(|own| own.has_names_of(holder)));
    match own.or_else(|| of_pod.next()) {
        Some((position, _)) => Ok(position),
        None if of_name.clone().next().is_some() => Err(UnattributedReason::TerminatedPod),
        None => Err(UnattributedReason::NotAllocated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::UnknownOwner;

    fn process(owner: Owner, sm_seconds: f64) -> DeviceProcesses {
        crate::test_data::processes([crate::test_data::process(7, owner, sm_seconds)])
    }

    #[test]
    fn a_process_that_can_no_longer_be_read_does_not_count_again() {
        let main = crate::test_data::main_of("train");
        let mut used = UsedSmTime::default();
        let mut weights = |processes: DeviceProcesses| {
            SmWeights::new(&used.advance(Some(&processes), &DeviceTotals::default()).unwrap(), &[&main])
        };
        assert_eq!(weights(process(Owner::Container(main.clone()), 30.0)).holders, [30.0]);
        let after = weights(process(Owner::Unknown(UnknownOwner::Gone), 30.0));
        assert_eq!(after, SmWeights { holders: vec![0.0], others: BTreeMap::new() });
    }

    #[test]
    fn a_process_is_forgotten_with_its_total_and_not_with_its_owner() {
        let totals = |worked: &[(u32, f64)]| DeviceTotals {
            process_sm_seconds: Some(worked.iter().copied().collect()),
            ..DeviceTotals::default()
        };
        let mut used = UsedSmTime::default();
        assert_eq!(used.advance(None, &totals(&[(7, 1.0), (8, 1.0)])), None);
        let owned = process(Owner::Host, 2.0);
        let unowned = DeviceProcesses { has_sm_seconds: true, processes: vec![] };
        let increase = |increases: Option<SmIncreases<'_>>| increases.unwrap().first().map(|(_, increase)| *increase);
        assert_eq!(increase(used.advance(Some(&unowned), &totals(&[(7, 1.5)]))), None);
        assert_eq!(used.used, [(7, 1.0)].into(), "7 is not divided yet, 8 is forgotten");
        assert_eq!(increase(used.advance(Some(&owned), &totals(&[(7, 2.0)]))), Some(1.0));
        used.advance(Some(&unowned), &totals(&[]));
        assert_eq!(increase(used.advance(Some(&owned), &totals(&[(7, 2.0)]))), Some(2.0), "it has restarted");
    }

    #[test]
    fn a_leftover_process_of_an_earlier_pod_of_the_name_is_not_the_present_ones() {
        let of = |container: &str, uid: Option<&str>| {
            ContainerRef::new("team", "web-0", container).with_uid(uid.map(Into::into))
        };
        let (old, new, side) = (of("main", Some("old")), of("main", Some("new")), of("side", Some("new")));
        let holder = |owner: &ContainerRef, holders: &[&ContainerRef]| {
            let listed = process(Owner::Container(owner.clone()), 0.0);
            holder_of(&listed.processes[0], holders)
        };
        assert_eq!(holder(&old, &[&new]), Err(UnattributedReason::TerminatedPod));
        assert_eq!(holder(&old, &[&new, &old]), Ok(1), "while both have held it since the last reading");
        assert_eq!(holder(&new, &[&new, &old]), Ok(0));
        assert_eq!(holder(&of("init", Some("new")), &[&old, &side]), Ok(1), "of its own pod");
        assert_eq!(holder(&of("main", None), &[&side, &new]), Ok(1), "where the UID is not known, by name");
        assert_eq!(holder(&new, &[&of("main", None)]), Ok(0));
        assert_eq!(holder(&new, &[]), Err(UnattributedReason::NotAllocated));
    }
}
