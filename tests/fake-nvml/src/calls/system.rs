//! Init, Shutdown, versions, counting and finding GPUs.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::clock;
use crate::codes::{Answer, GPU_IS_LOST, INVALID_ARGUMENT};
use crate::gate::{plain, unready};
use crate::library::library;
use crate::out::{Out, Text};
use crate::state::Gpu;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    unready("nvmlInit_v2", || library().init())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    unready("nvmlShutdown", || {
        let mut library = library();
        library.stats.write(clock::now());
        library.shutdown()
    })
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

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> nvmlReturn_t {
    plain("nvmlDeviceGetCount_v2", |machine| count.put(machine.gpu_count.unwrap_or(machine.gpus.len() as c_uint)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<nvmlDevice_t>) -> nvmlReturn_t {
    plain("nvmlDeviceGetHandleByIndex_v2", |machine| {
        let gpu = machine.gpu_at(index).ok_or(INVALID_ARGUMENT)?;
        // A GPU that is lost or fails this call fails at its handle.
        if gpu.lost {
            return Err(GPU_IS_LOST);
        }
        wake(gpu)?;
        crate::gate::own_faults("nvmlDeviceGetHandleByIndex_v2", &gpu.uuid)?;
        let handle = library().handle(gpu)?;
        device.put(handle.pointer())
    })
}

/// The driver initialises a GPU before it returns its handle.
fn wake(gpu: &Gpu) -> Answer {
    let is_named = gpu.hang.contains("wake") || gpu.delay.contains_key("wake") || gpu.fail.contains_key("wake");
    if is_named { crate::gate::own_faults("wake", &gpu.uuid) } else { Ok(()) }
}
