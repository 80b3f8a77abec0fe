//! The bundled device plugin.
//!
//! In: configured resources, the inventory, device health, the kubelet's state. Out: registrations, device lists and
//! allocation answers to the kubelet. Does not use: metrics, HTTP, NVML.

mod answer;
pub mod cdi;
mod config;
mod configured_resource;
mod conflict;
mod host;
mod host_scan;
mod layout;
mod lifecycle;
mod missing;
mod mps;
mod node;
mod nvidia_config;
mod offer;
mod offers;
pub mod paths;
mod pattern;
mod pre_start;
mod preferred;
mod profile;
mod profile_config;
mod run;
mod server;
mod sockets;
mod status;
#[cfg(test)]
mod tests;
mod values;

pub use answer::answer;
pub use config::{
    DeviceIdStrategy, DeviceListStrategy, DriverMount, GroupedNode, MigStrategy, NamePattern, NamePatterns, NewName,
    NodeGroup, NvidiaConfig, OnConflict, PathConfig, PluginConfig, PluginConfigError, PreStartCheck, Replication,
    ResourceConfig, ResourceReplication, SharingConfig, SimulatedConfig,
};
pub use conflict::{conflict, known_resource};
pub use host::HostPaths;
pub use node::{DriverFiles, MigCapabilities, control_nodes};
pub use nvidia_config::parse as parse_nvidia_config;
pub use offer::{AllocationRefusal, Offer, OfferedDevice, OfferedHardware, PluginUnhealthy};
pub use offers::{Offers, merge, offers};
pub use pattern::Pattern;
pub use profile::{CountRange, NodeGpus, NodeView, PluginPlan, PluginProfile, ProfileChoice, ProfileMatch};
pub use profile_config::{ChangedSection, ProfileConfig};
pub use run::{PluginHandle, PluginInputs, PluginSettings, start};
pub use sockets::{kubelet_socket, live as live_sockets};
pub use values::{DeviceReference, resource_name};
