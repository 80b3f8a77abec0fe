use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::{GpuUuid, MigUuid, PciBusId};

/// The devices of the node as the driver names them. A GPU that was seen once stays, marked as not present.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inventory {
    /// Rises whenever handles were read anew: after driver reload, MIG change, hot-plug.
    pub generation: u64,
    pub driver: Option<DriverInfo>,
    pub gpus: BTreeMap<GpuUuid, Gpu>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriverInfo {
    pub driver_version: Arc<str>,
    pub cuda_version: Option<Arc<str>>,
    pub nvml_version: Option<Arc<str>>,
}

/// One physical GPU. Absent means that the driver did not say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gpu {
    pub uuid: GpuUuid,
    pub index: u32,
    /// The N of `/dev/nvidiaN`; may differ from the index.
    pub minor: Option<u32>,
    pub pci_bus_id: Option<PciBusId>,
    pub model: Option<Arc<str>>,
    pub architecture: Option<Arc<str>>,
    /// `9.0`
    pub compute_capability: Option<Arc<str>>,
    pub vbios_version: Option<Arc<str>>,
    /// For the record only: not served to whoever asks.
    #[serde(skip)]
    pub serial: Option<Arc<str>>,
    pub numa_node: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// `None` where the GPU has no MIG.
    pub mig_enabled: Option<bool>,
    pub mig_devices: Vec<MigDevice>,
    /// `None` where the driver does not say, as on a GPU without NVLink.
    pub nvlink_peers: Option<NvLinkPeers>,
    /// False after the GPU was lost or left; its identity stays.
    pub present: bool,
}

/// Where the NVLinks of one GPU lead that are up, as this end tells it. The other end may tell otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NvLinkPeers {
    /// Links by the PCI bus id at their other end: another GPU, or something that does not say that it is a switch.
    pub by_bus_id: BTreeMap<PciBusId, u32>,
    /// Links into switches: they lead to every GPU of the switches, and to none in particular.
    pub switch_links: u32,
}

/// One MIG device: a compute instance inside a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigDevice {
    pub uuid: MigUuid,
    /// The driver's place of it among the MIG devices of its GPU, from 0; places may be empty.
    pub index: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// `1g.10gb`
    pub profile: Arc<str>,
    /// Driver's number of the GPU instance profile; DRA device names carry it.
    pub profile_id: Option<u32>,
    pub placement_start: Option<u32>,
    /// Compute slices of this compute instance; the device has seven on every MIG-capable model but the A30 (four).
    pub slices: u32,
    pub memory_bytes: Option<u64>,
}

/// Counts from a scan of the PCI bus, independent of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeDevices {
    /// GPUs on the bus, less those bound to vfio-pci.
    pub expected: usize,
    pub vfio: usize,
}

impl Inventory {
    /// A GPU that is gone keeps its number here, so one that is present comes first.
    #[must_use]
    pub fn by_minor(&self, minor: u32) -> Option<&Gpu> {
        let numbered = || self.gpus.values().filter(|gpu| gpu.minor == Some(minor));
        numbered().find(|gpu| gpu.present).or_else(|| numbered().next())
    }

    #[must_use]
    pub fn mig(&self, uuid: &MigUuid) -> Option<(&Gpu, &MigDevice)> {
        self.gpus.values().find_map(|gpu| Some((gpu, gpu.mig_devices.iter().find(|mig| mig.uuid == *uuid)?)))
    }

    #[must_use]
    pub fn visible(&self) -> usize {
        self.gpus.values().filter(|gpu| gpu.present).count()
    }
}

impl Gpu {
    /// Share of the GPU's compute that `slices` compute slices are.
    #[must_use]
    pub fn slice_fraction(&self, slices: u32) -> f64 {
        let total = if self.model.as_deref().is_some_and(|model| model.contains("A30")) { 4 } else { 7 };
        (f64::from(slices) / f64::from(total)).min(1.0)
    }
}
