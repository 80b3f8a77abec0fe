//! Identifies the driver, the GPUs and their MIG devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{
    nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t, nvmlPciInfo_t,
};

use super::calls::{Caller, Refusal, call, read_text, text, value};
use super::library::Handle;
use super::{links, memory};
use crate::hardware::plausible;
use crate::model::{DriverInfo, Gpu, GpuUuid, MigDevice, MigUuid, PciBusId};

const MIG_ENABLED: u32 = 1;
/// More GPUs than any node has.
const GPU_LIMIT: u32 = 256;
/// More MIG devices than any GPU has.
const MIG_LIMIT: u32 = 64;
/// More GPU instance profiles than any header has; 18 in 13.5.
const PROFILE_LIMIT: u32 = 32;

/// A MIG device, with a handle that is valid as long as its compute instance.
pub struct Mig {
    pub handle: Handle,
    pub uuid: MigUuid,
    /// Its index for `nvmlDeviceGetMigDeviceHandleByIndex`.
    pub index: u32,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

/// The layout of a node, cheap to read: by index, the GPU and its MIG devices.
pub type Layout = BTreeMap<u32, Option<Place>>;
pub type Place = (GpuUuid, Vec<(u32, MigUuid)>);

/// The number of GPUs; `None` also for more than a node can have, as each is queried on its own thread.
pub fn count(caller: &mut Caller) -> Option<u32> {
    value!(caller, nvmlDeviceGetCount_v2()).filter(|count| *count <= GPU_LIMIT)
}

pub fn driver(caller: &mut Caller) -> Option<DriverInfo> {
    let driver_version = text!(caller, nvmlSystemGetDriverVersion())?;
    let cuda: Option<i32> = value!(caller, nvmlSystemGetCudaDriverVersion_v2());
    Some(DriverInfo {
        driver_version,
        cuda_version: cuda.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10).into()),
        nvml_version: text!(caller, nvmlSystemGetNVMLVersion()),
    })
}

pub fn handle(caller: &mut Caller, index: u32) -> Option<Handle> {
    let mut device = std::ptr::null_mut();
    call!(caller, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)).ok()?;
    Some(Handle(device))
}

pub fn uuid(caller: &mut Caller, handle: Handle) -> Option<Arc<str>> {
    text!(caller, nvmlDeviceGetUUID(handle.0))
}

/// The GPU at `index`; `None` when it does not answer, with the problem in the caller. A GPU that stops answering on
/// the way is not present, and its absent values are unknown.
pub fn gpu(caller: &mut Caller, index: u32) -> Option<Gpu> {
    let handle = handle(caller, index)?;
    let uuid = uuid(caller, handle)?;
    let memory_bytes = memory::read(caller, handle, None).map(|memory| memory.total);
    let memory_bytes = memory_bytes.filter(|total| plausible::MEMORY.holds(*total as f64));
    let mig_enabled = mig_enabled(caller, handle);
    let mut gpu = Gpu {
        minor: value!(caller, nvmlDeviceGetMinorNumber(handle.0)),
        pci_bus_id: pci_bus_id(caller, handle),
        model: text!(caller, nvmlDeviceGetName(handle.0)),
        architecture: value!(caller, nvmlDeviceGetArchitecture(handle.0)).and_then(architecture),
        compute_capability: compute_capability(caller, handle),
        vbios_version: text!(caller, nvmlDeviceGetVbiosVersion(handle.0)),
        serial: text!(caller, nvmlDeviceGetSerial(handle.0)),
        memory_bytes,
        mig_enabled,
        nvlink_peers: links::peers(caller, handle),
        ..Gpu::listed(GpuUuid::new(uuid), index)
    };
    if mig_enabled == Some(true) {
        let devices = mig_handles(caller, handle);
        gpu.mig_devices = devices.iter().map(|mig| describe(caller, handle, mig, memory_bytes)).collect();
        gpu.mig_slices = slices_of_whole(caller, handle);
    }
    gpu.present = caller.answers();
    Some(gpu)
}

