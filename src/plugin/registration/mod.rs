//! The registration of a resource with the kubelet: `lifecycle` has all of it from listen to end.
//!
//! In: `ServiceInputs`, the device-plugin directory, the kubelet's answers. Out: the registration, and the resource's
//! status. Does not use: how devices are chosen and allocated.

mod conflict;
mod grants;
mod lifecycle;
mod register;
mod server;
#[cfg(test)]
mod tests;
mod until_free;
mod waiting;

pub use conflict::{OtherPlugin, known_resource, other_plugin, other_resource_text, unserved};
pub use lifecycle::{EndedLifecycle, Lifecycle};
pub use register::Deadlines;
