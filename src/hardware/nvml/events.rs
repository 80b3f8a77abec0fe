//! The driver's event set: registers the GPUs, waits, and decodes events.
//!
//! In: NVML. Out: `RawEvent`s of the GPUs of one session. Does not use: health.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use super::calls::{Blank, CallRefusal, Caller, call, fetch, value};
use super::inventory;
use super::library::{DeviceHandle, Library};
use super::per_gpu_query::{PerGpuQuery, with_caller};
use crate::backoff::Backoff;
use crate::domain::model::{GpuUuid, Monotonic, XidInstance};
use crate::hardware::source::{CallProblem, DriverEventKind, EventFailure, EventSource, PassStatus, RawEvent};

const XID: u64 = 0x8;
const MIG_CHANGE: u64 = 0x100;
/// The registered events: ECC (0x1, 0x2), XIDs, MIG changes, and 0x200 to 0x8000: ECC storms, row retirement, poison,
/// GPU unavailable and the recovery action. Not registered: performance states, clocks and power supplies.
const REGISTERED_EVENTS: u64 = 0x1 | 0x2 | XID | MIG_CHANGE | 0xFE00;
/// The driver's value for "no instance".
const WHOLE: u32 = u32::MAX;
const UNKNOWN_XID: u32 = 999;
/// The first and the longest wait before the registration of a GPU is retried.
const RETRIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The events of all GPUs of one session.
pub struct NvmlEvents {
    library: Arc<Library>,
    per_gpu: PerGpuQuery,
    set: Option<EventSet>,
    /// The GPUs in the set, with the handle they were registered by.
    registered: BTreeMap<GpuUuid, DeviceHandle>,
    /// The GPU of each handle's address, for the whole session: a lost GPU no longer returns its UUID.
    by_handle: BTreeMap<usize, GpuUuid>,
    /// When to retry the registration of GPUs that are not in the set.
    retry: Option<Monotonic>,
    retries: Backoff,
    problems: Vec<CallProblem>,
}

/// An event set, freed when dropped, before its library.
struct EventSet {
    set: nvmlEventSet_t,
    library: Arc<Library>,
}

// SAFETY: a token that the driver looks up; it is used by one thread at a time, which is not the one that made it.
unsafe impl Send for EventSet {}

impl Drop for EventSet {
    fn drop(&mut self) {
        let mut caller = Caller::new(Arc::clone(&self.library));
        let _ = call!(caller, nvmlEventSetFree(self.set));
    }
}

/// A GPU to register: its UUID, its handle, and the events that it supports, of those to register.
type EventCandidate = (GpuUuid, DeviceHandle, u64);

impl NvmlEvents {
    pub fn new(library: &Arc<Library>, per_gpu: PerGpuQuery) -> Self {
        let mut events = Self {
            library: Arc::clone(library),
            per_gpu,
            set: None,
            registered: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            retry: None,
            retries: Backoff::new(RETRIES),
            problems: Vec::new(),
        };
        events.register_missing(Monotonic::default());
        events
    }

    /// Registers every GPU that is not in the set, and schedules a retry for those that refuse.
    fn register_missing(&mut self, now: Monotonic) {
        if self.set.is_none() {
            self.set = self.new_set();
        }
        let candidates = self.candidates();
        let expected = candidates.len();
        let mut candidates: Vec<EventCandidate> = candidates.into_iter().flatten().collect();
        // A GPU without events is not retried.
        let mut missing = expected - candidates.len();
        candidates.retain(|(gpu, _, kinds)| *kinds != 0 && !self.registered.contains_key(gpu));
        for candidate in candidates {
            missing += usize::from(!self.register(candidate));
        }
        self.retry = (missing > 0 || self.set.is_none()).then(|| now + self.retries.pause());
    }

    /// A candidate for each GPU that the driver counts; `None` for one that does not answer, and where there is no count.
    fn candidates(&mut self) -> Vec<Option<EventCandidate>> {
        let mut caller = Caller::new(Arc::clone(&self.library));
        let count = inventory::count(&mut caller);
        self.problems.extend(caller.finish().problems);
        let Some(count) = count else { return vec![None] };
        let mut answers = self.per_gpu.run(count, with_caller(&self.library, candidate));
        let answer = |index| {
            let (candidate, problems) = answers.remove(&index).unwrap_or_default();
            self.problems.extend(problems);
            candidate
        };
        (0..count).map(answer).collect()
    }

