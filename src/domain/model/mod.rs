//! The types that all modules share.
//!
//! In: nothing. Out: plain values. Does not use: tokio, gRPC, NVML, Prometheus, files, clocks.

mod account;
mod allocations;
mod claims;
mod device_health;
mod device_id;
mod file_stamp;
mod holding_counters;
mod identity;
mod inventory;
mod plugin;
mod pod_label;
mod process;
mod reading;
mod recent_count;
mod recent_ratio;
mod slow_reading;
mod snapshot;
mod summary;
mod time;
mod timestamp;
mod token_bucket;
mod unattributed;

pub use account::{Account, Attribution, ENDED_SHOWN, Holding, SharingForm};
pub use allocations::{Allocatable, Allocations, Container, CpuSet, HeldDevice, MemoryBlock, Pod};
pub use claims::{
    ClaimAllocation, ClaimDevice, ClaimGpu, ClaimHardware, ClaimKey, ClaimName, ClaimRecord, ClaimSource,
};
pub use device_health::{
    ContainerXid, DeviceHealth, GpuHealth, HealthCause, HealthState, HealthTransition, RECOVERY_ACTIONS,
    UnhealthyReason, XidClass, XidCount, XidCounts, XidEvent, XidInstance, recovery_action,
};
pub use device_id::{DeviceForm, DeviceId, UUID_LENGTH, is_uuid};
pub use file_stamp::FileStamp;
pub use holding_counters::{Cost, HoldingCounters};
pub use identity::{
    ContainerId, ContainerRef, DeviceRef, GpuUuid, MigUuid, PciBusId, PodRef, PodUid, ResourceName, is_dns_label,
};
pub use inventory::{
    BusGpu, DriverInfo, Gpu, Inventory, MigDevice, MissingGpu, NodeDevices, NvLinkPeers, Platform, UnservedGpu,
};
pub use plugin::{AppliedProfile, MpsDaemons, PluginResource, PluginState, PluginUnhealthyReason};
pub use pod_label::{PodLabel, PodLabelError};
pub use process::{Owner, PodDirectory, PodIdentity, PodLogs, Process, ProcessKey, ProcessState, UnknownOwner};
pub use reading::{
    Clocks, DeviceProcess, DeviceReadings, DeviceTotals, Fast, GpmRatios, InstanceReading, Medium, MemoryUse, Rates,
    ReadingGaps, Stamped, Traffic,
};
pub use recent_count::RecentCount;
pub use recent_ratio::RecentRatio;
pub use slow_reading::{C2c, EccLocation, FabricDomain, FabricState, LinkCounters, NvLink, Pcie, RowRemap, Slow};
pub use snapshot::{
    ConfigReload, HardwareSource, HardwareState, InventoryDrift, JournalState, KubeletCounters, KubeletState, Released,
    SelfUse, Snapshot, SourceStatus, UnresolvedDevices,
};
pub use summary::{
    DeviceOverview, DeviceParts, DeviceState, NodeOverview, Overview, ResourceCount, SlotCounts, allocated_ratios,
    busy_ratio, equal_division, parts_of_device, served,
};
pub use time::{DurationHistogram, Moment, Monotonic, UnixSeconds};
pub use timestamp::Timestamp;
pub use token_bucket::TokenBucket;
pub use unattributed::{Divided, DividedQuantity, UnallocatedUse, Unattributed, UnattributedReason};
