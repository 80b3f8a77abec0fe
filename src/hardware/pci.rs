//! The GPUs on the PCI bus, from sysfs.
//!
//! In: the sysfs and procfs roots. Out: `NodeDevices`. Does not use: the driver library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::domain::model::{BusGpu, GpuUuid, Inventory, NodeDevices, PciBusId};

const NVIDIA: &str = "0x10de";
/// The PCI classes of a GPU: VGA and 3D controllers. Its audio, USB and serial functions and its bridges have others.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// The most bytes read of the NVIDIA kernel driver's file about a GPU, which has a dozen lines.
const INFORMATION_LIMIT: u64 = 16 << 10;

/// The GPUs under `<sys_root>/bus/pci/devices`, without those at the `ignored` addresses; `None` where it cannot be read.
pub fn scan(sys_root: &Path, ignored: &BTreeSet<PciBusId>) -> Option<NodeDevices> {
    let mut devices = NodeDevices::default();
    for entry in fs::read_dir(sys_root.join("bus/pci/devices")).ok()? {
        let device = entry.ok()?.path();
        let address = device.file_name().and_then(|name| name.to_str()).map(PciBusId::normalized);
        let Some(address) = address.filter(|address| is_gpu(&device) && !ignored.contains(address)) else { continue };
        let gpu = BusGpu {
            kernel_driver: link(&device, "driver").map(Arc::from),
            pci_device_id: attribute(&device, "device").and_then(|id| id.strip_prefix("0x").map(Arc::from)),
            numa_node: attribute(&device, "numa_node").and_then(|node| node.parse().ok()),
            ..BusGpu::default()
        };
        devices.expected += usize::from(!gpu.is_of_another_driver());
        devices.on_bus.insert(address, gpu);
    }
    Some(devices)
}

/// Scans the bus, and reads the kernel driver's file about each GPU that the library does not list.
pub struct Bus {
    sys_root: PathBuf,
    proc_root: PathBuf,
    ignored: BTreeSet<PciBusId>,
    listed: BTreeSet<PciBusId>,
}

impl Bus {
    pub fn new(sys_root: PathBuf, proc_root: PathBuf, ignored: BTreeSet<PciBusId>) -> Self {
        Self { sys_root, proc_root, ignored, listed: BTreeSet::new() }
    }

    /// The NUMA node that the kernel gives a PCI device; `None` where it has none (-1) or cannot be read.
    pub fn numa_node(&self, bus_id: &PciBusId) -> Option<u32> {
        attribute(&self.sys_root.join("bus/pci/devices").join(bus_id.as_str()), "numa_node")?.parse().ok()
    }

    pub fn scan(&self) -> Option<NodeDevices> {
        scan(&self.sys_root, &self.ignored)
    }

    /// Sets the GPUs that the library lists.
    pub fn set_listed(&mut self, inventory: &Inventory) {
        self.listed = inventory.gpus.values().filter_map(|gpu| gpu.pci_bus_id.clone()).collect();
    }

    /// Adds the identity of the GPUs that the library does not list.
    pub fn identify(&self, mut devices: NodeDevices) -> NodeDevices {
        for (address, gpu) in devices.on_bus.iter_mut().filter(|(address, _)| !self.listed.contains(*address)) {
            let path = self.proc_root.join("driver/nvidia/gpus").join(address.as_str()).join("information");
            let BusGpu { uuid, model, minor, excluded, .. } = information(&path);
            *gpu = BusGpu { uuid, model, minor, excluded, ..gpu.clone() };
        }
        devices
    }
}

fn information(path: &Path) -> BusGpu {
    use std::io::Read as _;
    let mut bytes = vec![];
    let read = fs::File::open(path).and_then(|file| file.take(INFORMATION_LIMIT).read_to_end(&mut bytes));
    read.map(|_| parse_information(&String::from_utf8_lossy(&bytes))).unwrap_or_default()
}

/// Parses lines of `name: value`. The kernel driver writes question marks for an unknown UUID and `Unknown` for an
/// unknown model.
pub fn parse_information(text: &str) -> BusGpu {
    let mut gpu = BusGpu::default();
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match name.trim() {
            "GPU UUID" => {
                let is_known = value.starts_with("GPU-") && value.len() == 40 && !value.contains('?');
                gpu.uuid = is_known.then(|| GpuUuid::from(value));
            }
            "Model" => gpu.model = (!value.is_empty() && value != "Unknown").then(|| value.into()),
            "Device Minor" => gpu.minor = value.parse().ok(),
            "GPU Excluded" => gpu.excluded = value == "Yes",
            _ => {}
        }
    }
    gpu
}

