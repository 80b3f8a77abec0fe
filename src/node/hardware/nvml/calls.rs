//! Makes every NVML call but those that open or close the library or free a GPM sample: counts it, classifies its return
//! code and does not repeat calls that the device does not support or permit.
//!
//! In: a call by name. Out: its value or a refusal; for each pass its status and problems. Does not use: the meaning of
//! values.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlPciInfo_t, nvmlReturn_t};

use super::codes;
use super::library::Library;
use crate::domain::model::PciBusId;
use crate::node::hardware::plausible::QuantityRange;
use crate::node::hardware::source::{CallProblem, Pass, PassStatus};

/// Calls on behalf of one GPU (or of the node), from one thread.
pub struct Caller {
    pub library: Arc<Library>,
    /// (call, variant) that this device does not support or permit; not made again.
    refused: BTreeMap<(&'static str, u32), CallRefusal>,
    /// Of the present pass, only the status, the problems and the implausible readings.
    pass: Pass,
    succeeded: bool,
    /// A call returned a code that means, when no call succeeds, that none can: a lost device cgroup, an invalid handle.
    blocked: bool,
}

/// Why a call gave no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRefusal {
    Unsupported,
    /// Normal on an idle device; called again.
    Empty,
    TooSmall,
    WrongVersion,
    /// Recorded as a problem. Also of a call that is not made, as it is not permitted or the GPU is lost.
    Failed,
}

impl Caller {
    pub fn new(library: Arc<Library>) -> Self {
        Self { library, refused: BTreeMap::new(), pass: Pass::default(), succeeded: false, blocked: false }
    }

    pub fn is_refused(&self, name: &'static str, variant: u32) -> bool {
        self.refused.contains_key(&(name, variant))
    }

    /// False once the GPU is lost or the session is over.
    pub fn answers(&self) -> bool {
        self.pass.status == PassStatus::Answers
    }

    /// Only later calls count for the status: opening a GPU proves nothing about its readings.
    pub fn forget_success(&mut self) {
        (self.succeeded, self.blocked) = (false, false);
    }

    /// Ends a pass and begins the next. Returns its status, its problems and its implausible readings.
    pub fn finish(&mut self) -> Pass {
        if self.answers() && self.blocked && !self.succeeded {
            self.pass.status = PassStatus::Lost;
        }
        self.forget_success();
        std::mem::take(&mut self.pass)
    }

    /// The value, unless it is outside the range of its quantity.
    pub fn plausible<T: Copy + Into<f64>>(&mut self, quantity: &QuantityRange, value: T) -> Option<T> {
        let holds = quantity.holds(value.into());
        if !holds {
            self.count_implausible(quantity);
        }
        holds.then_some(value)
    }

    pub fn count_implausible(&mut self, quantity: &QuantityRange) {
        *self.pass.implausible.entry(quantity.name).or_default() += 1;
    }

    /// Calls nothing for the rest of a pass once the GPU is lost, as each call on it is slow.
    pub fn call(
        &mut self,
        name: &'static str,
        variant: u32,
        mut body: impl FnMut(&NvmlLib) -> nvmlReturn_t,
    ) -> Result<(), CallRefusal> {
        if !self.answers() {
            return Err(CallRefusal::Failed);
        }
        if let Some(refusal) = self.refused.get(&(name, variant)) {
            return Err(*refusal);
        }
        let mut once = || self.library.statistics.time(name, || body(&self.library.symbols));
        let mut code = once();
        // An internal error of the driver, which may not recur.
        if code == codes::UNKNOWN {
            code = once();
        }
        let code = if code == codes::INVALID_ARGUMENT && variant > 0 { codes::NOT_SUPPORTED } else { code };
        match code {
            codes::SUCCESS => {
                self.succeeded = true;
                return Ok(());
            }
            codes::NOT_SUPPORTED | codes::FUNCTION_NOT_FOUND => {
                self.refused.insert((name, variant), CallRefusal::Unsupported);
                return Err(CallRefusal::Unsupported);
            }
            codes::NOT_FOUND | codes::NO_DATA | codes::NOT_READY => return Err(CallRefusal::Empty),
            // A wait for events that ended without one.
            codes::TIMEOUT if name == "nvmlEventSetWait_v2" => return Err(CallRefusal::Empty),
            codes::INSUFFICIENT_SIZE => return Err(CallRefusal::TooSmall),
            codes::ARGUMENT_VERSION_MISMATCH => return Err(CallRefusal::WrongVersion),
            codes::NO_PERMISSION => {
                self.refused.insert((name, variant), CallRefusal::Failed);
            }
            codes::GPU_IS_LOST | codes::RESET_REQUIRED => self.pass.status = PassStatus::Lost,
            codes::OPERATING_SYSTEM | codes::UNKNOWN | codes::INVALID_ARGUMENT => self.blocked = true,
            codes::UNINITIALIZED
            | codes::DRIVER_NOT_LOADED
            | codes::LIBRARY_NOT_FOUND
            | codes::LIB_RM_VERSION_MISMATCH => self.pass.status = PassStatus::SessionOver,
            _ => {}
        }
        self.pass.problems.push(CallProblem { call: name, code: codes::name(code) });
        Err(CallRefusal::Failed)
    }
}

