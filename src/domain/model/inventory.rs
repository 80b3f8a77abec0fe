//! The devices of the node: GPUs, their MIG devices, and GPUs on the PCI bus.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::{DeviceId, GpuUuid, MigUuid, PciBusId, ResourceName};

/// The devices of the node. A GPU that was listed once stays, marked as not present.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The number of the list, which rises when handles are read again: after a driver reload, a MIG change, a
    /// hot-plug. 0: nothing has been read yet.
    pub generation: u64,
    pub driver: Option<DriverInfo>,
    pub gpus: BTreeMap<GpuUuid, Gpu>,
    /// The UUIDs that several GPUs have, with the GPUs' indexes; none of these GPUs is in `gpus`.
    pub duplicate_uuids: BTreeMap<GpuUuid, Vec<u32>>,
    /// The GPUs of `gpus` that the driver has not listed since podmeter started.
    pub missing: BTreeMap<GpuUuid, MissingGpu>,
    /// The GPUs of `gpus` that the NVIDIA driver is not expected to serve: an old display card, or one at another
    /// kernel driver, such as vfio-pci. They are not missing, and have no readings and no health.
    pub unserved: BTreeMap<GpuUuid, UnservedGpu>,
}

/// What the kernel reports of a GPU on the PCI bus that the NVIDIA driver is not expected to serve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnservedGpu {
    /// The kernel driver, such as `nouveau` or `vfio-pci`; `None`: it has none.
    pub kernel_driver: Option<Arc<str>>,
    /// The product in the PCI database: `1288`.
    pub pci_device_id: Option<Arc<str>>,
}

/// A GPU that the driver does not list, but the PCI bus or the kubelet does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingGpu {
    /// The source, in words.
    pub detail: Arc<str>,
    /// Its device IDs in the kubelet's list, by resource.
    pub kubelet_ids: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    /// Its MIG devices in the kubelet's list.
    pub mig_devices: BTreeSet<MigUuid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    pub driver_version: Arc<str>,
    pub cuda_version: Option<Arc<str>>,
    pub nvml_version: Option<Arc<str>>,
}

/// One physical GPU. `None`: the driver has no value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    pub uuid: GpuUuid,
    /// The driver's number; `None` for a GPU that the driver has not listed.
    pub index: Option<u32>,
    /// The minor number: the N of `/dev/nvidiaN`, which may differ from the index.
    pub minor: Option<u32>,
    pub pci_bus_id: Option<PciBusId>,
    pub model: Option<Arc<str>>,
    pub architecture: Option<Arc<str>>,
    /// The compute capability, such as `9.0`.
    pub compute_capability: Option<Arc<str>>,
    pub vbios_version: Option<Arc<str>>,
    /// The serial number of the board, which GPUs of one superchip share. Only the governance record has it.
    pub serial: Option<Arc<str>>,
    /// Where the GPU is in its chassis or rack; `None` before Blackwell.
    pub platform: Option<Platform>,
    /// The NUMA node of the GPU's PCI device.
    pub numa_node: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// Whether MIG mode is enabled; `None` for a GPU without MIG.
    pub mig_enabled: Option<bool>,
    pub mig_devices: Vec<MigDevice>,
    /// The compute slices of the whole GPU while it is partitioned: those of its largest GPU instance profile. `None`
    /// where the driver does not list the profiles.
    pub mig_slices: Option<u32>,
    /// The remote ends of its NVLinks; `None` without NVLink.
    pub nvlink_peers: Option<NvLinkPeers>,
    /// Whether the GPU is listed and not lost.
    pub present: bool,
}

/// A GPU's place by the platform's data. An HGX board has no slot and no tray.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Platform {
    /// The serial number of the chassis, for the governance record only.
    pub chassis_serial: Option<Arc<str>>,
    /// The slot, counted with the switches.
    pub slot: Option<u8>,
    /// The tray, counted without the switches.
    pub tray: Option<u8>,
    /// The node within the slot.
    pub host: Option<u8>,
    /// The GPU's number within the node; not in the order of the indexes.
    pub module_id: Option<u8>,
    /// The kind of NVLink peers: `direct` or `switch`.
    pub peer_type: Option<&'static str>,
}

/// The remote ends of a GPU's active NVLinks, as read on this GPU. The other end may report other values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvLinkPeers {
    /// The number of links by the PCI bus ID of their remote end: another GPU, or a device not known to be a switch.
    pub by_bus_id: BTreeMap<PciBusId, u32>,
    /// The number of links to switches, which lead to every GPU on the switches.
    pub switch_links: u32,
}

/// One MIG device: a compute instance inside a GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    pub uuid: MigUuid,
    /// The driver's index among the MIG devices of its GPU, from 0, with gaps.
    pub index: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// The profile, such as `1g.10gb`.
    pub profile: Arc<str>,
    /// The driver's number of the GPU instance profile, which DRA device names contain.
    pub profile_id: Option<u32>,
    pub placement_start: Option<u32>,
    /// The compute slices of this compute instance; 0 where unknown. See `Gpu::mig_slices`.
    pub slices: u32,
    pub memory_bytes: Option<u64>,
}

