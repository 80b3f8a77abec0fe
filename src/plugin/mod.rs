//! The bundled device plugin: its task, which serves the resources of each configured entry, on six parts. Each uses
//! only those to its right:
//!
//! ```text
//! task ─► registration ─► allocate ─► status ─► host ─► offer ─► config
//!  ├ configured_entry: what one entry offers now
//!  └ served_resource:  the lifecycle of each resource that is offered
//! ```
//!
//! `inputs` has what all of them observe, `hash` makes short names. Which devices are free depends on three facts of `KubeletState`: an
//! answer that is `settled` lists all holders; pods in `unconfirmed` may yet hold their devices, and none of these is given to others;
//! before the first settled answer the devices in `held_in_checkpoint` count as held.
//!
//! In: the configuration, the inventory, readings, device health, the kubelet's state (`inputs`), files of the host. Out:
//! registrations, device lists and allocation answers to the kubelet; a `PluginState`. Does not use: metrics, HTTP, NVML.

mod allocate;
mod config;
mod configured_entry;
mod hash;
pub mod host;
mod inputs;
mod offer;
mod registration;
mod served_resource;
mod status;
mod task;
#[cfg(test)]
mod test_data;

pub use config::{
    EntryConfig, Environment, MigStrategy, NodeGpus, NodeView, NvidiaConfig, OnConflict, PluginConfig,
    PluginConfigError, PluginPlan, ProfileConfig, Replication, SharingConfig, SimulatedConfig, parse_nvidia_config,
    resource_name,
};
pub use host::HostPaths;
pub use host::sockets::{kubelet_socket, live as live_sockets};
pub use inputs::PluginInputs;
pub use registration::{OtherPlugin, known_resource, other_plugin, other_resource_text, unserved};
pub use task::{PluginHandle, PluginSettings, start};
