//! The power of the module that a GPU is on (a superchip, with its CPU and one or two GPUs), and that of the GPU alone.

use super::calls::{Caller, Refusal};
use super::fields::{self, Row};
use super::library::Handle;
use super::samples::Ring;
use crate::hardware::integrate::RingIntegral;
use crate::hardware::plausible;
use crate::hardware::source::CounterScope;

/// The power of the GPU alone and of the module: of each, field 185 is the mean of a second, and 186 the present value
/// for a driver without it.
const POWER: [Row; 4] = [watts(185, 0), watts(186, 0), watts(185, 1), watts(186, 1)];
/// A driver that refuses the module's power that often has none.
const ATTEMPTS: u32 = 2;
/// So many passes in a row show that the GPU's power is not the module's.
const PROOF: u32 = 5;
/// The least that a module draws beyond its GPU is more: a GH200 of 1000 W has a GPU of 900 W.
const BELOW_MODULE: f64 = 0.98;
/// Joules by which module and GPU differ before the counter's scope is decided: the idle CPU draws them in half a
/// minute.
const DISTINCT: f64 = 2000.0;

const fn watts(id: u32, scope: u32) -> Row {
    Row::milli(id, &plausible::POWER).of(scope)
}

pub struct Module {
    ring: Ring,
    is_known: bool,
    refusals: u32,
    gpu: GpuPower,
    /// Joules of the GPU and of the module in the last pass.
    pass: Option<(f64, f64)>,
    scope: Scope,
}

/// What a pass adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModuleStep {
    pub watts: Option<f64>,
    pub joules: Option<f64>,
    /// Of the GPU alone.
    pub gpu_watts: Option<f64>,
    pub gpu_joules: Option<f64>,
}

impl Default for Module {
    fn default() -> Self {
        Self {
            ring: Ring::module_power(),
            is_known: false,
            refusals: 0,
            gpu: GpuPower::default(),
            pass: None,
            scope: Scope::default(),
        }
    }
}

impl Module {
    /// The driver gives a power of the module. The GPU's is then that of the same fields: the header does not name the
    /// scope of other calls.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Nothing for a GPU whose driver has no module power. The driver has no energy counter of the module, so its power
    /// is integrated; time without readings adds nothing.
    pub fn read(&mut self, caller: &mut Caller, handle: Handle, elapsed: f64) -> ModuleStep {
        self.pass = None;
        if !self.is_known && self.refusals >= ATTEMPTS {
            return ModuleStep::default();
        }
        let values = fields::results(caller, handle, &POWER);
        let (of_gpu, of_module) = values.split_at(POWER.len() / 2);
        let first = |values: &[Result<f64, Refusal>]| values.iter().flatten().next().copied();
        let (gpu, module) = (first(of_gpu), first(of_module));
        if module.is_none() && !self.is_known {
            self.refusals += u32::from(of_module.iter().all(|value| *value == Err(Refusal::Unsupported)));
            return ModuleStep::default();
        }
        self.is_known = true;
        let joules = self.ring.advance(caller, handle, elapsed, |_| module).integral;
        let was_proven = self.gpu.is_proven();
        let (gpu_watts, gpu_joules) = self.gpu.advance(elapsed, gpu, module);
        self.pass = gpu_joules.zip(joules).filter(|_| was_proven);
        ModuleStep { watts: module, joules, gpu_watts, gpu_joules }
    }

    /// Adds what the energy counter gained in the last pass, if that is known. Returns the scope of the counter.
    pub fn counter_scope(&mut self, counter: Option<f64>) -> CounterScope {
        if !self.is_known {
            return if self.refusals > 0 { CounterScope::Gpu } else { CounterScope::Unknown };
        }
        if let Some((counter, (gpu, module))) = counter.zip(self.pass) {
            self.scope.add(counter, gpu, module);
        }
        self.scope.decided
    }
}

