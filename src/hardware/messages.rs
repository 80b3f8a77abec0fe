//! What the hardware threads and the handle send to the supervisor, and its commands to the threads.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::oneshot;

use super::source::{CallProblem, DriverSession, Failure, Pass};
use super::tiers::Due;
use crate::domain::model::{GpuUuid, Inventory, Moment, NodeDevices, Released};

pub type SupervisorSender = SyncSender<SupervisorMessage>;

/// A message to the supervisor: from its threads, or a request to release, resume or stop.
pub enum SupervisorMessage {
    Passed(Box<PassReport>),
    /// This GPU's thread has dropped its reader and with it the session.
    ReaderDropped(GpuUuid),
    Opened(Box<Result<OpenedSession, Failure>>, Option<NodeDevices>),
    /// The new list, `None` for an unchanged layout, or why the layout is unknown; and the GPUs on the bus.
    Inspected(Result<Option<Box<Result<ListedGpus, Failure>>>, CallProblem>, Option<NodeDevices>),
    Closed,
    Notice(Box<Notice>),
    /// The event thread with this number has released its session, and whether a panic ended it.
    EventThreadEnded(u64, bool),
    /// The GPUs that containers hold, and those whose holders have changed.
    Held {
        held: BTreeSet<GpuUuid>,
        changed: BTreeSet<GpuUuid>,
    },
    /// The GPUs that a page or `top` shows.
    Watched(BTreeSet<GpuUuid>),
    Release(Duration, ReleaseReply),
    Resume(oneshot::Sender<()>),
    Stop,
}

pub type ListedGpus = (Inventory, Vec<CallProblem>);

pub type OpenedSession = (Arc<dyn DriverSession>, ListedGpus);

pub struct PassReport {
    pub gpu: GpuUuid,
    pub generation: u64,
    pub due: Due,
    /// When the pass began.
    pub at: Moment,
    pub duration: Duration,
    /// Whether it is the first pass of a new reader.
    pub fresh: bool,
    pub pass: Pass,
}

/// A command to the thread of one GPU.
pub enum WorkerCommand {
    Read { session: Arc<dyn DriverSession>, generation: u64, due: Due },
    DropReader,
}

/// A command to the driver thread.
pub enum DriverCommand {
    Open,
    Inspect(Arc<dyn DriverSession>),
    Close(Arc<dyn DriverSession>),
}

/// What the driver's events mean for the supervisor.
#[derive(Debug, Default, PartialEq)]
pub struct Notice {
    /// The event thread's number.
    pub event_thread: u64,
    /// GPUs whose slow tier is due at once.
    pub slow_due: BTreeSet<GpuUuid>,
    pub layout_may_have_changed: bool,
    pub problems: Vec<CallProblem>,
    pub session_over: bool,
}

/// Gets the answer once the driver is closed, or when that takes too long.
pub type ReleaseReply = oneshot::Sender<Result<Released, ReleaseError>>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    #[error(
        "the driver is still open after {seconds} s because of {holders}; no new call is made, and the driver closes \
         when these return: look for Xid and NVRM lines in the kernel log, or stop podmeter"
    )]
    Held { seconds: u64, holders: String },
    #[error("a resume was requested before the driver was closed")]
    Resumed,
    #[error("the hardware threads have ended or are busy; see the log of podmeter")]
    Unavailable,
}
