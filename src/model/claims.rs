use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{DeviceId, GpuUuid, MigUuid, PciBusId};

/// One device of a DRA claim. The kubelet lists all devices of a claim under every container that refers to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ClaimDevice {
    pub claim_namespace: Arc<str>,
    pub claim: Arc<str>,
    pub driver: Arc<str>,
    pub pool: Arc<str>,
    pub device: DeviceId,
    pub share_id: Option<Arc<str>>,
    /// Drivers put the claim's UID into the names of their CDI devices; `List` has it nowhere else.
    #[serde(skip)]
    pub claim_uid: Option<Arc<str>>,
    /// From the files of its driver.
    #[serde(skip)]
    pub record: ClaimRecord,
}

/// What the files that a DRA driver keeps on the node record of a claim's device. Empty where none can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRecord {
    /// The hardware by source, the most trusted first.
    pub hardware: BTreeMap<ClaimSource, ClaimHardware>,
    /// The claim observes the device and does not hold it.
    pub admin_access: bool,
    /// What the claim consumes of the device's capacities, in thousandths of a byte or a unit. Empty: all of it, or not
    /// known.
    pub consumed: BTreeMap<Arc<str>, u64>,
}

named! {
    /// What says which hardware a claim's device is, the most trusted first.
    pub enum ClaimSource {
        /// The metadata that the driver wrote for the claim's containers (`dra-device-metadata`).
        Metadata = "metadata",
        /// The driver's checkpoint of its prepared claims.
        Checkpoint = "checkpoint",
        /// The CDI specification of the claim.
        Cdi = "cdi",
        /// The driver's naming convention.
        DeviceName = "device_name",
    }
}

/// How a file names hardware.
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
    /// A GPU bound to vfio-pci, by its device node `/dev/vfio/<group>`.
    IommuGroup(u32),
}

/// A device of a DRA claim, and the GPU that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimGpu {
    #[serde(flatten)]
    pub claim: ClaimDevice,
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// What the join relies on.
    pub join: ClaimSource,
}

impl ClaimDevice {
    /// Whether both are the same device, or the same share of it, of the same claim.
    #[must_use]
    pub fn is_same_share(&self, other: &Self) -> bool {
        (&self.claim_namespace, &self.claim, &self.driver, &self.pool, &self.device, &self.share_id)
            == (&other.claim_namespace, &other.claim, &other.driver, &other.pool, &other.device, &other.share_id)
    }
}
