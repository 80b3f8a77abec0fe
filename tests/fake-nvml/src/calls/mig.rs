//! MIG: the mode, the devices, their GPU instances and profiles.

use std::ffi::{c_char, c_uint};
use std::mem::size_of;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlDeviceAttributes_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlReturn_t,
};

use super::on_device;
use crate::codes::{Code, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::gate::{self, Target};
use crate::out::{Out, fill};
use crate::state::{Instance, Profile};
use crate::versions;

/// The result of nvmlDeviceGetMaxMigDeviceCount.
const MAX_INSTANCES: u32 = 7;

// What the data file does not have of a struct stays as the caller has it.
on_device! {
    nvmlDeviceGetMigMode(current: Out<c_uint>, pending: Out<c_uint>) |target| {
        let mig = &target.whole()?.mig;
        if !mig.supported {
            return Err(NOT_SUPPORTED);
        }
        current.put(mig.enabled.into())?;
        pending.put(mig.pending.unwrap_or(mig.enabled).into())
    }
    nvmlDeviceGetMaxMigDeviceCount(count: Out<c_uint>) |target| {
        let mig = &target.whole()?.mig;
        count.put(if mig.supported { MAX_INSTANCES } else { 0 })
    }
    nvmlDeviceGetMigDeviceHandleByIndex(index: c_uint, device: Out<nvmlDevice_t>) |target| {
        let mig = &target.whole()?.mig;
        if !mig.supported {
            return Err(NOT_SUPPORTED);
        }
        if index >= MAX_INSTANCES {
            return Err(INVALID_ARGUMENT);
        }
        let one = mig.active().find(|one| one.index == Some(index)).ok_or(NOT_FOUND)?;
        device.put(target.handle.mig_device(one.gpu_instance, one.compute_instance).pointer())
    }
    nvmlDeviceGetGpuInstanceId(id: Out<c_uint>) |target| { id.put(instance(target)?.gpu_instance) }
    nvmlDeviceGetComputeInstanceId(id: Out<c_uint>) |target| { id.put(instance(target)?.compute_instance) }
    nvmlDeviceGetAttributes_v2(attributes: Out<nvmlDeviceAttributes_t>) |target| {
        let one = instance(target)?;
        attributes.put(nvmlDeviceAttributes_t {
            gpuInstanceSliceCount: one.shape.slices,
            computeInstanceSliceCount: one.compute_slices(),
            memorySizeMB: one.memory_total_bytes() >> 20,
            ..attributes.get()?
        })
    }
    nvmlDeviceGetGpuInstanceById(id: c_uint, instance: Out<nvmlGpuInstance_t>) |target| {
        target.whole()?.mig.active().find(|one| one.gpu_instance == id).ok_or(NOT_FOUND)?;
        instance.put(target.handle.gpu_instance(id).pointer())
    }
    nvmlDeviceGetGpuInstanceProfileInfo(profile: c_uint, info: Out<nvmlGpuInstanceProfileInfo_t>) |target| {
        let profile = shape(target, profile)?;
        info.put(nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            sliceCount: profile.slices,
            memorySizeMB: profile.memory_mib,
            ..info.get()?
        })
    }
    nvmlDeviceGetGpuInstanceProfileInfoV(profile: c_uint, info: Out<nvmlGpuInstanceProfileInfo_v2_t>) |target| {
        let version = info.cast::<c_uint>().get()?;
        versions::check(version, 2, size_of::<nvmlGpuInstanceProfileInfo_v2_t>())?;
        let profile = shape(target, profile)?;
        info.put(nvmlGpuInstanceProfileInfo_v2_t {
            id: profile.id,
            sliceCount: profile.slices,
            memorySizeMB: profile.memory_mib,
            name: fill::<96>(&format!("MIG {}", profile.name)) as [c_char; 96],
            ..info.get()?
        })
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetInfo(
    instance: nvmlGpuInstance_t,
    info: Out<nvmlGpuInstanceInfo_t>,
) -> nvmlReturn_t {
    gate::device("nvmlGpuInstanceGetInfo", &[], instance, |target| {
        let one = target.gpu_instance()?;
        let placement = one.placement.unwrap_or_default();
        info.put(nvmlGpuInstanceInfo_t {
            device: target.handle.parent().pointer(),
            id: one.gpu_instance,
            profileId: one.profile_id(),
            placement: nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size },
        })
    })
}

/// Only a MIG device has this value.
fn instance(target: &Target) -> Result<&Instance, Code> {
    target.instance().ok_or(INVALID_ARGUMENT)
}

/// One past the header's last constant.
const PROFILE_COUNT: u32 = 18;

/// By the header's constant.
fn shape(target: &Target, constant: c_uint) -> Result<&Profile, Code> {
    let mig = &target.whole()?.mig;
    if !mig.supported {
        return Err(NOT_SUPPORTED);
    }
    if constant >= PROFILE_COUNT {
        return Err(INVALID_ARGUMENT);
    }
    let mut offered = mig.profiles.iter().filter(|profile| profile.slices <= mig.slices);
    offered.find(|profile| profile.constant == constant).ok_or(NOT_SUPPORTED)
}
