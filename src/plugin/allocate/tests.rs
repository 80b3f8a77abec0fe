//! The reference behaviour of NVIDIA's plugin, row by row, and podmeter's additions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::container_response::AllocationRefusal;
use super::container_response::container_response;
use crate::domain::model::{DeviceId, Gpu, Inventory};
use crate::plugin::config::{EntryConfig, NvidiaConfig};
use crate::plugin::host::DriverFiles;
use crate::plugin::offer::{PathDevice, offers};
use crate::plugin::status::CallResult;
use crate::plugin::test_data::{
    self, entry, four_gpus, gpu, inventory, listed, mig_uuid, nvidia, resources, two_with_mig, uuid,
};
use crate::wire::v1beta1::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

const CONTROL: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

fn driver_files() -> DriverFiles {
    DriverFiles {
        control_nodes: CONTROL.map(str::to_owned).to_vec(),
        driver_mounts: NvidiaConfig::default().driver_mounts,
        ..test_data::driver_files(6..=7)
    }
}

fn ask(
    config: &EntryConfig,
    inventory: &Inventory,
    ids: &[&str],
) -> Result<ContainerAllocateResponse, AllocationRefusal> {
    let offered = offers(config, inventory, &[]).offers.remove(0);
    let ids: Vec<DeviceId> = ids.iter().map(|id| DeviceId::from(*id)).collect();
    container_response(config, &offered, &ids, &driver_files())
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
    let name = |number| format!("podmeter.device-plugin/gpu={}", uuid(number));
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
    // As in NVIDIA's plugin, the variable has one value, and the mounts need theirs.
    let config = nvidia("deviceListStrategy: [volume-mounts, envvar]");
    let given = ask(&config, &four_gpus(), &[&uuid(0)]).unwrap();
    assert_eq!(environment(&given), visible("/var/run/nvidia-container-devices"));
}

#[test]
fn each_device_has_the_vendors_name_or_ours() {
    let config = nvidia("deviceListStrategy: cdi-cri, deviceIDStrategy: index");
    let offered = offers(&config, &four_gpus(), &[]).offers.remove(0);
    let vendor_cdi_names = [(uuid(0), "nvidia.com/gpu=0".to_owned())].into();
    let driver_files = DriverFiles { vendor_cdi_names, ..driver_files() };
    let ids = [1, 0].map(|number| DeviceId::new(uuid(number)));
    let given = container_response(&config, &offered, &ids, &driver_files).unwrap();
    let names: Vec<String> = given.cdi_devices.into_iter().map(|device| device.name).collect();
    assert_eq!(names, [format!("podmeter.device-plugin/gpu={}", uuid(1)), "nvidia.com/gpu=0".to_owned()]);
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
    let refusal = ask(&config, &four_gpus(), &[&slot(0), &slot(1)]).unwrap_err();
    assert_eq!(refusal.result, CallResult::NotAllowed);
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
    // A request for devices that are not shared is not refused.
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
    assert!(refusal.is_err_and(|refusal| refusal.result == CallResult::NotAllowed));
    // MIG devices are not shared.
    let config = nvidia("sharing: {mps: {replicas: 2}}, migStrategy: single");
    let offered = offers(&config, &two_with_mig(), &[]);
    assert_eq!(offered.offers[0].devices.len(), 4);
    assert_eq!(offered.problems.len(), 4);
}

#[test]
fn mig_devices_come_with_their_capability_nodes() {
    let config = nvidia("migStrategy: single, passDeviceSpecs: true");
    let given = ask(&config, &two_with_mig(), &[&mig_uuid(0, 0), &mig_uuid(0, 1)]).unwrap();
    let caps = [10, 11, 20, 21].map(|number| format!("/dev/nvidia-caps/nvidia-cap{number}"));
    let own = ["/dev/nvidia7", &caps[0], &caps[1], &caps[2], &caps[3]];
    assert_eq!(container_paths(&given)[4..], own, "the GPU's node once");
    for strategy in ["passDeviceSpecs: true", "deviceListStrategy: cdi-cri"] {
        let config = nvidia(&format!("migStrategy: single, {strategy}"));
        let offer = &offers(&config, &two_with_mig(), &[]).offers[0];
        let unknown = container_response(&config, offer, &[mig_uuid(0, 0).as_str().into()], &DriverFiles::default());
        assert!(unknown.unwrap_err().to_string().contains("capability"), "{strategy}");
    }
}

#[test]
fn paths_and_simulated_devices_are_answered() {
    let config = entry("kind: path, name: example.com/fuse, paths: /dev/fuse, shared: 3");
    let node = |path: &str| DeviceSpec {
        host_path: path.to_owned(),
        container_path: path.to_owned(),
        permissions: "rw".to_owned(),
    };
    let found = PathDevice { id: "fuse".into(), nodes: [node("/dev/fuse")].into(), numa_nodes: BTreeSet::new() };
    let offered = offers(&config, &Inventory::default(), &[found]).offers.remove(0);
    let ids: Vec<DeviceId> = offered.devices.iter().map(|device| device.id.clone()).collect();
    assert_eq!(ids, ["fuse::0".into(), "fuse::1".into(), "fuse::2".into()]);
    let given = container_response(&config, &offered, &ids, &DriverFiles::default()).unwrap();
    assert_eq!(
        given,
        ContainerAllocateResponse { devices: vec![node("/dev/fuse")], ..ContainerAllocateResponse::default() }
    );

    let config = entry("kind: simulated, name: example.com/thing, devices: 2");
    let given = ask(&config, &Inventory::default(), &["simulated-1", "simulated-0"]).unwrap();
    assert_eq!(given.envs["PODMETER_SIMULATED_DEVICES"], "simulated-1,simulated-0");
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
                prop_assert!(container_response(&config, offer, std::slice::from_ref(&device.id), &driver_files()).is_ok());
            }
        }
        // Of equal indexes the last one counts, so only distinct ones may be reversed.
        let distinct: BTreeSet<u32> = gpus.iter().filter_map(|gpu| gpu.index).collect();
        if distinct.len() == gpus.len() {
            prop_assert_eq!(offers(&config, &inventory(gpus.into_iter().rev()), &[]), offered);
        }
    }
}
