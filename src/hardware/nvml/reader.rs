//! Reads one GPU with NVML: the tiers of a pass, and what the fast tier reads.

use std::cell::OnceCell;
use std::sync::Arc;

use super::calls::Caller;
use super::codes;
use super::gpm::{Gpm, InstanceUse};
use super::inventory::{self, Mig, mig_enabled, mig_handles};
use super::library::{DeviceHandle, Library};
use super::medium::MediumReader;
use super::module_power::ModulePower;
use super::process_use::ProcessUse;
use super::processes::ProcessLists;
use super::samples::Ring;
use super::slow::SlowReader;
use crate::domain::model::{DeviceProcess, Fast, GpuUuid, Medium, Moment, Monotonic};
use crate::hardware::plausible::{self, Work};
use crate::hardware::source::{CallProblem, Failure, FailureCause, GpuReader, Integrals, Pass, PassStatus};
use crate::hardware::tiers::{Due, Tier};

const BY_INDEX: &str = "nvmlDeviceGetHandleByIndex_v2";
const GPU_POWER: u32 = 0;
const GPU_UTILIZATION: u32 = 1;
const MEMORY_UTILIZATION: u32 = 2;
const RATES: &str = "nvmlDeviceGetUtilizationRates";
const ENERGY_COUNTER: &str = "nvmlDeviceGetTotalEnergyConsumption";

/// The state to read one GPU, made for each generation of handles.
pub struct NvmlReader {
    caller: Caller,
    handle: DeviceHandle,
    migs: Vec<Mig>,
    fast: FastReader,
    instances: Option<InstanceUse>,
    medium: MediumReader,
    slow: SlowReader,
    processes: ProcessLists,
    work: Work,
    power_limit_watts: Option<f64>,
    memory_bytes: Option<u64>,
    /// The time of the last pass of the fast tier.
    last: Option<Monotonic>,
}

impl NvmlReader {
    /// A reader of the GPU at this index of the inventory. It is never searched by its UUID: the driver may initialise
    /// other GPUs for that, and hang in one of them.
    pub fn new(library: &Arc<Library>, gpu: &GpuUuid, index: u32) -> Result<Self, Failure> {
        let mut caller = Caller::new(Arc::clone(library));
        let handle = inventory::handle(&mut caller, index);
        let found = handle.and_then(|handle| Some((handle, inventory::uuid(&mut caller, handle)?)));
        let Some((handle, uuid)) = found else {
            let not_found = CallProblem { call: BY_INDEX, code: "not_found" };
            let problem = caller.finish().problems.first().copied().unwrap_or(not_found);
            return Err(codes::failure(problem, format!("{gpu} does not answer"), codes::SEE_KERNEL_LOG));
        };
        if *uuid != *gpu.as_str() {
            return Err(Failure {
                problem: CallProblem { call: BY_INDEX, code: "other_gpu_at_index" },
                cause: FailureCause::OtherGpuAtIndex,
                reason: format!("the driver's order of GPUs has changed: index {index} was {gpu} and is {uuid}"),
                remedy: "the driver is opened again and its GPUs are listed again",
            });
        }
        let is_partitioned = mig_enabled(&mut caller, handle) == Some(true);
        let migs = if is_partitioned { mig_handles(&mut caller, handle) } else { Vec::new() };
        let version = inventory::driver_version(&mut caller);
        let gpm = Gpm::new(&mut caller, handle, &migs);
        let instances = InstanceUse::new(&mut caller, handle, &migs);
        caller.forget_success();
        Ok(Self {
            fast: FastReader::default(),
            instances,
            medium: MediumReader::new(version.as_deref(), gpm),
            slow: SlowReader::default(),
            processes: ProcessLists::new(version.as_deref()),
            work: Work::default(),
            power_limit_watts: None,
            memory_bytes: None,
            caller,
            handle,
            migs,
            last: None,
        })
    }
}

impl GpuReader for NvmlReader {
    fn read(&mut self, due: &Due, now: Moment) -> Pass {
        let mut pass = Pass::default();
        if due.contains(&Tier::Slow) {
            pass.slow = Some(self.slow.read(&mut self.caller, self.handle));
        }
        if due.contains(&Tier::Fast) {
            pass.fast = Some(self.read_fast(now.monotonic, &mut pass));
        }
        if due.contains(&Tier::Medium) {
            pass.medium = Some(self.read_medium(now.monotonic, &mut pass.integrals));
        }
        let listed = match &mut pass.medium {
            Some(medium) => {
                medium.processes = self.processes();
                medium.processes.clone()
            }
            None if due.contains(&Tier::Processes) => self.processes(),
            None => None,
        };
        pass.pids = listed.map(|listed| listed.iter().map(|process| process.pid).collect());
        if pass.slow.is_none() && pass.fast.is_none() && pass.medium.is_none() {
            // A list of processes alone may fail: that does not show that the GPU is lost.
            self.caller.forget_success();
        }
        let outcome = self.caller.finish();
        if outcome.status != PassStatus::Answers {
            return outcome;
        }
        if pass.fast.is_some() {
            self.last = Some(now.monotonic);
        }
        let Pass { problems, implausible, .. } = outcome;
        Pass { problems, implausible, ..pass }
    }
}

