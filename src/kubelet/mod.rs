//! What the kubelet says about who holds what.
//!
//! In: the PodResources socket, file events beside it, and the socket of the Pods API. Out: `KubeletState` and
//! `PodDirectory`, published on watch channels. Refuses to know: what a device is, who asks. Protobuf types end here.

mod budget;
mod client;
pub mod convert;
pub mod pods;
mod trigger;
mod watch;

pub use client::{CallError, Client};
pub use watch::{Settings, run};
