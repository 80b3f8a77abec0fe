//! What the PCI bus holds, as sysfs shows it, independent of the driver.

use std::fs;
use std::path::Path;

use crate::model::{NodeDevices, PciBusId};

const NVIDIA: &str = "0x10de";
/// Display controllers: VGA (0x0300) and 3D (0x0302).
const DISPLAY_CLASS: &str = "0x03";

/// Counts GPUs under `<sys_root>/bus/pci/devices`; `None` where it cannot be read.
#[must_use]
pub fn scan(sys_root: &Path) -> Option<NodeDevices> {
    let mut devices = NodeDevices::default();
    for entry in fs::read_dir(sys_root.join("bus/pci/devices")).ok()? {
        let device = entry.ok()?.path();
        if !is_gpu(&device) {
            continue;
        }
        if driver(&device).as_deref() == Some("vfio-pci") {
            devices.vfio += 1;
        } else {
            devices.expected += 1;
        }
    }
    Some(devices)
}

/// The NUMA node that the kernel gives a PCI device; `None` where it has none (-1) or cannot be read.
#[must_use]
pub fn numa_node(sys_root: &Path, bus_id: &PciBusId) -> Option<u32> {
    let path = sys_root.join("bus/pci/devices").join(bus_id.as_str()).join("numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn is_gpu(device: &Path) -> bool {
    attribute(device, "vendor").as_deref() == Some(NVIDIA)
        && attribute(device, "class").is_some_and(|class| class.starts_with(DISPLAY_CLASS))
}

fn attribute(device: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(device.join(name)).ok()?.trim().to_ascii_lowercase())
}

fn driver(device: &Path) -> Option<String> {
    Some(fs::read_link(device.join("driver")).ok()?.file_name()?.to_str()?.to_owned())
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

    #[test]
    fn counts_nvidia_gpus_and_sets_vfio_apart() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "0000:17:00.0", "0x10de", "0x030200", Some("nvidia"), "0");
        device(root.path(), "0000:65:00.0", "0x10de", "0x030000", None, "-1");
        device(root.path(), "0000:ca:00.0", "0x10de", "0x030200", Some("vfio-pci"), "1");
        device(root.path(), "0000:05:00.0", "0x10de", "0x068000", Some("nvidia-nvswitch"), "0");
        device(root.path(), "0000:03:00.0", "0x1a03", "0x030000", Some("ast"), "0");
        assert_eq!(scan(root.path()), Some(NodeDevices { expected: 2, vfio: 1 }));
        assert_eq!(numa_node(root.path(), &"0000:ca:00.0".into()), Some(1));
        assert_eq!(numa_node(root.path(), &"0000:65:00.0".into()), None);
    }

    #[test]
    fn an_unreadable_bus_is_not_an_empty_one() {
        assert_eq!(scan(Path::new("/nonexistent")), None);
    }
}
