//! The types that all modules share.
//!
//! In: nothing. Out: plain values. It does not know tokio, gRPC, NVML, Prometheus, files or clocks.

mod allocations;
mod device_health;
mod identity;
mod inventory;
mod journal;
mod plugin;
mod pod_label;
mod process;
mod reading;
mod snapshot;
mod time;
mod token_bucket;
mod unattributed;
mod xid;

pub use allocations::{Allocatable, Allocations, ClaimDevice, Container, CpuSet, HeldDevice, MemoryBlock, Pod};
pub use device_health::{
    DeviceHealth, GpuHealth, HealthCause, HealthState, HealthTransition, LastXid, RECOVERY_ACTIONS, UnhealthyReason,
    XidClass, XidCounts, recovery_action,
};
pub use identity::{ContainerId, ContainerRef, DeviceId, GpuUuid, MigUuid, PciBusId, PodRef, PodUid, ResourceName};
pub use inventory::{BusGpu, DriverInfo, Gpu, Inventory, MigDevice, MissingGpu, NodeDevices, NvLinkPeers};
pub use journal::JournalState;
pub use plugin::{PluginResource, PluginState, PluginUnhealthyReason};
pub use pod_label::{PodLabel, PodLabelError};
pub use process::{Owner, PodDirectory, PodIdentity, Process, ProcessKey, ProcessState, UnknownOwner};
pub use reading::{
    Clocks, DeviceProcess, DeviceReadings, EccLocation, FabricState, Fast, Gaps, GpmRatios, InstanceReading,
    LinkCounters, Medium, MemoryUse, NvLink, Pcie, ProcessSmSeconds, Rates, RowRemap, Slow, Stamped, Totals, Traffic,
};
pub use snapshot::{
    Account, Attribution, ClaimGpu, Collector, ConfigReload, HardwareState, Holding, InventoryDrift, KubeletCounters,
    KubeletState, PodResourcesApi, Released, SelfUse, Sharing, Snapshot, UnresolvedDevices,
};
pub use time::{DurationHistogram, Moment, Monotonic, UnixSeconds};
pub use token_bucket::TokenBucket;
pub use unattributed::{Divided, Quantity, Reason, UnallocatedUse, Unattributed};
pub use xid::{ContainerXid, XidEvent, XidInstance, XidProcess, XidSource};
