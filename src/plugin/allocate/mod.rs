//! The answers to the kubelet's calls for one resource: environment, mounts, device nodes, CDI names, preferences.
//!
//! In: the offer, the configuration, `HostFacts`, the last readings and allocations. Out: gRPC messages, and counts in
//! the resource's status. It does no I/O.

mod container_response;
mod pre_start;
mod preferred_allocation;
mod service;
#[cfg(test)]
mod tests;

pub use service::{AnsweredCalls, OpenStreams, PluginService, ServiceInputs};
