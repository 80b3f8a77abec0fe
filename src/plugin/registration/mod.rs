//! The registration of a resource with the kubelet. `lifecycle` has its states; `waiting` waits in the first of them, `server` is
//! our socket, and `conflict` decides in all of them whether another plugin has the resource, with `grants`.
//!
//! In: `ServiceInputs`, the device-plugin directory, the kubelet's answers. Out: the registration, and the resource's
//! status. Does not use: how devices are chosen and allocated.

mod conflict;
mod grants;
mod lifecycle;
mod server;
#[cfg(test)]
mod tests;
mod waiting;

pub use conflict::{OtherPlugin, known_resource, other_plugin, other_resource_text, unserved};
pub use lifecycle::{Deadlines, EndedLifecycle, Lifecycle};
