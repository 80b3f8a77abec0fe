use super::*;
use crate::domain::holders::{Slots, join};
use crate::domain::model::Allocatable;
use crate::test_data::{allocatable, allocations, holder, inventory, kubelet, mig_uuid, offering_kubelet, uuid};

const LISTED: &str = "GPU-00000000-0000-0000-0000-000000000001";
const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000002";
const RESOURCE: &str = "nvidia.com/GH100_H100_SXM5_80GB";

// Decision 1: what a GPU on the bus is.

#[test]
fn gpus_at_another_kernel_driver_are_shown_without_the_nvidia_driver() {
    let state = HardwareState { inventory: Arc::default(), ..beside_vfio() };
    let inventory = complete(state, &KubeletState::default()).inventory.clone();
    assert_eq!((inventory.unserved.len(), inventory.missing.len()), (3, 0));
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
    let renamed = offering_kubelet("example.com/a100", &[&uuid(0), &uuid(1)]);
    assert_eq!(missing(&complete(hardware(&[0], &[0]), &renamed)), [(uuid(1), None)]);
    let own = held("example.com/a100", &[&uuid(1)]);
    assert_eq!(missing(&complete(hardware(&[0], &[0]), &own)), []);
    let offered =
        MissingGpus::default().add_to(&Arc::new(hardware(&[0], &[0])), &own, &|_| true, Monotonic::from_secs(1));
    assert_eq!(missing(&offered), [(uuid(1), None)]);
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
fn gpus_of_one_uuid_are_missing_by_their_addresses() {
    let twins = |listed: &[usize], on_bus: &[usize]| {
        let mut state = hardware(listed, on_bus);
        for (at, gpu) in &mut state.node_devices.as_mut().unwrap().on_bus {
            gpu.uuid = (*at != address(0)).then(|| GpuUuid::new(uuid(1)));
        }
        state
    };
    let names = |numbers: &[usize]| -> Vec<_> {
        numbers.iter().map(|number| (format!("PCI-{}", address(*number)), at(*number))).collect()
    };
    let mut unnamed = hardware(&[0], &[0, 1, 2]);
    Arc::make_mut(&mut unnamed.inventory).duplicate_uuids = [(GpuUuid::new(uuid(1)), vec![1, 2])].into();
    for kubelet in [KubeletState::default(), held("nvidia.com/gpu", &[&uuid(1)])] {
        let state = complete(twins(&[0], &[0, 1, 2]), &kubelet);
        assert_eq!(missing(&state), names(&[1, 2]), "the driver lists both or none");
        let detail = &state.inventory.missing[&"PCI-0000:02:00.0".into()].detail;
        assert!(detail.starts_with("another GPU has the same UUID, GPU-"), "{detail}");
        assert_eq!(missing(&complete(unnamed.clone(), &kubelet)), names(&[1, 2]), "the kernel driver names none");
        assert_eq!(missing(&complete(twins(&[0, 1], &[0, 1, 2]), &kubelet)), names(&[2]), "one is read");
        assert_eq!(missing(&complete(twins(&[0, 1], &[0, 2]), &kubelet)), [], "it is at another address now");
    }
}

#[test]
fn a_card_that_the_driver_does_not_serve_is_missing_only_with_evidence() {
    let old = || bus_gpu(None, "1288");
    let none = KubeletState::default();
    let named = |id: &str| ids("nvidia.com/gpu", &[&uuid(0), id]);
    let settled = |devices| KubeletState { settled: true, ..offering(devices) };
    for (card, kubelet, is_missing, case) in [
        (bus_gpu(Some("nouveau"), "2330"), none.clone(), false, "other_driver: nouveau"),
        (old(), none.clone(), false, "unclear: an old card"),
        (BusGpu::default(), none.clone(), false, "unclear: an unreadable product equals no other"),
        (old(), settled(ids("nvidia.com/gpu", &[&uuid(0)])), false, "unclear: the kubelet has the other one"),
        (old(), checkpoint(ids("nvidia.com/gpu", &[&uuid(1)])), false, "unclear: GPU 0 replaced it"),
        (
            bus_gpu(Some("nouveau"), "1288"),
            offering(named(&uuid(1))),
            false,
            "other_driver: rebound after it was offered",
        ),
        (bus_gpu(Some("nvidia"), "1288"), none.clone(), true, "expected: bound"),
        (bus_gpu(None, "2330"), none.clone(), true, "expected: the model of GPU 0"),
        (BusGpu { uuid: Some(uuid(1).as_str().into()), ..old() }, none, true, "identified"),
        (old(), held("nvidia.com/gpu", &[&uuid(1)]), true, "unclear: held"),
        (old(), offering(named(&uuid(1))), true, "unclear: offered"),
        (old(), checkpoint(named(&uuid(1))), true, "unclear: offered before the kubelet's start"),
        (old(), held("nvidia.com/mig-1g.10gb", &[&mig_uuid(7)]), true, "unclear: a MIG device of it"),
    ] {
        let state = complete(beside(card), &kubelet);
        let inventory = &state.inventory;
        assert_eq!((inventory.missing.len() == 1, inventory.unserved.is_empty()), (is_missing, is_missing), "{case}");
        assert_eq!(expected(&state), 1 + usize::from(is_missing), "{case}");
        assert!(inventory.gpus.values().filter(|gpu| gpu.pci_bus_id == Some(address(1))).count() == 1, "{case}");
        assert_eq!(state.readings.len(), usize::from(is_missing), "{case}");
    }
    let doctors = |card| {
        let state = beside(card);
        super::expected_on_bus(&state.inventory, state.node_devices.as_ref().unwrap())
    };
    assert_eq!([old(), bus_gpu(Some("nouveau"), "1288"), bus_gpu(None, "2330")].map(doctors), [1, 1, 2]);
}

#[test]
fn a_card_that_the_driver_had_is_missing_until_another_driver_has_it() {
    let card = |driver| beside(bus_gpu(driver, "1288"));
    let mut memory = MissingGpus::default();
    let mut states = |hardware: HardwareState| {
        let state = memory.add_to(&Arc::new(hardware), &KubeletState::default(), &|_| false, Monotonic::from_secs(1));
        (state.inventory.missing.len(), state.inventory.unserved.len())
    };
    let found = [None, Some("nvidia"), None, Some("nouveau"), None].map(|driver| states(card(driver)));
    assert_eq!(found, [(0, 1), (1, 0), (1, 0), (0, 1), (1, 0)]);
    let state = MissingGpus::new([address(1)].into()).add_to(
        &Arc::new(card(None)),
        &KubeletState::default(),
        &|_| false,
        Monotonic::from_secs(1),
    );
    assert_eq!(state.inventory.missing.len(), 1, "served for an earlier agent");

    // Listed until it was rebound: it keeps its UUID, and is no longer lost.
    let mut rebound = card(Some("nouveau"));
    let gpu = Gpu { pci_bus_id: Some(address(1)), ..Gpu::not_present(GpuUuid::new(uuid(1))) };
    Arc::make_mut(&mut rebound.inventory).gpus.insert(gpu.uuid.clone(), gpu);
    rebound.readings.insert(uuid(1).as_str().into(), Arc::new(DeviceReadings { lost: true, ..Default::default() }));
    let state = complete(rebound, &KubeletState::default());
    assert!(state.inventory.unserved.contains_key(&uuid(1).as_str().into()) && state.readings.is_empty());
}

#[test]
fn without_a_driver_nothing_is_missing_from_its_list() {
    let mut state = hardware(&[], &[0, 1]);
    Arc::make_mut(&mut state.inventory).generation = 0;
    assert_eq!(missing(&complete(state, &held("nvidia.com/gpu", &[&uuid(1)]))), []);
}

// Decision 2: the UUIDs that only the kubelet has.

#[test]
fn an_offered_uuid_may_be_of_a_gpu_at_another_kernel_driver() {
    let offering = |uuids: &[&str]| offering_kubelet("nvidia.com/gpu", uuids);
    let missing = |kubelet: &KubeletState| complete(beside_vfio(), kubelet).inventory.missing.len();
    assert_eq!(missing(&offering(&[LISTED, OTHER])), 0);
    let five: Vec<String> = (2..=5).map(|number| format!("{}{number}", &OTHER[..OTHER.len() - 1])).collect();
    assert_eq!(missing(&offering(&five.iter().map(String::as_str).collect::<Vec<_>>())), 4, "one of four is missing");
    let held = KubeletState { allocations: held("nvidia.com/gpu", &[OTHER]).allocations, ..offering(&[OTHER]) };
    assert_eq!(missing(&held), 1);
}

#[test]
fn what_the_kubelet_forgets_stays_and_what_returns_is_the_same_device() {
    let mut memory = MissingGpus::default();
    let mut complete = |hardware: HardwareState, kubelet: &KubeletState| {
        memory.add_to(&Arc::new(hardware), kubelet, &|_| false, Monotonic::from_secs(1))
    };
    let known = checkpoint(ids("nvidia.com/gpu", &[&uuid(1)]));
    assert_eq!(missing(&complete(hardware(&[0], &[0, 1]), &known)), [(uuid(1), at(1))]);
    assert_eq!(missing(&complete(hardware(&[0], &[0, 1]), &KubeletState::default())), [(uuid(1), at(1))]);
    let back = complete(hardware(&[0, 1], &[0, 1]), &KubeletState::default());
    assert_eq!((missing(&back), back.inventory.gpus.len()), (vec![], 2));
}

#[test]
fn a_replaced_gpu_that_only_the_checkpoint_names_is_not_missing() {
    let known = checkpoint(ids("nvidia.com/gpu", &[&uuid(0), &uuid(9)]));
    assert_eq!(missing(&complete(hardware(&[0, 1], &[0, 1]), &known)), []);
    assert_eq!(missing(&complete(hardware(&[0, 1], &[]), &known)), [(uuid(9), None)], "the bus cannot be read");

    let mut memory = MissingGpus::default();
    let mut complete = |listed: &[usize], kubelet: &KubeletState| {
        let hardware = Arc::new(hardware(listed, &[0, 1]));
        missing(&memory.add_to(&hardware, kubelet, &|_| false, Monotonic::from_secs(1)))
    };
    assert_eq!(complete(&[0], &known), [(uuid(9), at(1))], "the driver does not list the new one yet");
    assert_eq!(complete(&[0, 1], &known), [(uuid(9), None)], "no answer has settled");
    let of_kubelet = |ids: &[&str]| KubeletState {
        allocations: held("nvidia.com/gpu", ids).allocations,
        settled: true,
        checkpoint: known.checkpoint.clone(),
        ..offering_kubelet("nvidia.com/gpu", &[&uuid(0)])
    };
    assert_eq!(complete(&[0, 1], &of_kubelet(&[&uuid(9)])), [(uuid(9), None)], "a pod holds it");
    assert_eq!(complete(&[0, 1], &of_kubelet(&[])), []);
}

// Decision 3: which UUID is at which address.

#[test]
fn one_that_both_have_is_one_device() {
    for kubelet in [
        offering_kubelet("nvidia.com/gpu", &[&uuid(0), &uuid(1)]),
        checkpoint(ids("nvidia.com/gpu.shared", &[&format!("{}::0", uuid(1)), &format!("{}::3", uuid(1))])),
        held("nvidia.com/gpu", &[&format!("{}-0", uuid(1))]),
    ] {
        let state = complete(hardware(&[0], &[0, 1]), &kubelet);
        assert_eq!(missing(&state), [(uuid(1), at(1))], "{kubelet:?}");
    }
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
fn an_old_card_beside_a_lost_gpu_takes_no_uuid() {
    let mut state = hardware(&[0], &[0, 1]);
    state.node_devices.as_mut().unwrap().on_bus.insert(address(2), bus_gpu(None, "1288"));
    let one = complete(state.clone(), &held("nvidia.com/gpu", &[&uuid(1)]));
    assert_eq!((missing(&one), one.inventory.unserved.len()), (vec![(uuid(1), at(1))], 1));
    let two = complete(state, &held("nvidia.com/gpu", &[&uuid(1), &uuid(2)]));
    assert_eq!((missing(&two), two.inventory.unserved.len()), (vec![(uuid(1), None), (uuid(2), None)], 0));
}

#[test]
fn a_mig_device_is_on_the_only_gpu_that_is_missing() {
    let kubelet = held("nvidia.com/mig-1g.10gb", &[&mig_uuid(7)]);
    let state = complete(hardware(&[0], &[0, 1]), &kubelet);
    assert_eq!(state.inventory.missing_parent(&mig_uuid(7)), Some(&"PCI-0000:01:00.0".into()));
    let two = complete(hardware(&[0], &[0, 1, 2]), &kubelet);
    assert_eq!(two.inventory.missing_parent(&mig_uuid(7)), None);
    let none = complete(hardware(&[0, 1], &[0, 1]), &kubelet);
    assert_eq!(missing(&none), [], "it was deleted, and its GPU is there");
}

#[test]
fn a_mig_device_of_a_gpu_that_was_replaced_is_on_no_other() {
    let mut memory = MissingGpus::default();
    let mut complete = |listed: &[usize], kubelet: &KubeletState| {
        memory.add_to(&Arc::new(hardware(listed, &[0, 1])), kubelet, &|_| false, Monotonic::from_secs(1))
    };
    complete(&[0], &held("nvidia.com/mig-1g.10gb", &[&mig_uuid(7)]));
    let of_gpus = offering_kubelet("nvidia.com/gpu", &[&uuid(0), &uuid(1)]);
    let settled = KubeletState { settled: true, ..of_gpus };
    complete(&[0, 1], &settled);
    let state = complete(&[0], &settled);
    assert_eq!(missing(&state), [(uuid(1), at(1))]);
    assert_eq!(state.inventory.missing_parent(&mig_uuid(7)), None);
}

// The results.

#[test]
fn the_time_without_readings_stays_uncovered() {
    let mut memory = MissingGpus::default();
    let kubelet = held("nvidia.com/gpu", &[&uuid(1)]);
    let mut uncovered = |hardware: HardwareState, seconds| {
        let state = memory.add_to(&Arc::new(hardware), &kubelet, &|_| false, Monotonic::from_secs(seconds));
        state.readings[&uuid(1).as_str().into()].totals.uncovered_seconds
    };
    assert_eq!(uncovered(hardware(&[0], &[0, 1]), 10), 0.0);
    assert_eq!(uncovered(hardware(&[0], &[0, 1]), 14), 4.0);
    let back = |complete_until, seconds| {
        let mut state = hardware(&[0, 1], &[0, 1]);
        let mut readings = DeviceReadings::default();
        readings.totals.complete_until = Monotonic::from_secs(complete_until);
        readings.totals.uncovered_seconds = seconds;
        state.readings.insert(uuid(1).as_str().into(), Arc::new(readings));
        state
    };
    assert_eq!(uncovered(back(0, 0.0), 15), 5.0, "listed, and has not answered");
    assert_eq!(uncovered(back(16, 0.0), 16), 6.0);
    assert_eq!(uncovered(back(30, 1.5), 30), 7.5);
}

#[test]
fn an_id_that_is_no_gpus_is_counted_by_its_form_where_nvidia_writes_it() {
    let state = complete(beside_vfio(), &KubeletState::default());
    for (resource, id, form) in [
        (RESOURCE, "7", "other"),
        (RESOURCE, "0000:05:00.0", "pci_address"),
        ("example.com/nic", "51", "other"),
        ("example.com/nic", "0000:3b:00.1", "other"),
        ("example.com/nic", "/dev/vfio/7", "other"),
    ] {
        let (held, offered) = (allocations([holder("p", &[(resource, id)])]), allocatable(resource, &[id]));
        let holdings = join(&held, &offered, &state.inventory, &Slots::default());
        let counted: Vec<_> = holdings.unresolved.iter().map(|row| (row.form, row.devices)).collect();
        assert_eq!((counted, holdings.by_key.len()), (vec![(form, 1)], 0), "{resource} {id}");
        assert_eq!(holdings.drift, [], "what NVIDIA's plugins should offer is unknown: {id}");
    }
}

// The inputs, and how results are compared.

fn address(number: usize) -> PciBusId {
    PciBusId::new(format!("0000:{number:02x}:00.0"))
}

/// The driver lists GPUs `listed`; the bus has those of `on_bus`, bound to NVIDIA's kernel driver.
fn hardware(listed: &[usize], on_bus: &[usize]) -> HardwareState {
    let gpu = |number: &usize| {
        let gpu = Gpu::not_present(GpuUuid::new(uuid(*number)));
        Gpu { index: Some(*number as u32), pci_bus_id: Some(address(*number)), present: true, ..gpu }
    };
    let inventory = inventory(listed.iter().map(gpu));
    let on_bus: BTreeMap<PciBusId, BusGpu> =
        on_bus.iter().map(|number| (address(*number), bus_gpu(Some("nvidia"), "2330"))).collect();
    let node_devices = NodeDevices { expected: on_bus.len(), on_bus };
    HardwareState { inventory: Arc::new(inventory), node_devices: Some(node_devices), ..HardwareState::default() }
}

fn bus_gpu(kernel_driver: Option<&str>, device_id: &str) -> BusGpu {
    let kernel_driver = kernel_driver.map(Arc::from);
    BusGpu { kernel_driver, pci_device_id: Some(device_id.into()), ..BusGpu::default() }
}

/// The driver lists GPU 0 of the bus, which also has `card` as number 1.
fn beside(card: BusGpu) -> HardwareState {
    let mut state = hardware(&[0], &[0]);
    let bus = state.node_devices.as_mut().unwrap();
    bus.expected += usize::from(!card.is_of_another_driver());
    bus.on_bus.insert(address(1), card);
    state
}

fn expected(state: &HardwareState) -> usize {
    state.node_devices.as_ref().unwrap().expected
}

fn ids(resource: &str, ids: &[&str]) -> DeviceIds {
    allocatable(resource, ids).devices
}

fn offering(devices: DeviceIds) -> KubeletState {
    let allocatable = Arc::new(Allocatable { devices, ..Allocatable::default() });
    KubeletState { allocatable: Some(allocatable), ..KubeletState::default() }
}

fn checkpoint(devices: DeviceIds) -> KubeletState {
    KubeletState { checkpoint: Some(Arc::new(devices)), ..KubeletState::default() }
}

fn held(resource: &str, ids: &[&str]) -> KubeletState {
    let devices: Vec<(&str, &str)> = ids.iter().map(|id| (resource, *id)).collect();
    kubelet([holder("trainer", &devices)])
}

fn complete(hardware: HardwareState, kubelet: &KubeletState) -> Arc<HardwareState> {
    MissingGpus::default().add_to(&Arc::new(hardware), kubelet, &|_| false, Monotonic::from_secs(1))
}

/// UUID and address of each missing GPU.
fn missing(state: &HardwareState) -> Vec<(String, Option<String>)> {
    let gpus = state.inventory.missing.keys().map(|uuid| &state.inventory.gpus[uuid]);
    gpus.map(|gpu| (gpu.uuid.to_string(), gpu.pci_bus_id.as_ref().map(ToString::to_string))).collect()
}

fn at(number: usize) -> Option<String> {
    Some(address(number).to_string())
}

/// The driver lists a GPU at 17:00.0; vfio-pci has three others.
fn beside_vfio() -> HardwareState {
    let listed = Gpu { pci_bus_id: Some("0000:17:00.0".into()), ..Gpu::listed(LISTED.into(), 0) };
    let others =
        ["0000:ca:00.0", "0000:cb:00.0", "0000:e1:00.0"].map(|at| (at.into(), bus_gpu(Some("vfio-pci"), "2330")));
    HardwareState {
        inventory: Arc::new(inventory([listed])),
        node_devices: Some(NodeDevices { expected: 1, on_bus: others.into() }),
        ..HardwareState::default()
    }
}
