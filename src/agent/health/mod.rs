//! Device health in the running agent. What makes a device unhealthy is decided in `domain::health`, without a clock.
//!
//! `task` passes readings, XIDs and operators' orders to `domain::health`, publishes the `HealthState` and logs transitions.
//! `faults_file` keeps the faults for the next agent. `condition_file` writes the `domain::condition` of the node for repair
//! systems. Both write through `kept_file`. In `domain::health`, `signals` and `slow_signals` have what the driver reports,
//! `xids` the XID table, `marks` the operators' marks, `faults` what is kept, `tracked_gpu` one GPU with its `causes`.

mod condition_file;
mod faults_file;
mod kept_file;
mod task;

pub use condition_file::start as start_condition_file;
pub use faults_file::FaultsFile;
pub use task::{HealthHandle, HealthTaskInputs, start};
