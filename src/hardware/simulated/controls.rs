use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::profile::{Profile, inventory, scramble};
use crate::hardware::source::{EventKind, RawEvent};
use crate::model::{GpuUuid, Inventory, Monotonic, XidInstance};

/// Changes that nobody has read yet; beyond this the oldest are folded into the integral.
const SEGMENTS: usize = 1024;
/// How long the self-running load keeps one level.
const BLOCK_SECONDS: u64 = 15;

/// What a device (or one of its GPU instances) does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// 0 to 1: share of the time in which a kernel runs.
    pub utilization: f64,
    /// 0 to 1: share of the SMs that are busy. What GPM says, and all that an instance says.
    pub sm_active: f64,
    pub memory_used: u64,
}

impl Load {
    /// A kernel that runs for `utilization` of the time, with seven of ten SMs busy while it runs.
    #[must_use]
    pub fn new(utilization: f64, memory_used: u64) -> Self {
        let utilization = utilization.clamp(0.0, 1.0);
        Self { utilization, sm_active: utilization * 0.7, memory_used }
    }
}

/// Sets what the simulated GPUs do, from any thread. Clones act on the same GPUs.
#[derive(Clone, Debug)]
pub struct Controls {
    shared: Arc<Mutex<Shared>>,
    happened: Arc<Condvar>,
}

#[derive(Debug)]
struct Shared {
    profile: Profile,
    inventory: Inventory,
    gpus: BTreeMap<GpuUuid, Simulated>,
    /// Until the first load is set the GPUs run by themselves.
    scripted: bool,
    /// Not yet heard.
    events: VecDeque<RawEvent>,
}

#[derive(Debug)]
struct Simulated {
    whole: Curve,
    instances: BTreeMap<u32, Curve>,
    processes: BTreeMap<(u32, Option<u32>), Working>,
    lost: bool,
}

/// One process on one GPU, or on one GPU instance of it.
#[derive(Debug)]
struct Working {
    curve: Curve,
    ended: Option<Monotonic>,
}

/// A process at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessState {
    pub load: Load,
    pub sums: Sums,
    /// False when it has ended since it was last read.
    pub lives: bool,
}

/// Seconds at full rate since the start: exact integrals of the load curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub busy: f64,
    pub sm_active: f64,
    /// Of the board, instances included.
    pub power_share: f64,
}

/// A GPU at one moment, with its instances.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub load: Load,
    pub sums: Sums,
    pub instances: BTreeMap<u32, (Load, Sums)>,
    /// By pid and GPU instance.
    pub processes: BTreeMap<(u32, Option<u32>), ProcessState>,
}

impl Controls {
    pub(super) fn new(profile: Profile, seed: u64) -> Self {
        let inventory = inventory(profile, seed);
        let memory = profile.model().memory_bytes;
        let gpus = inventory.gpus.iter().map(|(uuid, gpu)| {
            let seed = scramble(seed, 50_000 + u64::from(gpu.index));
            let instances = gpu.mig_devices.iter().map(|mig| {
                let memory = mig.memory_bytes.unwrap_or_default();
                (mig.gpu_instance, Curve::new(scramble(seed, u64::from(mig.gpu_instance)), memory))
            });
            let (instances, processes) = (instances.collect(), BTreeMap::new());
            (uuid.clone(), Simulated { instances, processes, whole: Curve::new(seed, memory), lost: false })
        });
        let gpus = gpus.collect();
        let shared = Shared { profile, inventory, gpus, scripted: false, events: VecDeque::new() };
        Self { shared: Arc::new(Mutex::new(shared)), happened: Arc::default() }
    }

