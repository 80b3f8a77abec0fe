//! Which of the free devices a pod should get.
//!
//! In: a request (free devices, those that must be in, how many), where the GPUs sit and how they are linked, what is
//! known of their condition. Out: the devices, or an empty answer and why. Does not use: protobuf types, how links and
//! conditions are read, the clock. It never fails and its work is bounded.

mod condition;
mod gpus;
mod links;
mod request;
mod sets;
mod slots;
mod topology;

pub use condition::Condition;
pub use gpus::choose_gpus;
pub use request::{FallbackReason, FreeDevice, PreferenceRequest, PreferredDevices};
pub use slots::{SlotPolicy, choose_slots};
pub use topology::{GpuLocation, PciGpu, PciRelation, Topology};
