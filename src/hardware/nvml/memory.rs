//! Memory of a GPU or of a GPU instance.

use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use nvml_wrapper_sys::bindings::nvmlMemory_t;

use super::calls::{CallRefusal, Caller, value};
use super::library::DeviceHandle;
use crate::domain::model::MemoryUse;
use crate::hardware::plausible;

/// The memory of a GPU, or of the GPU instance of a MIG device; either may support calls that the other does not.
/// `None` where one value is wrong.
pub fn read(caller: &mut Caller, handle: DeviceHandle, gpu_instance: Option<u32>) -> Option<MemoryUse> {
    let memory = read_any(caller, handle, gpu_instance)?;
    let parts = [memory.used, memory.free, memory.reserved.unwrap_or(0)];
    if !plausible::MEMORY.contains(memory.total as f64) || parts.iter().any(|part| *part > memory.total) {
        caller.count_implausible(&plausible::MEMORY);
        return None;
    }
    Some(memory)
}

fn read_any(caller: &mut Caller, handle: DeviceHandle, gpu_instance: Option<u32>) -> Option<MemoryUse> {
    let variant = gpu_instance.map_or(0, |number| number + 1);
    match caller.device("nvmlDeviceGetMemoryInfo_v2", variant, handle, |device| device.memory_info()) {
        Ok(MemoryInfo { total, reserved, free, used, .. }) => return Some(tidy(total, reserved, free, used)),
        Err(CallRefusal::Unsupported | CallRefusal::WrongVersion) => {}
        Err(_) => return None,
    }
    // The older call counts reserved memory as used, which only a driver without the newer one makes acceptable.
    let nvmlMemory_t { total, free, used } = value!(caller, nvmlDeviceGetMemoryInfo[variant](handle.0))?;
    Some(MemoryUse { used, free, reserved: None, total })
}

/// The memory with `used` without reserved memory. NVML does not document whether it includes that; the sum shows it.
fn tidy(total: u64, reserved: u64, free: u64, used: u64) -> MemoryUse {
    let used = if reserved > 0 && free.saturating_add(used) == total { used.saturating_sub(reserved) } else { used };
    MemoryUse { used, free, reserved: Some(reserved), total }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_is_counted_once() {
        let expected = MemoryUse { used: 30, free: 60, reserved: Some(10), total: 100 };
        assert_eq!(tidy(100, 10, 60, 30), expected);
        assert_eq!(tidy(100, 10, 60, 40), expected);
    }
}
