//! The reference behaviour of NVIDIA's plugin, row by row, and podmeter's additions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::domain::model::{DeviceId, Gpu, Inventory, MigDevice, UnhealthyReason};
use crate::node::wire::v1beta1::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

mod configuration;
mod lifecycle;

const CONTROL: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

pub(super) fn uuid(number: u32) -> String {
    format!("GPU-{number:08x}-0000-0000-0000-000000000000")
}

fn mig_uuid(gpu: u32, number: u32) -> String {
    format!("MIG-{gpu:04x}{number:04x}-0000-0000-0000-000000000000")
}

/// Minor numbers are in the opposite order of the indexes: confusing the two fails.
pub(super) fn gpu(index: u32, profiles: Option<&[&str]>) -> Gpu {
    let mig_devices = (0..).zip(profiles.unwrap_or_default()).map(|(number, profile)| MigDevice {
        // A gap, as a driver leaves one where a device was removed.
        index: number * 2,
        ..crate::test_data::mig(&mig_uuid(index, number), number + 1, profile, 1)
    });
    Gpu {
        minor: Some(7 ^ index),
        model: Some("NVIDIA H100 80GB HBM3".into()),
        numa_node: (index < 4).then_some(index / 2),
        mig_enabled: Some(profiles.is_some()),
        mig_devices: mig_devices.collect(),
        mig_slices: Some(7),
        ..Gpu::listed(uuid(index).as_str().into(), index)
    }
}

pub(super) fn inventory(gpus: impl IntoIterator<Item = Gpu>) -> Inventory {
    Inventory { gpus: gpus.into_iter().map(|gpu| (gpu.uuid.clone(), gpu)).collect(), ..Inventory::default() }
}

fn four_gpus() -> Inventory {
    inventory((0..4).map(|index| gpu(index, None)))
}

fn two_with_mig() -> Inventory {
    inventory((0..2).map(|index| gpu(index, Some(&["3g.40gb", "3g.40gb"]))))
}

/// One entry of `devicePlugin.resources`.
fn entry(text: &str) -> ResourceConfig {
    let file: PluginConfig = serde_saphyr::from_str(&format!("resources: [{{{text}}}]")).expect(text);
    file.resolve(|_| unreachable!()).expect(text).remove(0)
}

pub(super) fn nvidia(text: &str) -> ResourceConfig {
    entry(&format!("kind: nvidia, {text}"))
}

fn facts() -> DriverFiles {
    let capabilities =
        |minor: u32| (1..=2).flat_map(move |gi| [((minor, gi, None), 10 * gi), ((minor, gi, Some(0)), 10 * gi + 1)]);
    DriverFiles {
        control_nodes: CONTROL.map(str::to_owned).to_vec(),
        mig_capabilities: MigCapabilities((6..=7).flat_map(capabilities).collect()),
        driver_mounts: crate::node::plugin::NvidiaConfig::default().driver_mounts,
        cdi: None,
    }
}

/// Resource → ids.
fn listed(config: &ResourceConfig, inventory: &Inventory) -> BTreeMap<String, Vec<String>> {
    let names = |offer: &Offer| offer.devices.iter().map(|device| device.id.to_string()).collect();
    offers(config, inventory, &[]).offers.iter().map(|offer| (offer.resource.to_string(), names(offer))).collect()
}

fn resources<const N: usize>(expected: [(&str, Vec<String>); N]) -> BTreeMap<String, Vec<String>> {
    expected.into_iter().map(|(name, ids)| (name.to_owned(), ids)).collect()
}

fn ask(
    config: &ResourceConfig,
    inventory: &Inventory,
    ids: &[&str],
) -> Result<ContainerAllocateResponse, AllocationRefusal> {
    let offered = offers(config, inventory, &[]).offers.remove(0);
    let ids: Vec<DeviceId> = ids.iter().map(|id| DeviceId::from(*id)).collect();
    answer(config, &offered, &ids, &facts())
}

fn environment(answer: &ContainerAllocateResponse) -> BTreeMap<String, String> {
    answer.envs.clone().into_iter().collect()
}

fn visible(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("NVIDIA_VISIBLE_DEVICES".to_owned(), value.to_owned())])
}

fn container_paths(answer: &ContainerAllocateResponse) -> Vec<&str> {
    answer.devices.iter().map(|node| node.container_path.as_str()).collect()
}

