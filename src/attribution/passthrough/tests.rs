use std::sync::Arc;

use super::super::missing::MissingGpus;
use super::*;
use crate::attribution::{Slots, join};
use crate::model::{Allocatable, Allocations, ContainerRef, DeviceReadings, HardwareState, Monotonic};
use crate::test_data::{container, pod};

const LISTED: &str = "GPU-00000000-0000-0000-0000-000000000001";
const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000002";
const RESOURCE: &str = "nvidia.com/GH100_H100_SXM5_80GB";

fn on_bus(bus_index: u32, iommu_group: u32) -> PassthroughGpu {
    PassthroughGpu {
        kernel_driver: "vfio-pci".into(),
        iommu_group: Some(iommu_group),
        vfio_device: Some(format!("vfio{bus_index}").into()),
        pci_device_id: Some("2330".into()),
        numa_node: Some(1),
        bus_index,
    }
}

/// The driver lists a GPU at 17:00.0; those at ca:00.0 and cb:00.0 are passed through, in one IOMMU group, and the one at
/// e1:00.0 in its own.
fn hardware() -> HardwareState {
    let listed = Gpu { pci_bus_id: Some("0000:17:00.0".into()), ..Gpu::listed(LISTED.into(), 0) };
    let passthrough = [("0000:ca:00.0", 1, 40), ("0000:cb:00.0", 2, 40), ("0000:e1:00.0", 3, 51)];
    let passthrough: BTreeMap<PciBusId, PassthroughGpu> =
        passthrough.into_iter().map(|(address, index, group)| (address.into(), on_bus(index, group))).collect();
    HardwareState {
        inventory: Arc::new(Inventory {
            generation: 1,
            gpus: [(listed.uuid.clone(), listed)].into(),
            ..Inventory::default()
        }),
        readings: [(LISTED.into(), Arc::default())].into(),
        node_devices: Some(NodeDevices { expected: 1, vfio: 3, passthrough, ..NodeDevices::default() }),
        ..HardwareState::default()
    }
}

fn complete(hardware: HardwareState, kubelet: &KubeletState) -> Arc<HardwareState> {
    MissingGpus::default().complete(&Arc::new(hardware), kubelet, &|_| false, Monotonic::from_secs(1))
}

fn holding(devices: &[(&str, &str)]) -> Allocations {
    let reference = ContainerRef::new("vms", "virt-launcher-one", "compute");
    Allocations { pods: vec![pod(container(reference, devices))] }
}

#[test]
fn they_are_devices_that_are_neither_present_nor_missing() {
    let state = complete(hardware(), &KubeletState::default());
    let inventory = &state.inventory;
    let uuids: Vec<&str> = inventory.passthrough.keys().map(GpuUuid::as_str).collect();
    assert_eq!(uuids, ["PCI-0000:ca:00.0", "PCI-0000:cb:00.0", "PCI-0000:e1:00.0"]);
    let gpu = &inventory.gpus[&"PCI-0000:ca:00.0".into()];
    assert_eq!((gpu.present, gpu.index, gpu.numa_node), (false, None, Some(1)));
    assert_eq!((inventory.missing.len(), inventory.visible(), state.readings.len()), (0, 1, 1));
}

#[test]
fn they_are_shown_on_a_node_without_the_nvidia_driver() {
    let mut state = hardware();
    state.inventory = Arc::default();
    assert_eq!(complete(state, &KubeletState::default()).inventory.passthrough.len(), 3);
}

#[test]
fn a_gpu_that_the_driver_had_keeps_its_uuid_until_it_is_back() {
    let mut state = hardware();
    let inventory = Arc::make_mut(&mut state.inventory);
    let gpu = Gpu { index: Some(1), model: Some("H100".into()), ..Gpu::not_present(OTHER.into()) };
    let lost = Gpu { pci_bus_id: Some("0000:e1:00.0".into()), ..gpu };
    inventory.gpus.insert(OTHER.into(), lost);
    let readings = DeviceReadings { lost: true, unlisted: true, ..DeviceReadings::default() };
    state.readings.insert(OTHER.into(), Arc::new(readings));
    let rebound = complete(state.clone(), &KubeletState::default());
    assert!(rebound.inventory.passthrough.contains_key(&OTHER.into()));
    assert_eq!((rebound.inventory.gpus.len(), rebound.readings.len()), (4, 1), "it is one device, and is not lost");
    Arc::make_mut(&mut state.inventory).gpus.get_mut(&OTHER.into()).unwrap().present = true;
    let back = complete(state, &KubeletState::default());
    assert!(!back.inventory.passthrough.contains_key(&OTHER.into()) && back.inventory.gpus[&OTHER.into()].present);
}

