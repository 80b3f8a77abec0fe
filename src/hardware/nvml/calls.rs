//! Makes every NVML call, raw or of the crate, except those that open or close the library or free a GPM sample: counts
//! it, classifies its return code and does not repeat calls that the device does not support or permit.
//!
//! In: a call by name. Out: its value or a refusal; for each pass its status and problems. Does not interpret values.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::*;

use super::codes;
use super::library::{DeviceHandle, Library};
use crate::domain::model::PciBusId;
use crate::hardware::plausible::QuantityRange;
use crate::hardware::source::{CallProblem, Pass, PassStatus};

/// Makes the calls for one GPU (or for the node), from one thread.
pub struct Caller {
    pub library: Arc<Library>,
    /// The calls, each with its variant, that this device does not support or permit; they are not made again.
    refused: BTreeMap<(&'static str, u32), CallRefusal>,
    /// The status, the problems and the implausible readings of the present pass.
    pass: Pass,
    succeeded: bool,
    /// Whether a call returned a code after which, if none succeeds, none can: lost device cgroup, invalid handle.
    blocked: bool,
}

/// Why a call gave no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRefusal {
    Unsupported,
    /// The driver has no value now, as on an idle device; the call is made again.
    Empty,
    TooSmall,
    WrongVersion,
    /// The call failed, which is recorded as a problem; or it is not made, as it is not permitted or the GPU is lost.
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