#[test]
fn without_configuration_it_does_what_nvidias_plugin_does() {
    let entries = PluginConfig::default().resolve(|_| unreachable!()).unwrap();
    let inventory = four_gpus();
    assert_eq!(listed(&entries[0], &inventory), resources([("nvidia.com/gpu", (0..4).map(uuid).collect())]));
    let given = ask(&entries[0], &inventory, &[&uuid(2), &uuid(0)]).unwrap();
    let expected = ContainerAllocateResponse {
        envs: visible(&format!("{},{}", uuid(2), uuid(0))).into_iter().collect(),
        ..ContainerAllocateResponse::default()
    };
    assert_eq!(given, expected, "only the variable, in the order asked for");
}

#[test]
fn numa_nodes_come_from_the_inventory_and_are_left_out_when_unknown() {
    let offered = offers(&nvidia(""), &inventory([gpu(3, None), gpu(5, None)]), &[]).offers.remove(0);
    let nodes: Vec<_> = offered.devices.iter().map(|device| device.numa_nodes.clone()).collect();
    assert_eq!(nodes, [BTreeSet::from([1]), BTreeSet::new()]);
}

#[test]
fn pass_device_specs_adds_the_nodes_that_are_there() {
    let config = nvidia("passDeviceSpecs: true, deviceRoot: /run/nvidia/driver");
    let given = ask(&config, &four_gpus(), &[&uuid(0), &uuid(1)]).unwrap();
    assert_eq!(environment(&given), visible(&format!("{},{}", uuid(0), uuid(1))));
    assert_eq!(container_paths(&given), [&CONTROL[..], &["/dev/nvidia7", "/dev/nvidia6"]].concat());
    assert_eq!(given.devices[4].host_path, "/run/nvidia/driver/dev/nvidia7");
    assert!(given.devices.iter().all(|node| node.permissions == "rw"));
}

#[test]
fn volume_mounts_name_each_device_by_a_file() {
    let given = ask(&nvidia("deviceListStrategy: volume-mounts"), &four_gpus(), &[&uuid(1)]).unwrap();
    assert_eq!(environment(&given), visible("/var/run/nvidia-container-devices"));
    let mount = Mount {
        host_path: "/dev/null".to_owned(),
        container_path: format!("/var/run/nvidia-container-devices/{}", uuid(1)),
        read_only: false,
    };
    assert_eq!(given.mounts, [mount]);
}

#[test]
fn the_index_strategy_changes_the_answer_and_not_the_ids() {
    let config = nvidia("deviceIDStrategy: index");
    assert_eq!(listed(&config, &four_gpus())["nvidia.com/gpu"][0], uuid(0));
    assert_eq!(environment(&ask(&config, &four_gpus(), &[&uuid(3), &uuid(1)]).unwrap()), visible("3,1"));
    let config = nvidia("deviceIDStrategy: index, migStrategy: single");
    assert_eq!(environment(&ask(&config, &two_with_mig(), &[&mig_uuid(1, 1)]).unwrap()), visible("1:2"));
}

#[test]
fn cdi_names_go_into_the_field_or_into_an_annotation() {
    let name = |number| format!("k8s.device-plugin.nvidia.com/gpu={}", uuid(number));
    let device = |number| CdiDevice { name: name(number) };
    let given = ask(&nvidia("deviceListStrategy: cdi-cri, passDeviceSpecs: true"), &four_gpus(), &[&uuid(1), &uuid(0)]);
    let expected =
        ContainerAllocateResponse { cdi_devices: vec![device(1), device(0)], ..ContainerAllocateResponse::default() };
    assert_eq!(given, Ok(expected), "no variable and no nodes");

    let config = nvidia("deviceListStrategy: cdi-annotations");
    let key_and_value = |ids: &[&str]| {
        let given = ask(&config, &four_gpus(), ids).unwrap();
        assert_eq!((given.envs.len(), given.cdi_devices.len(), given.annotations.len()), (0, 0, 1));
        given.annotations.into_iter().next().unwrap()
    };
    let (key, value) = key_and_value(&[&uuid(1), &uuid(0)]);
    assert!(key.starts_with("cdi.k8s.io/nvidia-device-plugin_"), "{key}");
    assert!(key.len() - "cdi.k8s.io/".len() <= 63);
    assert_eq!(value, format!("{},{}", name(1), name(0)));
    assert_eq!(key_and_value(&[&uuid(1), &uuid(0)]).0, key, "the same at every call");
    assert_ne!(key_and_value(&[&uuid(2)]).0, key);
}

