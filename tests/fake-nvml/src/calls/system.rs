//! Init, Shutdown, versions, counting and finding GPUs.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::clock;
use crate::codes::{self, Answer, GPU_IS_LOST, INVALID_ARGUMENT, NOT_FOUND};
use crate::gate::{plain, unready};
use crate::library::library;
use crate::out::{In, Out, Text};
use crate::state::{Gpu, Machine};

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    unready("nvmlInit_v2", || library().init())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    unready("nvmlInitWithFlags", || library().init())
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
pub extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    codes::text(result).as_ptr()
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
pub extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> nvmlReturn_t {
    plain("nvmlSystemGetCudaDriverVersion", |machine| version.put(machine.cuda_version))
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
        hand_out("nvmlDeviceGetHandleByIndex_v2", gpu, device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: In, device: Out<nvmlDevice_t>) -> nvmlReturn_t {
    plain("nvmlDeviceGetHandleByUUID", |machine| {
        let uuid = uuid.get()?;
        for gpu in &machine.gpus {
            if gpu.uuid == uuid {
                return hand_out("nvmlDeviceGetHandleByUUID", gpu, device);
            }
            wake(gpu)?;
        }
        mig_device(machine, &uuid, device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: In, device: Out<nvmlDevice_t>) -> nvmlReturn_t {
    plain("nvmlDeviceGetHandleByPciBusId_v2", |machine| {
        let wanted = short_domain(&bus_id.get()?);
        let gpu = machine.gpus.iter().find(|gpu| short_domain(&gpu.pci_bus_id) == wanted).ok_or(NOT_FOUND)?;
        hand_out("nvmlDeviceGetHandleByPciBusId_v2", gpu, device)
    })
}

/// The driver initialises a GPU before it returns its handle, and each GPU on the way of a search for a UUID.
fn wake(gpu: &Gpu) -> Answer {
    let is_named = gpu.hang.contains("wake") || gpu.delay.contains_key("wake") || gpu.fail.contains_key("wake");
    if is_named { crate::gate::own_faults("wake", &gpu.uuid) } else { Ok(()) }
}

/// A GPU that is lost or fails this call fails at its handle.
fn hand_out(call: &str, gpu: &Gpu, device: Out<nvmlDevice_t>) -> Answer {
    if gpu.lost {
        return Err(GPU_IS_LOST);
    }
    wake(gpu)?;
    crate::gate::own_faults(call, &gpu.uuid)?;
    let handle = library().handle(gpu)?;
    device.put(handle.pointer())
}

fn mig_device(machine: &Machine, uuid: &str, device: Out<nvmlDevice_t>) -> Answer {
    for gpu in &machine.gpus {
        if let Some(instance) = gpu.mig.active().find(|instance| instance.uuid == uuid) {
            let parent = library().handle(gpu)?;
            return device.put(parent.mig_device(instance.gpu_instance, instance.compute_instance).pointer());
        }
    }
    Err(NOT_FOUND)
}

/// The domain may come with four digits or with eight.
fn short_domain(bus_id: &str) -> String {
    let lower = bus_id.to_ascii_lowercase();
    lower.strip_prefix("0000").filter(|rest| rest.find(':') == Some(4)).unwrap_or(&lower).to_owned()
}
