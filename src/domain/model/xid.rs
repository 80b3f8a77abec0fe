//! XIDs, the error codes of the driver: as received, and attributed to containers.

use serde::Serialize;

use super::{ContainerRef, GpuUuid, MigUuid, Moment, UnixSeconds, XidClass};

/// XIDs of one kind, counted since the last batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XidEvent {
    /// The time of the last of them.
    pub at: Moment,
    pub gpu: GpuUuid,
    /// `None`: the whole GPU.
    pub instance: Option<XidInstance>,
    /// 999 where the driver gives no code.
    pub code: u32,
    /// At least 1.
    pub count: u64,
}

/// XIDs of one code attributed to one container on one device. The count never falls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerXid {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    /// `None` outside MIG, and where the MIG device is unknown.
    pub mig: Option<MigUuid>,
    pub code: u32,
    pub class: XidClass,
    pub count: u64,
    /// When counting began: at the start of the holding, or at the first XID.
    pub created: UnixSeconds,
}

/// The part of a partitioned GPU that an XID concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct XidInstance {
    pub gpu_instance: u32,
    /// `None`: all compute instances inside it.
    pub compute_instance: Option<u32>,
}
