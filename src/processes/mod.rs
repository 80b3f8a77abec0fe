//! From a process on a device to the container that it belongs to.
//!
//! In: the readings with host process IDs, `/proc`, pods of the kubelet's Pods API and of its log directories.
//! Out: `OwnersState`: an owner for each process and the identities of pods, with the readings, published on a watch channel. Does
//! not use: NVML, metrics, gRPC.
//!
//! Everything read from `/proc` is untrusted: it is read up to a limit, none of it can stop the module, and what a
//! process controls affects the owner of that process only, except a process that
//! takes the name of the MPS server of a shared GPU.

pub(crate) mod cgroup;
mod counts;
mod files;
pub(crate) mod mountinfo;
mod resolver;
mod run;
mod stat;

pub use counts::{ProcessCounts, count_processes};
pub use resolver::Resolver;
pub use run::{ProcessAttribution, ProcessesInputs, ProcessesSettings, start};
