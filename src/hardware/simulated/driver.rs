//! The simulated driver: the state of its GPUs, which any thread may set, and its sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::curve::{Curve, Load};
use super::profile::{SimulatedProfile, fabric_domain, inventory, scramble};
use super::reader::SimulatedReader;
use crate::domain::model::{FabricDomain, Gpu, GpuUuid, HardwareSource, Inventory, Monotonic, NodeDevices};
use crate::hardware::source::{
    CallProblem, Driver, DriverEventKind, DriverSession, EventFailure, EventSource, Failure, FailureCause, GpuReader,
    PassStatus, RawEvent,
};

/// How long the samples of an ended process are kept, as in a driver's ring.
const RING: Duration = Duration::from_secs(20);
/// The problem of every call after the driver was unloaded.
const UNLOADED: CallProblem = CallProblem { call: "simulated", code: "uninitialized" };
const LOST: CallProblem = CallProblem { call: "simulated", code: "gpu_is_lost" };

/// The longest wait for events; short, so that a session ends soon.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// The recovery action after a memory error that is not contained.
const RESET: u32 = 1;

/// Simulated GPUs behind the same traits as NVML's, with functions that set their state. Clones have the same GPUs.
#[derive(Clone, Debug)]
pub struct SimulatedDriver {
    pub(super) profile: SimulatedProfile,
    pub(super) inventory: Arc<Inventory>,
    pub(super) fabric_domain: Option<FabricDomain>,
    state: Arc<Mutex<SharedGpus>>,
    changed: Arc<Condvar>,
}

#[derive(Debug)]
struct SharedGpus {
    gpus: BTreeMap<GpuUuid, SimulatedGpu>,
    /// The events to deliver.
    events: VecDeque<RawEvent>,
    is_loaded: bool,
    /// How often the driver was loaded.
    driver_loads: u64,
}

/// A GPU at its last reading.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedGpu {
    /// The load of the whole GPU (`None`), or of each GPU instance of a partitioned one.
    pub parts: BTreeMap<Option<u32>, Curve>,
    /// The processes by PID and GPU instance.
    pub processes: BTreeMap<(u32, Option<u32>), ProcessCurve>,
    lost: bool,
    hanging: bool,
    pub recovery_action: u32,
    /// Uncorrected memory errors since the last reset.
    pub uncorrected: u64,
}

/// One process on one GPU, or on one GPU instance of it.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessCurve {
    pub curve: Curve,
    ended: Option<Monotonic>,
    /// Whether it has not ended.
    pub running: bool,
}

impl SimulatedGpu {
    /// An idle GPU.
    fn new(gpu: &Gpu) -> Self {
        let instances = gpu.mig_devices.iter().map(|mig| Some(mig.gpu_instance));
        let whole = gpu.mig_devices.is_empty().then_some(None);
        Self { parts: instances.chain(whole).map(|part| (part, Curve::default())).collect(), ..Self::default() }
    }

    /// The load of the whole GPU; `None` where it is partitioned.
    pub fn whole(&self) -> Option<&Curve> {
        self.parts.get(&None)
    }

    pub fn instances(&self) -> impl Iterator<Item = (u32, &Curve)> {
        self.parts.iter().filter_map(|(instance, curve)| Some(((*instance)?, curve)))
    }

    fn advance(&mut self, now: Monotonic) {
        self.parts.values_mut().for_each(|curve| curve.advance(now));
        for process in self.processes.values_mut() {
            process.curve.advance(now);
            process.running = process.ended.is_none_or(|ended| ended > now);
        }
    }
}

impl SimulatedDriver {
    pub fn new(profile: SimulatedProfile, seed: u64) -> Self {
        let inventory = Arc::new(inventory(profile, seed));
        let gpus = inventory.gpus.iter().map(|(uuid, gpu)| (uuid.clone(), SimulatedGpu::new(gpu))).collect();
        let state = SharedGpus { gpus, events: VecDeque::new(), is_loaded: true, driver_loads: 1 };
        Self {
            profile,
            inventory,
            fabric_domain: fabric_domain(profile, seed),
            state: Arc::new(Mutex::new(state)),
            changed: Arc::default(),
        }
    }

