//! The device list of each resource, and which devices a change of the MIG layout removes. Pure.
//!
//! In: the configuration, the inventory, the device nodes that were found. Out: `Offer`s, and problems for
//! the log and the page. Of the kubelet's protocol it uses only the message that names a device node.
//!
//! A device that was offered and can no longer be allocated is one of:
//!
//! - lost: the driver no longer finds its GPU, which may return;
//! - missing: the driver has not enumerated its GPU since its start, and only the kubelet has the ID (`missing`);
//! - unplugged: its device nodes are not there, or another kernel driver has its GPU; it may return;
//! - without MPS: NVIDIA's MPS daemon does not serve its slot;
//! - vanished: its resource no longer offers it although its GPU is there, or its GPU was replaced (`layout`). Dropped
//!   from the offer once no container holds it.

mod devices;
pub mod layout;
mod missing;
mod offered_device;
#[cfg(test)]
mod tests;

pub use devices::{Offers, PathDevice, merge, offers};
pub use offered_device::{Offer, OfferedDevice, OfferedHardware, OfferedHealth, PluginUnhealthy};
