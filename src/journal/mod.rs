//! The journal of allocations: which container held which device from when to when, with seconds, joules and health
//! events.
//!
//! Inputs: successive `Snapshot`s, a directory. Outputs: a database that survives `kill -9`, query results, its state.
//! Does not use: the kubelet, drivers, HTTP. `AllocationTracker` decides in memory which records change; the journal
//! writer writes them on a separate thread, so that no disk delays anything else; only `store` uses SQLite.

mod allocation_record;
mod allocation_tracker;
mod directory;
mod prices;
mod query;
mod recording;
pub mod report;
mod store;
mod usage;
mod writer;

pub use allocation_record::{AllocationRecord, Ending, HealthEvent, JournalDevice, Xid};
pub use allocation_tracker::{AllocationTracker, PROGRESS};
pub use prices::{Price, PricedHolding, Prices};
pub use query::{AllocationsResponse, QueryError, current, parse_time, read_directory};
pub use store::{Bounds, FILE, Query, Store, StoreError};
pub use usage::{By, Usage, UsageRow, UsageTotals};
pub use writer::{Journal, JournalFeed, JournalReader, JournalSettings};
