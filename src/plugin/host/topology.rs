//! How GPUs are linked: their PCI paths in sysfs, and the NVLinks of the inventory.
//!
//! In: sysfs, the inventory. Out: a `Topology`. Does not use: which GPUs are free.

use std::collections::BTreeMap;
use std::path::Path;

use crate::domain::model::{Gpu, GpuUuid, Inventory, PciBusId};
use crate::domain::preference::{GpuLocation, PciGpu, Topology};

/// The topology by the GPUs' places on the PCI bus and the NVLinks between each two. A GPU that sysfs does not list has
/// no links.
pub fn topology(inventory: &Inventory, sys: &Path) -> Topology {
    let devices = sys.join("bus/pci/devices");
    // A GPU that the driver has not listed has no healthy device.
    let gpu = |gpu: &Gpu| {
        let index = gpu.index?;
        let path = gpu.pci_bus_id.as_ref().and_then(|id| std::fs::canonicalize(devices.join(id.as_str())).ok());
        Some(PciGpu {
            uuid: gpu.uuid.clone(),
            location: GpuLocation { index, numa_node: gpu.numa_node.map(i64::from) },
            path: path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        })
    };
    let gpus: Vec<PciGpu> = inventory.gpus.values().filter_map(gpu).collect();
    Topology::from_pci(&gpus, &nv_links(inventory))
}

/// The links that lead straight to another GPU, as each end reports them: (reporter, other) → links. Links to switches
/// count for no pair, as in NVIDIA's allocator (`GetNVLink` of go-gpuallocator compares remote bus IDs only with those
/// of GPUs): they make all pairs equal, and the GPUs' places on the PCI bus decide.
fn nv_links(inventory: &Inventory) -> BTreeMap<(GpuUuid, GpuUuid), u32> {
    let by_bus_id: BTreeMap<&PciBusId, &GpuUuid> = inventory
        .gpus
        .values()
        .filter(|gpu| gpu.present)
        .filter_map(|gpu| Some((gpu.pci_bus_id.as_ref()?, &gpu.uuid)))
        .collect();
    let mut links = BTreeMap::new();
    for gpu in inventory.gpus.values() {
        for (bus_id, count) in gpu.nvlink_peers.iter().flat_map(|peers| &peers.by_bus_id) {
            if let Some(other) = by_bus_id.get(bus_id) {
                links.insert((gpu.uuid.clone(), (*other).clone()), *count);
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::NvLinkPeers;
    use crate::domain::preference::{FreeDevice, PreferenceRequest, choose_gpus};
    use crate::plugin::test_data::gpu;

    #[test]
    fn gpus_with_nvlinks_between_them_are_given_together() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("bus/pci/devices");
        std::fs::create_dir_all(&devices).unwrap();
        let bus_id = |index: u32| format!("0000:{:02x}:00.0", 0x10 + index);
        let linked = |pairs: &[(u32, u32)], switch_links| {
            let gpu = |index| {
                let others = pairs.iter().filter_map(|(one, other)| (*one == index).then_some(*other));
                let by_bus_id = others.map(|other| (PciBusId::new(bus_id(other)), 4)).collect();
                let nvlink_peers = Some(NvLinkPeers { by_bus_id, switch_links });
                Gpu { pci_bus_id: Some(PciBusId::new(bus_id(index))), nvlink_peers, ..gpu(index, None) }
            };
            crate::test_data::inventory((0..4).map(gpu))
        };
        for index in 0..4 {
            let own = root.path().join(format!("pci0000:00/0000:00:0{index}.0/{}", bus_id(index)));
            std::fs::create_dir_all(&own).unwrap();
            std::os::unix::fs::symlink(own, devices.join(bus_id(index))).unwrap();
        }
        let two = |inventory: &Inventory| {
            let topology = topology(inventory, root.path());
            let free_device = |gpu: &Gpu| FreeDevice { id: gpu.uuid.as_str().into(), gpu: gpu.uuid.clone() };
            let available = inventory.gpus.values().map(free_device).collect();
            let choice = choose_gpus(
                &PreferenceRequest { available, must_include: vec![], size: 2 },
                &topology,
                &BTreeMap::new(),
            );
            let index =
                |id: &crate::domain::model::DeviceId| inventory.gpus[&GpuUuid::from(id.as_str())].index.unwrap();
            (choice.ids.iter().map(index).collect::<Vec<_>>(), choice.fallback.map(<&str>::from))
        };
        let both_ends = linked(&[(0, 2), (2, 0), (1, 3), (3, 1)], 0);
        assert_eq!(two(&both_ends), (vec![0, 2], None));
        assert_eq!(two(&linked(&[], 18)), (vec![0, 1], None), "links into switches make all pairs equal");
        let one_end = linked(&[(0, 2)], 0);
        assert_eq!(two(&one_end).1, Some("links_asymmetric"));
        let mut gone = both_ends;
        gone.gpus.values_mut().find(|gpu| gpu.index == Some(2)).unwrap().present = false;
        assert_eq!(nv_links(&gone).len(), 3, "no GPU is linked to one that is gone");
    }
}