    /// Sets a different constant load on each whole GPU, for an agent without workloads.
    #[must_use]
    pub fn with_constant_loads(self, seed: u64) -> Self {
        for (uuid, gpu) in &self.inventory.gpus {
            let number = 50_000 + 100 * u64::from(gpu.index.unwrap_or_default());
            let level = 0.35 + 0.6 * ((scramble(seed, number) % 1_000) as f64 / 1_000.0);
            let memory_used = (gpu.memory_bytes.unwrap_or_default() as f64 * level) as u64;
            self.set_load(uuid, None, Monotonic::default(), Load::new(level, memory_used));
        }
        self
    }

    /// The simulated devices, lost ones included.
    pub fn inventory(&self) -> Inventory {
        Inventory::clone(&self.inventory)
    }

    /// The GPUs on the PCI bus.
    #[must_use]
    pub fn node_devices(&self) -> NodeDevices {
        NodeDevices { expected: self.profile.machine.positions.len(), ..NodeDevices::default() }
    }

    /// Sets the load of the whole GPU, or of one GPU instance of a partitioned one, from `at` on. Calls for one GPU
    /// must be in the order of time. Unknown GPUs are ignored.
    pub fn set_load(&self, gpu: &GpuUuid, gpu_instance: Option<u32>, at: Monotonic, load: Load) {
        self.change(gpu, |gpu| {
            if let Some(curve) = gpu.parts.get_mut(&gpu_instance) {
                curve.set(at, load);
            }
        });
    }

    /// Sets the load of a process on the GPU, or on one GPU instance, from `at` on. It is a part of the load of
    /// `set_load`: the caller keeps the sum.
    pub fn set_process_load(&self, gpu: &GpuUuid, gpu_instance: Option<u32>, pid: u32, at: Monotonic, load: Load) {
        self.change(gpu, |gpu| {
            let new = || ProcessCurve { curve: Curve::new(at, Load::default()), ..ProcessCurve::default() };
            gpu.processes.entry((pid, gpu_instance)).or_insert_with(new).curve.set(at, load);
        });
    }

    /// Ends the process at `at`, on the GPU and all its instances.
    pub fn end_process(&self, gpu: &GpuUuid, pid: u32, at: Monotonic) {
        self.change(gpu, |gpu| {
            for (_, process) in gpu.processes.iter_mut().filter(|((number, _), _)| *number == pid) {
                process.curve.set(at, Load::default());
                process.ended = Some(at);
            }
        });
    }

    /// Makes a GPU that fell off the bus (XID 79) answer again, once the driver is loaded again.
    pub fn put_back_on_bus(&self, gpu: &GpuUuid) {
        self.change(gpu, |gpu| gpu.lost = false);
    }

    /// Makes calls on the GPU block, or no longer block.
    pub fn set_hanging(&self, gpu: &GpuUuid, hanging: bool) {
        self.change(gpu, |gpu| gpu.hanging = hanging);
    }

    /// Clears the GPU's memory errors and its recovery action, and sends an event.
    pub fn reset(&self, gpu: &GpuUuid) {
        self.change(gpu, |gpu| (gpu.recovery_action, gpu.uncorrected) = (0, 0));
        self.send(gpu, DriverEventKind::Condition, 1);
    }

    /// Loads or unloads the driver. Unloaded, it ends its sessions and refuses new ones.
    pub fn set_driver_loaded(&self, loaded: bool) {
        let mut state = self.state.lock();
        if loaded && !state.is_loaded {
            state.driver_loads += 1;
        }
        state.is_loaded = loaded;
        self.changed.notify_all();
    }

    /// Sends an XID of the GPU, `count` times, and applies its effect: off the bus, so that every call fails, or memory
    /// errors, which need a reset.
    pub fn inject_xids(&self, gpu: &GpuUuid, code: u32, count: u64) {
        self.change(gpu, |gpu| match code {
            79 => gpu.lost = true,
            48 => (gpu.recovery_action, gpu.uncorrected) = (RESET, gpu.uncorrected + count),
            _ => {}
        });
        self.send(gpu, DriverEventKind::Xid(code), count);
    }

