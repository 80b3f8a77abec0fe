//! Identifies the driver, the GPUs and their MIG devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{
    nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use super::calls::{Blank, CallRefusal, Caller, bus_id_in, fetch, read_text, text, value, version};
use super::library::DeviceHandle;
use super::{memory, nvlink, platform};
use crate::domain::model::{DriverInfo, Gpu, GpuUuid, MigDevice, MigUuid};
use crate::hardware::plausible;

const MIG_MODE: &str = "nvmlDeviceGetMigMode";
const MIG_ENABLED: u32 = 1;
/// The architectures by the driver's number.
const ARCHITECTURES: [&str; 14] =
    ["", "", "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "", "", "rubin"];
/// More GPUs than any node has.
const GPU_LIMIT: u32 = 256;
/// More MIG devices than any GPU has.
const MIG_LIMIT: u32 = 64;
/// More GPU instance profiles than any header has; 18 in 13.5.
const PROFILE_LIMIT: u32 = 32;

/// A MIG device, with a handle that is valid as long as its compute instance.
pub struct Mig {
    pub handle: DeviceHandle,
    pub uuid: MigUuid,
    /// Its index for `nvmlDeviceGetMigDeviceHandleByIndex`.
    pub index: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// The layout of a node, cheap to read: the MIG mode and devices of each GPU by its index.
pub type NodeLayout = BTreeMap<u32, Option<GpuLayout>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLayout {
    pub gpu: GpuUuid,
    pub mig_enabled: Option<bool>,
    /// The MIG devices, each with its index.
    pub mig_devices: Vec<(u32, MigUuid)>,
}

/// The number of GPUs; `None` also for more than a node can have, as each is queried on a thread.
pub fn count(caller: &mut Caller) -> Option<u32> {
    caller.call("nvmlDeviceGetCount_v2", 0, |nvml| nvml.device_count()).ok().filter(|count| *count <= GPU_LIMIT)
}

pub fn driver_version(caller: &mut Caller) -> Option<Arc<str>> {
    text!(caller, nvmlSystemGetDriverVersion())
}

pub fn driver(caller: &mut Caller) -> Option<DriverInfo> {
    let driver_version = driver_version(caller)?;
    let cuda = caller.call("nvmlSystemGetCudaDriverVersion_v2", 0, |nvml| nvml.sys_cuda_driver_version()).ok();
    Some(DriverInfo {
        driver_version,
        cuda_version: cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10).into()),
        nvml_version: text!(caller, nvmlSystemGetNVMLVersion()),
    })
}

pub fn handle(caller: &mut Caller, index: u32) -> Option<DeviceHandle> {
    value!(caller, nvmlDeviceGetHandleByIndex_v2(index)).map(DeviceHandle)
}

pub fn uuid(caller: &mut Caller, handle: DeviceHandle) -> Option<Arc<str>> {
    text!(caller, nvmlDeviceGetUUID(handle.0))
}

/// The GPU at `index`; `None` when it does not answer, with the problem in the caller. A GPU that stops answering
/// during the query is not present, and its absent values are unknown.
pub fn gpu(caller: &mut Caller, index: u32) -> Option<Gpu> {
    let handle = handle(caller, index)?;
    let uuid = uuid(caller, handle)?;
    let memory_bytes = memory::read(caller, handle, None).map(|memory| memory.total);
    let mig_enabled = mig_enabled(caller, handle);
    let mut gpu = Gpu {
        minor: caller.device("nvmlDeviceGetMinorNumber", 0, handle, |gpu| gpu.minor_number()).ok(),
        pci_bus_id: value!(caller, nvmlDeviceGetPciInfo_v3(handle.0)).and_then(|info| bus_id_in(&info)),
        model: text!(caller, nvmlDeviceGetName(handle.0)),
        architecture: value!(caller, nvmlDeviceGetArchitecture(handle.0)).and_then(architecture),
        compute_capability: compute_capability(caller, handle),
        vbios_version: text!(caller, nvmlDeviceGetVbiosVersion(handle.0)),
        serial: text!(caller, nvmlDeviceGetSerial(handle.0)),
        memory_bytes,
        mig_enabled,
        nvlink_peers: nvlink::peers(caller, handle),
        platform: platform::read(caller, handle),
        ..Gpu::listed(GpuUuid::new(uuid), index)
    };
    if mig_enabled == Some(true) {
        let devices = mig_handles(caller, handle);
        let (profiles, all_read) = mig_profiles(caller, handle);
        gpu.mig_devices = devices.iter().map(|mig| describe(caller, handle, mig, &profiles)).collect();
        // The largest spans the whole GPU.
        gpu.mig_slices = profiles.values().map(|profile| profile.slices).max().filter(|_| all_read);
    }
    gpu.present = caller.answers();
    Some(gpu)
}

