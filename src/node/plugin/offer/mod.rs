//! The device list of each resource, and which devices a change of the MIG layout removes. Pure.
//!
//! In: the configuration, the inventory, device health, the device nodes that were found. Out: `Offer`s, and problems for
//! the log and the page. It does not know the kubelet's protocol.

mod devices;
pub mod layout;
mod missing;
mod offered_device;
#[cfg(test)]
mod tests;

pub use devices::{LONGEST_ID, Offers, PathDevice, merge, offers};
pub use offered_device::{AllocationRefusal, Offer, OfferedDevice, OfferedHardware, PluginUnhealthy};