#[test]
fn strategies_add_up() {
    let config = nvidia("deviceListStrategy: [envvar, cdi-cri, cdi-annotations], cdiAnnotationPrefix: x.io/");
    let given = ask(&config, &four_gpus(), &[&uuid(0)]).unwrap();
    assert_eq!(environment(&given), visible(&uuid(0)));
    assert_eq!(given.cdi_devices.len(), 1);
    assert!(given.annotations.keys().all(|key| key.starts_with("x.io/nvidia-device-plugin_")));
    // As NVIDIA's plugin: the variable has one value, and the mounts need theirs.
    let config = nvidia("deviceListStrategy: [volume-mounts, envvar]");
    let given = ask(&config, &four_gpus(), &[&uuid(0)]).unwrap();
    assert_eq!(environment(&given), visible("/var/run/nvidia-container-devices"));
}

#[test]
fn a_vendors_specification_lends_its_kind_and_names() {
    let config = nvidia("deviceListStrategy: cdi-cri");
    let offered = offers(&config, &four_gpus(), &[]).offers.remove(0);
    let vendor = cdi::VendorSpecification {
        file: "/etc/cdi/nvidia.yaml".into(),
        kind: "nvidia.com/gpu".to_owned(),
        devices: BTreeSet::from(["0".to_owned(), uuid(1)]),
    };
    let node = DriverFiles { cdi: Some(vendor), ..facts() };
    let given = |number| answer(&config, &offered, &[uuid(number).as_str().into()], &node);
    assert_eq!(given(0).unwrap().cdi_devices[0].name, "nvidia.com/gpu=0");
    assert_eq!(given(1).unwrap().cdi_devices[0].name, format!("nvidia.com/gpu={}", uuid(1)));
    assert!(matches!(given(2), Err(AllocationRefusal::Unhealthy { .. })));
}

#[test]
fn devices_come_with_driver_mounts_and_no_variable() {
    let given = ask(&nvidia("deviceListStrategy: device-nodes"), &four_gpus(), &[&uuid(0)]).unwrap();
    assert!(given.envs.is_empty());
    assert_eq!(container_paths(&given), [&CONTROL[..], &["/dev/nvidia7"]].concat());
    assert!(given.devices.iter().all(|node| node.permissions == "mrw"));
    let mount = |host: &str, container: &str| Mount {
        host_path: host.to_owned(),
        container_path: container.to_owned(),
        read_only: true,
    };
    let expected = [
        mount("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
        mount("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d"),
    ];
    assert_eq!(given.mounts, expected);
}

#[test]
fn unknown_and_unhealthy_devices_are_refused_by_name() {
    assert_eq!(ask(&nvidia(""), &four_gpus(), &[&uuid(0), "GPU-x"]), Err(AllocationRefusal::Unknown("GPU-x".into())));
    let mut inventory = four_gpus();
    inventory.gpus.get_mut(&uuid(1).as_str().into()).unwrap().present = false;
    let refusal = ask(&nvidia(""), &inventory, &[&uuid(1)]).unwrap_err();
    assert!(refusal.to_string().contains(&uuid(1)) && refusal.to_string().contains("lost"), "{refusal}");
    assert!(ask(&nvidia(""), &inventory, &[&uuid(0)]).is_ok(), "the others are not touched");
}

#[test]
fn a_request_for_nothing_gets_nothing_whatever_the_strategy() {
    for strategy in ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri", "device-nodes"] {
        let config = nvidia(&format!("deviceListStrategy: {strategy}, passDeviceSpecs: true"));
        let expected = ContainerAllocateResponse {
            envs: visible("void").into_iter().collect(),
            ..ContainerAllocateResponse::default()
        };
        assert_eq!(ask(&config, &four_gpus(), &[]), Ok(expected), "{strategy}");
    }
}