/// A scan of the PCI bus, independent of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    /// The number of GPUs on the bus that the NVIDIA driver should serve.
    pub expected: usize,
    /// The GPUs by address. Empty where GPUs are simulated.
    pub on_bus: BTreeMap<PciBusId, BusGpu>,
}

/// The kernel's data on a GPU on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusGpu {
    /// The kernel driver that is bound to it.
    pub kernel_driver: Option<Arc<str>>,
    /// The product in the PCI database: `2330`.
    pub pci_device_id: Option<Arc<str>>,
    pub numa_node: Option<u32>,
    /// This and the next fields are from the NVIDIA kernel driver, read only for a GPU that the library does not list.
    pub uuid: Option<GpuUuid>,
    pub model: Option<Arc<str>>,
    pub minor: Option<u32>,
    /// Whether the kernel driver is configured to ignore it.
    pub excluded: bool,
}

impl Inventory {
    /// The GPU with this minor number. One that is not present keeps its number, so a present one takes precedence.
    pub fn by_minor(&self, minor: u32) -> Option<&Gpu> {
        let numbered = || self.gpus.values().filter(|gpu| gpu.minor == Some(minor));
        numbered().find(|gpu| gpu.present).or_else(|| numbered().next())
    }

    /// Whether the NVIDIA driver should serve the GPU.
    pub fn is_expected(&self, uuid: &GpuUuid) -> bool {
        !self.unserved.contains_key(uuid)
    }

    /// The GPU with this UUID. A node has few GPUs, so a search saves the allocation of a key.
    pub fn gpu(&self, uuid: &str) -> Option<&Gpu> {
        self.gpus.values().find(|gpu| gpu.uuid.as_str() == uuid)
    }

    pub fn mig(&self, uuid: &str) -> Option<(&Gpu, &MigDevice)> {
        self.gpus.values().find_map(|gpu| Some((gpu, gpu.mig_devices.iter().find(|mig| mig.uuid.as_str() == uuid)?)))
    }

    /// The missing GPU of a MIG device in the kubelet's list.
    pub fn missing_parent(&self, uuid: &str) -> Option<&GpuUuid> {
        self.missing
            .iter()
            .find_map(|(gpu, missing)| missing.mig_devices.iter().any(|mig| mig.as_str() == uuid).then_some(gpu))
    }

    /// The modules of the node, each with its GPUs: a superchip with a CPU and one or two GPUs, or a board with one.
    /// GPUs of one module have the same board serial and the same NUMA node, that of its CPU. The module of a GPU
    /// without a serial is unknown, unless the node has one GPU. The name of a module is the lowest PCI bus ID of its
    /// GPUs, which no other module can have, whichever GPUs are lost.
    pub fn modules(&self) -> BTreeMap<&PciBusId, Vec<&Gpu>> {
        let mut by_bus_id: BTreeMap<&PciBusId, &Gpu> = BTreeMap::new();
        for gpu in self.gpus.values() {
            // A GPU that was replaced stays listed beside its replacement.
            if let Some(bus_id) = &gpu.pci_bus_id
                && (gpu.present || !by_bus_id.contains_key(bus_id))
            {
                by_bus_id.insert(bus_id, gpu);
            }
        }
        let is_only = by_bus_id.len() == 1;
        let mut modules: BTreeMap<_, (&PciBusId, Vec<&Gpu>)> = BTreeMap::new();
        for (bus_id, gpu) in by_bus_id {
            if gpu.serial.is_some() || is_only {
                let board = (gpu.serial.as_ref(), gpu.numa_node);
                modules.entry(board).or_insert_with(|| (bus_id, vec![])).1.push(gpu);
            }
        }
        modules.into_values().collect()
    }

    /// The module of a GPU, with all of its GPUs.
    pub fn module_of(&self, gpu: &GpuUuid) -> Option<(&PciBusId, Vec<&Gpu>)> {
        self.modules().into_iter().find(|(_, gpus)| gpus.iter().any(|one| one.uuid == *gpu))
    }

    pub fn visible(&self) -> usize {
        self.gpus.values().filter(|gpu| gpu.present).count()
    }
}

impl BusGpu {
    pub fn is_of_nvidia(&self) -> bool {
        self.kernel_driver.as_deref() == Some("nvidia")
    }

    /// Whether another kernel driver has it, such as `nouveau` or `vfio-pci`.
    pub fn is_of_another_driver(&self) -> bool {
        self.kernel_driver.is_some() && !self.is_of_nvidia()
    }
}

impl fmt::Display for UnservedGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kernel_driver {
            Some(driver) => write!(f, "kernel driver {driver}")?,
            None => f.write_str("without a kernel driver")?,
        }
        self.pci_device_id.as_ref().map_or(Ok(()), |id| write!(f, ", PCI device 10de:{id}"))
    }
}

impl Gpu {
    /// A GPU that is not listed, of which only the UUID is known.
    pub fn not_present(uuid: GpuUuid) -> Self {
        Self { uuid, ..Self::default() }
    }

