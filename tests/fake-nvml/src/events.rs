//! Event sets: what the file lists after the registration is delivered to each set, as often as listed.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::ptr;
use std::sync::LazyLock;

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};

use crate::calls::on_device;
use crate::clock;
use crate::codes::{Code, GPU_IS_LOST, INVALID_ARGUMENT, NOT_SUPPORTED, TIMEOUT};
use crate::gate;
use crate::library::{Library, library, wait};
use crate::out::Out;
use crate::state::Gpu;

/// How often a wait reads the file, unless `FAKE_NVML_READ_MICROS` is set: a real driver has no such cost.
fn read_micros() -> u64 {
    static MICROS: LazyLock<u64> = LazyLock::new(|| {
        let text = std::env::var("FAKE_NVML_READ_MICROS").ok();
        text.and_then(|micros| micros.parse().ok()).unwrap_or(5_000)
    });
    *MICROS
}

const XID: u64 = 8;

/// By the GPU's UUID.
#[derive(Clone, Default)]
pub struct EventSet(BTreeMap<String, Registration>);

#[derive(Clone)]
struct Registration {
    kinds: u64,
    /// Nothing up to this sequence is delivered any more.
    delivered: u64,
    /// How often the one after it was.
    repeated: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) -> nvmlReturn_t {
    gate::plain("nvmlEventSetCreate", |_| {
        let mut library = library();
        let token = library.token();
        library.event_sets.insert(token, EventSet::default());
        set.put(ptr::without_provenance_mut(token as usize))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    gate::plain("nvmlEventSetFree", |_| {
        library().event_sets.remove(&(set.addr() as u64)).map(drop).ok_or(INVALID_ARGUMENT)
    })
}

on_device! {
    nvmlDeviceGetSupportedEventTypes(kinds: Out<c_ulonglong>) |target| {
        kinds.put(target.whole()?.supported_events)
    }
    nvmlDeviceRegisterEvents(kinds: c_ulonglong, set: nvmlEventSet_t) |target| {
        let gpu = target.whole()?;
        if kinds & !gpu.supported_events != 0 {
            return Err(NOT_SUPPORTED);
        }
        let mut library = library();
        let EventSet(gpus) = library.event_sets.get_mut(&(set.addr() as u64)).ok_or(INVALID_ARGUMENT)?;
        let delivered = gpu.events.iter().map(|event| event.sequence).max().unwrap_or(0);
        let registration = gpus.entry(gpu.uuid.clone()).or_insert(Registration { kinds: 0, delivered, repeated: 0 });
        registration.kinds |= kinds;
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: Out<nvmlEventData_t>,
    timeout_milliseconds: c_uint,
) -> nvmlReturn_t {
    gate::plain("nvmlEventSetWait_v2", |_| {
        let until = clock::now() + u64::from(timeout_milliseconds) * 1_000;
        loop {
            if let Some(event) = next(&mut library(), set)? {
                return data.put(event);
            }
            let left = until.saturating_sub(clock::now());
            if left == 0 {
                return Err(TIMEOUT);
            }
            wait(left.min(read_micros()));
        }
    })
}

/// The next event of the set. A lost GPU fails the wait, but only once nothing else is left to deliver.
fn next(library: &mut Library, set: nvmlEventSet_t) -> Result<Option<nvmlEventData_t>, Code> {
    let machine = library.ready()?;
    let token = set.addr() as u64;
    let EventSet(mut gpus) = library.event_sets.get(&token).cloned().ok_or(INVALID_ARGUMENT)?;
    let mut lost = false;
    let mut found = None;
    for (uuid, registration) in &mut gpus {
        let Some(gpu) = machine.gpu(uuid) else {
            lost = true;
            continue;
        };
        lost |= gpu.lost;
        let pending = gpu.events.iter().filter(|event| event.sequence > registration.delivered);
        if let Some(event) = pending.filter(|event| event.kind & registration.kinds != 0).min_by_key(|e| e.sequence) {
            registration.repeated += 1;
            if registration.repeated >= event.count {
                (registration.delivered, registration.repeated) = (event.sequence, 0);
            }
            found = Some(event_data(library, gpu, event)?);
            break;
        }
    }
    if found.is_some() {
        library.event_sets.insert(token, EventSet(gpus));
        return Ok(found);
    }
    if lost { Err(GPU_IS_LOST) } else { Ok(None) }
}

/// Only an XID event carries data.
fn event_data(library: &Library, gpu: &Gpu, event: &crate::state::Event) -> Result<nvmlEventData_t, Code> {
    Ok(nvmlEventData_t {
        device: library.handle(gpu)?.pointer(),
        eventType: event.kind,
        eventData: if event.kind == XID { event.xid } else { 0 },
        gpuInstanceId: event.gpu_instance.unwrap_or(u32::MAX),
        computeInstanceId: event.compute_instance.unwrap_or(u32::MAX),
    })
}
