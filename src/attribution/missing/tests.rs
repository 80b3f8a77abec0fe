use super::*;
use crate::model::{Allocatable, Allocations, ContainerRef};
use crate::test_data::{container, pod, uuid};

fn mig(number: u32) -> String {
    format!("MIG-00000000-0000-0000-0000-{number:012}")
}

fn address(number: usize) -> PciBusId {
    PciBusId::new(format!("0000:{number:02x}:00.0"))
}

/// The driver lists GPUs `listed`; the bus has those of `on_bus`.
fn hardware(listed: &[usize], on_bus: &[usize]) -> HardwareState {
    let gpu = |number: &usize| {
        let gpu = Gpu::not_present(GpuUuid::new(uuid(*number)));
        let gpu = Gpu { index: Some(*number as u32), pci_bus_id: Some(address(*number)), present: true, ..gpu };
        (gpu.uuid.clone(), gpu)
    };
    let inventory = Inventory { generation: 1, gpus: listed.iter().map(gpu).collect(), ..Inventory::default() };
    let on_bus: BTreeMap<PciBusId, BusGpu> =
        on_bus.iter().map(|number| (address(*number), BusGpu::default())).collect();
    let node_devices = NodeDevices { expected: on_bus.len(), on_bus, ..NodeDevices::default() };
    HardwareState { inventory: Arc::new(inventory), node_devices: Some(node_devices), ..HardwareState::default() }
}

fn ids(resource: &str, ids: &[&str]) -> Ids {
    [(resource.into(), ids.iter().map(|id| DeviceId::from(*id)).collect())].into()
}

fn allocatable(devices: Ids) -> KubeletState {
    let allocatable = Allocatable { devices, ..Allocatable::default() };
    KubeletState { allocatable: Some(Arc::new(allocatable)), ..KubeletState::default() }
}

fn checkpoint(devices: Ids) -> KubeletState {
    KubeletState { checkpoint: Some(Arc::new(devices)), ..KubeletState::default() }
}

fn held(resource: &str, ids: &[&str]) -> KubeletState {
    let devices: Vec<(&str, &str)> = ids.iter().map(|id| (resource, *id)).collect();
    let pods = vec![pod(container(ContainerRef::new("team", "trainer", "main"), &devices))];
    KubeletState { allocations: Some(Arc::new(Allocations { pods })), ..KubeletState::default() }
}

fn complete(hardware: HardwareState, kubelet: &KubeletState) -> Arc<HardwareState> {
    MissingGpus::default().complete(&Arc::new(hardware), kubelet, &|_| false, Monotonic::from_secs(1))
}

/// UUID and address of each missing GPU.
fn missing(state: &HardwareState) -> Vec<(String, Option<String>)> {
    let gpus = state.inventory.missing.keys().map(|uuid| &state.inventory.gpus[uuid]);
    gpus.map(|gpu| (gpu.uuid.to_string(), gpu.pci_bus_id.as_ref().map(ToString::to_string))).collect()
}

fn at(number: usize) -> Option<String> {
    Some(address(number).to_string())
}

#[test]
fn nothing_is_missing_where_all_agree() {
    let before = Arc::new(hardware(&[0, 1], &[0, 1]));
    let kubelet = allocatable(ids("nvidia.com/gpu", &[&uuid(0), &uuid(1)]));
    let after = MissingGpus::default().complete(&before, &kubelet, &|_| false, Monotonic::from_secs(1));
    assert!(Arc::ptr_eq(&before, &after));
}

#[test]
fn a_gpu_that_only_the_bus_has_is_named_by_its_address() {
    let state = complete(hardware(&[0], &[0, 1]), &KubeletState::default());
    assert_eq!(missing(&state), [("PCI-0000:01:00.0".to_owned(), at(1))]);
    let gpu = &state.inventory.gpus[&"PCI-0000:01:00.0".into()];
    assert_eq!((gpu.present, gpu.index), (false, None));
    assert!(gpu.uuid.is_of_address() && state.readings[&gpu.uuid].lost);
}

#[test]
fn one_that_both_have_is_one_device() {
    for kubelet in [
        allocatable(ids("nvidia.com/gpu", &[&uuid(0), &uuid(1)])),
        checkpoint(ids("nvidia.com/gpu.shared", &[&format!("{}::0", uuid(1)), &format!("{}::3", uuid(1))])),
        held("nvidia.com/gpu", &[&format!("{}-0", uuid(1))]),
    ] {
        let state = complete(hardware(&[0], &[0, 1]), &kubelet);
        assert_eq!(missing(&state), [(uuid(1), at(1))], "{kubelet:?}");
    }
}

#[test]
fn one_that_is_off_the_bus_and_at_the_kubelet_is_a_device() {
    let state = complete(hardware(&[0], &[0]), &held("nvidia.com/gpu", &[&uuid(1)]));
    assert_eq!(missing(&state), [(uuid(1), None)]);
    let known = &state.inventory.missing[&uuid(1).as_str().into()];
    assert_eq!(known.kubelet_ids, ids("nvidia.com/gpu", &[&uuid(1)]));
    assert!(known.detail.contains("the kubelet has it as nvidia.com/gpu"), "{}", known.detail);
}

#[test]
fn no_address_is_guessed_where_several_fit() {
    let kubelet = held("nvidia.com/gpu", &[&uuid(1), &uuid(2)]);
    let state = complete(hardware(&[0], &[0, 1, 2]), &kubelet);
    assert_eq!(missing(&state), [(uuid(1), None), (uuid(2), None)]);
    let detail = &state.inventory.missing[&uuid(1).as_str().into()].detail;
    assert!(detail.contains("0000:01:00.0, 0000:02:00.0"), "{detail}");
}

