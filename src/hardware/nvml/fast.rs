//! The fast tier: utilization, power, energy and use by process.

use std::cell::OnceCell;

use super::calls::Caller;
use super::library::DeviceHandle;
use super::module_power::ModulePower;
use super::process_use::ProcessUse;
use super::samples::Ring;
use crate::domain::model::Fast;
use crate::hardware::plausible;
use crate::hardware::source::Pass;

const GPU_POWER: u32 = 0;
const GPU_UTILIZATION: u32 = 1;
const MEMORY_UTILIZATION: u32 = 2;
const RATES: &str = "nvmlDeviceGetUtilizationRates";
const ENERGY_COUNTER: &str = "nvmlDeviceGetTotalEnergyConsumption";

/// Reads utilization of the GPU and by process, power and energy: five calls where all are supported, six on a module.
pub struct FastReader {
    busy: Ring,
    memory_busy: Ring,
    power: Ring,
    module: ModulePower,
    pub processes: ProcessUse,
    /// The memory utilization in the last sample.
    pub memory_utilization_ratio: Option<f64>,
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
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle, elapsed: f64, pass: &mut Pass) -> Fast {
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
