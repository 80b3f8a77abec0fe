//! Container Device Interface (CDI): which names containers get, and the files that describe them.
//!
//! In: the runtime's directories of specifications, the devices of the node, the names that containers hold. Out: for each
//! device the vendor's name where that is the same hardware, and our files, which describe the others.

pub(crate) mod format;
mod vendor;
mod written;

pub use vendor::{HostView, Specifications, UnusedFiles, unused_problems};
pub use written::{SpecificationInputs, WrittenSpecifications, node_devices};

/// The kind of the names in the specification that podmeter writes.
pub const KIND: &str = "podmeter.device-plugin/gpu";
/// The kind that NVIDIA's plugin uses. podmeter used it too, and containers from then hold its names.
pub const EARLIER_KIND: &str = "k8s.device-plugin.nvidia.com/gpu";
/// The runtime's directories of specifications: a name in the later one replaces it in the earlier one.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