impl NvmlReader {
    fn read_fast(&mut self, now: Monotonic, pass: &mut Pass) -> Fast {
        let elapsed = self.last.map_or(0.0, |last| now.since(last).as_secs_f64());
        let mut fast = self.fast.read(&mut self.caller, self.handle, elapsed, pass);
        if let Some(instances) = &mut self.instances {
            let power = [fast.power_watts, self.power_limit_watts];
            pass.integrals.instance_busy_seconds = instances.advance(&mut self.caller, self.handle, now, power);
            fast.instance_utilization_ratios = instances.ratios.clone();
        }
        self.work.add(pass.integrals.busy_seconds, elapsed);
        fast
    }

    fn read_medium(&mut self, now: Monotonic, integrals: &mut Integrals) -> Medium {
        let is_busy = self.work.is_busy();
        let works = self.instances.as_ref().map_or(is_busy, |instances| instances.is_contradicted);
        let mut medium = self.medium.read(&mut self.caller, self.handle, &self.migs, now, works, integrals);
        self.power_limit_watts = medium.power_limit_watts;
        self.memory_bytes = medium.memory.map(|memory| memory.total);
        medium.rates.memory_utilization_ratio = self.fast.memory_utilization_ratio;
        medium.process_utilization_source = self.fast.processes.source().map(Into::into);
        medium
    }

    fn processes(&mut self) -> Option<Vec<DeviceProcess>> {
        self.processes.read(&mut self.caller, self.handle, &self.migs, self.memory_bytes)
    }
}

/// Reads utilization of the GPU and by process, power and energy: five calls where all are supported, six on a module.
struct FastReader {
    busy: Ring,
    memory_busy: Ring,
    power: Ring,
    module: ModulePower,
    processes: ProcessUse,
    /// The memory utilization in the last sample.
    memory_utilization_ratio: Option<f64>,
}

impl Default for FastReader {
    fn default() -> Self {
        Self {
            busy: Ring::utilization(GPU_UTILIZATION),
            memory_busy: Ring::utilization(MEMORY_UTILIZATION),
            power: Ring::power(GPU_POWER),
            module: ModulePower::default(),
            processes: ProcessUse::default(),
            memory_utilization_ratio: None,
        }
    }
}

impl FastReader {
    fn read(&mut self, caller: &mut Caller, handle: DeviceHandle, elapsed: f64, pass: &mut Pass) -> Fast {
        let integrals = &mut pass.integrals;
        // One call serves both fallbacks, and is made only when one is needed.
        let rates = OnceCell::new();
        let rates = |caller: &mut Caller| *rates.get_or_init(|| utilization_rates(caller, handle));
        let busy = self.busy.advance(caller, handle, elapsed, |caller| Some(rates(caller)?.0));
        let memory = self.memory_busy.advance(caller, handle, elapsed, |caller| Some(rates(caller)?.1));
        integrals.busy_seconds = busy.integral;
        integrals.memory_busy_seconds = memory.integral;
        self.memory_utilization_ratio = memory.latest;
        // A pass without utilization, as on a partitioned GPU, adds no uncovered time.
        integrals.lacks_utilization = self.busy.is_refused(caller) && caller.is_refused(RATES, 0);
        if !integrals.lacks_utilization {
            integrals.uncovered_seconds = busy.uncovered_seconds;
        }
        integrals.process_sm_seconds = self.processes.advance(caller, handle, elapsed, busy.latest);
        integrals.lists_no_processes = self.processes.lists_no_processes();
        let module = self.module.read(caller, handle, elapsed);
        let is_on_module = self.module.is_on_module;
        let power_watts = if is_on_module == Some(true) {
            module.gpu_watts
        } else {
            let milliwatts = caller.device("nvmlDeviceGetPowerUsage", 0, handle, |gpu| gpu.power_usage()).ok();
            milliwatts.and_then(|milliwatts| caller.plausible(&plausible::POWER, f64::from(milliwatts) / 1e3))
        };
        let total = caller.device(ENERGY_COUNTER, 0, handle, |gpu| gpu.total_energy_consumption()).ok();
        pass.counter_is_of_gpu = is_on_module.map(|is_on_module| !is_on_module);
        pass.energy_counter =
            total.filter(|total| caller.plausible(&plausible::ENERGY, *total as f64 / 1000.0).is_some());
        let has_counter = total.is_some() || !caller.is_refused(ENERGY_COUNTER, 0);
        integrals.module_energy_joules = module.joules;
        integrals.of_present_values = busy.is_of_present_rate;
        integrals.energy_joules = match is_on_module {
            Some(true) => {
                integrals.of_present_values = true;
                module.gpu_joules
            }
            // The counter has the energy.
            Some(false) if has_counter => None,
            _ => {
                let power = self.power.advance(caller, handle, elapsed, |_| power_watts);
                integrals.of_present_values |= power.is_of_present_rate;
                power.integral
            }
        };
        Fast { utilization_ratio: busy.latest, power_watts, module_power_watts: module.watts, ..Fast::default() }
    }
}

fn utilization_rates(caller: &mut Caller, handle: DeviceHandle) -> Option<(f64, f64)> {
    let rates = caller.device(RATES, 0, handle, |gpu| gpu.utilization_rates()).ok()?;
    let mut ratio = |percent: u32| caller.plausible(&plausible::UTILIZATION, f64::from(percent) / 100.0);
    Some((ratio(rates.gpu)?, ratio(rates.memory)?))
}