/// `call!(caller, nvmlSymbol(arguments))` or `call!(caller, nvmlSymbol[variant](arguments))`: a raw call by name.
/// Never use the bindings' methods: they panic where a symbol is missing.
///
/// A variant distinguishes what a device may support separately, such as a link or a fan. An invalid argument with a
/// variant above 0 means that the device does not have it: the call is unsupported for good. With 0 it may mean that the
/// handle is invalid: the call has failed, and is repeated. A number of the driver is the variant, also where it begins
/// with 0 (fans, links, ECC locations, causes of retired pages, GPU instances): on a device without number 0, a problem
/// is counted in each pass, and no reading is wrong. Where that is not acceptable, the variant is the number plus 1.
macro_rules! call {
    ($caller:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        $crate::node::hardware::nvml::calls::call!($caller, $symbol[0]($($argument),*))
    };
    ($caller:expr, $symbol:ident[$variant:expr]($($argument:expr),* $(,)?)) => {
        $caller.call(stringify!($symbol), $variant, |library| match library.$symbol.as_ref() {
            // SAFETY: the binding types the arguments; pointers are to locals or buffers that outlive the call, with
            // their true lengths; the library stays loaded while the caller holds it.
            Ok(function) => unsafe { function($($argument),*) },
            Err(_) => $crate::node::hardware::nvml::codes::FUNCTION_NOT_FOUND,
        })
    };
}

/// The same for a call whose last argument points to the value; `None` on refusal.
macro_rules! value {
    ($caller:expr, $symbol:ident $([$variant:expr])? ($($argument:expr),* $(,)?)) => {{
        // SAFETY: the call's type makes it a number, a pointer, or a structure of these: all zeroes is a valid value.
        let mut value = unsafe { std::mem::zeroed() };
        $crate::node::hardware::nvml::calls::call!($caller, $symbol $([$variant])? ($($argument,)* &raw mut value))
            .ok()
            .map(|()| value)
    }};
}

/// The same for a text of up to 95 bytes; empty is absent.
macro_rules! text {
    ($caller:expr, $symbol:ident($($argument:expr),* $(,)?)) => {{
        let mut buffer = [0; 96];
        $crate::node::hardware::nvml::calls::call!($caller, $symbol($($argument,)* buffer.as_mut_ptr(), 96))
            .ok()
            .and_then(|()| $crate::node::hardware::nvml::calls::read_text(&buffer))
    }};
}

pub(super) use {call, text, value};

/// Entries that may come between two attempts.
const SPARE_ENTRIES: usize = 16;
const ATTEMPTS: usize = 4;

/// Repeats `call` with a larger buffer, of up to `largest` entries, for as long as the driver finds it too small. The
/// call gets the buffer and its length, and sets the length to what it wrote or needs. Returns the entries written.
pub fn fill<T: Clone>(
    blank: T,
    capacity: usize,
    largest: usize,
    mut call: impl FnMut(*mut T, &mut u32) -> Result<(), CallRefusal>,
) -> Result<Vec<T>, CallRefusal> {
    let mut buffer = vec![blank.clone(); capacity];
    for _ in 0..ATTEMPTS {
        let mut count = u32::try_from(buffer.len()).expect("the buffer is bounded");
        match call(buffer.as_mut_ptr(), &mut count) {
            Ok(()) => {
                buffer.truncate(count as usize);
                return Ok(buffer);
            }
            Err(CallRefusal::TooSmall) if buffer.len() < largest => {
                let length = (count as usize + SPARE_ENTRIES).max(buffer.len() * 2).min(largest);
                buffer.resize(length, blank.clone());
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Err(CallRefusal::TooSmall)
}

/// A driver's text up to its NUL; `None` when empty or without one.
pub fn read_text(buffer: &[c_char]) -> Option<Arc<str>> {
    let bytes: Vec<u8> = buffer.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy();
    let text = text.trim();
    (!text.is_empty()).then(|| text.into())
}

pub fn bus_id_in(info: &nvmlPciInfo_t) -> Option<PciBusId> {
    read_text(&info.busId).or_else(|| read_text(&info.busIdLegacy)).map(|bus_id| PciBusId::normalized(&bus_id))
}

/// The version word of a versioned struct: its size and its version.
pub const fn version<T>(number: u32) -> u32 {
    let size = size_of::<T>() as u32;
    size | number << 24
}