    fn change(&self, gpu: &GpuUuid, change: impl FnOnce(&mut SimulatedGpu)) {
        self.state.lock().gpus.get_mut(gpu).map(change);
        self.changed.notify_all();
    }

    fn send(&self, gpu: &GpuUuid, kind: DriverEventKind, count: u64) {
        let event = RawEvent { gpu: gpu.clone(), instance: None, kind };
        self.state.lock().events.extend(std::iter::repeat_n(event, count as usize));
        self.changed.notify_all();
    }

    /// The load of the whole GPU and its integral at `now`, for another GPU's reader; does not change the next `read`.
    pub(super) fn load_at(&self, gpu: &GpuUuid, now: Monotonic) -> Option<Curve> {
        let mut curve = self.state.lock().gpus.get(gpu)?.whole()?.clone();
        curve.advance(now);
        Some(curve)
    }
}

impl Driver for SimulatedDriver {
    fn source(&self) -> HardwareSource {
        HardwareSource::Simulated
    }

    fn open(&mut self) -> Result<Box<dyn DriverSession>, Failure> {
        let state = self.state.lock();
        if state.is_loaded {
            return Ok(Box::new(SimulatedSession { number: state.driver_loads, driver: self.clone() }));
        }
        Err(Failure {
            problem: CallProblem { call: UNLOADED.call, code: "driver_not_loaded" },
            cause: FailureCause::DriverNotLoaded,
            reason: "the simulated driver is not loaded".to_owned(),
            remedy: "podmeter keeps retrying",
        })
    }
}

/// A session, valid until the driver is unloaded.
#[derive(Clone)]
pub(super) struct SimulatedSession {
    /// How often the driver had been loaded when the session began.
    number: u64,
    pub driver: SimulatedDriver,
}

impl SimulatedSession {
    fn is_over(&self, state: &SharedGpus) -> bool {
        !state.is_loaded || self.number != state.driver_loads
    }

    /// The GPU with its loads at `now` and their integrals up to it. Blocks while the GPU hangs.
    pub fn read(&self, gpu: &GpuUuid, now: Monotonic) -> Result<SimulatedGpu, (PassStatus, CallProblem)> {
        let mut state = self.driver.state.lock();
        let hangs = |state: &mut SharedGpus| state.gpus.get(gpu).is_some_and(|gpu| gpu.hanging);
        self.driver.changed.wait_while(&mut state, hangs);
        if self.is_over(&state) {
            return Err((PassStatus::SessionOver, UNLOADED));
        }
        let gpu = state.gpus.get_mut(gpu).filter(|gpu| !gpu.lost).ok_or((PassStatus::Lost, LOST))?;
        gpu.advance(now);
        let reading = gpu.clone();
        gpu.processes.retain(|_, process| process.ended.is_none_or(|ended| now.since(ended) < RING));
        Ok(reading)
    }
}

impl DriverSession for SimulatedSession {
    fn inventory(&self) -> Result<(Inventory, Vec<CallProblem>), Failure> {
        Ok((self.driver.inventory(), Vec::new()))
    }

    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure> {
        Ok(Box::new(SimulatedReader::new(self.clone(), gpu)))
    }

    fn layout_changed(&self) -> Result<bool, CallProblem> {
        Ok(false)
    }

    fn node_devices(&self) -> Option<NodeDevices> {
        Some(self.driver.node_devices())
    }

    /// Earlier events are lost, as with a real driver.
    fn events(&self) -> Option<Box<dyn EventSource>> {
        self.driver.state.lock().events.clear();
        Some(Box::new(self.clone()))
    }
}

impl EventSource for SimulatedSession {
    fn wait(&mut self, patience: Duration, _now: Monotonic) -> Result<Option<RawEvent>, EventFailure> {
        let quiet = |state: &mut SharedGpus| state.events.is_empty() && !self.is_over(state);
        let mut state = self.driver.state.lock();
        self.driver.changed.wait_while_for(&mut state, quiet, patience.min(LONGEST_WAIT));
        if self.is_over(&state) {
            return Err(EventFailure { problem: UNLOADED, session_over: true });
        }
        Ok(state.events.pop_front())
    }
}
