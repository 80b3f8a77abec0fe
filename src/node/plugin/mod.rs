//! The bundled device plugin: its task, which serves the resources of each configured entry, on five parts. Each uses
//! only those to its right:
//!
//! ```text
//! task ─► registration ─► allocate ─► host ─► offer ─► config
//!  ├ configured_entry: what one entry offers now
//!  └ served_resource:  the lifecycle of each resource that is offered
//! ```
//!
//! In: configured entries, the inventory, device health, the kubelet's state. Out: registrations, device lists and
//! allocation answers to the kubelet. Does not use: metrics, HTTP, NVML.

mod allocate;
mod config;
mod configured_entry;
pub mod host;
mod offer;
mod registration;
mod served_resource;
mod task;
#[cfg(test)]
mod test_data;

pub use allocate::PluginInputs;
pub use config::{
    EntryConfig, MigStrategy, NodeGpus, NodeView, NvidiaConfig, OnConflict, PluginConfig, PluginConfigError,
    PluginPlan, ProfileConfig, Replication, SharingConfig, SimulatedConfig, parse_nvidia_config, resource_name,
};
pub use host::HostPaths;
pub use host::sockets::{kubelet_socket, live as live_sockets};
pub use registration::{conflict, known_resource};
pub use task::{PluginHandle, PluginSettings, start};