#[test]
fn an_offered_uuid_may_be_of_a_gpu_that_is_passed_through() {
    let offering = |uuids: &[&str]| {
        let devices = [("nvidia.com/gpu".into(), uuids.iter().map(|uuid| (*uuid).into()).collect())].into();
        let allocatable = Allocatable { devices, ..Allocatable::default() };
        KubeletState { allocatable: Some(Arc::new(allocatable)), ..KubeletState::default() }
    };
    let missing = |kubelet: &KubeletState| complete(hardware(), kubelet).inventory.missing.len();
    assert_eq!(missing(&offering(&[LISTED, OTHER])), 0);
    let five: Vec<String> = (2..=5).map(|number| format!("{}{number}", &OTHER[..OTHER.len() - 1])).collect();
    assert_eq!(missing(&offering(&five.iter().map(String::as_str).collect::<Vec<_>>())), 4, "one of four is missing");
    let held = Arc::new(holding(&[("nvidia.com/gpu", OTHER)]));
    assert_eq!(missing(&KubeletState { allocations: Some(held), ..offering(&[OTHER]) }), 1);
}

/// Who writes the id, the id, and the GPUs that its holder has.
#[test]
fn holders_are_found_by_every_form_of_the_id() {
    let state = complete(hardware(), &KubeletState::default());
    let own = &["PCI-0000:e1:00.0"][..];
    for (writer, resource, id, expected) in [
        ("KubeVirt", RESOURCE, "51", own),
        ("KubeVirt, two GPUs in a group", RESOURCE, "40", &["PCI-0000:ca:00.0", "PCI-0000:cb:00.0"][..]),
        ("NVIDIA's plugin for KubeVirt", RESOURCE, "0000:e1:00.0", own),
        ("NVIDIA's plugin for Kata", "nvidia.com/pgpu", "vfio3", own),
        ("by path", "example.com/gpu", "/dev/vfio/51", own),
        ("by path", "example.com/gpu", "/dev/vfio/devices/vfio3", own),
        ("by address", "example.com/gpu", "0000:E1:00.0", own),
        ("by address, of a listed GPU", "example.com/gpu", "0000:17:00.0", &[LISTED]),
    ] {
        let join = join(&holding(&[(resource, id)]), &Allocatable::default(), &state.inventory, &Slots::default());
        let held: Vec<&str> = join.holdings.keys().map(|key| key.gpu.as_str()).collect();
        assert_eq!(held, expected, "{writer}: {resource} {id}");
        assert!(join.holdings.values().all(|holding| holding.share == Some(1.0)), "{writer}");
        assert_eq!(join.unresolved, [], "{writer}");
    }
}

#[test]
fn an_id_that_is_no_gpus_is_counted_by_its_form_where_nvidia_writes_it() {
    let state = complete(hardware(), &KubeletState::default());
    for (resource, id, form) in [
        (RESOURCE, "7", "iommu_group"),
        (RESOURCE, "vfio9", "vfio_device"),
        (RESOURCE, "0000:05:00.0", "pci_address"),
        ("example.com/nic", "51", "other"),
        ("example.com/nic", "0000:3b:00.1", "other"),
        ("example.com/nic", "/dev/vfio/7", "other"),
    ] {
        let offered = [(resource.into(), [id.into()].into())].into();
        let offered = Allocatable { devices: offered, ..Allocatable::default() };
        let join = join(&holding(&[(resource, id)]), &offered, &state.inventory, &Slots::default());
        let counted: Vec<_> = join.unresolved.iter().map(|row| (row.form, row.devices)).collect();
        assert_eq!((counted, join.holdings.len()), (vec![(form, 1)], 0), "{resource} {id}");
        assert_eq!(join.drift, [], "what NVIDIA's plugins should offer is unknown: {id}");
    }
}
