//! The kubelet's allocations and pods.
//!
//! In: the PodResources socket, the device checkpoint, file events beside both, the files of DRA drivers, the socket of the Pods
//! API, the names of log directories, and the state of the hardware. Out: `HoldersState`, `KubeletState`, `PodDirectory` and
//! `PodLogs`, published on watch channels. Does not use: drivers, metrics. Protobuf types end here.
//!
//! ```text
//! schedule ─► watch ─► client ─► accepted ─► KubeletState ─► holders ─► HoldersState
//! trigger ──────┘                   ▲                  hardware ┘
//! checkpoint, claim_files, pods, pod_logs
//! ```
//!
//! `schedule` decides when `watch` calls the kubelet, `trigger` has the reasons, `accepted` which listed pods hold something,
//! `holders` which hardware that is.

mod accepted;
pub(crate) mod checkpoint;
pub mod claim_files;
pub(crate) mod client;
pub mod holders;
pub mod pod_logs;
pub mod pods;
mod schedule;
mod trigger;
mod watch;

pub use client::{CallError, Client, dial};
pub use pods::PodSources;
pub use watch::{KubeletHandle, KubeletSettings, RefreshInterval, start};
