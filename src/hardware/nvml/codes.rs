//! NVML's return codes: their names, and what a person can do about them.

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::hardware::source::{CallProblem, Failure, FailureCause};

macro_rules! codes {
    ($($number:literal $(= $constant:ident)? : $name:literal;)*) => {
        $($(pub const $constant: nvmlReturn_t = $number;)?)*

        /// The name of a return code in `nvmlReturn_t`, in lower case.
        pub fn name(code: nvmlReturn_t) -> &'static str {
            match code {
                $($number => $name,)*
                _ => "other",
            }
        }
    };
}

codes! {
    0 = SUCCESS: "success";
    1 = UNINITIALIZED: "uninitialized";
    2 = INVALID_ARGUMENT: "invalid_argument";
    3 = NOT_SUPPORTED: "not_supported";
    4 = NO_PERMISSION: "no_permission";
    5: "already_initialized";
    6 = NOT_FOUND: "not_found";
    7 = INSUFFICIENT_SIZE: "insufficient_size";
    8: "insufficient_power";
    9 = DRIVER_NOT_LOADED: "driver_not_loaded";
    10 = TIMEOUT: "timeout";
    11: "irq_issue";
    12 = LIBRARY_NOT_FOUND: "library_not_found";
    13 = FUNCTION_NOT_FOUND: "function_not_found";
    14: "corrupted_inforom";
    15 = GPU_IS_LOST: "gpu_is_lost";
    16 = RESET_REQUIRED: "reset_required";
    17 = OPERATING_SYSTEM: "operating_system";
    18 = LIB_RM_VERSION_MISMATCH: "lib_rm_version_mismatch";
    19: "in_use";
    20: "memory";
    21 = NO_DATA: "no_data";
    22: "vgpu_ecc_not_supported";
    23: "insufficient_resources";
    24: "freq_not_supported";
    25 = ARGUMENT_VERSION_MISMATCH: "argument_version_mismatch";
    26: "deprecated";
    27 = NOT_READY: "not_ready";
    28: "gpu_not_found";
    29: "invalid_state";
    30: "reset_type_not_supported";
    999 = UNKNOWN: "unknown";
}

/// The return code of an error of the crate, which keeps an unknown code's number.
pub fn of(error: NvmlError) -> nvmlReturn_t {
    match error {
        NvmlError::FailedToLoadSymbol(_) => FUNCTION_NOT_FOUND,
        error => error.into(),
    }
}

/// The failure of an opening, or of a query for a GPU, with the cause that its code means.
pub fn failure(problem: CallProblem, reason: String, remedy: &'static str) -> Failure {
    let cause = match problem.code {
        "driver_not_loaded" | "uninitialized" | "library_not_found" => FailureCause::DriverNotLoaded,
        "not_found" | "gpu_not_found" => FailureCause::UnlistedGpu,
        _ => FailureCause::Other,
    };
    Failure { problem, cause, reason, remedy }
}

pub const SEE_KERNEL_LOG: &str = "look for Xid lines in the kernel log";
pub const SEE_NVIDIA_SMI: &str = "check whether nvidia-smi works on the node; podmeter keeps retrying";

/// The remedy for a driver that cannot be initialised.
pub fn remedy(code: nvmlReturn_t) -> &'static str {
    match code {
        DRIVER_NOT_LOADED => "load the NVIDIA kernel driver (nvidia-smi on the node says more)",
        NO_PERMISSION => "run the agent as a user that may open /dev/nvidiactl, or as root",
        OPERATING_SYSTEM => {
            "give the container access to /dev/nvidiactl and /dev/nvidia*, and restart it if it had that"
        }
        LIB_RM_VERSION_MISMATCH => {
            "finish the driver upgrade: the library and the loaded kernel module differ in version; a container has the \
             library of its start: restart it"
        }
        _ => SEE_NVIDIA_SMI,
    }
}
