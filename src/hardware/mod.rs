//! Device readings on their own threads.
//!
//! In: a driver (NVML, or simulated GPUs). Out: `HardwareState`, published on a watch channel. Refuses to know:
//! pods, metrics, HTTP. NVML's types end here; a hung call costs its thread and that GPU's data, nothing more.

mod source;

pub use source::{Driver, Due, Failure, Integrals, Pass, Problem, Reader, Session, Verdict};
