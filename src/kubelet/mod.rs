//! The kubelet's allocations and pods.
//!
//! In: the PodResources socket, the device checkpoint, file events beside both, the files of DRA drivers, the socket of the Pods
//! API, and the state of the hardware. Out: `HoldersState`, `KubeletState` and `PodDirectory`, published on watch channels. Does
//! not use: drivers, metrics. Protobuf types end here.

mod accepted;
#[doc(hidden)] // for the fuzz targets
pub mod checkpoint;
pub mod claim_files;
mod client;
pub mod convert;
pub mod holders;
pub mod pods;
mod schedule;
mod settle;
mod trigger;
mod watch;

pub use accepted::PodSources;
pub use client::{CallError, Client, dial};
pub use watch::{KubeletHandle, KubeletSettings, start};