/// The power of a GPU on a module. Holders are charged for it, so it is unknown until it has been below the module's: a
/// driver may return the module's in both scopes.
#[derive(Default)]
struct GpuPower {
    integral: RingIntegral,
    /// Passes in a row, up to the proof.
    below: u32,
    /// Joules of these passes.
    withheld: f64,
}

impl GpuPower {
    fn is_proven(&self) -> bool {
        self.below >= PROOF
    }

    /// Watts and joules of a pass. The pass that completes the proof has the joules of those before it.
    fn advance(&mut self, elapsed: f64, gpu: Option<f64>, module: Option<f64>) -> (Option<f64>, Option<f64>) {
        let joules = self.integral.advance(elapsed, &mut [], || gpu).integral;
        if self.is_proven() {
            return (gpu, joules);
        }
        if !gpu.zip(module).is_some_and(|(gpu, module)| gpu < BELOW_MODULE * module) {
            (self.below, self.withheld) = (0, 0.0);
            return (None, None);
        }
        self.below += 1;
        self.withheld += joules.unwrap_or(0.0);
        if self.is_proven() { (gpu, Some(self.withheld)) } else { (None, None) }
    }
}

/// Which scope the energy counter has on a module. The header has it of the GPU; on Grace Hopper it has been seen to
/// count the CPU, too. The counter is used only once it follows the GPU's power and not the module's. Counters and power
/// disagree by some per cent, so one between the two stays unknown.
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
        let apart = self.module - self.gpu;
        let is_near = |joules: f64| apart >= DISTINCT && (self.counter - joules).abs() <= apart / 4.0;
        if is_near(self.gpu) {
            self.decided = CounterScope::Gpu;
        } else if is_near(self.module) {
            self.decided = CounterScope::Module;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scope_of_the_counter_is_that_of_the_power_it_follows() {
        let undecided = CounterScope::Unknown;
        for (counter, expected) in [(610.0, CounterScope::Gpu), (880.0, CounterScope::Module), (700.0, undecided)] {
            let mut module = Module { is_known: true, pass: Some((600.0, 900.0)), ..Module::default() };
            // Such a gain is of more than one pass.
            assert_eq!(module.counter_scope(None), undecided);
            let scopes: Vec<_> = (0..9).map(|_| module.counter_scope(Some(counter))).collect();
            assert_eq!(scopes[..6], [undecided; 6]);
            assert_eq!(scopes[6..], [expected; 3]);
        }
    }

    #[test]
    fn without_a_module_the_counter_is_the_gpus_and_without_readings_it_is_unknown() {
        let refused = &mut Module { refusals: 1, ..Module::default() };
        assert_eq!(refused.counter_scope(Some(9e9)), CounterScope::Gpu);
        assert_eq!(Module::default().counter_scope(Some(9e9)), CounterScope::Unknown, "no answer yet");
        let mut module = Module { is_known: true, ..Module::default() };
        let scopes = (0..100).map(|_| module.counter_scope(Some(600.0)));
        assert!(scopes.into_iter().all(|scope| scope == CounterScope::Unknown));
    }

    #[test]
    fn the_power_of_a_gpu_is_unknown_until_it_is_not_the_modules() {
        let mut power = GpuPower::default();
        let mut advance = |gpu, module| power.advance(1.0, gpu, module);
        assert_eq!(advance(Some(590.0), Some(700.0)), (None, None));
        for (gpu, module) in [(Some(595.0), Some(600.0)), (None, Some(600.0)), (Some(100.0), None)] {
            assert_eq!(advance(gpu, module), (None, None));
        }
        for _ in 1..PROOF {
            assert_eq!(advance(Some(590.0), Some(650.0)), (None, None));
        }
        assert_eq!(advance(Some(590.0), Some(650.0)), (Some(590.0), Some(5.0 * 590.0)));
        assert_eq!(advance(None, Some(650.0)), (None, None));
        assert_eq!(advance(Some(600.0), None), (Some(600.0), Some(1200.0)));
    }
}