#[test]
fn slots_are_numbered_and_name_their_gpu_once() {
    let config = nvidia("sharing: {timeSlicing: {replicas: 4}}");
    let listed = listed(&config, &inventory([gpu(0, None)]));
    let slot = |gpu, number| format!("{}::{number}", uuid(gpu));
    assert_eq!(listed, resources([("nvidia.com/gpu", (0..4).map(|number| slot(0, number)).collect())]));
    let given = ask(&config, &four_gpus(), &[&slot(1, 3), &slot(0, 0), &slot(1, 0), &slot(0, 0)]).unwrap();
    assert_eq!(environment(&given), visible(&format!("{},{}", uuid(1), uuid(0))));
}

#[test]
fn sharing_may_rename_and_may_refuse_more_than_one() {
    let config =
        nvidia("sharing: {timeSlicing: {replicas: 2, renameByDefault: true, failRequestsGreaterThanOne: true}}");
    let slot = |number| format!("{}::{number}", uuid(0));
    assert_eq!(
        listed(&config, &inventory([gpu(0, None)])),
        resources([("nvidia.com/gpu.shared", vec![slot(0), slot(1)])])
    );
    assert!(ask(&config, &four_gpus(), &[&slot(0)]).is_ok());
    assert!(matches!(ask(&config, &four_gpus(), &[&slot(0), &slot(1)]), Err(AllocationRefusal::NotAllowed(_))));
}

#[test]
fn each_gpu_may_have_its_own_number_of_slots() {
    let per_gpu = format!("{{0: 3, \"{}\": 1}}", uuid(2));
    let config =
        nvidia(&format!("sharing: {{timeSlicing: {{replicas: 2, renameByDefault: true, perGpu: {per_gpu}}}}}"));
    let listed = listed(&config, &inventory((0..3).map(|index| gpu(index, None))));
    assert_eq!(listed["nvidia.com/gpu"], [uuid(2)]);
    let slots = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)].map(|(gpu, number)| format!("{}::{number}", uuid(gpu)));
    assert_eq!(listed["nvidia.com/gpu.shared"], slots);
    // A device that is not shared is no shared request.
    let config = nvidia(&format!("sharing: {{mps: {{perGpu: {{\"{}\": 2}}}}}}", uuid(3)));
    assert!(ask(&config, &four_gpus(), &[&uuid(0), &uuid(1)]).is_ok());
}

#[test]
fn mps_gives_its_pipe_and_shared_memory_and_refuses_two() {
    let config = nvidia("sharing: {mps: {replicas: 2, renameByDefault: true}}, mpsRoot: /run/mps");
    let slot = format!("{}::0", uuid(0));
    let given = ask(&config, &four_gpus(), &[&slot]).unwrap();
    let pipe = "/mps/nvidia.com/gpu.shared/pipe";
    assert_eq!(given.envs["CUDA_MPS_PIPE_DIRECTORY"], pipe);
    let mounts: Vec<_> =
        given.mounts.iter().map(|mount| (mount.host_path.as_str(), mount.container_path.as_str())).collect();
    assert_eq!(mounts, [("/run/mps/nvidia.com/gpu.shared/pipe", pipe), ("/run/mps/shm", "/dev/shm")]);
    let refusal = ask(&config, &four_gpus(), &[&slot, &format!("{}::1", uuid(0))]);
    assert!(matches!(refusal, Err(AllocationRefusal::NotAllowed(_))));
    // MIG devices are not shared.
    let config = nvidia("sharing: {mps: {replicas: 2}}, migStrategy: single");
    let offered = offers(&config, &two_with_mig(), &[]);
    assert_eq!(offered.offers[0].devices.len(), 4);
    assert_eq!(offered.problems.len(), 4);
}

#[test]
fn mig_devices_are_offered_by_strategy() {
    let migs = |gpu| (0..2).map(move |number| mig_uuid(gpu, number));
    let all: Vec<String> = (0..2).flat_map(migs).collect();
    let whole = vec![uuid(0), uuid(1)];
    assert_eq!(listed(&nvidia("migStrategy: none"), &two_with_mig()), resources([("nvidia.com/gpu", whole)]));
    assert_eq!(listed(&nvidia("migStrategy: single"), &two_with_mig()), resources([("nvidia.com/gpu", all)]));
    let node = inventory([gpu(0, Some(&["1g.10gb", "1g.10gb+me"])), gpu(1, None)]);
    let expected = resources([
        ("nvidia.com/gpu", vec![uuid(1)]),
        ("nvidia.com/mig-1g.10gb", vec![mig_uuid(0, 0)]),
        ("nvidia.com/mig-1g.10gb.me", vec![mig_uuid(0, 1)]),
    ]);
    assert_eq!(listed(&nvidia("migStrategy: mixed"), &node), expected);
}

