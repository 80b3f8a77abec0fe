//! What exists on this node: device nodes, CDI specifications, NVIDIA's MPS daemon, and the sockets of device plugins.
//!
//! In: the configured entries, the offers that they make of the inventory, the host's directories. Out: a `ScanResult`
//! with `HostFacts` for the answers to the kubelet, our CDI specification on disk, and which sockets there are. Does
//! not use: registrations, or any health except which devices are absent.

pub mod cdi;
mod driver_files;
pub mod mps;
pub mod path_devices;
mod scanner;
mod scans;
pub mod sockets;
mod topology;

pub use driver_files::{DriverFiles, MigCapabilities};
pub use scanner::{HostFacts, HostPaths, ScanResult, depends_on_host};
pub use scans::HostScans;
