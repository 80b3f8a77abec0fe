//! Sets and reads the state of the simulated GPUs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::curve::{Curve, Load, LoadSums};
use super::profile::{SimulatedProfile, fabric_domain, inventory, node_devices, scramble};
use crate::domain::model::{FabricDomain, GpuUuid, Inventory, MigDevice, Monotonic, NodeDevices, XidInstance};
use crate::node::hardware::source::{CallProblem, DriverEventKind, EventFailure, Failure, PassStatus, RawEvent};

/// The problem of every call after the driver was unloaded.
pub(super) const UNLOADED: CallProblem = CallProblem { call: "simulated", code: "uninitialized" };

/// The recovery action after a memory error that is not contained.
const RESET: u32 = 1;

/// Controls the simulated GPUs, from any thread. Clones control the same GPUs.
#[derive(Clone, Debug)]
pub struct Controls {
    shared: Arc<Mutex<SharedGpus>>,
    changed: Arc<Condvar>,
}

#[derive(Debug)]
struct SharedGpus {
    profile: SimulatedProfile,
    inventory: Inventory,
    fabric_domain: Option<FabricDomain>,
    gpus: BTreeMap<GpuUuid, SimulatedGpu>,
    /// Until the first load is set each GPU has a constant one.
    scripted: bool,
    /// Events to deliver.
    events: VecDeque<RawEvent>,
    loaded: bool,
    /// How often the driver was loaded.
    loads: u64,
}

#[derive(Debug)]
struct SimulatedGpu {
    whole: Curve,
    instances: BTreeMap<u32, Curve>,
    processes: BTreeMap<(u32, Option<u32>), ProcessCurve>,
    lost: bool,
    hanging: bool,
    recovery_action: u32,
    /// Memory errors since the last reset.
    uncorrected: u64,
}

/// One process on one GPU, or on one GPU instance of it.
#[derive(Debug)]
struct ProcessCurve {
    curve: Curve,
    ended: Option<Monotonic>,
}

/// A process at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessLoad {
    pub load: Load,
    pub sums: LoadSums,
    /// False when it has ended since the last reading.
    pub running: bool,
}

/// A GPU at one moment, with its instances.
#[derive(Clone, Debug)]
pub(super) struct GpuLoad {
    pub load: Load,
    pub sums: LoadSums,
    pub instances: BTreeMap<u32, (Load, LoadSums)>,
    /// By pid and GPU instance.
    pub processes: BTreeMap<(u32, Option<u32>), ProcessLoad>,
}

impl Controls {
    pub(super) fn new(profile: SimulatedProfile, seed: u64) -> Self {
        let inventory = inventory(profile, seed);
        let curve = |number, memory: Option<u64>| {
            let level = 0.35 + 0.6 * ((scramble(seed, number) % 1_000) as f64 / 1_000.0);
            Curve::new(Monotonic::default(), Load::new(level, (memory.unwrap_or_default() as f64 * level) as u64))
        };
        let gpus = inventory.gpus.iter().map(|(uuid, gpu)| {
            let number = 50_000 + 100 * u64::from(gpu.index.unwrap_or_default());
            let instance =
                |mig: &MigDevice| (mig.gpu_instance, curve(number + u64::from(mig.gpu_instance), mig.memory_bytes));
            let simulated = SimulatedGpu {
                instances: gpu.mig_devices.iter().map(instance).collect(),
                processes: BTreeMap::new(),
                whole: curve(number, gpu.memory_bytes),
                lost: false,
                hanging: false,
                recovery_action: 0,
                uncorrected: 0,
            };
            (uuid.clone(), simulated)
        });
        let gpus = gpus.collect();
        let shared = SharedGpus {
            profile,
            inventory,
            fabric_domain: fabric_domain(profile, seed),
            gpus,
            scripted: false,
            events: VecDeque::new(),
            loaded: true,
            loads: 1,
        };
        Self { shared: Arc::new(Mutex::new(shared)), changed: Arc::default() }
    }

    /// The simulated devices, lost ones included.
    pub fn inventory(&self) -> Inventory {
        self.lock().inventory.clone()
    }

    /// The GPUs on the PCI bus.
    #[must_use]
    pub fn node_devices(&self) -> NodeDevices {
        node_devices(self.lock().profile)
    }

    pub fn profile(&self) -> SimulatedProfile {
        self.lock().profile
    }

