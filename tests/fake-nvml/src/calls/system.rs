//! Init, Shutdown, versions, counting and finding GPUs.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::codes::{Answer, Code, GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND};
use crate::gate::{plain, unready};
use crate::library::library;
use crate::out::{Out, Text, TextArgument};
use crate::state::Gpu;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    unready("nvmlInit_v2", || library().init())
}

/// As NVIDIA's Python bindings do it.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    unready("nvmlInitWithFlags", || library().init())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    unready("nvmlShutdown", || library().shutdown())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetDriverVersion(version: Text, length: c_uint) -> nvmlReturn_t {
    plain("nvmlSystemGetDriverVersion", |machine| version.put(&machine.driver_version, length))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetNVMLVersion(version: Text, length: c_uint) -> nvmlReturn_t {
    plain("nvmlSystemGetNVMLVersion", |machine| version.put(&machine.nvml_version, length))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> nvmlReturn_t {
    plain("nvmlSystemGetCudaDriverVersion_v2", |machine| version.put(machine.cuda_version))
}

/// The older one, with the same result.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> nvmlReturn_t {
    plain("nvmlSystemGetCudaDriverVersion", |machine| version.put(machine.cuda_version))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> nvmlReturn_t {
    plain("nvmlDeviceGetCount_v2", |machine| count.put(machine.gpu_count.unwrap_or(machine.gpus.len() as c_uint)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<nvmlDevice_t>) -> nvmlReturn_t {
    plain("nvmlDeviceGetHandleByIndex_v2", |machine| {
        let gpu = machine.gpu_at(index).ok_or(INVALID_ARGUMENT)?;
        device.put(handle("nvmlDeviceGetHandleByIndex_v2", gpu)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: TextArgument, device: Out<nvmlDevice_t>) -> nvmlReturn_t {
    plain("nvmlDeviceGetHandleByUUID", |machine| {
        let gpu = machine.gpu(&uuid.get()?).ok_or(NOT_FOUND)?;
        device.put(handle("nvmlDeviceGetHandleByUUID", gpu)?)
    })
}

/// A GPU that is lost or fails this call fails at its handle.
fn handle(call: &str, gpu: &Gpu) -> Result<nvmlDevice_t, Code> {
    if gpu.lost {
        return Err(GPU_IS_LOST);
    }
    wake(gpu)?;
    crate::gate::own_faults(call, &gpu.uuid)?;
    Ok(library().handle(gpu)?.pointer())
}

/// The driver initialises a GPU before it returns its handle.
fn wake(gpu: &Gpu) -> Answer {
    let is_named = gpu.hang.contains("wake") || gpu.delay.contains_key("wake") || gpu.fail.contains_key("wake");
    if is_named { crate::gate::own_faults("wake", &gpu.uuid) } else { Ok(()) }
}
