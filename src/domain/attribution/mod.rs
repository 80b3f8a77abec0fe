//! Divides the use of each device among its holders. Pure.
//!
//! In: holdings, the inventory, readings, processes and their owners, XIDs, the time. Out: accounts, unattributed use, XIDs
//! by container. State: the ledger, and the counts of XIDs. Does not use: how a holder was found (`holders`).

mod ledger;
mod owners;
mod xids;

pub use ledger::{Ledger, LedgerOutput, Observation};
pub use owners::{DeviceProcesses, OwnedProcess, OwnersState, process_ids, processes_by_device};
pub use xids::{ClassedXid, ContainerXids, XidObservation};
