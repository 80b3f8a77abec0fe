//! The processes on the devices and their owners, by which the ledger divides use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::holders::HoldersState;
use crate::domain::model::{
    DeviceProcess, DeviceReadings, GpuUuid, HardwareState, Owner, PluginState, Process, ProcessState, UnknownOwner,
};

/// The processes on one GPU at one moment: those that run, and those that still have SM time in the totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceProcesses {
    /// Whether the driver reports SM time by process on this GPU (never while it is partitioned). Where it does not,
    /// busy time and energy are divided as without process data; memory is divided by process.
    pub has_sm_seconds: bool,
    /// The processes in any order, each once per GPU instance.
    pub processes: Vec<OwnedProcess>,
}

/// A process on a GPU, with its owner.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedProcess {
    pub pid: u32,
    pub owner: Owner,
    /// Whether it is on the driver's list of processes now.
    pub running: bool,
    /// The device memory; `None` where the driver does not report it, or the process has ended.
    pub memory_bytes: Option<u64>,
    /// The GPU instance; `None` on a GPU that is not partitioned.
    pub gpu_instance: Option<u32>,
    /// The integral of its part of the SMs, complete up to the same time as the device's totals. It starts at 0 with
    /// the agent or the process, and again after a minute in which the process was neither listed nor active.
    pub sm_seconds: f64,
}

/// One `HoldersState`, and the owners of the processes in its readings. `processes` publishes it once for each state, up to 50 ms after
/// that, so that the SM time of a new process is mostly divided with the reading that has it.
#[derive(Clone, Debug, Default)]
pub struct OwnersState {
    pub holders: Arc<HoldersState>,
    pub processes: Arc<ProcessState>,
}

/// The process IDs in the readings, in the host's numbering. An owner must be found while the process runs; it is needed when the use
/// is read.
pub fn process_ids(hardware: &HardwareState) -> BTreeSet<u32> {
    hardware.readings.values().flat_map(|readings| &readings.recent_pids).copied().collect()
}

/// What the ledger divides by. Absent for a GPU without a process list, and for all without host process ids. A process
/// that is not scanned yet is left out until it is: its use is not lost, because its total continues.
pub fn processes_by_device(
    hardware: &HardwareState,
    state: &ProcessState,
    plugin: Option<&PluginState>,
) -> BTreeMap<GpuUuid, DeviceProcesses> {
    if !state.is_current() {
        return BTreeMap::new();
    }
    let known = |(gpu, readings): (&GpuUuid, _)| {
        let daemons = plugin.and_then(|plugin| plugin.mps_daemons.get(gpu));
        Some((gpu.clone(), of_device(readings, state, daemons)?))
    };
    hardware.readings.iter().map(|(gpu, readings)| (gpu, &**readings)).filter_map(known).collect()
}

