//! A simulated node: a fake kubelet on real sockets, workloads that start and end, and a day
//! of faults.
//!
//! In: a description (pods, devices, a seed). Out: gRPC on unix sockets, loads for simulated GPUs, directories laid out
//! as `/proc` and the kubelet's logs, and the truth to check accounts against. Does not use: the agent. Only `demo`,
//! tests, benches and examples use it.

pub mod day;
pub mod dra_driver;
pub mod kubelet;
pub mod node;
pub mod proc_tree;
mod random;
mod truth;
mod workload;

pub use random::Random;
pub use truth::{TrueHolding, Truth};
pub use workload::{Level, Workload, WorkloadKind};

/// The outcome of a removal, which succeeds where nothing is there.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
