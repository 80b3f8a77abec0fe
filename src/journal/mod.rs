//! The journal of allocations: who held which device from when to when, with its seconds, joules and health events.
//!
//! In: successive `Snapshot`s, a directory. Out: a database that survives `kill -9`, answers from it, and how it fares.
//! Refuses to know: the kubelet, drivers, HTTP, and how anything is measured. `chronicle` decides in memory what is to be
//! said; `keeper` writes it on a thread of its own, so that no disk holds anybody up; `store` alone speaks SQLite.

mod chronicle;
mod directory;
mod keeper;
mod pieces;
mod query;
mod record;
pub mod report;
mod size;
mod store;
mod subject;
mod usage;

pub use chronicle::{Chronicle, PROGRESS};
pub use keeper::{Journal, Reader, Settings, Watcher};
pub use pieces::Pieces;
pub use query::{Answer, Cursor, PAGE, Query, QueryError, current, parse_time, read_directory};
pub use record::{Device, Ending, Figures, HealthEvent, Record, Xid};
pub use size::{Size, SizeError};
pub use store::{Bounds, FILE, Loaded, Store, StoreError};
pub use usage::{By, Row, Totals, Usage};
