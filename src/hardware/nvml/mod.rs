//! The driver's library, loaded at run time.
//!
//! In: where to search for `libnvidia-ml.so.1`. Out: the traits of `source`. Does not use: the supervisor or
//! publication, and blocks as long as the driver does. Numbers are from `nvml.h` of 13.5.

#![allow(unsafe_code, reason = "NVML is a C library; each block has its reason")]
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of `Device` is of one lifetime, a closure of any"
)]

mod calls;
mod codes;
mod events;
mod gpm;
mod inventory;
mod library;
mod medium;
mod memory;
mod module_power;
pub(super) mod nvlink;
mod per_gpu_query;
mod platform;
mod process_use;
mod processes;
mod reader;
mod rows;
mod samples;
mod slow;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub use library::LibrarySearch;

use self::calls::Caller;
use self::events::NvmlEvents;
use self::inventory::{GpuLayout, NodeLayout};
use self::library::{Library, Loaded, Statistics};
use self::per_gpu_query::{PerGpuQuery, with_caller};
use self::reader::NvmlReader;
use super::source::{CallDurations, CallProblem, Driver, DriverSession, EventSource, Failure, GpuReader, PassStatus};
use crate::clock::Clock;
use crate::domain::model::{Gpu, GpuUuid, HardwareSource, Inventory};

const IMPLAUSIBLE_COUNT: CallProblem = CallProblem { call: "nvmlDeviceGetCount_v2", code: "implausible" };

/// NVML, searched for at each opening: drivers may be installed, removed or replaced while the agent runs.
pub struct NvmlDriver {
    search: LibrarySearch,
    /// The library that is loaded and not opened yet.
    loaded: Option<Loaded>,
    statistics: Arc<Statistics>,
    /// Lists the GPUs. Like `event_queries`, it outlives a session, so that no session queries a GPU whose call hangs since
    /// an earlier one.
    list_queries: PerGpuQuery,
    /// Queries which GPUs to register for events; separate, so that such a query makes no list incomplete.
    event_queries: PerGpuQuery,
}

/// Ends the process at once. A usual exit runs the driver library's exit handlers, which block without limit in a
/// driver that hangs.
pub fn end_process(code: u8) -> ! {
    // SAFETY: as POSIX declares it; it takes a number and touches no memory.
    unsafe extern "C" {
        safe fn _exit(status: std::ffi::c_int) -> !;
    }
    _exit(code.into())
}

impl NvmlDriver {
    /// A driver that is not loaded yet. Calls are timed if there is a clock.
    pub fn new(search: LibrarySearch, clock: Option<Clock>) -> Self {
        let statistics = Arc::new(Statistics::new(clock));
        let (list_queries, event_queries) = Default::default();
        Self { search, loaded: None, statistics, list_queries, event_queries }
    }
}

impl Driver for NvmlDriver {
    fn source(&self) -> HardwareSource {
        HardwareSource::Nvml
    }

    fn call_durations(&self) -> Option<CallDurations> {
        let statistics = Arc::clone(&self.statistics);
        statistics.durations()?;
        Some(Arc::new(move || statistics.durations().unwrap_or_default()))
    }

    fn load(&mut self) -> Result<(), Failure> {
        self.loaded = Some(Loaded::find(&self.search)?);
        Ok(())
    }

    fn open(&mut self) -> Result<Box<dyn DriverSession>, Failure> {
        let loaded = self.loaded.take().map_or_else(|| Loaded::find(&self.search), Ok)?;
        let library = loaded.initialise(Arc::clone(&self.statistics))?;
        let (layout, driver_version) = (Mutex::default(), Mutex::default());
        let (list_queries, event_queries) = (self.list_queries.clone(), self.event_queries.clone());
        Ok(Box::new(NvmlSession { library, layout, driver_version, list_queries, event_queries }))
    }
}

/// The GPUs by UUID, without those whose UUID several GPUs have; and these UUIDs with the GPUs' indexes. Readings,
/// device IDs and containers identify a GPU by its UUID alone.
fn without_duplicates(found: Vec<Gpu>) -> (BTreeMap<GpuUuid, Gpu>, BTreeMap<GpuUuid, Vec<u32>>) {
    let mut indices: BTreeMap<GpuUuid, Vec<u32>> = BTreeMap::new();
    for gpu in &found {
        indices.entry(gpu.uuid.clone()).or_default().extend(gpu.index);
    }
    indices.retain(|_, indices| indices.len() > 1);
    let unique = found.into_iter().filter(|gpu| !indices.contains_key(&gpu.uuid));
    (unique.map(|gpu| (gpu.uuid.clone(), gpu)).collect(), indices)
}

