//! The words that every room speaks.
//!
//! In: nothing. Out: plain values. Refuses to know: tokio, gRPC, NVML, Prometheus, files, clocks.

mod identity;
mod inventory;
mod plugin;
mod reading;
mod relation;
mod remainder;
mod snapshot;
mod time;
mod xid;

pub use identity::{ContainerRef, DeviceId, GpuUuid, MigUuid, PciBusId, PodRef, ResourceName};
pub use inventory::{DriverInfo, Gpu, Inventory, MigDevice, NodeDevices};
pub use plugin::{PluginResource, PluginState};
pub use reading::{
    Clocks, DeviceReadings, EccLocation, FabricState, Fast, GpmRatios, InstanceReading, Medium, MemoryUse, NvLink,
    Pcie, RowRemap, Slow, Stamped, Totals,
};
pub use relation::{Allocatable, ClaimDevice, Container, CpuSet, HeldDevice, MemoryBlock, Pod, Relation};
pub use remainder::{Quantity, Reason, Remainder, UnallocatedUse};
pub use snapshot::{
    Account, Attribution, ClaimGpu, Collector, ConfigReload, HardwareState, Holding, InventoryDrift, KubeletCounters,
    KubeletState, PodResourcesApi, SelfUse, Sharing, Snapshot, UnresolvedDevices,
};
pub use time::{DurationHistogram, Moment, Monotonic, UnixSeconds};
pub use xid::{XidEvent, XidInstance, XidProcess, XidSource};
