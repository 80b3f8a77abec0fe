//! Decides which of the free devices a pod should get.
//!
//! In: a request (free devices, those that must be in, how many), where the GPUs are and how they are linked, the
//! present drawbacks of each. Out: the devices, or an empty answer and why. Does not use: protobuf types, how links and
//! drawbacks are read, the clock. It never fails and its work is bounded.

mod drawbacks;
mod gpus;
mod request;
mod slots;
mod topology;

pub use drawbacks::GpuDrawbacks;
pub use gpus::choose_gpus;
pub use request::{FallbackReason, FreeDevice, PreferenceRequest, PreferredDevices};
pub use slots::{SlotPolicy, choose_slots};
pub use topology::{GpuLocation, PciGpu, PciRelation, Topology};