/// `mps_daemons`: those that serve the GPU. What one of them has started is their server.
fn of_device(
    readings: &DeviceReadings,
    state: &ProcessState,
    mps_daemons: Option<&BTreeSet<u32>>,
) -> Option<DeviceProcesses> {
    let listed = readings.medium.as_ref()?.value.processes.as_ref()?;
    let worked = readings.totals.process_sm_seconds.as_ref();
    let process = |pid: u32, listed: Option<&DeviceProcess>| {
        let known = state.processes.get(&pid)?;
        let is_server = |known: &Process| mps_daemons?.get(&known.mps_daemon?);
        let owner = if is_server(known).is_some() { Owner::MpsServer } else { known.owner.clone() };
        if owner == Owner::Unknown(UnknownOwner::NotResolved) {
            return None;
        }
        let sm_seconds = worked.and_then(|worked| worked.get(&pid)).copied().unwrap_or(0.0);
        Some(OwnedProcess {
            pid,
            owner,
            running: listed.is_some(),
            memory_bytes: listed.and_then(|listed| listed.memory_bytes),
            gpu_instance: listed.and_then(|listed| listed.gpu_instance),
            sm_seconds,
        })
    };
    let running = listed.iter().filter_map(|listed| process(listed.pid, Some(listed)));
    // These began after the last list was read, or ended before it.
    let unlisted = |pid: &&u32| listed.iter().all(|listed| listed.pid != **pid);
    let others = worked.into_iter().flat_map(BTreeMap::keys).filter(unlisted).filter_map(|pid| process(*pid, None));
    Some(DeviceProcesses { has_sm_seconds: worked.is_some(), processes: running.chain(others).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{DeviceTotals, Medium, Process, ProcessKey, SourceStatus};

    fn hardware(listed: Option<&[u32]>, worked: Option<&[(u32, f64)]>) -> HardwareState {
        let process =
            |pid: &u32| DeviceProcess { pid: *pid, gpu_instance: None, compute_instance: None, memory_bytes: Some(7) };
        let processes = listed.map(|pids| pids.iter().map(process).collect());
        let process_sm_seconds = worked.map(|worked| worked.iter().copied().collect());
        let totals = DeviceTotals { process_sm_seconds, ..DeviceTotals::default() };
        let readings = crate::test_data::medium_readings(Medium { processes, ..Medium::default() });
        let listed = listed.unwrap_or_default().iter();
        let recent_pids = listed.chain(worked.unwrap_or_default().iter().map(|(pid, _)| pid)).copied().collect();
        let readings = Arc::new(DeviceReadings { totals, recent_pids, ..readings });
        HardwareState { readings: [("GPU-1".into(), readings)].into(), ..HardwareState::default() }
    }

    fn state(owners: &[(u32, Owner)]) -> ProcessState {
        let process = |(pid, owner): &(u32, Owner)| {
            let key = Some(ProcessKey { pid: *pid, start_ticks: 5 });
            (*pid, Process { key, owner: owner.clone(), mps_daemon: Some(86) })
        };
        ProcessState { enabled: true, processes: owners.iter().map(process).collect(), ..ProcessState::default() }
    }

    #[test]
    fn each_process_appears_once_with_its_owner() {
        let main = crate::test_data::main_of("train");
        let hardware = hardware(Some(&[1, 2]), Some(&[(2, 0.5), (3, 0.25), (4, 9.0)]));
        assert_eq!(process_ids(&hardware), [1, 2, 3, 4].into());
        let owners = [
            (1, Owner::Host),
            (2, Owner::Container(main.clone())),
            (3, Owner::Unknown(UnknownOwner::Gone)),
            (4, Owner::Unknown(UnknownOwner::NotResolved)),
        ];
        let state = state(&owners);
        let found = &processes_by_device(&hardware, &state, None)[&"GPU-1".into()];
        assert!(found.has_sm_seconds);
        let found: Vec<_> = found
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
        assert_eq!(found, expected, "the fourth is not scanned");
    }

    #[test]
    fn only_what_the_daemon_of_the_gpu_has_started_is_its_mps_server() {
        let (hardware, state) = (hardware(Some(&[1]), None), state(&[(1, Owner::Host)]));
        for (gpu, daemon, expected) in
            [("GPU-1", 86, Owner::MpsServer), ("GPU-1", 87, Owner::Host), ("GPU-2", 86, Owner::Host)]
        {
            let mps_daemons = [(gpu.into(), [daemon].into())].into();
            let plugin = PluginState { mps_daemons, ..PluginState::default() };
            let found = &processes_by_device(&hardware, &state, Some(&plugin))[&"GPU-1".into()];
            assert_eq!(found.processes[0].owner, expected, "{gpu} {daemon}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_divided_by() {
        let owners = state(&[(1, Owner::Host)]);
        assert_eq!(processes_by_device(&hardware(None, Some(&[(1, 1.0)])), &owners, None), BTreeMap::new(), "no list");
        let found = &processes_by_device(&hardware(Some(&[1]), None), &owners, None)[&"GPU-1".into()];
        assert!(!found.has_sm_seconds && found.processes.len() == 1, "a partitioned GPU");
        let hidden = ProcessState { enabled: false, ..owners };
        assert_eq!(processes_by_device(&hardware(Some(&[1]), Some(&[])), &hidden, None), BTreeMap::new());
        let collector = Some(SourceStatus { stuck: true, ..SourceStatus::default() });
        let stuck = ProcessState { enabled: true, collector, ..hidden };
        assert_eq!(processes_by_device(&hardware(Some(&[1]), Some(&[])), &stuck, None), BTreeMap::new());
    }
}
