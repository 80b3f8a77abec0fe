//! From device use to container use: pure decisions, and the ledger that integrates them.
//!
//! In: the allocations (who holds what), the inventory, readings, processes and their owners, XIDs, the time. Out: accounts,
//! what is nobody's, and XIDs by container. Refuses to know: where any of it came from; it has no clock, does no I/O and
//! never waits.

mod device_id;
mod join;
mod ledger;
mod missing;
mod pod_uid;
mod processes;
mod unconfirmed;
mod xids;

pub use device_id::{DeviceForm, parse_claim_device, parse_device_id};
pub use join::{HoldingKey, Join, Slots, held_gpus, join};
pub use ledger::{Ledger, Observation, Statement};
pub use missing::MissingGpus;
pub use pod_uid::{CheckpointAllocations, PodUids, UidSources};
pub use processes::{DeviceProcesses, OwnedProcess};
pub use unconfirmed::Unconfirmed;
pub use xids::{ClassedXid, ContainerXids, XidObservation};