pub fn mig_enabled(caller: &mut Caller, handle: Handle) -> Option<bool> {
    let (mut current, mut pending) = (0, 0);
    call!(caller, nvmlDeviceGetMigMode(handle.0, &raw mut current, &raw mut pending)).ok()?;
    Some(current == MIG_ENABLED)
}

/// The MIG devices of a partitioned GPU. The driver's count is the highest possible; empty indexes are skipped.
pub fn mig_handles(caller: &mut Caller, handle: Handle) -> Vec<Mig> {
    let places: u32 = value!(caller, nvmlDeviceGetMaxMigDeviceCount(handle.0)).unwrap_or(0);
    let mut found = Vec::new();
    for place in 0..places.min(MIG_LIMIT) {
        let mut device = std::ptr::null_mut();
        if call!(caller, nvmlDeviceGetMigDeviceHandleByIndex(handle.0, place, &raw mut device)).is_err() {
            continue;
        }
        let mig = Handle(device);
        let identity = uuid(caller, mig).zip(value!(caller, nvmlDeviceGetGpuInstanceId(mig.0)));
        let compute_instance = value!(caller, nvmlDeviceGetComputeInstanceId(mig.0));
        if let Some(((uuid, gpu_instance), compute_instance)) = identity.zip(compute_instance) {
            found.push(Mig { handle: mig, uuid: MigUuid::new(uuid), index: place, gpu_instance, compute_instance });
        }
    }
    found
}

/// The slices of the largest GPU instance profile, which spans the whole GPU. `None` when any profile could not be
/// read.
fn slices_of_whole(caller: &mut Caller, handle: Handle) -> Option<u32> {
    let mut most = 0;
    for profile in 0..PROFILE_LIMIT {
        // SAFETY: numbers only; all zeroes is a valid value.
        let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        // From 1: for a variant above 0, an invalid argument means a profile that does not exist.
        let variant = profile + 1;
        match call!(caller, nvmlDeviceGetGpuInstanceProfileInfo[variant](handle.0, profile, &raw mut info)) {
            Ok(()) => most = most.max(info.sliceCount),
            Err(Refusal::Unsupported) => {}
            Err(_) => return None,
        }
    }
    (most > 0).then_some(most)
}

fn describe(caller: &mut Caller, parent: Handle, mig: &Mig, parent_memory: Option<u64>) -> MigDevice {
    let attributes = attributes(caller, mig.handle);
    let instance = instance_info(caller, parent, mig.gpu_instance);
    let name = text!(caller, nvmlDeviceGetName(mig.handle.0)).and_then(|name| profile_in_name(&name));
    let profile = name.or_else(|| attributes.map(|attributes| profile_of(&attributes, parent_memory)));
    MigDevice {
        uuid: mig.uuid.clone(),
        index: mig.index,
        gpu_instance: mig.gpu_instance,
        compute_instance: mig.compute_instance,
        slices: attributes
            .map(|attributes| attributes.computeInstanceSliceCount)
            .or_else(|| profile.as_deref().and_then(slices_in_profile))
            .unwrap_or(0),
        profile: profile.unwrap_or_default(),
        profile_id: instance.map(|instance| instance.profileId),
        placement_start: instance.map(|instance| instance.placement.start),
        memory_bytes: attributes
            .and_then(|attributes| attributes.memorySizeMB.checked_mul(1 << 20))
            .filter(|total| plausible::MEMORY.holds(*total as f64)),
    }
}

fn attributes(caller: &mut Caller, mig: Handle) -> Option<nvmlDeviceAttributes_t> {
    let mut attributes = nvmlDeviceAttributes_t {
        multiprocessorCount: 0,
        sharedCopyEngineCount: 0,
        sharedDecoderCount: 0,
        sharedEncoderCount: 0,
        sharedJpegCount: 0,
        sharedOfaCount: 0,
        gpuInstanceSliceCount: 0,
        computeInstanceSliceCount: 0,
        memorySizeMB: 0,
    };
    call!(caller, nvmlDeviceGetAttributes_v2(mig.0, &raw mut attributes)).ok().map(|()| attributes)
}

