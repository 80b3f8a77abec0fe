//! The state of the journal of allocations.

use std::sync::Arc;

/// The state of the journal of allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// The number of holdings written to disk; each update counts.
    pub written: u64,
    /// The number of failed writes, openings and checks.
    pub errors: u64,
    /// The number of holdings dropped because too many waited for the disk.
    pub dropped: u64,
    /// The size of the file; `None` while it is not open.
    pub size_bytes: Option<u64>,
    /// Why nothing is written, with a remedy.
    pub problem: Option<Arc<str>>,
}
