//! DRA claims: their devices in the kubelet's list, and in the drivers' files.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use strum::IntoStaticStr;

use super::{DeviceId, GpuUuid, MigUuid, PciBusId};

/// A claim's namespace, its name, and the share ID where the device is allocated in shares.
pub type ClaimName<'a> = (&'a str, &'a str, Option<&'a str>);
/// A claim's name, driver, pool and device.
pub type ClaimKey<'a> = (ClaimName<'a>, &'a str, &'a str, &'a DeviceId);

/// One device of a DRA claim. The kubelet lists all devices of a claim under every container that refers to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimDevice {
    pub claim_namespace: Arc<str>,
    pub claim: Arc<str>,
    pub driver: Arc<str>,
    pub pool: Arc<str>,
    pub device: DeviceId,
    pub share_id: Option<Arc<str>>,
    /// The claim's UID, from the names of the driver's CDI devices; `List` has it nowhere else.
    pub claim_uid: Option<Arc<str>>,
    /// The record in the files of its driver.
    pub record: ClaimRecord,
}

/// The facts of a claim's device in the files that a DRA driver keeps on the node. Empty where none can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRecord {
    /// The hardware by source, the most trusted first.
    pub hardware: BTreeMap<ClaimSource, ClaimHardware>,
    /// The allocation; `None` where no file has it: the claim then holds the device, alone or equally with others.
    pub allocation: Option<ClaimAllocation>,
}

/// How a device is allocated to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimAllocation {
    /// Whether the claim only observes the device and does not hold it.
    pub admin_access: bool,
    /// The parts of the device's capacities that the claim consumes, in thousandths of a byte or a unit. Empty: all of
    /// it, or unknown.
    pub consumed: BTreeMap<Arc<str>, u64>,
}

/// The sources of the hardware of a claim's device, the most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ClaimSource {
    /// The metadata that the driver wrote for the claim's containers (`dra-device-metadata`).
    Metadata,
    /// The driver's checkpoint of its prepared claims.
    Checkpoint,
    /// The CDI specification of the claim.
    Cdi,
    /// The driver's naming convention.
    DeviceName,
}

/// The hardware, in the form in which a file has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimHardware {
    Gpu(GpuUuid),
    Mig(MigUuid),
    /// A whole GPU, by the address of its PCI device.
    Pci(PciBusId),
    /// A whole GPU, by its device node `/dev/nvidia<minor>`.
    Minor(u32),
    /// A MIG device, by the device nodes of its GPU and its instances.
    Instance {
        minor: u32,
        gpu_instance: u32,
        compute_instance: u32,
    },
}

/// A device of a DRA claim, and the GPU that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimGpu {
    pub claim: ClaimDevice,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// The source of the hardware.
    pub source: ClaimSource,
}

impl ClaimDevice {
    /// Whether it has admin access to the device, and holds nothing of it.
    pub fn is_observer(&self) -> bool {
        self.record.allocation.as_ref().is_some_and(|allocation| allocation.admin_access)
    }

    /// The parts of the device's capacities that it consumes.
    pub fn consumed(&self) -> impl Iterator<Item = (&str, u64)> {
        let allocation = self.record.allocation.iter();
        allocation.flat_map(|allocation| allocation.consumed.iter().map(|(capacity, amount)| (&**capacity, *amount)))
    }

    /// Identifies the device, or the share of it, of the claim.
    pub fn key(&self) -> ClaimKey<'_> {
        let name = (&*self.claim_namespace, &*self.claim, self.share_id.as_deref());
        (name, &*self.driver, &*self.pool, &self.device)
    }

    /// Whether both are the same device, or the same share of it, of the same claim.
    pub fn is_same_share(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
