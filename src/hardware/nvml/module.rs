//! The power of the module that a GPU is on: a superchip, with its CPU and one or two GPUs.

use super::calls::Caller;
use super::fields;
use super::library::Handle;
use super::samples::{Ring, SampleBuffer};
use crate::hardware::plausible;
use crate::hardware::source::CounterScope;

/// Milliwatts: the mean of a second, and the present value for a driver without it.
const POWER: [u32; 2] = [185, 186];
const MODULE: u32 = 1;
/// A driver that refuses the module's power that often has none.
const ATTEMPTS: u32 = 2;
/// Joules by which module and GPU differ before the counter's scope is decided: the idle CPU draws them in half a
/// minute.
const DISTINCT: f64 = 2000.0;

pub struct Module {
    ring: Ring,
    is_known: bool,
    refusals: u32,
    scope: Scope,
}

/// What a pass adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModuleStep {
    pub watts: Option<f64>,
    pub joules: Option<f64>,
}

impl Default for Module {
    fn default() -> Self {
        Self { ring: Ring::module_power(), is_known: false, refusals: 0, scope: Scope::default() }
    }
}

impl Module {
    /// Nothing for a GPU whose driver has no module power. The driver has no energy counter of the module, so its power
    /// is integrated; time without readings adds nothing.
    pub fn read(&mut self, caller: &mut Caller, handle: Handle, buffer: &mut SampleBuffer, elapsed: f64) -> ModuleStep {
        if !self.is_known && self.refusals >= ATTEMPTS {
            return ModuleStep::default();
        }
        let values = fields::read(caller, handle, &POWER.map(|id| (id, MODULE)));
        let milliwatts = values.into_iter().flatten().next();
        let watts = milliwatts.and_then(|field| caller.plausible(&plausible::POWER, field.value / 1000.0));
        if watts.is_none() && !self.is_known {
            self.refusals += 1;
            return ModuleStep::default();
        }
        self.is_known = true;
        let joules = self.ring.advance(caller, handle, buffer, elapsed, |_| watts).integral;
        ModuleStep { watts, joules }
    }

    /// Adds what the energy counter, the GPU's power and the module's gained in the same time. Returns the scope of the
    /// counter.
    pub fn counter_scope(&mut self, counter: f64, gpu: Option<f64>, module: Option<f64>) -> CounterScope {
        if !self.is_known {
            return CounterScope::Gpu;
        }
        if let Some((gpu, module)) = gpu.zip(module) {
            self.scope.add(counter, gpu, module);
        }
        self.scope.decided
    }
}

/// Which scope the energy counter has on a module. The header has it of the GPU; on Grace Hopper it has been seen to
/// count the CPU, too. Holders are charged for the GPU alone, so the counter is used only once it follows the GPU's
/// power and not the module's.
struct Scope {
    counter: f64,
    gpu: f64,
    module: f64,
    decided: CounterScope,
}

impl Default for Scope {
    fn default() -> Self {
        Self { counter: 0.0, gpu: 0.0, module: 0.0, decided: CounterScope::Unknown }
    }
}

impl Scope {
    fn add(&mut self, counter: f64, gpu: f64, module: f64) {
        if self.decided != CounterScope::Unknown {
            return;
        }
        self.counter += counter;
        self.gpu += gpu;
        self.module += module;
        if self.module - self.gpu >= DISTINCT {
            let is_gpu = self.counter < f64::midpoint(self.gpu, self.module);
            self.decided = if is_gpu { CounterScope::Gpu } else { CounterScope::Module };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_of_the_counter_is_that_of_the_power_it_follows() {
        for (counter, expected) in [(610.0, CounterScope::Gpu), (880.0, CounterScope::Module)] {
            let mut module = Module { is_known: true, ..Module::default() };
            let scopes: Vec<_> = (0..9).map(|_| module.counter_scope(counter, Some(600.0), Some(900.0))).collect();
            assert_eq!(scopes[..6], [CounterScope::Unknown; 6]);
            assert_eq!(scopes[6..], [expected; 3]);
        }
    }

    #[test]
    fn without_a_module_the_counter_is_the_gpus_and_without_readings_it_is_unknown() {
        assert_eq!(Module::default().counter_scope(9e9, Some(1.0), Some(9e9)), CounterScope::Gpu);
        let mut module = Module { is_known: true, ..Module::default() };
        for _ in 0..100 {
            assert_eq!(module.counter_scope(600.0, None, Some(900.0)), CounterScope::Unknown);
            assert_eq!(module.counter_scope(600.0, Some(600.0), None), CounterScope::Unknown);
        }
    }
}