fn instance_info(caller: &mut Caller, parent: Handle, gpu_instance: u32) -> Option<nvmlGpuInstanceInfo_t> {
    let mut instance = std::ptr::null_mut();
    call!(caller, nvmlDeviceGetGpuInstanceById(parent.0, gpu_instance, &raw mut instance)).ok()?;
    // SAFETY: plain numbers and a pointer; all zeroes is a valid value.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
    call!(caller, nvmlGpuInstanceGetInfo(instance, &raw mut info)).ok().map(|()| info)
}

fn pci_bus_id(caller: &mut Caller, handle: Handle) -> Option<PciBusId> {
    // SAFETY: plain numbers and texts; all zeroes is a valid value.
    let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    call!(caller, nvmlDeviceGetPciInfo_v3(handle.0, &raw mut info)).ok()?;
    bus_id_in(&info)
}

pub fn bus_id_in(info: &nvmlPciInfo_t) -> Option<PciBusId> {
    read_text(&info.busId).or_else(|| read_text(&info.busIdLegacy)).map(|bus_id| PciBusId::normalized(&bus_id))
}

fn compute_capability(caller: &mut Caller, handle: Handle) -> Option<Arc<str>> {
    let (mut major, mut minor) = (0, 0);
    call!(caller, nvmlDeviceGetCudaComputeCapability(handle.0, &raw mut major, &raw mut minor)).ok()?;
    Some(format!("{major}.{minor}").into())
}

/// `None` for an architecture newer than this table.
fn architecture(number: u32) -> Option<Arc<str>> {
    let known = ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"];
    let place = usize::try_from(number).ok()?.checked_sub(2)?;
    known.get(place).map(|name| (*name).into())
}

/// `1g.10gb` out of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
fn profile_in_name(name: &str) -> Option<Arc<str>> {
    let (_, profile) = name.rsplit_once("MIG ")?;
    profile.contains("g.").then(|| profile.trim().into())
}

/// The `3` of `1c.3g.40gb`.
fn slices_in_profile(profile: &str) -> Option<u32> {
    profile.split('.').find_map(|part| part.strip_suffix('g'))?.parse().ok()
}

/// As NVIDIA names profiles: memory in eighths of the GPU's, rounded up; with the prefix `1c.` for a part of the GPU
/// instance.
fn profile_of(attributes: &nvmlDeviceAttributes_t, parent_memory: Option<u64>) -> Arc<str> {
    let megabytes = attributes.memorySizeMB as f64;
    let gigabytes = match parent_memory {
        Some(total) if total > 0 => {
            let eighths = (megabytes * f64::from(1 << 20) / total as f64 * 8.0).ceil();
            let whole = total.div_ceil(1 << 30) as f64;
            (eighths / 8.0 * whole).round() as u64
        }
        _ => (megabytes / 1024.0).round() as u64,
    };
    let (gpu, compute) = (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount);
    if compute < gpu {
        format!("{compute}c.{gpu}g.{gigabytes}gb").into()
    } else {
        format!("{gpu}g.{gigabytes}gb").into()
    }
}

/// One GPU of the layout, with few calls. `None` unless all of them were answered.
pub fn place(caller: &mut Caller, index: u32) -> Option<Place> {
    let handle = handle(caller, index)?;
    let uuid = GpuUuid::new(uuid(caller, handle)?);
    let migs = if mig_enabled(caller, handle) == Some(true) { mig_handles(caller, handle) } else { Vec::new() };
    caller.answers().then(|| (uuid, migs.into_iter().map(|mig| (mig.index, mig.uuid)).collect()))
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
        assert_eq!(slices_in_profile("1c.3g.20gb"), Some(3));
        assert_eq!(slices_in_profile("1g.10gb+me"), Some(1));
    }

    #[test]
    fn architectures_end_where_the_table_ends() {
        assert_eq!(architecture(9).as_deref(), Some("hopper"));
        assert_eq!((architecture(1), architecture(200), architecture(u32::MAX)), (None, None, None));
    }
}
