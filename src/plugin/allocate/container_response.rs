//! The answer to Allocate for one container. Pure, and from memory: the kubelet waits without a timeout.
//!
//! In: the IDs that the kubelet has chosen, the offer, the configuration, the driver's files. Out: variables, mounts,
//! device nodes and CDI names, or why the allocation is refused. Does not use: who holds the devices.

use std::path::Path;

use crate::domain::model::{DeviceId, PluginUnhealthyReason};
use crate::plugin::config::{DeviceListStrategy, DriverMount, EntryConfig, NvidiaConfig};
use crate::plugin::hash::stable_hash;
use crate::plugin::host::{DriverFiles, cdi};
use crate::plugin::offer::{Offer, OfferedDevice, OfferedHardware};
use crate::plugin::status::CallResult;
use crate::wire::v1beta1::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The value with which NVIDIA's container runtime gives no GPU.
const NO_DEVICES: &str = "void";
const MOUNTED_DEVICES: &str = "/var/run/nvidia-container-devices";
/// The variable that containers with simulated devices get.
const SIMULATED_DEVICES: &str = "PODMETER_SIMULATED_DEVICES";

/// A refused call. The kubelet shows the message in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AllocationRefusal {
    pub result: CallResult,
    pub message: String,
}

impl AllocationRefusal {
    pub fn held(id: &DeviceId, holder: &str) -> Self {
        Self { result: CallResult::Held, message: format!("device {id} is {holder}") }
    }

    pub fn unhealthy(id: &DeviceId, reason: &str) -> Self {
        Self { result: CallResult::Unhealthy, message: format!("device {id} is unhealthy: {reason}") }
    }
}

/// Answers one container's request for `ids`, in their order; a GPU that has several of the slots appears once.
///
/// A request for no device gets `NVIDIA_VISIBLE_DEVICES=void`, under every strategy: some runtimes read an empty
/// variable as "all", and without one the image's `all` would count.
pub fn container_response(
    config: &EntryConfig,
    offer: &Offer,
    ids: &[DeviceId],
    driver_files: &DriverFiles,
) -> Result<ContainerAllocateResponse, AllocationRefusal> {
    let devices = ids.iter().map(|id| usable_device(offer, id)).collect::<Result<Vec<_>, _>>()?;
    match config {
        EntryConfig::Nvidia(nvidia) => nvidia_response(nvidia, offer, &devices, driver_files),
        EntryConfig::Path(_) => Ok(path_response(&devices)),
        EntryConfig::Simulated(_) => Ok(simulated_response(ids)),
    }
}

pub(super) fn device_ids(ids: &[String]) -> Vec<DeviceId> {
    ids.iter().map(|id| DeviceId::new(id.as_str())).collect()
}

pub(super) fn usable_device<'o>(offer: &'o Offer, id: &DeviceId) -> Result<&'o OfferedDevice, AllocationRefusal> {
    let Some(device) = offer.device(id) else {
        let message = format!("device {id} is not one of this resource's");
        return Err(AllocationRefusal { result: CallResult::UnknownDevice, message });
    };
    match &device.health {
        Ok(()) => Ok(device),
        Err(unhealthy) if unhealthy.reason == PluginUnhealthyReason::Held => {
            Err(AllocationRefusal::held(id, &unhealthy.detail))
        }
        Err(unhealthy) => Err(AllocationRefusal::unhealthy(id, &unhealthy.detail)),
    }
}

fn nvidia_response(
    nvidia: &NvidiaConfig,
    offer: &Offer,
    devices: &[&OfferedDevice],
    driver_files: &DriverFiles,
) -> Result<ContainerAllocateResponse, AllocationRefusal> {
    let envs = nvidia.environment.clone().into_iter().collect();
    let mut answer = ContainerAllocateResponse { envs, ..ContainerAllocateResponse::default() };
    if devices.is_empty() {
        answer.envs.insert(VISIBLE_DEVICES.to_owned(), NO_DEVICES.to_owned());
        return Ok(answer);
    }
    let shared = devices.iter().any(|device| device.is_slot());
    refuse_several_slots(nvidia, devices.len(), shared)?;
    let devices = each_hardware_once(devices);

    if nvidia.uses_cdi() {
        add_cdi(&mut answer, nvidia, offer, &devices, driver_files)?;
    }
    let name = |device: &&OfferedDevice| {
        // Devices without hardware were refused.
        let [name, _] = nvidia.device_id_strategy.ordered(device.hardware.names().unwrap_or_default());
        name
    };
    let names: Vec<String> = devices.iter().map(name).collect();
    if nvidia.includes(DeviceListStrategy::Envvar) {
        answer.envs.insert(VISIBLE_DEVICES.to_owned(), names.join(","));
    }
    if nvidia.includes(DeviceListStrategy::VolumeMounts) {
        answer.envs.insert(VISIBLE_DEVICES.to_owned(), MOUNTED_DEVICES.to_owned());
        let mounted = |name| mount(Path::new("/dev/null"), format!("{MOUNTED_DEVICES}/{name}"), false);
        answer.mounts.extend(names.iter().map(mounted));
    }
    let as_nodes = nvidia.includes(DeviceListStrategy::DeviceNodes);
    // As in NVIDIA's plugin, CDI gives the nodes too where all strategies use it.
    let is_cdi = |strategy: &_| matches!(strategy, DeviceListStrategy::CdiAnnotations | DeviceListStrategy::CdiCri);
    let pass_nodes = nvidia.pass_device_specs && !nvidia.device_list_strategy.iter().all(is_cdi);
    if as_nodes || pass_nodes {
        add_device_nodes(&mut answer, nvidia, &devices, driver_files, if as_nodes { "mrw" } else { "rw" })?;
    }
    if as_nodes {
        let read_only =
            |driver: &DriverMount| mount(&driver.host_path, driver.container_path.display().to_string(), true);
        answer.mounts.extend(driver_files.driver_mounts.iter().map(read_only));
    }
    if shared && nvidia.shares_through_mps() {
        add_mps(&mut answer, nvidia, offer);
    }
    Ok(answer)
}