struct NvmlSession {
    library: Arc<Library>,
    /// The layout of the last inventory.
    layout: Mutex<NodeLayout>,
    driver_version: Mutex<Option<Arc<str>>>,
    list_queries: PerGpuQuery,
    event_queries: PerGpuQuery,
}

impl DriverSession for NvmlSession {
    fn inventory(&self) -> Result<(Inventory, Vec<CallProblem>), Failure> {
        let mut caller = Caller::new(Arc::clone(&self.library));
        let driver = inventory::driver(&mut caller);
        let count = inventory::count(&mut caller);
        let outcome = caller.finish();
        let Some(count) = count.filter(|_| outcome.status != PassStatus::SessionOver) else {
            let problem = outcome.problems.last().copied().unwrap_or(IMPLAUSIBLE_COUNT);
            let CallProblem { call, code } = problem;
            let reason = format!("the driver does not list its GPUs: {call} returned {code}");
            return Err(codes::failure(problem, reason, codes::SEE_NVIDIA_SMI));
        };
        *self.driver_version.lock() = driver.as_ref().map(|driver| Arc::clone(&driver.driver_version));
        let mut problems = outcome.problems;
        let mut found = Vec::new();
        let mut layout = NodeLayout::new();
        let before = self.layout.lock().clone();
        let stuck = CallProblem { call: "nvmlDeviceGetHandleByIndex_v2", code: "stuck" };
        let mut answers = self.list_queries.run(count, with_caller(&self.library, inventory::gpu));
        for index in 0..count {
            let (gpu, refused) = answers.remove(&index).unwrap_or_else(|| (None, vec![stuck]));
            problems.extend(refused);
            let gpu_layout = match gpu.as_ref().filter(|gpu| gpu.present) {
                Some(gpu) => Some(GpuLayout {
                    gpu: gpu.uuid.clone(),
                    mig_enabled: gpu.mig_enabled,
                    mig_devices: gpu.mig_devices.iter().map(|mig| (mig.index, mig.uuid.clone())).collect(),
                }),
                None => before.get(&index).cloned().flatten(),
            };
            layout.insert(index, gpu_layout);
            found.extend(gpu);
        }
        let (gpus, duplicate_uuids) = without_duplicates(found);
        let duplicate = CallProblem { call: "nvmlDeviceGetUUID", code: "duplicate_uuid" };
        problems.extend(duplicate_uuids.iter().map(|_| duplicate));
        *self.layout.lock() = layout;
        Ok((Inventory { driver, gpus, duplicate_uuids, ..Inventory::default() }, problems))
    }

    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure> {
        let at = |(index, known): (&u32, &Option<GpuLayout>)| (known.as_ref()?.gpu == *gpu).then_some(*index);
        let layout = self.layout.lock().clone();
        let indices: Vec<u32> = layout.iter().filter_map(at).collect();
        let [index] = indices[..] else {
            // A listed GPU that does not return its UUID may be this one.
            let may_be_lost = indices.is_empty() && layout.values().any(Option::is_none);
            let code = if may_be_lost { "gpu_is_lost" } else { "not_found" };
            let problem = CallProblem { call: "nvmlDeviceGetHandleByIndex_v2", code };
            let reason = format!("the driver lists {gpu} {} times", indices.len());
            return Err(codes::failure(problem, reason, codes::SEE_KERNEL_LOG));
        };
        Ok(Box::new(NvmlReader::new(&self.library, gpu, index)?))
    }

    fn layout_changed(&self) -> Result<bool, CallProblem> {
        let mut caller = Caller::new(Arc::clone(&self.library));
        let driver = inventory::driver_version(&mut caller);
        let known = self.driver_version.lock().clone();
        if driver.is_some() && driver != known {
            return Ok(true);
        }
        let Some(count) = inventory::count(&mut caller) else {
            return Err(caller.finish().problems.last().copied().unwrap_or(IMPLAUSIBLE_COUNT));
        };
        let mut answers = self.list_queries.run(count, with_caller(&self.library, inventory::gpu_layout));
        let before = self.layout.lock();
        // A GPU that stops answering is handled by its reader; one that begins to answer is a change.
        let mut gpu_layout =
            |index| answers.remove(&index).and_then(|(layout, _)| layout).or_else(|| before.get(&index)?.clone());
        let now: NodeLayout = (0..count).map(|index| (index, gpu_layout(index))).collect();
        Ok(now != *before)
    }

    fn events(&self) -> Option<Box<dyn EventSource>> {
        Some(Box::new(NvmlEvents::new(&self.library, self.event_queries.clone())))
    }

    fn open_marker(&self) -> Option<Weak<()>> {
        Some(Arc::downgrade(&self.library.open_marker))
    }
}
