//! From a process on a device to the container that it belongs to.
//!
//! In: host process ids that somebody wants to know of, `/proc`, the kubelet's log directories, what its Pods API says.
//! Out: `ProcessState`, an owner for each process and the identities of pods, published on a watch channel. Refuses to
//! know: NVML, metrics, gRPC, what a process does on a device.
//!
//! Everything read from `/proc` is hostile: it is read up to a limit, nothing in it can stop the room, and what a
//! process says is believed of that process alone.

pub mod cgroup;
mod files;
mod listing;
pub mod mountinfo;
mod pod_logs;
mod resolver;
mod run;
mod stat;
mod survey;

pub use resolver::Resolver;
pub use run::{Handle, Mode, Settings, start};
pub use survey::{Survey, named_pods, survey};