    /// Registers all events, or else the XIDs alone.
    fn register(&mut self, (gpu, handle, kinds): EventCandidate) -> bool {
        let Some(set) = self.set.as_ref().map(|set| set.set) else { return false };
        for kinds in [kinds, kinds & XID] {
            let mut caller = Caller::new(Arc::clone(&self.library));
            if kinds != 0 && call!(caller, nvmlDeviceRegisterEvents(handle.0, kinds, set)).is_ok() {
                self.by_handle.insert(handle.0.addr(), gpu.clone());
                self.registered.insert(gpu, handle);
                return true;
            }
            self.problems.extend(caller.finish().problems);
        }
        false
    }

    fn new_set(&mut self) -> Option<EventSet> {
        let mut caller = Caller::new(Arc::clone(&self.library));
        let set = value!(caller, nvmlEventSetCreate());
        self.problems.extend(caller.finish().problems);
        Some(EventSet { set: set?, library: Arc::clone(&self.library) })
    }

    /// Makes a new set without GPUs that are lost or refuse: NVML cannot remove one from a set. Events that the old set
    /// has not returned are lost. Returns true when a GPU was left out.
    fn rebuild(&mut self, now: Monotonic) -> bool {
        let before = mem::take(&mut self.registered);
        let old = self.set.take();
        self.set = self.new_set();
        let expected = before.len();
        for (gpu, handle) in before {
            let mut caller = Caller::new(Arc::clone(&self.library));
            if let Some(kinds) = supported(&mut caller, handle)
                && !self.is_lost_in_wait(handle)
            {
                self.register((gpu, handle, kinds));
            }
        }
        drop(old);
        let is_left_out = self.registered.len() < expected;
        if is_left_out {
            self.retries.reset();
            self.retry = Some(now + self.retries.pause());
        }
        is_left_out
    }

    /// Whether the GPU is lost for a wait on a set of it alone. No other failure counts.
    fn is_lost_in_wait(&self, handle: DeviceHandle) -> bool {
        let mut caller = Caller::new(Arc::clone(&self.library));
        let Some(set) = value!(caller, nvmlEventSetCreate()) else { return false };
        let set = EventSet { set, library: Arc::clone(&self.library) };
        let mut data = no_event();
        let _ = call!(caller, nvmlDeviceRegisterEvents(handle.0, XID, set.set));
        let _ = call!(caller, nvmlEventSetWait_v2(set.set, &raw mut data, 1));
        caller.finish().status == PassStatus::Lost
    }

    /// The result of a wait without a registered GPU: a failure where GPUs refused the registration. The event thread
    /// pauses after a wait that returns at once.
    fn without_registered(&self) -> Result<Option<RawEvent>, EventFailure> {
        let problem = CallProblem { call: "nvmlDeviceRegisterEvents", code: "none_registered" };
        self.retry.map_or(Ok(None), |_| Err(EventFailure { problem, session_over: false }))
    }

    /// The GPU of an event; queries the driver only for one that was never registered.
    fn gpu_of(&mut self, device: nvmlDevice_t) -> Option<GpuUuid> {
        if let Some(gpu) = self.by_handle.get(&device.addr()) {
            return Some(gpu.clone());
        }
        let mut caller = Caller::new(Arc::clone(&self.library));
        let uuid = inventory::uuid(&mut caller, DeviceHandle(device));
        uuid.filter(|uuid| uuid.starts_with("GPU-")).map(GpuUuid::new)
    }
}