    /// Sets the load of the whole GPU, or of one GPU instance of a partitioned one, from `at` on. Calls for one GPU are
    /// in the order of time. Unknown GPUs are ignored.
    pub fn set_load(&self, gpu: &GpuUuid, gpu_instance: Option<u32>, at: Monotonic, load: Load) {
        let mut shared = self.lock();
        shared.script(at);
        let Some(simulated) = shared.gpus.get_mut(gpu) else { return };
        let curve = match gpu_instance {
            Some(gpu_instance) => simulated.instances.get_mut(&gpu_instance),
            None => Some(&mut simulated.whole),
        };
        if let Some(curve) = curve {
            curve.set(at, load);
        }
    }

    /// Sets the load of a process on the GPU, or on one GPU instance, from `at` on. It is a part of the load of
    /// `set_load`: the caller keeps the sum.
    pub fn set_process_load(&self, gpu: &GpuUuid, gpu_instance: Option<u32>, pid: u32, at: Monotonic, load: Load) {
        let mut shared = self.lock();
        shared.script(at);
        if let Some(simulated) = shared.gpus.get_mut(gpu) {
            let new = || ProcessCurve { curve: Curve::new(at, Load::default()), ended: None };
            simulated.processes.entry((pid, gpu_instance)).or_insert_with(new).curve.set(at, load);
        }
    }

    /// Ends the process at `at`, on the GPU and all its instances.
    pub fn end_process(&self, gpu: &GpuUuid, pid: u32, at: Monotonic) {
        let mut shared = self.lock();
        let processes = shared.gpus.get_mut(gpu).into_iter().flat_map(|gpu| &mut gpu.processes);
        for (_, process) in processes.filter(|((number, _), _)| *number == pid) {
            process.curve.set(at, Load::default());
            process.ended = Some(at);
        }
    }

    /// Ends the constant load: all GPUs are idle from `at` on, until loads are set.
    pub fn set_idle(&self, at: Monotonic) {
        self.lock().script(at);
    }

    /// Every call to a lost GPU fails.
    pub fn set_lost(&self, gpu: &GpuUuid, lost: bool) {
        self.change(gpu, |simulated| simulated.lost = lost);
    }

    /// Calls on a hanging GPU block.
    pub fn set_hanging(&self, gpu: &GpuUuid, hanging: bool) {
        self.change(gpu, |simulated| simulated.hanging = hanging);
    }

    /// Sets the recovery action (NVML field 230; 0 is none, after a reset), with an event.
    pub fn set_recovery_action(&self, gpu: &GpuUuid, action: u32) {
        self.change(gpu, |simulated| {
            simulated.recovery_action = action;
            simulated.uncorrected *= u64::from(action != 0);
        });
        self.send(RawEvent { gpu: gpu.clone(), instance: None, kind: DriverEventKind::Condition }, 1);
    }

    /// An unloaded driver ends its sessions and refuses new ones until it is loaded.
    pub fn set_driver_loaded(&self, loaded: bool) {
        let mut shared = self.lock();
        if loaded && !shared.loaded {
            shared.loads += 1;
        }
        shared.loaded = loaded;
        self.changed.notify_all();
    }

    /// Sends an XID of the whole GPU or of one of its instances, repeated, with what it means for the GPU: off the bus, or
    /// with memory errors, which need a reset unless they are contained. As with a driver, events before its opening are
    /// lost.
    pub fn inject_xids(&self, gpu: &GpuUuid, instance: Option<XidInstance>, code: u32, count: u64) {
        self.change(gpu, |simulated| match code {
            79 => simulated.lost = true,
            48 | 94 | 95 => {
                simulated.uncorrected += count;
                simulated.recovery_action = if code == 94 { simulated.recovery_action } else { RESET };
            }
            _ => {}
        });
        self.send(RawEvent { gpu: gpu.clone(), instance, kind: DriverEventKind::Xid(code) }, count);
    }

    fn change(&self, gpu: &GpuUuid, change: impl FnOnce(&mut SimulatedGpu)) {
        self.lock().gpus.get_mut(gpu).map(change);
        self.changed.notify_all();
    }

    fn send(&self, event: RawEvent, count: u64) {
        self.lock().events.extend(std::iter::repeat_n(event, count as usize));
        self.changed.notify_all();
    }

