//! The state of the journal of allocations.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The state of the journal of allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalState {
    /// Holdings written to disk, counted again for each update.
    pub written: u64,
    /// Failed writes, openings and checks.
    pub errors: u64,
    /// Holdings dropped because too many waited for the disk.
    pub dropped: u64,
    /// Of the file; `None` while it is not open.
    pub size_bytes: Option<u64>,
    /// Why nothing is written, with a remedy.
    pub problem: Option<Arc<str>>,
}
