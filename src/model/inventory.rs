use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use super::{DeviceId, GpuUuid, MigUuid, PciBusId, ResourceName};

/// The devices of the node as the driver names them. A GPU that was seen once stays, marked as not present.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Inventory {
    /// Rises whenever handles were read anew: after driver reload, MIG change, hot-plug.
    pub generation: u64,
    pub driver: Option<DriverInfo>,
    pub gpus: BTreeMap<GpuUuid, Gpu>,
    /// UUIDs that the driver gives to several GPUs, with their indices; none of these GPUs is in `gpus`.
    #[serde(skip)]
    pub duplicate_uuids: BTreeMap<GpuUuid, Vec<u32>>,
    /// Those of `gpus` that the driver has not listed since podmeter started.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<GpuUuid, MissingGpu>,
}

/// What names a GPU that the driver does not list: the PCI bus, the kubelet, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MissingGpu {
    /// For people: where it is known from.
    pub detail: Arc<str>,
    /// The device ids under which the kubelet has it, by resource.
    pub kubelet_ids: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    /// Its MIG devices, of which only the kubelet's ids are known.
    pub mig_devices: BTreeSet<MigUuid>,
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
    /// The driver's number; `None` for a GPU that the driver has not listed.
    pub index: Option<u32>,
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
    /// The node of the CPUs that the GPU's PCI device hangs on.
    pub numa_node: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// `None` where the GPU has no MIG.
    pub mig_enabled: Option<bool>,
    pub mig_devices: Vec<MigDevice>,
    /// Compute slices of the whole GPU while it is partitioned: the most that one of its GPU instance profiles has.
    /// `None` where the driver does not list the profiles.
    pub mig_slices: Option<u32>,
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
    /// Compute slices of this compute instance; 0 where the driver does not say. See `Gpu::mig_slices`.
    pub slices: u32,
    pub memory_bytes: Option<u64>,
}

/// A scan of the PCI bus, independent of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeDevices {
    /// GPUs on the bus, less those bound to vfio-pci.
    pub expected: usize,
    pub vfio: usize,
    /// The expected ones by address. Empty where GPUs are simulated.
    #[serde(skip)]
    pub on_bus: BTreeMap<PciBusId, BusGpu>,
}

/// What the kernel says of a GPU on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusGpu {
    /// The kernel driver that is bound to it.
    pub kernel_driver: Option<Arc<str>>,
    pub numa_node: Option<u32>,
    /// From here on as the NVIDIA kernel driver writes it; asked only of a GPU that the library does not list.
    pub uuid: Option<GpuUuid>,
    pub model: Option<Arc<str>>,
    pub minor: Option<u32>,
    /// The kernel driver is told to leave it alone.
    pub excluded: bool,
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

    /// The missing GPU that the kubelet's MIG device is on.
    #[must_use]
    pub fn missing_parent(&self, uuid: &MigUuid) -> Option<&GpuUuid> {
        self.missing.iter().find_map(|(gpu, missing)| missing.mig_devices.contains(uuid).then_some(gpu))
    }

    #[must_use]
    pub fn visible(&self) -> usize {
        self.gpus.values().filter(|gpu| gpu.present).count()
    }
}

impl Gpu {
    /// A GPU of which no more is known than this name.
    #[must_use]
    pub fn not_present(uuid: GpuUuid) -> Self {
        Self {
            uuid,
            index: None,
            minor: None,
            pci_bus_id: None,
            model: None,
            architecture: None,
            compute_capability: None,
            vbios_version: None,
            serial: None,
            numa_node: None,
            memory_bytes: None,
            mig_enabled: None,
            mig_devices: vec![],
            mig_slices: None,
            nvlink_peers: None,
            present: false,
        }
    }

    /// A GPU that the driver lists under this index, with nothing else known.
    #[must_use]
    pub fn listed(uuid: GpuUuid, index: u32) -> Self {
        Self { index: Some(index), present: true, ..Self::not_present(uuid) }
    }

    /// Where it comes in a list for people: those without an index last.
    #[must_use]
    pub fn order(&self) -> (bool, Option<u32>) {
        (self.index.is_none(), self.index)
    }

    /// Share of the GPU's compute that `slices` compute slices are. `None` where either number is unknown: the models
    /// differ (seven slices, or four), so that a guess would be wrong by almost a half.
    #[must_use]
    pub fn slice_fraction(&self, slices: u32) -> Option<f64> {
        let total = self.mig_slices.filter(|total| *total > 0 && slices > 0)?;
        Some((f64::from(slices) / f64::from(total)).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_board_with_four_slices_is_not_counted_in_sevenths() {
        let gpu = |mig_slices| Gpu { mig_slices, ..Gpu::not_present("GPU-1".into()) };
        for (of, slices, expected) in [
            (Some(4), 1, Some(0.25)),
            (Some(7), 7, Some(1.0)),
            (Some(4), 7, Some(1.0)),
            (None, 1, None),
            (Some(7), 0, None),
            (Some(0), 1, None),
        ] {
            assert_eq!(gpu(of).slice_fraction(slices), expected, "{slices} of {of:?}");
        }
    }
}
