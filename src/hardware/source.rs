use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::plausible::Implausible;
use crate::model::{
    DurationHistogram, Fast, GpuUuid, Inventory, Medium, Moment, Monotonic, NodeDevices, Slow, XidInstance,
};

/// Somewhere that GPUs can be found: the installed driver, or a simulation.
pub trait Driver: Send + 'static {
    /// `nvml` or `simulated`.
    fn name(&self) -> &'static str;

    /// Reads how long its calls took, where they are timed.
    fn call_durations(&self) -> Option<CallDurations> {
        None
    }

    /// Opens it. Called again, with backoff, for as long as it fails and after each loss.
    fn open(&mut self) -> Result<Box<dyn Session>, Failure>;
}

/// By the driver's name of the call, since the start, over all sessions. Cheap, and never waits for the driver.
pub type CallDurations = Arc<dyn Fn() -> BTreeMap<&'static str, DurationHistogram> + Send + Sync>;

/// An open driver. Dropping it closes the driver, so it is leaked while a reader is stuck inside a call.
pub trait Session: Send + Sync {
    /// All GPUs that answer. One that refuses is a problem, not an error; one that ceased to answer on the way is given
    /// as not present, with what it said before.
    fn inventory(&self) -> Result<(Inventory, Vec<Problem>), Failure>;

    /// What one worker thread reads one GPU with.
    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn Reader>, Failure>;

    /// Cheap; true when the layout (MIG instances, number of GPUs, driver version) differs from the last inventory.
    fn layout_changed(&self) -> bool;

    /// What should be there, where the driver knows better than the node's PCI bus (a simulation does).
    fn node_devices(&self) -> Option<NodeDevices> {
        None
    }

    /// How the driver tells of what happens on its own. `None`: it does not. May block for ever, as all here.
    fn events(&self) -> Option<Box<dyn EventSource>> {
        None
    }

    /// Has holders for as long as the driver is open, where that may be longer than the session lives.
    fn open_marker(&self) -> Option<Weak<dyn Any + Send + Sync>> {
        None
    }
}

/// Hears of what happens on the GPUs of one session, from one thread.
pub trait EventSource: Send {
    /// The next event. `Ok(None)`: nothing for as long as `patience`, or for less. May block for ever.
    fn wait(&mut self, patience: Duration, now: Monotonic) -> Result<Option<RawEvent>, EventFailure>;

    /// The driver lists other GPUs than when this was made.
    fn gpus_changed(&mut self) {}

    /// What failed since this was last asked and cost one GPU's events, not all.
    fn problems(&mut self) -> Vec<Problem> {
        Vec::new()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEvent {
    pub gpu: GpuUuid,
    /// `None`: the whole GPU.
    pub instance: Option<XidInstance>,
    pub kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// 999 where the driver does not say which.
    Xid(u32),
    /// The GPU was partitioned anew.
    MigChange,
    /// Anything else that shows in the slow tier: memory errors, another recovery action.
    Condition,
}

/// A wait that failed: it is tried again after a pause, unless the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFailure {
    pub problem: Problem,
    pub status: PassStatus,
}

/// Reads one GPU, from one thread. May block for ever.
pub trait Reader: Send {
    fn read(&mut self, due: Due, now: Moment) -> Pass;
}

/// Which tiers a pass is to read. Fast is always read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    pub medium: bool,
    pub slow: bool,
}

/// What came of one pass over one GPU: values and problems side by side.
#[derive(Debug, Default)]
pub struct Pass {
    pub status: PassStatus,
    pub integrals: Integrals,
    /// Millijoules since the driver was loaded or the GPU reset, as the driver counts them: a fall tells of either.
    pub energy_counter: Option<u64>,
    pub fast: Option<Fast>,
    pub medium: Option<Medium>,
    pub slow: Option<Slow>,
    pub problems: Vec<Problem>,
    /// Readings outside their range, by quantity.
    pub implausible: Implausible,
}

/// What one pass adds to the totals. `None`: not known, for this GPU or this time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Integrals {
    pub busy_seconds: Option<f64>,
    pub memory_busy_seconds: Option<f64>,
    /// encoder, decoder, jpeg, ofa
    pub engine_busy_seconds: Vec<(&'static str, f64)>,
    pub energy_joules: Option<f64>,
    /// By GPU instance, those that tell it. `None`: nothing was asked.
    pub instance_busy_seconds: Option<Vec<(u32, f64)>>,
    pub uncovered_seconds: f64,
    /// SM-seconds by pid, of those that worked. Empty: nobody did.
    pub process_sm_seconds: Option<Vec<(u32, f64)>>,
    /// The driver names no process of a busy GPU: what it has said of processes before no longer holds.
    pub lists_no_processes: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PassStatus {
    #[default]
    Answers,
    /// Lost, or a reset is required: this GPU only.
    Lost,
    /// The session as a whole is of no more use: open a new one.
    SessionOver,
}

/// One failed call that cost a value and nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The driver's name of the call.
    pub call: &'static str,
    /// The driver's name of the return code, lower case: `gpu_is_lost`.
    pub code: &'static str,
}

/// Why there is no session. Shown to people: says what, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct Failure {
    pub call: &'static str,
    pub code: &'static str,
    pub reason: String,
    pub remedy: &'static str,
}
