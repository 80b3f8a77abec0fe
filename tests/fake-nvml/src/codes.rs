//! The return codes of NVML that the fake itself gives, and their texts.

use std::ffi::CStr;

use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// The return code of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub nvmlReturn_t);

/// What every call body ends with.
pub type Answer = Result<(), Code>;

pub const SUCCESS: nvmlReturn_t = 0;
pub const UNINITIALIZED: Code = Code(1);
pub const INVALID_ARGUMENT: Code = Code(2);
pub const NOT_SUPPORTED: Code = Code(3);
pub const NOT_FOUND: Code = Code(6);
pub const INSUFFICIENT_SIZE: Code = Code(7);
pub const DRIVER_NOT_LOADED: Code = Code(9);
pub const TIMEOUT: Code = Code(10);
pub const FUNCTION_NOT_FOUND: Code = Code(13);
pub const GPU_IS_LOST: Code = Code(15);
pub const NO_DATA: Code = Code(21);
pub const ARGUMENT_VERSION_MISMATCH: Code = Code(25);
pub const UNKNOWN: Code = Code(999);

pub fn text(code: nvmlReturn_t) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"Operating System Blocked The Device",
        18 => c"Driver/library version mismatch",
        19 => c"In Use",
        20 => c"Insufficient Memory",
        21 => c"No Data",
        23 => c"Insufficient Resources",
        25 => c"Argument Version Mismatch",
        27 => c"Not Ready",
        _ => c"Unknown Error",
    }
}