    /// Makes only later calls count for the status: opening a GPU proves nothing about its readings.
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
        let is_plausible = quantity.contains(value.into());
        if !is_plausible {
            self.count_implausible(quantity);
        }
        is_plausible.then_some(value)
    }

    pub fn count_implausible(&mut self, quantity: &QuantityRange) {
        *self.pass.implausible.entry(quantity.name).or_default() += 1;
    }

    /// Makes a call and classifies its outcome. Once the GPU is lost, none is made for the rest of the pass, as each
    /// call on it is slow.
    pub fn call<T>(
        &mut self,
        name: &'static str,
        variant: u32,
        mut body: impl FnMut(&Nvml) -> Result<T, NvmlError>,
    ) -> Result<T, CallRefusal> {
        if !self.answers() {
            return Err(CallRefusal::Failed);
        }
        if let Some(refusal) = self.refused.get(&(name, variant)) {
            return Err(*refusal);
        }
        let mut once = || self.library.statistics.time(name, || body(&self.library.nvml));
        let mut outcome = once();
        // This is an internal error of the driver, which may not recur.
        if matches!(outcome, Err(NvmlError::Unknown)) {
            outcome = once();
        }
        let code = match outcome.map_err(codes::of) {
            Ok(value) => {
                self.succeeded = true;
                return Ok(value);
            }
            Err(codes::INVALID_ARGUMENT) if variant > 0 => codes::NOT_SUPPORTED,
            Err(code) => code,
        };
        match code {
            codes::NOT_SUPPORTED | codes::FUNCTION_NOT_FOUND => {
                self.refused.insert((name, variant), CallRefusal::Unsupported);
                return Err(CallRefusal::Unsupported);
            }
            codes::NOT_FOUND | codes::NO_DATA | codes::NOT_READY => return Err(CallRefusal::Empty),
            // The wait ended without an event.
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

    /// Makes a call of the crate's safe part; not for enums and texts: the crate makes an unknown value a return code.
    pub fn device<T>(
        &mut self,
        name: &'static str,
        variant: u32,
        handle: DeviceHandle,
        method: impl Fn(&Device<'_>) -> Result<T, NvmlError>,
    ) -> Result<T, CallRefusal> {
        // SAFETY: the driver gave the handle, and answers an outdated one with an error.
        self.call(name, variant, |nvml| method(&unsafe { Device::new(handle.0, nvml) }))
    }
}

/// A C type of which all zeroes is a value: numbers, texts, pointers, and structures of these.
pub trait Blank: Sized {
    fn blank() -> Self;
}

macro_rules! blank {
    ($($type:ty),* $(,)?) => {
        $(impl Blank for $type {
            fn blank() -> Self {
                // SAFETY: see the trait; each type of the list was looked up in the bindings.
                unsafe { std::mem::zeroed() }
            }
        })*
    };
}

impl<T> Blank for *mut T {
    fn blank() -> Self {
        std::ptr::null_mut()
    }
}

blank! {
    i32, u32, u64, nvmlC2cModeInfo_v1_t, nvmlEventData_t, nvmlFieldValue_t, nvmlGpmMetricsGet_t, nvmlGpmSupport_t,
    nvmlGpuFabricInfoV_t, nvmlGpuFabricInfo_t, nvmlGpuInstanceInfo_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGridLicensableFeatures_t, nvmlMarginTemperature_t, nvmlMemory_t,
    nvmlPciInfo_t, nvmlPlatformInfo_v2_t, nvmlProcessInfo_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlRowRemapperHistogramValues_t, nvmlSample_t, nvmlTemperature_t,
}

/// `call!(caller, nvmlSymbol(arguments))` or `call!(caller, nvmlSymbol[variant](arguments))` makes a raw call by the
/// field of that name. Never use the method of that name: it panics where the symbol is missing.
///
/// A variant distinguishes what a device may support separately, such as a link or a fan. An invalid argument with a
/// variant above 0 means that the device does not have it: the call is unsupported for good. With 0 it may mean that the
/// handle is invalid: the call has failed, and is repeated. A number of the driver is the variant, also where it begins
/// with 0 (fans, links, ECC locations, causes of retired pages, GPU instances): on a device without number 0, a problem
/// is counted in each pass, and no reading is wrong. Where that is not acceptable, the variant is the number plus 1.
macro_rules! call {
    ($caller:expr, $symbol:ident $([$variant:expr])? ($($argument:expr),* $(,)?)) => {
        $caller.call(stringify!($symbol), 0 $(+ $variant)?, |nvml| {
            let function = nvml_wrapper::error::nvml_sym(nvml.lib().$symbol.as_ref())?;
            // SAFETY: the binding types the arguments; pointers are to locals or buffers that outlive the call, with
            // their true lengths; the library stays loaded while the caller holds it.
            nvml_wrapper::error::nvml_try(unsafe { function($($argument),*) })
        })
    };
}

/// Makes a raw call whose last argument points to the value, which is `$initial` before.
macro_rules! fetch {
    ($caller:expr, $initial:expr, $symbol:ident $([$variant:expr])? ($($argument:expr),* $(,)?)) => {{
        let mut value = $initial;
        $crate::hardware::nvml::calls::call!($caller, $symbol $([$variant])? ($($argument,)* &raw mut value))
            .map(|()| value)
    }};
}

/// Makes a raw call whose last argument points to the value, which is zero before; `None` on refusal.
macro_rules! value {
    ($caller:expr, $symbol:ident $($call:tt)*) => {
        $crate::hardware::nvml::calls::fetch!(
            $caller, $crate::hardware::nvml::calls::Blank::blank(), $symbol $($call)*
        ).ok()
    };
}

/// Makes a raw call that writes a text of up to 95 bytes; `None` also when it is empty.
macro_rules! text {
    ($caller:expr, $symbol:ident($($argument:expr),* $(,)?)) => {{
        let mut buffer = [0; 96];
        $crate::hardware::nvml::calls::call!($caller, $symbol($($argument,)* buffer.as_mut_ptr(), 96))
            .ok()
            .and_then(|()| $crate::hardware::nvml::calls::read_text(&buffer))
    }};
}

pub(super) use {call, fetch, text, value};

/// The most entries expected to be added between two attempts.
const SPARE_ENTRIES: usize = 16;
const ATTEMPTS: usize = 4;

/// Repeats `call` with a larger buffer, of up to `largest` entries, for as long as the driver finds it too small; `capacity`
/// keeps the size for the next time. The call gets the buffer and its length, and sets the length to what it wrote or needs.
/// Returns the entries written.
pub fn fill<T: Blank + Clone>(
    capacity: &mut usize,
    largest: usize,
    mut call: impl FnMut(*mut T, &mut u32) -> Result<(), CallRefusal>,
) -> Result<Vec<T>, CallRefusal> {
    let mut buffer = vec![T::blank(); *capacity];
    for _ in 0..ATTEMPTS {
        let mut count = u32::try_from(buffer.len()).expect("the buffer is bounded");
        match call(buffer.as_mut_ptr(), &mut count) {
            Ok(()) => {
                buffer.truncate(count as usize);
                return Ok(buffer);
            }
            Err(CallRefusal::TooSmall) if buffer.len() < largest => {
                *capacity = (count as usize + SPARE_ENTRIES).max(buffer.len() * 2).min(largest);
                buffer.resize(*capacity, T::blank());
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
    Some(text.trim()).filter(|text| !text.is_empty()).map(Into::into)
}

pub fn bus_id_in(info: &nvmlPciInfo_t) -> Option<PciBusId> {
    read_text(&info.busId).or_else(|| read_text(&info.busIdLegacy)).map(|bus_id| PciBusId::normalized(&bus_id))
}

/// The version word of a versioned struct: its size and its version.
pub const fn version<T>(number: u32) -> u32 {
    let size = size_of::<T>() as u32;
    size | number << 24
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_at_its_nul_and_keeps_what_is_not_utf8() {
        let read = |bytes: &[u8]| read_text(&bytes.iter().map(|byte| *byte as c_char).collect::<Vec<_>>());
        assert_eq!(read(b" 16\xff5 \0x").as_deref(), Some("16\u{fffd}5"));
        assert_eq!([read(b"165"), read(b" \0"), read(b"")], [const { None }; 3]);
    }

    #[test]
    fn an_older_driver_has_only_the_legacy_bus_id() {
        let mut info = nvmlPciInfo_t::blank();
        assert_eq!(bus_id_in(&info), None);
        for (slot, byte) in info.busIdLegacy.iter_mut().zip(b"0000:1B:00.0") {
            *slot = *byte as c_char;
        }
        assert_eq!(bus_id_in(&info), Some(PciBusId::from("0000:1b:00.0")));
    }
}
