//! What the supervisor and the threads of GPUs need of a driver; `nvml` and `simulated` implement it.
//!
//! `Driver` opens a session, `DriverSession` lists the devices and gives a reader to each GPU's thread, `EventSource`
//! waits for XIDs. Every call may hang: each is made on a thread that may be given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::plausible::Implausible;
use super::tiers::Due;
use crate::domain::model::{
    DurationHistogram, Fast, GpuUuid, HardwareSource, Inventory, Medium, Moment, Monotonic, NodeDevices, Slow,
    XidInstance,
};

/// A source of GPUs: the installed driver, or a simulation.
pub trait Driver: Send + 'static {
    fn source(&self) -> HardwareSource;

    /// The durations of its calls, where they are measured.
    fn call_durations(&self) -> Option<CallDurations> {
        None
    }

    /// Loads the driver's library, where there is one. May block without limit, like `open`.
    fn load(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Opens the driver. Called again, with backoff, after a failure and after each lost session.
    fn open(&mut self) -> Result<Box<dyn DriverSession>, Failure>;
}

/// Returns the durations since the start by the driver's name of the call. Cheap, and never blocks on the driver.
pub type CallDurations = Arc<dyn Fn() -> BTreeMap<&'static str, DurationHistogram> + Send + Sync>;

/// An open driver. Dropping it closes the driver, so a session stays open until the last reader that is stuck in a call
/// has returned.
pub trait DriverSession: Send + Sync {
    /// All GPUs that answer. A GPU that refuses is a problem, not an error; one that stops answering during the query
    /// is returned as not present, with the values read before.
    fn inventory(&self) -> Result<(Inventory, Vec<CallProblem>), Failure>;

    /// The reader of one GPU, for one worker thread; `UnlistedGpu` where the last inventory does not have it.
    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure>;

    /// Whether the layout (MIG modes and instances, number of GPUs, driver version) differs from the last inventory;
    /// takes fewer calls than an inventory. Without a number of GPUs, that is unknown and an error.
    fn layout_changed(&self) -> Result<bool, CallProblem>;

    /// The expected GPUs, where they are not those on the node's PCI bus (in a simulation).
    fn node_devices(&self) -> Option<NodeDevices> {
        None
    }

    /// The driver's events; `None` without them. May block without limit, like every function here.
    fn events(&self) -> Option<Box<dyn EventSource>> {
        None
    }

    /// A token that is alive until the driver is closed; `None` where dropping the session closes it.
    fn open_marker(&self) -> Option<Weak<()>> {
        None
    }
}

/// The events of the GPUs of one session, for one thread.
pub trait EventSource: Send {
    /// The next event; `Ok(None)` when none came within at most `patience`. May block without limit.
    fn wait(&mut self, patience: Duration, now: Monotonic) -> Result<Option<RawEvent>, EventFailure>;

    /// Called when the driver's list of GPUs has changed.
    fn gpus_changed(&mut self) {}

    /// The failures since the last call that cost the events of one GPU, not of all.
    fn problems(&mut self) -> Vec<CallProblem> {
        Vec::new()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    pub gpu: GpuUuid,
    /// The GPU instance; `None`: the whole GPU.
    pub instance: Option<XidInstance>,
    pub kind: DriverEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverEventKind {
    /// An XID; its code is 999 where the driver gives none.
    Xid(u32),
    /// The MIG layout of the GPU has changed.
    MigChange,
    /// Any other change that the slow tier reads: memory errors, the recovery action.
    Condition,
}

/// A failed wait, repeated after a pause unless the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFailure {
    pub problem: CallProblem,
    pub session_over: bool,
}

/// Reads one GPU, on one thread. May block without limit.
pub trait GpuReader: Send {
    fn read(&mut self, due: &Due, now: Moment) -> Pass;
}

/// The result of one pass over one GPU: values and problems.
#[derive(Debug, Default)]
pub struct Pass {
    pub status: PassStatus,
    pub integrals: Integrals,
    /// The driver's energy counter in millijoules; it restarts when the driver is loaded and when the GPU is reset. Where
    /// it counts the GPU alone, its rise is the GPU's energy.
    pub energy_counter: Option<u64>,
    /// False where the counter may count a superchip's module; `None`: not known in this pass.
    pub counter_is_of_gpu: Option<bool>,
    pub fast: Option<Fast>,
    pub medium: Option<Medium>,
    pub slow: Option<Slow>,
    /// The processes with a context on the GPU, from the medium or the processes tier. `None`: unknown, or not read.
    pub pids: Option<BTreeSet<u32>>,
    pub problems: Vec<CallProblem>,
    /// The readings outside their range, by quantity.
    pub implausible: Implausible,
}

/// What one pass adds to the totals; all from the fast tier except the engines. `None`: unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Integrals {
    pub busy_seconds: Option<f64>,
    pub memory_busy_seconds: Option<f64>,
    /// The busy seconds of encoder, decoder, jpeg and ofa.
    pub engine_busy_seconds: Vec<(&'static str, f64)>,
    /// The integral of the power; ignored where the energy counter counts the GPU alone.
    pub energy_joules: Option<f64>,
    pub module_energy_joules: Option<f64>,
    /// The busy seconds of the GPU instances that have a value. `None`: not read in this pass.
    pub instance_busy_seconds: Option<Vec<(u32, f64)>>,
    pub uncovered_seconds: f64,
    /// Whether the GPU does not support utilization: its busy time becomes unknown.
    pub lacks_utilization: bool,
    /// The SM-seconds of each process that was active, by PID. Empty: none was.
    pub process_sm_seconds: Option<Vec<(u32, f64)>>,
    /// Whether the driver lists no process of a busy GPU: earlier use by process is no longer valid.
    pub lists_no_processes: bool,
    /// Whether some are present values times the time since the pass before: without rings and counters, as exact as
    /// passes are frequent.
    pub of_present_values: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassStatus {
    #[default]
    Answers,
    /// The GPU does not answer: it is lost, needs a reset, or every call failed.
    Lost,
    /// The driver does not have this GPU.
    Unlisted,
    /// The whole session is unusable: open a new one.
    SessionOver,
}

/// A failed call that cost one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallProblem {
    /// The driver's name of the call.
    pub call: &'static str,
    /// The driver's return code, lower case: `gpu_is_lost`; or podmeter's name of a faulty answer: `duplicate_uuid`.
    pub code: &'static str,
}

/// Why there is no session, no list of the devices, or no reader of a GPU; with a remedy for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct Failure {
    pub problem: CallProblem,
    pub cause: FailureCause,
    pub reason: String,
    pub remedy: &'static str,
}

/// The causes that the supervisor and the threads distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    DriverNotLoaded,
    UnlistedGpu,
    /// Another GPU has this GPU's index.
    OtherGpuAtIndex,
    Other,
}
