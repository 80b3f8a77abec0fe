use nvml_wrapper_sys::bindings::nvmlReturn_t;

pub const SUCCESS: nvmlReturn_t = 0;
pub const UNINITIALIZED: nvmlReturn_t = 1;
pub const INVALID_ARGUMENT: nvmlReturn_t = 2;
pub const NOT_SUPPORTED: nvmlReturn_t = 3;
pub const NO_PERMISSION: nvmlReturn_t = 4;
pub const NOT_FOUND: nvmlReturn_t = 6;
pub const INSUFFICIENT_SIZE: nvmlReturn_t = 7;
pub const DRIVER_NOT_LOADED: nvmlReturn_t = 9;
pub const TIMEOUT: nvmlReturn_t = 10;
pub const LIBRARY_NOT_FOUND: nvmlReturn_t = 12;
pub const FUNCTION_NOT_FOUND: nvmlReturn_t = 13;
pub const GPU_IS_LOST: nvmlReturn_t = 15;
pub const RESET_REQUIRED: nvmlReturn_t = 16;
pub const OPERATING_SYSTEM: nvmlReturn_t = 17;
pub const LIB_RM_VERSION_MISMATCH: nvmlReturn_t = 18;
pub const NO_DATA: nvmlReturn_t = 21;
pub const ARGUMENT_VERSION_MISMATCH: nvmlReturn_t = 25;
pub const NOT_READY: nvmlReturn_t = 27;
pub const UNKNOWN: nvmlReturn_t = 999;

/// The driver's name of a return code, lower case, as `nvmlReturn_t` spells it.
pub fn name(code: nvmlReturn_t) -> &'static str {
    match code {
        SUCCESS => "success",
        UNINITIALIZED => "uninitialized",
        INVALID_ARGUMENT => "invalid_argument",
        NOT_SUPPORTED => "not_supported",
        NO_PERMISSION => "no_permission",
        5 => "already_initialized",
        NOT_FOUND => "not_found",
        INSUFFICIENT_SIZE => "insufficient_size",
        8 => "insufficient_power",
        DRIVER_NOT_LOADED => "driver_not_loaded",
        TIMEOUT => "timeout",
        11 => "irq_issue",
        LIBRARY_NOT_FOUND => "library_not_found",
        FUNCTION_NOT_FOUND => "function_not_found",
        14 => "corrupted_inforom",
        GPU_IS_LOST => "gpu_is_lost",
        RESET_REQUIRED => "reset_required",
        OPERATING_SYSTEM => "operating_system",
        LIB_RM_VERSION_MISMATCH => "lib_rm_version_mismatch",
        19 => "in_use",
        20 => "memory",
        NO_DATA => "no_data",
        22 => "vgpu_ecc_not_supported",
        23 => "insufficient_resources",
        24 => "freq_not_supported",
        ARGUMENT_VERSION_MISMATCH => "argument_version_mismatch",
        26 => "deprecated",
        NOT_READY => "not_ready",
        28 => "gpu_not_found",
        29 => "invalid_state",
        30 => "reset_type_not_supported",
        UNKNOWN => "unknown",
        _ => "other",
    }
}

/// What a person can do about a driver that refuses as a whole.
pub fn remedy(code: nvmlReturn_t) -> &'static str {
    match code {
        DRIVER_NOT_LOADED => "load the NVIDIA kernel driver (nvidia-smi on the node says more)",
        NO_PERMISSION => "run the agent as a user that may open /dev/nvidiactl, or as root",
        OPERATING_SYSTEM => {
            "give the container access to /dev/nvidiactl and /dev/nvidia*, and restart it if it had that"
        }
        LIB_RM_VERSION_MISMATCH => {
            "finish the driver upgrade: the library and the loaded kernel module differ in version"
        }
        _ => "see whether nvidia-smi works on the node; it is tried again for ever",
    }
}