impl EventSource for NvmlEvents {
    fn wait(&mut self, patience: Duration, now: Monotonic) -> Result<Option<RawEvent>, EventFailure> {
        if self.retry.is_some_and(|due| now >= due) {
            self.register_missing(now);
        }
        let Some(set) = self.set.as_ref().map(|set| set.set).filter(|_| !self.registered.is_empty()) else {
            return self.without_registered();
        };
        let mut caller = Caller::new(Arc::clone(&self.library));
        let mut data = no_event();
        let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(1_000).max(1);
        match call!(caller, nvmlEventSetWait_v2(set, &raw mut data, milliseconds)) {
            Ok(()) => match self.gpu_of(data.device) {
                Some(gpu) => Ok(Some(event(gpu, &data))),
                None => {
                    self.problems.push(CallProblem { call: "nvmlEventSetWait_v2", code: "unknown_device" });
                    Ok(None)
                }
            },
            Err(CallRefusal::Empty) => Ok(None),
            Err(_) => {
                let outcome = caller.finish();
                let unsupported = CallProblem { call: "nvmlEventSetWait_v2", code: "not_supported" };
                let problem = outcome.problems.last().copied().unwrap_or(unsupported);
                let session_over = outcome.status == PassStatus::SessionOver;
                if !session_over && self.rebuild(now) {
                    self.problems.push(problem);
                    return if self.registered.is_empty() { self.without_registered() } else { Ok(None) };
                }
                Err(EventFailure { problem, session_over })
            }
        }
    }

    fn gpus_changed(&mut self) {
        self.retries.reset();
        self.retry = Some(Monotonic::default());
    }

    fn problems(&mut self) -> Vec<CallProblem> {
        mem::take(&mut self.problems)
    }
}

fn candidate(caller: &mut Caller, index: u32) -> Option<EventCandidate> {
    let handle = inventory::handle(caller, index)?;
    let uuid = inventory::uuid(caller, handle)?;
    let kinds = supported(caller, handle)?;
    Some((GpuUuid::new(uuid), handle, kinds))
}

/// The events to register that the GPU supports; `Some(0)`: none.
fn supported(caller: &mut Caller, handle: DeviceHandle) -> Option<u64> {
    match fetch!(caller, 0, nvmlDeviceGetSupportedEventTypes(handle.0)) {
        Ok(kinds) => Some(kinds & REGISTERED_EVENTS),
        Err(CallRefusal::Unsupported) => Some(0),
        Err(_) => None,
    }
}

fn no_event() -> nvmlEventData_t {
    nvmlEventData_t { gpuInstanceId: WHOLE, computeInstanceId: WHOLE, ..Blank::blank() }
}

fn event(gpu: GpuUuid, data: &nvmlEventData_t) -> RawEvent {
    let kind = match data.eventType {
        // Only this type has a number.
        XID => DriverEventKind::Xid(u32::try_from(data.eventData).unwrap_or(UNKNOWN_XID)),
        MIG_CHANGE => DriverEventKind::MigChange,
        _ => DriverEventKind::Condition,
    };
    let instance = (data.gpuInstanceId != WHOLE).then(|| XidInstance {
        gpu_instance: data.gpuInstanceId,
        compute_instance: (data.computeInstanceId != WHOLE).then_some(data.computeInstanceId),
    });
    RawEvent { gpu, instance, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(kind: u64, data: u64, instances: (u32, u32)) -> RawEvent {
        let data = nvmlEventData_t {
            eventType: kind,
            eventData: data,
            gpuInstanceId: instances.0,
            computeInstanceId: instances.1,
            ..no_event()
        };
        event("GPU-a".into(), &data)
    }

    #[test]
    fn only_xid_events_have_a_code() {
        assert_eq!(decoded(8, 79, (WHOLE, WHOLE)).kind, DriverEventKind::Xid(79));
        assert_eq!(decoded(8, 1 << 40, (WHOLE, WHOLE)).kind, DriverEventKind::Xid(999));
        assert_eq!(decoded(0x100, 79, (WHOLE, WHOLE)).kind, DriverEventKind::MigChange);
        for other in [1, 2, 0x200, 0x8000, 1 << 50] {
            assert_eq!(decoded(other, 79, (WHOLE, WHOLE)).kind, DriverEventKind::Condition);
        }
    }

    #[test]
    fn all_ones_is_the_whole_gpu() {
        let instance = |instances| decoded(8, 13, instances).instance;
        assert_eq!(instance((WHOLE, WHOLE)), None);
        assert_eq!(instance((WHOLE, 0)), None);
        assert_eq!(instance((3, WHOLE)), Some(XidInstance { gpu_instance: 3, compute_instance: None }));
        assert_eq!(instance((3, 0)), Some(XidInstance { gpu_instance: 3, compute_instance: Some(0) }));
    }
}
