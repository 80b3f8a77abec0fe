//! Divides the use of each device among its holders. Pure.
//!
//! In: holdings, the inventory, readings, processes and their owners, XIDs, the time. Out: accounts, unattributed use, XIDs
//! by container. State: the ledger, and the counts of XIDs. How a holder was found is a matter of `holders`.

mod ledger;
mod owners;
mod retention;
mod xids;

pub use ledger::{Ledger, LedgerOutput, Observation};
pub use owners::{DeviceProcesses, OwnedProcess, OwnersState, process_ids, processes_by_device};
pub use retention::Retention;
pub use xids::{ClassedXid, ContainerXids};