pub fn mig_enabled(caller: &mut Caller, handle: DeviceHandle) -> Option<bool> {
    let mode = caller.device(MIG_MODE, 0, handle, |gpu| gpu.mig_mode()).ok()?;
    Some(mode.current == MIG_ENABLED)
}

/// The MIG devices of a partitioned GPU. The driver's count is the highest possible; empty indexes are skipped.
pub fn mig_handles(caller: &mut Caller, handle: DeviceHandle) -> Vec<Mig> {
    let count = caller.device("nvmlDeviceGetMaxMigDeviceCount", 0, handle, |gpu| gpu.mig_device_count()).unwrap_or(0);
    let mut found = Vec::new();
    for index in 0..count.min(MIG_LIMIT) {
        let mig = value!(caller, nvmlDeviceGetMigDeviceHandleByIndex(handle.0, index)).map(DeviceHandle);
        let Some(mig) = mig else { continue };
        let identity = uuid(caller, mig).zip(value!(caller, nvmlDeviceGetGpuInstanceId(mig.0)));
        let compute_instance = value!(caller, nvmlDeviceGetComputeInstanceId(mig.0));
        if let Some(((uuid, gpu_instance), compute_instance)) = identity.zip(compute_instance) {
            found.push(Mig { handle: mig, uuid: MigUuid::new(uuid), index, gpu_instance, compute_instance });
        }
    }
    found
}

/// The GPU instance profiles that a board has, by id.
type MigProfiles = BTreeMap<u32, MigProfile>;

#[derive(Debug)]
struct MigProfile {
    slices: u32,
    megabytes: u64,
    /// The name as in nvidia-smi: `1g.24gb+me.all`. `None` with drivers before 525, where a MIG device's name has it.
    name: Option<Arc<str>>,
}

/// The profiles, and whether no call failed. A profile that the board lacks does not count.
fn mig_profiles(caller: &mut Caller, handle: DeviceHandle) -> (MigProfiles, bool) {
    let (mut profiles, mut all_read) = (MigProfiles::new(), true);
    for constant in 0..PROFILE_LIMIT {
        // Variants begin at 1: a board may lack the first profile, too.
        let blank = nvmlGpuInstanceProfileInfo_t::blank();
        match fetch!(caller, blank, nvmlDeviceGetGpuInstanceProfileInfo[constant + 1](handle.0, constant)) {
            Ok(info) => {
                let name = profile_name(caller, handle, constant);
                let profile = MigProfile { slices: info.sliceCount, megabytes: info.memorySizeMB, name };
                profiles.insert(info.id, profile);
            }
            Err(CallRefusal::Unsupported) => {}
            Err(_) => {
                all_read = false;
                break;
            }
        }
    }
    (profiles, all_read)
}

/// The profile's name: `1g.24gb+me.all` of `MIG 1g.24gb+me.all`.
fn profile_name(caller: &mut Caller, handle: DeviceHandle, constant: u32) -> Option<Arc<str>> {
    let version = version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    let wanted = nvmlGpuInstanceProfileInfo_v2_t { version, ..Blank::blank() };
    let info = fetch!(caller, wanted, nvmlDeviceGetGpuInstanceProfileInfoV[constant + 1](handle.0, constant)).ok()?;
    let name = read_text(&info.name)?;
    let profile = name.strip_prefix("MIG ").unwrap_or(&name).trim();
    profile.contains("g.").then(|| profile.into())
}

