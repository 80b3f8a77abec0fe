//! vGPUs of a host.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_t, nvmlValue_t, nvmlVgpuInstanceUtilizationSample_t, nvmlVgpuLicenseExpiry_t, nvmlVgpuLicenseInfo_t,
};

use super::on_device;
use crate::clock;
use crate::codes::{Answer, Code, DRIVER_NOT_LOADED, NOT_FOUND, NOT_SUPPORTED};
use crate::gate::{Target, plain};
use crate::out::{Many, Out, Text};
use crate::state::{Gpu, Vgpu};

/// NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU.
const HOST: u32 = 3;
const LICENSED: u32 = 5;

on_device! {
    nvmlDeviceGetVirtualizationMode(mode: Out<c_uint>) |target| { mode.put(target.whole()?.virtualization_mode) }
    nvmlDeviceGetActiveVgpus(count: Out<c_uint>, instances: Many<c_uint>) |target| {
        let running: Vec<c_uint> = host(target)?.vgpus.iter().map(|vgpu| vgpu.instance).collect();
        instances.put_all(count, &running)
    }
    nvmlDeviceGetVgpuUtilization(
        since: c_ulonglong,
        kind: Out<c_uint>,
        count: Out<c_uint>,
        samples: Many<nvmlVgpuInstanceUtilizationSample_t>
    ) |target| {
        let now = clock::now();
        let value = |percent: u32| nvmlValue_t { ullVal: percent.into() };
        let sample = |vgpu: &Vgpu| Some(nvmlVgpuInstanceUtilizationSample_t {
            vgpuInstance: vgpu.instance,
            timeStamp: now,
            smUtil: value(vgpu.sm?),
            memUtil: value(0),
            encUtil: value(0),
            decUtil: value(0),
        });
        let all: Vec<_> = host(target)?.vgpus.iter().filter_map(sample).collect();
        if all.is_empty() || now <= since {
            return Err(NOT_FOUND);
        }
        // NVML_VALUE_TYPE_UNSIGNED_INT.
        kind.put(1)?;
        samples.put_all(count, &all)
    }
}

fn host(target: &Target) -> Result<&Gpu, Code> {
    let gpu = target.whole()?;
    if gpu.virtualization_mode == HOST { Ok(gpu) } else { Err(NOT_SUPPORTED) }
}

/// A call on a vGPU that runs.
fn on_vgpu(call: &'static str, instance: c_uint, body: impl FnOnce(&Vgpu) -> Answer) -> nvmlReturn_t {
    plain(call, |machine| {
        let mut vgpus = machine.gpus.iter().flat_map(|gpu| &gpu.vgpus);
        body(vgpus.find(|vgpu| vgpu.instance == instance).ok_or(NOT_FOUND)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuInstanceGetUUID(instance: c_uint, uuid: Text, size: c_uint) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuInstanceGetUUID", instance, |vgpu| uuid.put(&vgpu.uuid, size))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuInstanceGetMdevUUID(instance: c_uint, uuid: Text, size: c_uint) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuInstanceGetMdevUUID", instance, |vgpu| {
        uuid.put(vgpu.mdev_uuid.as_deref().ok_or(NOT_SUPPORTED)?, size)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuInstanceGetVmID(instance: c_uint, id: Text, size: c_uint, kind: Out<c_uint>) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuInstanceGetVmID", instance, |vgpu| {
        // NVML_VGPU_VM_ID_UUID.
        kind.put(1)?;
        id.put(&vgpu.vm_id, size)
    })
}

/// The type has the number of the vGPU here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuInstanceGetType(instance: c_uint, kind: Out<c_uint>) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuInstanceGetType", instance, |vgpu| kind.put(vgpu.instance))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuTypeGetName(kind: c_uint, name: Text, size: Out<c_uint>) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuTypeGetName", kind, |vgpu| name.put(&vgpu.vgpu_type, size.get()?))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuTypeGetFramebufferSize(kind: c_uint, bytes: Out<c_ulonglong>) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuTypeGetFramebufferSize", kind, |vgpu| bytes.put(vgpu.memory_total_bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuInstanceGetFbUsage(instance: c_uint, bytes: Out<c_ulonglong>) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuInstanceGetFbUsage", instance, |vgpu| bytes.put(vgpu.memory_used_bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlVgpuInstanceGetLicenseInfo_v2(
    instance: c_uint,
    info: Out<nvmlVgpuLicenseInfo_t>,
) -> nvmlReturn_t {
    on_vgpu("nvmlVgpuInstanceGetLicenseInfo_v2", instance, |vgpu| {
        let state = vgpu.license_state.ok_or(DRIVER_NOT_LOADED)?;
        // SAFETY: numbers only; all zeroes is a valid value.
        let expiry: nvmlVgpuLicenseExpiry_t = unsafe { std::mem::zeroed() };
        let licensed = u8::from(state == LICENSED);
        info.put(nvmlVgpuLicenseInfo_t { isLicensed: licensed, licenseExpiry: expiry, currentState: state })
    })
}