fn mount(host_path: &Path, container_path: String, read_only: bool) -> Mount {
    Mount { host_path: host_path.display().to_string(), container_path, read_only }
}

fn refuse_several_slots(nvidia: &NvidiaConfig, requested: usize, shared: bool) -> Result<(), AllocationRefusal> {
    let Some(replication) = nvidia.sharing.replication() else { return Ok(()) };
    let is_refused = replication.fail_requests_greater_than_one.unwrap_or_else(|| nvidia.shares_through_mps());
    if shared && requested > 1 && is_refused {
        let message = format!(
            "{requested} shared devices were requested and a container may have one: more of them give it no more of a GPU \
             (failRequestsGreaterThanOne)"
        );
        return Err(AllocationRefusal { result: CallResult::NotAllowed, message });
    }
    Ok(())
}

fn each_hardware_once<'o>(devices: &[&'o OfferedDevice]) -> Vec<&'o OfferedDevice> {
    let mut once: Vec<&OfferedDevice> = vec![];
    for device in devices {
        if once.iter().all(|other| other.hardware != device.hardware) {
            once.push(device);
        }
    }
    once
}

fn add_cdi(
    answer: &mut ContainerAllocateResponse,
    nvidia: &NvidiaConfig,
    offer: &Offer,
    devices: &[&OfferedDevice],
    driver_files: &DriverFiles,
) -> Result<(), AllocationRefusal> {
    let name = |device: &&OfferedDevice| cdi_name(driver_files, device);
    let names = devices.iter().map(name).collect::<Result<Vec<_>, _>>()?;
    if nvidia.includes(DeviceListStrategy::CdiAnnotations) {
        // The key is the same for the same request, and differs for another resource of the same container.
        let hash = stable_hash(offer.resource.as_str().bytes().chain([0]).chain(names.join(",").bytes()));
        let key = format!("{}nvidia-device-plugin_{hash:016x}", nvidia.cdi_annotation_prefix);
        answer.annotations.insert(key, names.join(","));
    }
    if nvidia.includes(DeviceListStrategy::CdiCri) {
        answer.cdi_devices = names.into_iter().map(|name| CdiDevice { name }).collect();
    }
    Ok(())
}

/// The CDI name: the vendor's, or that of our specification, which uses UUIDs: an index may be another GPU's after a
/// restart of the driver, and the kubelet keeps names.
fn cdi_name(driver_files: &DriverFiles, device: &OfferedDevice) -> Result<String, AllocationRefusal> {
    let [uuid, _] = device.hardware.names().unwrap_or_default();
    if let Some(name) = driver_files.vendor_cdi_names.get(&uuid) {
        return Ok(name.clone());
    }
    // Our specification has no other devices.
    let refused = |reason: String| AllocationRefusal::unhealthy(&device.id, &reason);
    driver_files.device_nodes(&device.hardware).map_err(refused)?;
    Ok(format!("{}={uuid}", cdi::KIND))
}

fn add_device_nodes(
    answer: &mut ContainerAllocateResponse,
    nvidia: &NvidiaConfig,
    devices: &[&OfferedDevice],
    driver_files: &DriverFiles,
    permissions: &str,
) -> Result<(), AllocationRefusal> {
    let mut paths = driver_files.control_nodes.clone();
    for device in devices {
        let own = driver_files.device_nodes(&device.hardware);
        paths.extend(own.map_err(|reason| AllocationRefusal::unhealthy(&device.id, &reason))?);
    }
    for path in paths {
        let host = nvidia.device_root.join(path.trim_start_matches('/'));
        let device_node = DeviceSpec {
            host_path: host.display().to_string(),
            container_path: path,
            permissions: permissions.to_owned(),
        };
        // MIG devices of one GPU share its node.
        push_new(&mut answer.devices, device_node);
    }
    Ok(())
}

/// Adds the MPS daemon's directories at the paths that its clients use.
fn add_mps(answer: &mut ContainerAllocateResponse, nvidia: &NvidiaConfig, offer: &Offer) {
    let pipe = format!("{}/pipe", offer.resource);
    let container_path = format!("/mps/{pipe}");
    answer.envs.insert("CUDA_MPS_PIPE_DIRECTORY".to_owned(), container_path.clone());
    for (directory, container_path) in [(pipe.as_str(), container_path), ("shm", "/dev/shm".to_owned())] {
        answer.mounts.push(mount(&nvidia.mps_root.join(directory), container_path, false));
    }
}

fn path_response(devices: &[&OfferedDevice]) -> ContainerAllocateResponse {
    let mut answer = ContainerAllocateResponse::default();
    for device in devices {
        let OfferedHardware::Nodes(nodes) = &device.hardware else { continue };
        nodes.iter().for_each(|node| push_new(&mut answer.devices, node.clone()));
    }
    answer
}

fn simulated_response(ids: &[DeviceId]) -> ContainerAllocateResponse {
    let mut once: Vec<&str> = vec![];
    ids.iter().for_each(|id| push_new(&mut once, id.as_str()));
    let mut answer = ContainerAllocateResponse::default();
    answer.envs.insert(SIMULATED_DEVICES.to_owned(), once.join(","));
    answer
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}