    /// The simulated devices, lost ones included.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        self.lock().inventory.clone()
    }

    #[must_use]
    pub fn profile(&self) -> Profile {
        self.lock().profile
    }

    /// From `at` on the whole GPU does this. Calls for one GPU come in the order of time. Unknown GPUs are ignored.
    pub fn set_load(&self, gpu: &GpuUuid, at: Monotonic, load: Load) {
        let mut shared = self.lock();
        shared.script(at);
        if let Some(simulated) = shared.gpus.get_mut(gpu) {
            simulated.whole.set(at, load);
        }
    }

    /// The same for one GPU instance of a partitioned GPU.
    pub fn set_instance_load(&self, gpu: &GpuUuid, gpu_instance: u32, at: Monotonic, load: Load) {
        let mut shared = self.lock();
        shared.script(at);
        if let Some(curve) = shared.gpus.get_mut(gpu).and_then(|gpu| gpu.instances.get_mut(&gpu_instance)) {
            curve.set(at, load);
        }
    }

    /// From `at` on the process does this to the GPU, or to one GPU instance of it: its part of what `set_load` or
    /// `set_instance_load` say, so whoever sets both keeps the sum.
    pub fn set_process_load(&self, gpu: &GpuUuid, gpu_instance: Option<u32>, pid: u32, at: Monotonic, load: Load) {
        let mut shared = self.lock();
        shared.script(at);
        if let Some(simulated) = shared.gpus.get_mut(gpu) {
            let new = || Working { curve: Curve::idle(at), ended: None };
            simulated.processes.entry((pid, gpu_instance)).or_insert_with(new).curve.set(at, load);
        }
    }

    /// From `at` on the process is gone, from the GPU and all its instances.
    pub fn end_process(&self, gpu: &GpuUuid, pid: u32, at: Monotonic) {
        let mut shared = self.lock();
        let processes = shared.gpus.get_mut(gpu).into_iter().flat_map(|gpu| &mut gpu.processes);
        for (_, process) in processes.filter(|((number, _), _)| *number == pid) {
            process.curve.set(at, Load::default());
            process.ended = Some(at);
        }
    }

    /// Takes the GPUs out of their self-running load at once: all idle from `at` on, until loads are set.
    pub fn take_over(&self, at: Monotonic) {
        self.lock().script(at);
    }

    /// A lost GPU refuses every call until it is found again.
    pub fn set_lost(&self, gpu: &GpuUuid, lost: bool) {
        if let Some(simulated) = self.lock().gpus.get_mut(gpu) {
            simulated.lost = lost;
        }
    }

    /// The driver tells of an XID, on the whole GPU or on one of its instances. As with a driver, nobody hears of what
    /// happens before it is open.
    pub fn inject_xid(&self, gpu: &GpuUuid, instance: Option<XidInstance>, code: u32) {
        self.lock().events.push_back(RawEvent { gpu: gpu.clone(), instance, kind: EventKind::Xid(code) });
        self.happened.notify_all();
    }

    pub(super) fn forget_events(&self) {
        self.lock().events.clear();
    }

    pub(super) fn wait_for_event(&self, patience: Duration) -> Option<RawEvent> {
        let waited = self.happened.wait_timeout_while(self.lock(), patience, |shared| shared.events.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.events.pop_front()
    }

    pub(super) fn is_lost(&self, gpu: &GpuUuid) -> bool {
        self.lock().gpus.get(gpu).is_none_or(|simulated| simulated.lost)
    }

    /// The load at `now` and the integrals up to it, of the GPU and of each of its instances.
    pub(super) fn read(&self, gpu: &GpuUuid, now: Monotonic) -> Option<State> {
        let mut shared = self.lock();
        let gpu = shared.gpus.get_mut(gpu)?;
        let instances = gpu.instances.iter_mut().map(|(number, curve)| (*number, curve.advance(now)));
        let instances: BTreeMap<_, _> = instances.collect();
        let (load, sums) = gpu.whole.advance(now);
        let processes = gpu.processes.iter_mut().map(|(key, process)| {
            let (load, sums) = process.curve.advance(now);
            let lives = process.ended.is_none_or(|ended| ended > now);
            (*key, ProcessState { load, sums, lives })
        });
        let processes: BTreeMap<_, _> = processes.collect();
        gpu.processes.retain(|_, process| process.ended.is_none_or(|ended| ended > now));
        Some(State { load, sums, instances, processes })
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn script(&mut self, at: Monotonic) {
        if std::mem::replace(&mut self.scripted, true) {
            return;
        }
        for gpu in self.gpus.values_mut() {
            for curve in gpu.instances.values_mut().chain([&mut gpu.whole]) {
                curve.advance(at);
                curve.runs_itself = None;
                curve.load = Load::default();
            }
        }
    }
}

/// A load that changes in steps, and its integral.
#[derive(Debug)]
struct Curve {
    through: Monotonic,
    load: Load,
    sums: Sums,
    ahead: VecDeque<(Monotonic, Load)>,
    runs_itself: Option<u64>,
    memory: u64,
}

impl Curve {
    fn new(seed: u64, memory: u64) -> Self {
        let load = own_load(seed, 0, memory);
        let (ahead, sums) = (VecDeque::new(), Sums::default());
        Self { through: Monotonic::default(), load, sums, ahead, runs_itself: Some(seed), memory }
    }

    fn idle(at: Monotonic) -> Self {
        Self { through: at, load: Load::default(), runs_itself: None, ..Self::new(0, 0) }
    }

    /// A change in the past of what was read already takes effect where the reading ended.
    fn set(&mut self, at: Monotonic, load: Load) {
        if self.ahead.len() >= SEGMENTS
            && let Some((oldest, _)) = self.ahead.front().copied()
        {
            self.advance(oldest);
        }
        self.ahead.push_back((at.max(self.through), load));
    }

    fn advance(&mut self, now: Monotonic) -> (Load, Sums) {
        while let Some((at, load)) = self.next_change().filter(|(at, _)| *at <= now) {
            self.accumulate(at);
            self.load = load;
            if self.runs_itself.is_none() {
                self.ahead.pop_front();
            }
        }
        self.accumulate(now);
        (self.load, self.sums)
    }

    fn next_change(&self) -> Option<(Monotonic, Load)> {
        let Some(seed) = self.runs_itself else { return self.ahead.front().copied() };
        let block = self.through.as_duration().as_secs() / BLOCK_SECONDS + 1;
        Some((Monotonic::from_secs(block * BLOCK_SECONDS), own_load(seed, block, self.memory)))
    }

    fn accumulate(&mut self, until: Monotonic) {
        let seconds = until.since(self.through).as_secs_f64();
        self.through = self.through.max(until);
        self.sums.busy += self.load.utilization * seconds;
        self.sums.sm_active += self.load.sm_active * seconds;
        self.sums.power_share += self.load.utilization * seconds;
    }
}

/// Three of four blocks are at work, the others idle.
fn own_load(seed: u64, block: u64, memory: u64) -> Load {
    let random = scramble(seed, block / 4 + 1);
    let occupied = !random.is_multiple_of(4);
    if !occupied {
        return Load::default();
    }
    let level = 0.35 + 0.6 * ((scramble(seed, block + 7_000) % 1_000) as f64 / 1_000.0);
    let used = memory as f64 * (0.3 + 0.6 * ((random >> 20) % 1_000) as f64 / 1_000.0);
    Load::new(level, used as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet() -> (Controls, GpuUuid) {
        let controls = Controls::new(Profile::H100, 3);
        let gpu = controls.inventory().gpus.keys().next().unwrap().clone();
        (controls, gpu)
    }

    #[test]
    fn integrals_are_exact_whenever_they_are_read() {
        let (controls, gpu) = fleet();
        controls.take_over(Monotonic::default());
        for (second, utilization) in [(2, 1.0), (5, 0.5), (6, 0.0), (20, 0.25)] {
            controls.set_load(&gpu, Monotonic::from_secs(second), Load::new(utilization, 0));
        }
        let busy = |seconds| controls.read(&gpu, Monotonic::from_secs(seconds)).unwrap().sums.busy;
        assert_eq!([1, 3, 7, 24].map(busy), [0.0, 1.0, 3.5, 4.5]);
    }

    #[test]
    fn changes_that_nobody_reads_do_not_pile_up() {
        let (controls, gpu) = fleet();
        controls.take_over(Monotonic::default());
        for second in 0..5_000 {
            controls.set_load(&gpu, Monotonic::from_secs(second), Load::new(f64::from(second % 2 == 0), 0));
        }
        assert!(controls.lock().gpus[&gpu].whole.ahead.len() <= SEGMENTS);
        assert_eq!(controls.read(&gpu, Monotonic::from_secs(5_000)).unwrap().sums.busy, 2_500.0);
    }

    #[test]
    fn left_alone_the_gpus_run_by_the_seed() {
        let (controls, gpu) = fleet();
        let whole = controls.read(&gpu, Monotonic::from_secs(3_600)).unwrap();
        let (again, _) = fleet();
        for second in 0..3_600 {
            again.read(&gpu, Monotonic::from_secs(second));
        }
        let portions = again.read(&gpu, Monotonic::from_secs(3_600)).unwrap();
        assert!((whole.sums.busy - portions.sums.busy).abs() < 1e-6);
        assert!(whole.sums.busy > 360.0 && whole.sums.busy < 3_400.0, "{whole:?}");
    }
}