/// Whether the device is a GPU; not a virtual function, which a host assigns to virtual machines.
fn is_gpu(device: &Path) -> bool {
    attribute(device, "vendor").as_deref() == Some(NVIDIA)
        && attribute(device, "class").is_some_and(|class| GPU_CLASSES.iter().any(|known| class.starts_with(known)))
        && fs::symlink_metadata(device.join("physfn")).is_err()
}

fn attribute(device: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(device.join(name)).ok()?.trim().to_ascii_lowercase())
}

/// The last part of a symbolic link: the name of the kernel driver.
fn link(device: &Path, name: &str) -> Option<String> {
    Some(fs::read_link(device.join(name)).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn device(sys_root: &Path, bus_id: &str, vendor: &str, class: &str, driver: Option<&str>, numa_node: &str) {
        let path = sys_root.join("bus/pci/devices").join(bus_id);
        fs::create_dir_all(&path).unwrap();
        for (name, text) in [("vendor", vendor), ("class", class), ("numa_node", numa_node)] {
            fs::write(path.join(name), format!("{text}\n")).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../../../bus/pci/drivers/{driver}"), path.join("driver")).unwrap();
        }
    }

    fn numa_node(sys_root: &Path, bus_id: &str) -> Option<u32> {
        Bus::new(sys_root.to_owned(), PathBuf::new(), BTreeSet::new()).numa_node(&bus_id.into())
    }

    #[test]
    fn gpus_at_other_kernel_drivers_are_not_expected() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "0000:17:00.0", "0x10de", "0x030200", Some("nvidia"), "0");
        device(root.path(), "0000:65:00.0", "0x10de", "0x030000", None, "-1");
        device(root.path(), "0000:ca:00.0", "0x10de", "0x030200", Some("vfio-pci"), "1");
        device(root.path(), "0000:cb:00.0", "0x10de", "0x030200", Some("nvgrace-gpu-vfio-pci"), "1");
        device(root.path(), "0000:05:00.0", "0x10de", "0x068000", Some("nvidia-nvswitch"), "0");
        device(root.path(), "0000:65:00.1", "0x10de", "0x040300", Some("snd_hda_intel"), "0");
        device(root.path(), "0000:65:00.2", "0x10de", "0x0c0330", Some("xhci_hcd"), "0");
        device(root.path(), "0000:03:00.0", "0x1a03", "0x030000", Some("ast"), "0");
        device(root.path(), "0000:17:00.4", "0x10de", "0x030200", Some("nvidia"), "0");
        symlink("../0000:17:00.0", root.path().join("bus/pci/devices/0000:17:00.4/physfn")).unwrap();
        device(root.path(), "0000:66:00.0", "0x10de", "0x030000", Some("nouveau"), "0");
        let found = scan(root.path(), &BTreeSet::new()).unwrap();
        assert_eq!(found.expected, 2);
        let addresses: Vec<&str> = found.on_bus.keys().map(PciBusId::as_str).collect();
        assert_eq!(addresses, ["0000:17:00.0", "0000:65:00.0", "0000:66:00.0", "0000:ca:00.0", "0000:cb:00.0"]);
        let ignored = ["0000:65:00.0", "0000:66:00.0"].map(PciBusId::from).into();
        let without = scan(root.path(), &ignored).unwrap();
        assert_eq!((without.expected, without.on_bus.len()), (1, 3));
        assert_eq!(found.on_bus[&"0000:17:00.0".into()].kernel_driver.as_deref(), Some("nvidia"));
        assert_eq!(numa_node(root.path(), "0000:ca:00.0"), Some(1));
        assert_eq!(numa_node(root.path(), "0000:65:00.0"), None);
    }

    #[test]
    fn an_unreadable_bus_is_not_an_empty_one() {
        assert_eq!(scan(Path::new("/nonexistent"), &BTreeSet::new()), None);
    }

    #[test]
    fn the_uuid_is_read_where_the_kernel_driver_has_it() {
        let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 305\n\
                    GPU UUID: \t GPU-4f1e0a6c-2d7b-91a0-55c3-0e9d6b7a8c21\nVideo BIOS: \t 96.00.74.00.01\n\
                    Bus Location: \t 0000:17:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
        let gpu = parse_information(text);
        assert_eq!(gpu.uuid, Some("GPU-4f1e0a6c-2d7b-91a0-55c3-0e9d6b7a8c21".into()));
        assert_eq!((gpu.model.as_deref(), gpu.minor, gpu.excluded), (Some("NVIDIA H100 80GB HBM3"), Some(3), false));
        let text = "Model: Unknown\nGPU UUID: GPU-????????-????-????-????????????\nDevice Minor: \nGPU Excluded: Yes\n";
        assert_eq!(parse_information(text), BusGpu { excluded: true, ..BusGpu::default() });
        assert_eq!(parse_information(""), BusGpu::default());
    }
}
