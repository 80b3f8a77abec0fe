//! The section `devicePlugin` of the configuration file, as validated types.
//!
//! In: YAML, NVIDIA's configuration file, the profiles. Out: a `PluginPlan`: the resources to offer on each kind of node.
//! It uses only what profiles match of the node: its name, and how many GPUs of which models it has.
//!
//! `entries` has the section and its kinds, of which `nvidia` and `path` have a file each; `nvidia_file` reads NVIDIA's
//! format, with `nvidia_keys`, the names in it; `profile_config` makes profiles into the plan, and `profile` chooses
//! one for a node.

mod check;
mod entries;
mod nvidia;
mod nvidia_file;
mod nvidia_keys;
mod path;
mod profile;
mod profile_config;
#[cfg(test)]
mod tests;
mod values;

pub use check::{LONGEST_UNSHARED_ID, PluginConfigError};
pub use entries::{EntryConfig, PluginConfig, SimulatedConfig};
pub use nvidia::{
    DeviceListStrategy, DriverMount, MigStrategy, NamePattern, NvidiaConfig, PreStartCheck, Replication, SharingConfig,
};
pub use nvidia_file::parse as parse_nvidia_config;
pub use nvidia_keys::Environment;
pub use path::PathConfig;
#[cfg(test)]
pub use path::{GroupedNode, NodeGroup};
pub use profile::{NodeGpus, NodeView, PluginPlan, ProfileCandidates};
pub use profile_config::ProfileConfig;
pub use values::{DeviceReference, OnConflict, resource_name};
