//! Between what runs on the devices and whose it is.

use std::collections::{BTreeMap, BTreeSet};

use crate::attribution::{DeviceProcesses, OwnedProcess};
use crate::model::{DeviceReadings, GpuUuid, HardwareState, Owner, ProcessState, UnknownOwner};

/// The processes on any device, by the host's numbers.
pub fn wanted(hardware: &HardwareState) -> BTreeSet<u32> {
    hardware.readings.values().flat_map(|readings| pids(readings)).collect()
}

/// Whether somebody has looked at all of them, or nobody looks.
pub fn are_known(wanted: &BTreeSet<u32>, state: &ProcessState) -> bool {
    !is_looking(state) || wanted.iter().all(|pid| state.processes.contains_key(pid))
}

/// What the ledger divides by. A GPU whose processes the driver does not tell has none; without host process ids no GPU
/// has. A process that nobody has looked at yet is left out until somebody has: its work is not lost, its count goes on.
pub fn by_device(hardware: &HardwareState, state: &ProcessState) -> BTreeMap<GpuUuid, DeviceProcesses> {
    if !is_looking(state) {
        return BTreeMap::new();
    }
    let known = |(gpu, readings): (&GpuUuid, _)| Some((gpu.clone(), of_device(readings, state)?));
    hardware.readings.iter().map(|(gpu, readings)| (gpu, &**readings)).filter_map(known).collect()
}

/// A look that does not come back says nothing of what runs now.
fn is_looking(state: &ProcessState) -> bool {
    state.enabled && state.collector.as_ref().is_none_or(|collector| !collector.stuck)
}

fn of_device(readings: &DeviceReadings, state: &ProcessState) -> Option<DeviceProcesses> {
    let listed = readings.medium.as_ref()?.value.processes.as_ref()?;
    let worked = readings.totals.process_sm_seconds.as_ref();
    let process = |pid: u32| {
        let known = state.processes.get(&pid)?;
        let owner = (known.owner != Owner::Unknown(UnknownOwner::NotResolved)).then(|| known.owner.clone())?;
        let start_ticks = known.key.map_or(0, |key| key.start_ticks);
        let sm_seconds = worked.and_then(|worked| worked.get(&pid)).map_or(0.0, |work| work.sm_seconds);
        Some(OwnedProcess {
            pid,
            start_ticks,
            owner,
            running: false,
            memory_bytes: None,
            gpu_instance: None,
            compute_instance: None,
            sm_seconds,
        })
    };
    let running = listed.iter().filter_map(|listed| {
        Some(OwnedProcess {
            running: true,
            memory_bytes: listed.memory_bytes,
            gpu_instance: listed.gpu_instance,
            compute_instance: listed.compute_instance,
            ..process(listed.pid)?
        })
    });
    // Began after the last list was read, or ended before it.
    let unlisted = |pid: &&u32| listed.iter().all(|listed| listed.pid != **pid);
    let others = worked.into_iter().flat_map(BTreeMap::keys).filter(unlisted).filter_map(|pid| process(*pid));
    Some(DeviceProcesses { has_sm_seconds: worked.is_some(), processes: running.chain(others).collect() })
}

fn pids(readings: &DeviceReadings) -> impl Iterator<Item = u32> {
    let listed = readings.medium.iter().filter_map(|medium| medium.value.processes.as_ref()).flatten();
    let worked = readings.totals.process_sm_seconds.iter().flat_map(BTreeMap::keys).copied();
    listed.map(|process| process.pid).chain(worked)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{
        Collector, ContainerRef, Medium, Monotonic, Process, ProcessKey, ProcessSmSeconds, Stamped, Totals,
        UnknownOwner,
    };

    fn hardware(listed: Option<&[u32]>, worked: Option<&[(u32, f64)]>) -> HardwareState {
        let process = |pid: &u32| crate::model::DeviceProcess {
            pid: *pid,
            gpu_instance: None,
            compute_instance: None,
            memory_bytes: Some(7),
        };
        let processes = listed.map(|pids| pids.iter().map(process).collect());
        let at = Monotonic::default();
        let medium = Some(Stamped { at, value: Medium { processes, ..Medium::default() } });
        let work = |(pid, sm_seconds): &(u32, f64)| {
            (*pid, ProcessSmSeconds { began: at, sm_seconds: *sm_seconds, last_active: at })
        };
        let process_sm_seconds = worked.map(|worked| worked.iter().map(work).collect());
        let totals = Totals { process_sm_seconds, ..Totals::default() };
        let readings = Arc::new(DeviceReadings { totals, medium, ..DeviceReadings::default() });
        HardwareState { readings: [("GPU-1".into(), readings)].into(), ..HardwareState::default() }
    }

    fn state(owners: &[(u32, Owner)]) -> ProcessState {
        let process = |(pid, owner): &(u32, Owner)| {
            (*pid, Process { key: Some(ProcessKey { pid: *pid, start_ticks: 5 }), owner: owner.clone() })
        };
        ProcessState { enabled: true, processes: owners.iter().map(process).collect(), ..ProcessState::default() }
    }

    #[test]
    fn each_process_is_told_of_once_with_its_owner() {
        let main = ContainerRef::new("team", "train", "main");
        let hardware = hardware(Some(&[1, 2]), Some(&[(2, 0.5), (3, 0.25), (4, 9.0)]));
        assert_eq!(wanted(&hardware), [1, 2, 3, 4].into());
        let owners = [
            (1, Owner::Host),
            (2, Owner::Container(main.clone())),
            (3, Owner::Unknown(UnknownOwner::Gone)),
            (4, Owner::Unknown(UnknownOwner::NotResolved)),
        ];
        let state = state(&owners);
        assert!(are_known(&wanted(&hardware), &state));
        let told = &by_device(&hardware, &state)[&"GPU-1".into()];
        assert!(told.has_sm_seconds);
        let told: Vec<_> = told
            .processes
            .iter()
            .map(|process| {
                (process.pid, process.owner.clone(), process.running, process.memory_bytes, process.sm_seconds)
            })
            .collect();
        let expected = [
            (1, Owner::Host, true, Some(7), 0.0),
            (2, Owner::Container(main), true, Some(7), 0.5),
            (3, Owner::Unknown(UnknownOwner::Gone), false, None, 0.25),
        ];
        assert_eq!(told, expected, "nobody has looked at the fourth");
    }

    #[test]
    fn what_is_not_known_is_not_divided_by() {
        let owners = state(&[(1, Owner::Host)]);
        assert_eq!(by_device(&hardware(None, Some(&[(1, 1.0)])), &owners), BTreeMap::new(), "no list");
        let told = &by_device(&hardware(Some(&[1]), None), &owners)[&"GPU-1".into()];
        assert!(!told.has_sm_seconds && told.processes.len() == 1, "a partitioned GPU");
        let hidden = ProcessState { enabled: false, ..owners };
        assert_eq!(by_device(&hardware(Some(&[1]), Some(&[])), &hidden), BTreeMap::new());
        assert!(are_known(&[9].into(), &hidden), "nobody looks");
        let collector = Some(Collector { stuck: true, ..Collector::default() });
        let stuck = ProcessState { enabled: true, collector, ..hidden };
        assert_eq!(by_device(&hardware(Some(&[1]), Some(&[])), &stuck), BTreeMap::new());
        assert!(are_known(&[9].into(), &stuck), "nobody waits for a look that does not come back");
        assert!(!are_known(&[9].into(), &state(&[])));
    }
}
