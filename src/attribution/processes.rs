//! The ledger's input about processes.

use crate::model::Owner;

/// The processes on one GPU at one moment: those that run, and those whose SM time the totals still have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceProcesses {
    /// Whether the driver tells SM time by process on this GPU (never while it is partitioned). Where it does not, busy
    /// time and energy are divided as if there were no process data; memory follows the processes all the same.
    pub has_sm_seconds: bool,
    /// In any order, each process once per GPU instance.
    pub processes: Vec<OwnedProcess>,
}

/// A process on a GPU, with its owner.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedProcess {
    pub pid: u32,
    /// In clock ticks after boot; with the pid it names a process for good. 0 where it is not known.
    pub start_ticks: u64,
    pub owner: Owner,
    /// On the driver's list of processes now.
    pub running: bool,
    /// Device memory; `None` where the driver does not say, or the process does not run.
    pub memory_bytes: Option<u64>,
    /// `None` on a GPU that is not partitioned.
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// Integral of its share of the SMs, complete up to the same time as the device's totals. Starts at 0 with the
    /// agent or the process.
    pub sm_seconds: f64,
}