    /// The number of a new session, valid until the driver is unloaded.
    pub(super) fn open(&self) -> Result<u64, Failure> {
        let shared = self.lock();
        if shared.loaded {
            return Ok(shared.loads);
        }
        Err(Failure {
            call: UNLOADED.call,
            code: "driver_not_loaded",
            reason: "the simulated driver is not loaded".to_owned(),
            remedy: "podmeter keeps retrying",
        })
    }

    pub(super) fn is_over(&self, session: u64) -> bool {
        self.lock().is_over(session)
    }

    pub(super) fn clear_events(&self) {
        self.lock().events.clear();
    }

    pub(super) fn wait_for_event(&self, session: u64, patience: Duration) -> Result<Option<RawEvent>, EventFailure> {
        let quiet = |shared: &mut SharedGpus| shared.events.is_empty() && !shared.is_over(session);
        let mut shared = self.lock();
        self.changed.wait_while_for(&mut shared, quiet, patience);
        if shared.is_over(session) {
            return Err(EventFailure { problem: UNLOADED, status: PassStatus::SessionOver });
        }
        Ok(shared.events.pop_front())
    }

    /// Blocks while the GPU hangs.
    pub(super) fn wait_while_hanging(&self, gpu: &GpuUuid) {
        let hangs = |shared: &mut SharedGpus| shared.gpus.get(gpu).is_some_and(|simulated| simulated.hanging);
        self.changed.wait_while(&mut self.lock(), hangs);
    }

    /// The recovery action, and the uncorrected memory errors.
    pub(super) fn faults(&self, gpu: &GpuUuid) -> Option<(u32, u64)> {
        self.lock().gpus.get(gpu).map(|simulated| (simulated.recovery_action, simulated.uncorrected))
    }

    /// The load at `now` and the integrals up to it, of the GPU and of each of its instances; `None` while it is lost.
    pub(super) fn read(&self, gpu: &GpuUuid, now: Monotonic) -> Option<GpuLoad> {
        let mut shared = self.lock();
        let gpu = shared.gpus.get_mut(gpu).filter(|gpu| !gpu.lost)?;
        let instances = gpu.instances.iter_mut().map(|(number, curve)| (*number, curve.advance(now)));
        let instances: BTreeMap<_, _> = instances.collect();
        let (load, sums) = gpu.whole.advance(now);
        let processes = gpu.processes.iter_mut().map(|(key, process)| {
            let (load, sums) = process.curve.advance(now);
            let running = process.ended.is_none_or(|ended| ended > now);
            (*key, ProcessLoad { load, sums, running })
        });
        let processes: BTreeMap<_, _> = processes.collect();
        gpu.processes.retain(|_, process| process.ended.is_none_or(|ended| ended > now));
        Some(GpuLoad { load, sums, instances, processes })
    }

    /// The load of the whole GPU at `now` and its integral, for another GPU's reader. Does not change the next `read`.
    pub(super) fn load_at(&self, gpu: &GpuUuid, now: Monotonic) -> Option<(Load, LoadSums)> {
        Some(self.lock().gpus.get(gpu)?.whole.clone().advance(now))
    }

    pub(super) fn fabric_domain(&self) -> Option<FabricDomain> {
        self.lock().fabric_domain.clone()
    }

    fn lock(&self) -> MutexGuard<'_, SharedGpus> {
        self.shared.lock()
    }
}

impl SharedGpus {
    fn is_over(&self, session: u64) -> bool {
        !self.loaded || session != self.loads
    }

    fn script(&mut self, at: Monotonic) {
        if std::mem::replace(&mut self.scripted, true) {
            return;
        }
        for gpu in self.gpus.values_mut() {
            for curve in gpu.instances.values_mut().chain([&mut gpu.whole]) {
                curve.set_idle(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> (Controls, GpuUuid) {
        let controls = Controls::new(SimulatedProfile::H100, 3);
        let gpu = controls.inventory().gpus.keys().next().unwrap().clone();
        (controls, gpu)
    }

    #[test]
    fn integrals_are_exact_whenever_they_are_read() {
        let (controls, gpu) = fleet();
        controls.set_idle(Monotonic::default());
        for (second, utilization) in [(2, 1.0), (5, 0.5), (6, 0.0), (20, 0.25)] {
            controls.set_load(&gpu, None, Monotonic::from_secs(second), Load::new(utilization, 0));
        }
        let busy = |seconds| controls.read(&gpu, Monotonic::from_secs(seconds)).unwrap().sums.busy;
        assert_eq!([1, 3, 7, 24].map(busy), [0.0, 1.0, 3.5, 4.5]);
    }
}
