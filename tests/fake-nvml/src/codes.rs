//! The return codes of NVML that the fake itself gives.

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
