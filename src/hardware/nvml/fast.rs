//! The fast tier: utilization, power, energy and use by process.

use nvml_wrapper_sys::bindings::nvmlUtilization_t;

use super::calls::{Caller, call, value};
use super::library::Handle;
use super::module::Module;
use super::process_use::ProcessUse;
use super::samples::Ring;
use crate::hardware::plausible;
use crate::hardware::source::Integrals;
use crate::model::Fast;

const GPU_POWER: u32 = 0;
const GPU_UTILIZATION: u32 = 1;
const MEMORY_UTILIZATION: u32 = 2;

/// Utilization of the GPU and by process, power and energy: five calls a second where everything is supported, and one
/// more on a module.
pub struct FastReader {
    busy: Ring,
    memory_busy: Ring,
    power: Ring,
    module: Module,
    pub processes: ProcessUse,
    /// Share of the time in which memory was active, in the last sample.
    pub memory_utilization_ratio: Option<f64>,
    /// The energy counter when last read, in millijoules, and the seconds since.
    energy: Option<(u64, f64)>,
}

impl Default for FastReader {
    fn default() -> Self {
        Self {
            busy: Ring::utilization(GPU_UTILIZATION),
            memory_busy: Ring::utilization(MEMORY_UTILIZATION),
            power: Ring::power(GPU_POWER),
            module: Module::default(),
            processes: ProcessUse::default(),
            memory_utilization_ratio: None,
            energy: None,
        }
    }
}

impl FastReader {
    pub fn read(&mut self, caller: &mut Caller, handle: Handle, elapsed: f64, integrals: &mut Integrals) -> Fast {
        // One call serves both fallbacks, and is made only when one is needed.
        let mut rates: Option<Option<(f64, f64)>> = None;
        let mut rates = |caller: &mut Caller| *rates.get_or_insert_with(|| utilization_rates(caller, handle));
        let busy = self.busy.advance(caller, handle, elapsed, |caller| Some(rates(caller)?.0));
        let memory = self.memory_busy.advance(caller, handle, elapsed, |caller| Some(rates(caller)?.1));
        integrals.busy_seconds = busy.integral;
        integrals.memory_busy_seconds = memory.integral;
        self.memory_utilization_ratio = memory.latest;
        // As a partitioned GPU does. It has no uncovered time.
        integrals.lacks_utilization =
            self.busy.is_unsupported(caller) && caller.is_unsupported("nvmlDeviceGetUtilizationRates", 0);
        if !integrals.lacks_utilization {
            integrals.uncovered_seconds = busy.uncovered_seconds;
        }
        integrals.process_sm_seconds = self.processes.advance(caller, handle, elapsed, busy.latest);
        integrals.lists_no_processes = self.processes.lists_no_processes();
        let module = self.module.read(caller, handle, elapsed);
        let power_watts =
            if self.module.exists() == Some(true) { module.gpu_watts } else { power_usage(caller, handle) };
        integrals.module_energy_joules = module.joules;
        integrals.energy_joules = self.energy(caller, handle, elapsed, power_watts, module.gpu_joules);
        Fast { utilization_ratio: busy.latest, power_watts, module_power_watts: module.watts, ..Fast::default() }
    }

    /// The last reading, in millijoules.
    pub fn energy_counter(&self) -> Option<u64> {
        self.energy.map(|(counter, _)| counter)
    }

    /// Whether that counter counts the GPU alone; `None`: not known yet.
    pub fn counter_is_of_gpu(&self) -> Option<bool> {
        self.module.exists().map(|exists| !exists)
    }

    /// Of the GPU alone: from the counter, or from integrated power where there is none or it may count the module.
    fn energy(
        &mut self,
        caller: &mut Caller,
        handle: Handle,
        elapsed: f64,
        power_watts: Option<f64>,
        gpu_joules: Option<f64>,
    ) -> Option<f64> {
        let total: Option<u64> = value!(caller, nvmlDeviceGetTotalEnergyConsumption(handle.0));
        let total = total.filter(|total| caller.plausible(&plausible::ENERGY, *total as f64 / 1000.0).is_some());
        if let Some((_, since)) = &mut self.energy {
            *since += elapsed;
        }
        let step = total.map(|total| {
            let before = self.energy.replace((total, 0.0));
            before.map_or(0.0, |(before, seconds)| energy_step(before, total, seconds))
        });
        let has_counter = step.is_some() || !caller.is_unsupported("nvmlDeviceGetTotalEnergyConsumption", 0);
        match self.module.exists() {
            Some(true) => gpu_joules,
            Some(false) if has_counter => step,
            _ => self.power.advance(caller, handle, elapsed, |_| power_watts).integral,
        }
    }
}

/// Joules between two readings. A counter that fell has restarted at zero.
fn energy_step(before: u64, now: u64, seconds: f64) -> f64 {
    let joules = now.checked_sub(before).unwrap_or(now) as f64 / 1000.0;
    // More than the highest power allows: the counter restarted or is wrong.
    if joules <= plausible::POWER.most() * (seconds + 1.0) { joules } else { 0.0 }
}

fn power_usage(caller: &mut Caller, handle: Handle) -> Option<f64> {
    let milliwatts: u32 = value!(caller, nvmlDeviceGetPowerUsage(handle.0))?;
    caller.plausible(&plausible::POWER, f64::from(milliwatts) / 1000.0)
}

fn utilization_rates(caller: &mut Caller, handle: Handle) -> Option<(f64, f64)> {
    let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
    call!(caller, nvmlDeviceGetUtilizationRates(handle.0, &raw mut rates)).ok()?;
    let mut ratio = |percent: u32| caller.plausible(&plausible::UTILIZATION, f64::from(percent) / 100.0);
    Some((ratio(rates.gpu)?, ratio(rates.memory)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_steps_handle_restarts_and_implausible_values() {
        assert_eq!(energy_step(1_000, 701_000, 1.0), 700.0);
        assert_eq!(energy_step(9_000_000_000, 350_000, 1.0), 350.0);
        assert_eq!(energy_step(0, u64::MAX, 1.0), 0.0);
        assert_eq!(energy_step(500, 500, 1.0), 0.0);
    }
}
