//! Every C function goes through here: recorded, charged, delayed, hung, failed, and then answered.
//!
//! Does not use: the calls' results.

use std::ffi::c_uint;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::clock::{self, Micros};
use crate::codes::{Answer, Code, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNKNOWN};
use crate::handles::{Handle, Kind};
use crate::library::{library, wait};
use crate::state::{Faults, Gpu, Instance, Machine};

/// How often a hanging call checks whether it may continue.
const HANG_MICROS: Micros = 5_000;

/// What a call on a device works with.
pub struct Target {
    pub machine: Arc<Machine>,
    pub handle: Handle,
    gpu: Arc<Gpu>,
    kind: Kind,
}

impl Target {
    /// The GPU under any handle.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The GPU, for what MIG devices do not have.
    pub fn whole(&self) -> Result<&Arc<Gpu>, Code> {
        match self.kind {
            Kind::Device => Ok(&self.gpu),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// The GPU, for what stops working in MIG mode.
    pub fn undivided(&self) -> Result<&Arc<Gpu>, Code> {
        self.whole().and_then(|gpu| if gpu.mig.enabled { Err(NOT_SUPPORTED) } else { Ok(gpu) })
    }

    /// The MIG device, if the handle is one.
    pub fn instance(&self) -> Option<&Instance> {
        match self.kind {
            Kind::MigDevice { gpu_instance, compute_instance } => self.gpu.mig.instance(gpu_instance, compute_instance),
            _ => None,
        }
    }

    /// Any MIG device of the GPU instance, if the handle is one.
    pub fn gpu_instance(&self) -> Result<&Instance, Code> {
        let Kind::GpuInstance { gpu_instance } = self.kind else { return Err(INVALID_ARGUMENT) };
        self.gpu.mig.active().find(|one| one.gpu_instance == gpu_instance).ok_or(INVALID_ARGUMENT)
    }
}

/// A call on no device.
pub fn plain(call: &str, body: impl FnOnce(&Arc<Machine>) -> Answer) -> nvmlReturn_t {
    guarded(|| {
        library().record.add(call, None, &[]);
        suffer(call, || library().machine().map(|machine| (machine.clone(), None)))?;
        let machine = library().ready()?;
        body(&machine)
    })
}

/// Init, Shutdown: answered uninitialised, and faults only by name.
pub fn unready(call: &str, body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    guarded(|| {
        library().record.add(call, None, &[]);
        suffer(call, || {
            let mut machine = Machine::clone(&*library().machine()?);
            machine.remove_wildcards();
            Some((Arc::new(machine), None))
        })?;
        body()
    })
}

/// A call on a device, a MIG device or a GPU instance.
pub fn device<T>(
    call: &str,
    numbers: &[Option<c_uint>],
    handle: *mut T,
    body: impl FnOnce(&Target) -> Answer,
) -> nvmlReturn_t {
    let handle = Handle::from_pointer(handle);
    guarded(|| {
        library().record.add(call, Some(handle), numbers);
        suffer(call, || {
            let library = library();
            let machine = library.machine()?;
            let gpu = library.uuid(handle).and_then(|uuid| machine.gpu(uuid)).cloned();
            Some((machine, gpu))
        })?;
        body(&target(handle)?)
    })
}

/// As above, for the bindings' device type.
pub fn on_device(
    call: &str,
    numbers: &[Option<c_uint>],
    handle: nvmlDevice_t,
    body: impl FnOnce(&Target) -> Answer,
) -> nvmlReturn_t {
    device(call, numbers, handle, |target| match target.kind {
        Kind::GpuInstance { .. } => Err(INVALID_ARGUMENT),
        _ => body(target),
    })
}

fn target(handle: Handle) -> Result<Target, Code> {
    let library = library();
    let machine = library.ready()?;
    let kind = handle.kind().ok_or(INVALID_ARGUMENT)?;
    let uuid = library.uuid(handle).ok_or(INVALID_ARGUMENT)?;
    let gpu = machine.gpu(uuid).cloned().filter(|gpu| !gpu.lost).ok_or(GPU_IS_LOST)?;
    if let Kind::MigDevice { gpu_instance, compute_instance } = kind
        && gpu.mig.instance(gpu_instance, compute_instance).is_none()
    {
        return Err(INVALID_ARGUMENT);
    }
    Ok(Target { machine, handle, gpu, kind })
}

/// The faults of one GPU, for a call that finds its GPU by itself.
pub fn own_faults(call: &str, uuid: &str) -> Answer {
    suffer(call, || {
        // The library's own were suffered at the gate.
        let gpu = library().machine()?.gpu(uuid).cloned();
        Some((Arc::new(Machine::default()), gpu))
    })
}

/// Costs, delays, hangs, and the failures in the file; of the library first, then of the GPU.
fn suffer(call: &str, current: impl Fn() -> Option<(Arc<Machine>, Option<Arc<Gpu>>)>) -> Answer {
    let ask = |question: &dyn Fn(Faults<'_>) -> u64| {
        let Some((machine, gpu)) = current() else { return 0 };
        let own = gpu.map_or(0, |gpu| question(gpu.faults()));
        question(machine.faults()).max(own)
    };
    clock::use_processor(ask(&|faults| faults.cost(call)));
    let delay = ask(&|faults| faults.delay(call));
    if delay > 0 {
        wait(delay * 1_000);
    }
    while ask(&|faults| u64::from(faults.hangs(call))) > 0 {
        wait(HANG_MICROS);
    }
    let Some((machine, gpu)) = current() else { return Ok(()) };
    let general = machine.faults().code(call);
    let code = if general == 0 { gpu.map_or(0, |gpu| gpu.faults().code(call)) } else { general };
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

/// No panic crosses into C.
fn guarded(body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(Code(code))) => code,
        Err(_) => UNKNOWN.0,
    }
}