#[test]
fn single_with_unequal_layouts_offers_the_commonest_and_names_the_rest() {
    let uneven = |gpus: Vec<Gpu>| offers(&nvidia("migStrategy: single"), &inventory(gpus), &[]);
    let ids = |offered: &Offers| -> Vec<String> {
        offered.offers.iter().flat_map(|offer| &offer.devices).map(|device| device.id.to_string()).collect()
    };
    let offered = uneven(vec![gpu(0, None), gpu(1, None), gpu(2, Some(&["1g.10gb", "1g.10gb", "1g.10gb"]))]);
    assert_eq!(ids(&offered), [uuid(0), uuid(1)]);
    assert!(offered.problems[0].contains(&mig_uuid(2, 1)), "{:?}", offered.problems);
    let offered = uneven(vec![gpu(0, Some(&["1g.10gb", "3g.40gb", "1g.10gb"]))]);
    assert_eq!(ids(&offered), [mig_uuid(0, 0), mig_uuid(0, 2)]);
    let offered = uneven(vec![gpu(0, Some(&["2g.20gb"])), gpu(1, Some(&["1g.10gb"]))]);
    assert_eq!(ids(&offered), [mig_uuid(1, 0)], "a tie goes to the first by name");
    let offered = uneven(vec![gpu(0, Some(&["1g.10gb"])), gpu(1, Some(&[]))]);
    assert_eq!((ids(&offered).len(), offered.problems.len()), (1, 1));
}

#[test]
fn mig_devices_come_with_their_capability_nodes() {
    let config = nvidia("migStrategy: single, passDeviceSpecs: true");
    let given = ask(&config, &two_with_mig(), &[&mig_uuid(0, 0), &mig_uuid(0, 1)]).unwrap();
    let caps = [10, 11, 20, 21].map(|number| format!("/dev/nvidia-caps/nvidia-cap{number}"));
    let own = ["/dev/nvidia7", &caps[0], &caps[1], &caps[2], &caps[3]];
    assert_eq!(container_paths(&given)[4..], own, "the GPU's node once");
    let unknown = answer(
        &config,
        &offers(&config, &two_with_mig(), &[]).offers[0],
        &[mig_uuid(0, 0).as_str().into()],
        &DriverFiles::default(),
    );
    assert!(unknown.unwrap_err().to_string().contains("capability"));
}

#[test]
fn names_follow_the_model() {
    let config = nvidia("names: {gpus: [{pattern: \"*H100*\", name: nvidia.com/h100}]}");
    let other = Gpu { model: Some("NVIDIA L4".into()), ..gpu(1, None) };
    let expected = resources([("nvidia.com/gpu", vec![uuid(1)]), ("nvidia.com/h100", vec![uuid(0)])]);
    assert_eq!(listed(&config, &inventory([gpu(0, None), other])), expected);
}

#[test]
fn a_device_never_leaves_the_list() {
    let config = nvidia("");
    let before = offers(&config, &four_gpus(), &[]).offers;
    let now = offers(&config, &inventory([gpu(1, None), gpu(5, None)]), &[]).offers;
    let merged = merge(&before, now, &inventory([gpu(1, None), gpu(5, None)]));
    let health: Vec<_> =
        merged[0].devices.iter().map(|device| (device.id.to_string(), device.health.is_ok())).collect();
    let expected = [(uuid(0), false), (uuid(1), true), (uuid(2), false), (uuid(3), false), (uuid(5), true)];
    assert_eq!(health, expected);
    // Another name for a present GPU removes its device; without the GPU it is lost.
    let partitioned = merge(&before, vec![], &inventory([gpu(1, Some(&["3g.40gb"]))]));
    let reasons = partitioned[0].devices.iter().map(|device| device.health.as_ref().unwrap_err().reason.as_str());
    assert_eq!(reasons.collect::<Vec<_>>(), ["lost", "layout", "lost", "lost"]);
    // Back again, and a resource without any device left.
    assert_eq!(merge(&before, vec![], &Inventory::default())[0].devices.len(), 4);
    let back = merge(&merge(&before, vec![], &four_gpus()), before.clone(), &four_gpus());
    assert_eq!(back, before);
}

