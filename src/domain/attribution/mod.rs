//! Attribution of device use to containers: pure decisions, and the ledger that integrates them.
//!
//! Inputs: allocations, the inventory, readings, processes and their owners, XIDs, the time. Outputs: accounts,
//! unattributed use, XIDs by container. Does not use: a clock, I/O, waiting, the sources of its inputs.

mod claims;
mod device_id;
mod drift;
mod join;
mod ledger;
mod missing;
mod owners;
mod pod_uid;
mod resolve;
mod unconfirmed;
mod xids;

pub use device_id::{DeviceForm, is_uuid, parse_claim_device, parse_device_id};
pub use join::{HoldingKey, Join, Slots, held_gpus, join};
pub use ledger::{Ledger, LedgerOutput, Observation};
pub use missing::MissingGpus;
pub use owners::{DeviceProcesses, OwnedProcess, are_scanned, processes_by_device, wanted_processes};
pub use pod_uid::{CheckpointAllocations, PodUids, UidSources};
pub use unconfirmed::Unconfirmed;
pub use xids::{ClassedXid, ContainerXids, XidObservation};
