use std::sync::Arc;

use serde::Serialize;

/// How the journal of allocations fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JournalState {
    /// Holdings written to disk, a later word on the same holding counted again.
    pub written: u64,
    /// Writes, openings and checks that failed.
    pub errors: u64,
    /// Holdings that were given up because too many waited for the disk.
    pub dropped: u64,
    /// Of the file; `None` while it is not open.
    pub size_bytes: Option<u64>,
    /// Why nothing is written now, with a remedy.
    pub problem: Option<Arc<str>>,
}
