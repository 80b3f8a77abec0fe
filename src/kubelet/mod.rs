//! What the kubelet says about who holds what.
//!
//! In: the PodResources socket and file events beside it. Out: `KubeletState`, published on a watch channel. Refuses to
//! know: what a device is, who asks. Protobuf types end here.

mod budget;
mod client;
mod convert;
mod trigger;
mod watch;

pub use client::{CallError, Client};
pub use watch::{Settings, run};