#[test]
fn the_kernel_driver_identifies_missing_gpus() {
    let mut state = hardware(&[0], &[0, 1, 2]);
    let bus = state.node_devices.as_mut().unwrap();
    bus.on_bus.get_mut(&address(2)).unwrap().uuid = Some(GpuUuid::new(uuid(2)));
    let found = complete(state.clone(), &held("nvidia.com/gpu", &[&uuid(1), &uuid(2)]));
    assert_eq!(missing(&found), [(uuid(1), at(1)), (uuid(2), at(2))]);
    let found = complete(state, &KubeletState::default());
    assert_eq!(missing(&found), [(uuid(2), at(2)), ("PCI-0000:01:00.0".to_owned(), at(1))]);
}

#[test]
fn a_gpu_without_an_address_in_the_drivers_list_is_not_missing() {
    let mut state = hardware(&[0, 1], &[0, 1]);
    let inventory = Arc::make_mut(&mut state.inventory);
    inventory.gpus.get_mut(&uuid(1).as_str().into()).unwrap().pci_bus_id = None;
    assert_eq!(missing(&complete(state, &KubeletState::default())), []);
}

#[test]
fn excluded_gpus_and_other_vendors_ids_are_none() {
    let mut state = hardware(&[0], &[0, 1]);
    state.node_devices.as_mut().unwrap().on_bus.get_mut(&address(1)).unwrap().excluded = true;
    assert_eq!(missing(&complete(state, &held("iluvatar.com/gpu", &[&uuid(9)]))), []);
    // Under their own name, beside one that the driver lists.
    let renamed = ids("example.com/a100", &[&uuid(0), &uuid(1)]);
    assert_eq!(missing(&complete(hardware(&[0], &[0]), &allocatable(renamed))), [(uuid(1), None)]);
    let own = held("example.com/a100", &[&uuid(1)]);
    assert_eq!(missing(&complete(hardware(&[0], &[0]), &own)), []);
    let offered =
        MissingGpus::default().complete(&Arc::new(hardware(&[0], &[0])), &own, &|_| true, Monotonic::from_secs(1));
    assert_eq!(missing(&offered), [(uuid(1), None)]);
}

#[test]
fn without_a_driver_nothing_is_missing_from_its_list() {
    let mut state = hardware(&[], &[0, 1]);
    Arc::make_mut(&mut state.inventory).generation = 0;
    assert_eq!(missing(&complete(state, &held("nvidia.com/gpu", &[&uuid(1)]))), []);
}

#[test]
fn what_the_kubelet_forgets_stays_and_what_returns_is_the_same_device() {
    let mut memory = MissingGpus::default();
    let mut complete = |hardware: HardwareState, kubelet: &KubeletState| {
        memory.complete(&Arc::new(hardware), kubelet, &|_| false, Monotonic::from_secs(1))
    };
    let known = checkpoint(ids("nvidia.com/gpu", &[&uuid(1)]));
    assert_eq!(missing(&complete(hardware(&[0], &[0, 1]), &known)), [(uuid(1), at(1))]);
    assert_eq!(missing(&complete(hardware(&[0], &[0, 1]), &KubeletState::default())), [(uuid(1), at(1))]);
    let back = complete(hardware(&[0, 1], &[0, 1]), &KubeletState::default());
    assert_eq!((missing(&back), back.inventory.gpus.len()), (vec![], 2));
}

#[test]
fn a_mig_device_is_on_the_only_gpu_that_is_missing() {
    let kubelet = held("nvidia.com/mig-1g.10gb", &[&mig(7)]);
    let state = complete(hardware(&[0], &[0, 1]), &kubelet);
    assert_eq!(state.inventory.missing_parent(&mig(7).as_str().into()), Some(&"PCI-0000:01:00.0".into()));
    let two = complete(hardware(&[0], &[0, 1, 2]), &kubelet);
    assert_eq!(two.inventory.missing_parent(&mig(7).as_str().into()), None);
    let none = complete(hardware(&[0, 1], &[0, 1]), &kubelet);
    assert_eq!(missing(&none), [], "it was unmade, and its GPU is there");
}

#[test]
fn the_time_without_readings_stays_uncovered() {
    let mut memory = MissingGpus::default();
    let kubelet = held("nvidia.com/gpu", &[&uuid(1)]);
    let mut uncovered = |hardware: HardwareState, seconds| {
        let state = memory.complete(&Arc::new(hardware), &kubelet, &|_| false, Monotonic::from_secs(seconds));
        state.readings[&uuid(1).as_str().into()].totals.uncovered_seconds
    };
    assert_eq!(uncovered(hardware(&[0], &[0, 1]), 10), 0.0);
    assert_eq!(uncovered(hardware(&[0], &[0, 1]), 14), 4.0);
    let back = |through, seconds| {
        let mut state = hardware(&[0, 1], &[0, 1]);
        let mut readings = DeviceReadings::default();
        readings.totals.through = Monotonic::from_secs(through);
        readings.totals.uncovered_seconds = seconds;
        state.readings.insert(uuid(1).as_str().into(), Arc::new(readings));
        state
    };
    assert_eq!(uncovered(back(0, 0.0), 15), 5.0, "listed, and has not answered");
    assert_eq!(uncovered(back(16, 0.0), 16), 6.0);
    assert_eq!(uncovered(back(30, 1.5), 30), 7.5);
}