#[test]
fn the_health_of_a_gpu_reaches_all_its_slots() {
    let config = nvidia("sharing: {timeSlicing: {replicas: 2}}");
    let offered = offers(&config, &four_gpus(), &[]).offers.remove(0);
    let offered = offered.with_health(|hardware| match hardware {
        OfferedHardware::Gpu { index: 2, .. } => Err(PluginUnhealthy::device(UnhealthyReason::Xid, "XID 79")),
        _ => Ok(()),
    });
    let unhealthy: Vec<_> = offered.devices.iter().filter(|device| device.health.is_err()).collect();
    assert_eq!(unhealthy.len(), 2);
}

#[test]
fn paths_and_simulated_devices_are_answered() {
    let config = entry("kind: path, name: example.com/fuse, paths: /dev/fuse, shared: 3");
    let node = |path: &str| DeviceSpec {
        host_path: path.to_owned(),
        container_path: path.to_owned(),
        permissions: "rw".to_owned(),
    };
    let found = paths::PathDevice { id: "fuse".into(), nodes: vec![node("/dev/fuse")], numa_nodes: BTreeSet::new() };
    let offered = offers(&config, &Inventory::default(), &[found]).offers.remove(0);
    let ids: Vec<DeviceId> = offered.devices.iter().map(|device| device.id.clone()).collect();
    assert_eq!(ids, ["fuse::0".into(), "fuse::1".into(), "fuse::2".into()]);
    let given = answer(&config, &offered, &ids, &DriverFiles::default()).unwrap();
    assert_eq!(
        given,
        ContainerAllocateResponse { devices: vec![node("/dev/fuse")], ..ContainerAllocateResponse::default() }
    );

    let config = entry("kind: simulated, name: example.com/thing, devices: 2");
    let given = ask(&config, &Inventory::default(), &["simulated-1", "simulated-0"]).unwrap();
    assert_eq!(given.envs["PODMETER_SIMULATED_DEVICES"], "simulated-1,simulated-0");
}

#[test]
fn nothing_to_offer_is_no_resource() {
    assert_eq!(offers(&nvidia(""), &Inventory::default(), &[]), Offers::default());
}

fn any_gpu() -> impl Strategy<Value = (u32, Option<Vec<&'static str>>, bool)> {
    let profile = prop::sample::select(vec!["1g.10gb", "3g.40gb", "1g.10gb+me"]);
    (0..16_u32, prop::option::of(prop::collection::vec(profile, 0..7)), any::<bool>())
}

proptest! {
    #[test]
    fn ids_are_unique_short_sorted_and_the_same_whatever_the_order_of_discovery(
        gpus in prop::collection::vec(any_gpu(), 0..8),
        strategy in prop::sample::select(vec!["none", "single", "mixed"]),
        replicas in 2..20_u32,
    ) {
        let gpus: Vec<Gpu> = gpus.iter().map(|(index, profiles, present)| {
            Gpu { present: *present, ..gpu(*index, profiles.as_deref()) }
        }).collect();
        let sharing = format!("sharing: {{timeSlicing: {{replicas: {replicas}, renameByDefault: true, perGpu: {{0: 1}}}}}}");
        let config = nvidia(&format!("migStrategy: {strategy}, {sharing}"));
        let offered = offers(&config, &inventory(gpus.clone()), &[]);
        for offer in &offered.offers {
            prop_assert!(offer.devices.windows(2).all(|pair| pair[0].id < pair[1].id));
            prop_assert!(offer.devices.iter().all(|device| device.id.as_str().len() <= 63));
            for device in offer.devices.iter().filter(|device| device.health.is_ok()) {
                prop_assert!(answer(&config, offer, std::slice::from_ref(&device.id), &facts()).is_ok());
            }
        }
        // Equal indexes keep the last one, so only distinct ones may be turned round.
        let distinct: BTreeSet<u32> = gpus.iter().filter_map(|gpu| gpu.index).collect();
        if distinct.len() == gpus.len() {
            prop_assert_eq!(offers(&config, &inventory(gpus.into_iter().rev()), &[]), offered);
        }
    }
}
