use std::sync::Arc;

use serde::Serialize;

use super::{ContainerRef, GpuUuid, MigUuid, Moment, UnixSeconds, XidClass};

/// XIDs of one kind that a source told of, counted since it last told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct XidEvent {
    /// When the last of them was heard.
    pub at: Moment,
    pub gpu: GpuUuid,
    /// `None`: the whole GPU.
    pub instance: Option<XidInstance>,
    /// 999 where the driver does not say which.
    pub code: u32,
    pub source: XidSource,
    /// Whose work it was, where the source says so.
    pub process: Option<XidProcess>,
    /// At least 1.
    pub count: u64,
}

/// XIDs of one code that one container met on one device. The count never falls while it is there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerXid {
    pub container: ContainerRef,
    pub gpu: GpuUuid,
    /// `None` outside MIG, and where nobody said which of its MIG devices it was.
    pub mig: Option<MigUuid>,
    pub code: u32,
    pub class: XidClass,
    pub count: u64,
    /// When there was none yet: the container took hold, or the first was counted.
    pub created: UnixSeconds,
}

/// The part of a partitioned GPU that an XID is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct XidInstance {
    pub gpu_instance: u32,
    /// `None`: all compute instances inside it.
    pub compute_instance: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum XidSource {
    Nvml,
    /// The kernel's log.
    Kmsg,
}

impl XidSource {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::Kmsg => "kmsg",
        }
    }
}

/// A process as the kernel's log names it: with the host's number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct XidProcess {
    pub pid: u32,
    pub name: Option<Arc<str>>,
}