    /// A GPU that the driver lists under this index, without other data.
    pub fn listed(uuid: GpuUuid, index: u32) -> Self {
        Self { index: Some(index), present: true, ..Self::not_present(uuid) }
    }

    /// The sort key in lists that are shown: GPUs without an index are last.
    #[must_use]
    pub fn order(&self) -> (bool, Option<u32>) {
        (self.index.is_none(), self.index)
    }

    pub fn mig_device(&self, uuid: &MigUuid) -> Option<&MigDevice> {
        self.mig_devices.iter().find(|mig| mig.uuid == *uuid)
    }

    /// How busy a MIG device is, 0 to 1, by the activity of its GPU instance: a mean over all slices of the instance, of
    /// which only some may be in use.
    pub fn mig_activity(&self, mig: &MigDevice, of_instance: f64) -> f64 {
        let members = self.mig_devices.iter().filter(|other| other.gpu_instance == mig.gpu_instance);
        let used: u32 = members.map(|member| member.slices).sum();
        let slices_per_used =
            f64::from(profile_slices(&mig.profile).unwrap_or(used).max(used)) / f64::from(used.max(1));
        (of_instance * slices_per_used).clamp(0.0, 1.0)
    }

    /// The part of the GPU that `slices` compute slices are. `None` where either number is unknown: models have seven
    /// slices or four, so a guess would be wrong by almost a half. Those of a GPU's MIG devices add up to 1 at most.
    pub fn slice_fraction(&self, slices: u32) -> Option<f64> {
        let total = self.mig_slices.filter(|total| *total > 0 && slices > 0)?;
        let used: u32 = self.mig_devices.iter().map(|mig| mig.slices).sum();
        Some(f64::from(slices) / f64::from(total.max(used).max(slices)))
    }
}

/// The slices of the profile's GPU instance: three for `3g.40gb` and `1c.3g.40gb`.
fn profile_slices(profile: &str) -> Option<u32> {
    profile.split('.').find_map(|word| word.strip_suffix('g')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of the GPUs of a GB300 tray.
    #[test]
    fn gpus_of_one_board_and_numa_node_are_one_module() {
        let gpu = |uuid: &str, bus: &str, serial: Option<&str>, numa_node| Gpu {
            pci_bus_id: Some(PciBusId::new(bus.to_owned())),
            serial: serial.map(Into::into),
            numa_node,
            ..Gpu::not_present(uuid.into())
        };
        let modules = |gpus: &[Gpu]| -> Vec<String> {
            let inventory = crate::test_data::inventory(gpus.iter().cloned());
            let names = |gpus: Vec<&Gpu>| gpus.iter().map(|gpu| gpu.uuid.as_str()).collect::<Vec<_>>().join(" ");
            inventory.modules().into_iter().map(|(module, gpus)| format!("{module}: {}", names(gpus))).collect()
        };
        let tray = [
            gpu("a", "0019:06:00.0", Some("2"), Some(1)),
            gpu("b", "0018:06:00.0", Some("2"), Some(1)),
            gpu("c", "0009:06:00.0", Some("1"), Some(0)),
            gpu("d", "0008:06:00.0", Some("1"), Some(0)),
        ];
        assert_eq!(modules(&tray), ["0008:06:00.0: d c", "0018:06:00.0: b a"]);
        assert_eq!(modules(&tray[..2]), ["0018:06:00.0: b a"], "the name does not depend on other modules");
        let replaced = [tray[1].clone(), Gpu { present: true, ..gpu("e", "0018:06:00.0", Some("9"), Some(1)) }];
        assert_eq!(modules(&replaced), ["0018:06:00.0: e"]);
        // This is one board with a CPU for each GPU.
        let quad = [gpu("a", "0009:01:00.0", Some("1"), Some(0)), gpu("b", "0019:01:00.0", Some("1"), Some(1))];
        assert_eq!(modules(&quad), ["0009:01:00.0: a", "0019:01:00.0: b"]);
        let unknown = [gpu("a", "0009:01:00.0", None, Some(0)), gpu("b", "0019:01:00.0", None, Some(1))];
        assert_eq!(modules(&unknown), [""; 0]);
        assert_eq!(modules(&unknown[..1]), ["0009:01:00.0: a"]);
    }

    #[test]
    fn profiles_name_the_slices_of_their_instance() {
        let slices = ["1g.10gb", "3g.40gb", "1c.3g.40gb", "1g.10gb+me", "7g.80gb", "", "gb"].map(profile_slices);
        assert_eq!(slices, [Some(1), Some(3), Some(3), Some(1), Some(7), None, None]);
    }

    #[test]
    fn slices_are_fractions_of_the_slices_of_that_board() {
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
        let eight = [1, 2].map(|instance| crate::test_data::mig(&format!("MIG-{instance}"), instance, "4g.40gb", 4));
        let crowded = Gpu { mig_devices: eight.into(), ..gpu(Some(7)) };
        assert_eq!(crowded.slice_fraction(4), Some(0.5), "more slices than the board has");
    }
}