fn describe(caller: &mut Caller, parent: DeviceHandle, mig: &Mig, profiles: &MigProfiles) -> MigDevice {
    let attributes = caller.device("nvmlDeviceGetAttributes_v2", 0, mig.handle, |device| device.attributes()).ok();
    let attributes = attributes.as_ref();
    let instance = instance_info(caller, parent, mig.gpu_instance);
    let of_instance = instance.and_then(|instance| profiles.get(&instance.profileId));
    let device_name = text!(caller, nvmlDeviceGetName(mig.handle.0)).and_then(|name| profile_in_name(&name));
    let slices = attributes
        .map(|attributes| attributes.compute_instance_slice_count)
        .or_else(|| device_name.as_deref().and_then(slices_in_profile))
        .or_else(|| of_instance.map(|profile| profile.slices));
    let profile = of_instance
        .and_then(|profile| Some(name_of_part(profile.name.clone()?, profile.slices, slices)))
        .or(device_name)
        .unwrap_or_default();
    let megabytes =
        attributes.map(|attributes| attributes.memory_size_mb).or_else(|| of_instance.map(|profile| profile.megabytes));
    MigDevice {
        uuid: mig.uuid.clone(),
        index: mig.index,
        gpu_instance: mig.gpu_instance,
        compute_instance: mig.compute_instance,
        slices: slices.or_else(|| slices_in_profile(&profile)).unwrap_or(0),
        profile,
        profile_id: instance.map(|instance| instance.profileId),
        placement_start: instance.map(|instance| instance.placement.start),
        memory_bytes: megabytes
            .and_then(|megabytes| megabytes.checked_mul(1 << 20))
            .filter(|total| plausible::MEMORY.contains(*total as f64)),
    }
}

fn instance_info(caller: &mut Caller, parent: DeviceHandle, gpu_instance: u32) -> Option<nvmlGpuInstanceInfo_t> {
    let instance = value!(caller, nvmlDeviceGetGpuInstanceById(parent.0, gpu_instance))?;
    value!(caller, nvmlGpuInstanceGetInfo(instance))
}

fn compute_capability(caller: &mut Caller, handle: DeviceHandle) -> Option<Arc<str>> {
    let read = caller.device("nvmlDeviceGetCudaComputeCapability", 0, handle, |gpu| gpu.cuda_compute_capability());
    read.ok().map(|capability| format!("{}.{}", capability.major, capability.minor).into())
}

/// The name of an architecture; `None` for one newer than the table.
fn architecture(number: u32) -> Option<Arc<str>> {
    ARCHITECTURES.get(number as usize).filter(|name| !name.is_empty()).map(|name| (*name).into())
}

/// The profile in a MIG device's name: `1g.10gb` of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
fn profile_in_name(name: &str) -> Option<Arc<str>> {
    let (_, profile) = name.rsplit_once("MIG ")?;
    profile.contains("g.").then(|| profile.trim().into())
}

/// The compute slices of a MIG device: the `1` of `1c.3g.40gb`, the `3` of `3g.40gb`.
fn slices_in_profile(profile: &str) -> Option<u32> {
    let slices = |unit| profile.split('.').find_map(|part| part.strip_suffix(unit))?.parse().ok();
    slices('c').or_else(|| slices('g'))
}

/// The name of a MIG device in a GPU instance of this profile, with the prefix `1c.` where it is only a part of it.
fn name_of_part(profile: Arc<str>, of_instance: u32, slices: Option<u32>) -> Arc<str> {
    match slices {
        Some(slices) if slices < of_instance => format!("{slices}c.{profile}").into(),
        _ => profile,
    }
}

/// One GPU of the layout, read with few calls. `None` unless all of them were answered.
pub fn gpu_layout(caller: &mut Caller, index: u32) -> Option<GpuLayout> {
    let handle = handle(caller, index)?;
    let gpu = GpuUuid::new(uuid(caller, handle)?);
    let mig_enabled = mig_enabled(caller, handle);
    if mig_enabled.is_none() && !caller.is_refused(MIG_MODE, 0) {
        return None;
    }
    let migs = if mig_enabled == Some(true) { mig_handles(caller, handle) } else { Vec::new() };
    let mig_devices = migs.into_iter().map(|mig| (mig.index, mig.uuid)).collect();
    caller.answers().then_some(GpuLayout { gpu, mig_enabled, mig_devices })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_names_come_from_the_device_name() {
        for (name, expected) in [
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", Some("1g.10gb")),
            ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", Some("1c.3g.20gb")),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", Some("1g.10gb+me")),
            ("NVIDIA H100 80GB HBM3", None),
        ] {
            assert_eq!(profile_in_name(name).as_deref(), expected, "{name}");
        }
        assert_eq!(slices_in_profile("1c.3g.20gb"), Some(1));
        assert_eq!(slices_in_profile("3g.20gb"), Some(3));
        assert_eq!(slices_in_profile("1g.10gb+me"), Some(1));
    }

    #[test]
    fn an_architecture_outside_the_table_is_unknown() {
        assert_eq!((architecture(9).as_deref(), architecture(13).as_deref()), (Some("hopper"), Some("rubin")));
        assert_eq!([1, 11, 12, 200, u32::MAX].map(architecture), [const { None }; 5]);
    }
}
