//! The bundled device plugin, in five parts; each uses only those to its right:
//!
//! ```text
//! task ─► registration ─► allocate ─► host ─► offer ─► config
//! ```
//!
//! In: configured resources, the inventory, device health, the kubelet's state. Out: registrations, device lists and
//! allocation answers to the kubelet. Does not use: metrics, HTTP, NVML.

mod allocate;
mod config;
mod configured_resource;
pub mod host;
mod offer;
mod registration;
mod served_resource;
mod task;
#[cfg(test)]
mod test_data;

pub use config::{
    MigStrategy, NodeGpus, NodeView, NvidiaConfig, OnConflict, PluginConfig, PluginConfigError, PluginPlan,
    ProfileConfig, Replication, ResourceConfig, SharingConfig, SimulatedConfig, parse_nvidia_config, resource_name,
};
pub use host::HostPaths;
pub use host::sockets::{kubelet_socket, live as live_sockets};
pub use registration::{conflict, known_resource};
pub use task::{PluginHandle, PluginInputs, PluginSettings, start};
