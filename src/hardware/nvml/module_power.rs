//! The power of the superchip module that a GPU is on, with its CPU and one or two GPUs, and that of the GPU alone.

use super::calls::{CallRefusal, Caller};
use super::library::DeviceHandle;
use super::platform;
use super::rows::{self, FieldRow};
use super::samples::Ring;
use crate::hardware::integrate::RingIntegral;
use crate::hardware::plausible;

/// The power of the GPU alone, then of the module: field 185 is the mean of a second, and 186 the present value for a
/// driver without it.
const POWER: [FieldRow; 4] = [watts(185, 0), watts(186, 0), watts(185, 1), watts(186, 1)];
/// The ring of samples of the module's power.
const MODULE_POWER: u32 = 7;
/// The number of refusals of the module's power after which the GPU counts as on no module.
const ATTEMPTS: u32 = 2;
/// The number of passes in a row that prove that the GPU's power is not the module's.
const PROOF: u32 = 5;
/// A power below this part of the module's is the GPU's: of the 1000 W of a GH200 its GPU draws at most 900 W.
const BELOW_MODULE: f64 = 0.98;

const fn watts(id: u32, scope: u32) -> FieldRow {
    FieldRow::field(id, &plausible::POWER, |milliwatts| milliwatts / 1e3).with_scope(scope)
}

pub struct ModulePower {
    ring: Ring,
    gpu: GpuPower,
    /// Whether the GPU is on a module; `None`: not known yet. If it is, its power is that of `POWER`, and its energy
    /// that power's integral: the header does not name the scope of other calls, and on Grace Hopper the energy counter
    /// has been seen to count the CPU, too.
    pub is_on_module: Option<bool>,
    /// How often the module's power has been refused.
    refusals: u32,
}

/// The power in one pass, and the energy that it adds: of the module and of the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModuleStep {
    pub watts: Option<f64>,
    pub joules: Option<f64>,
    /// The power of the GPU alone.
    pub gpu_watts: Option<f64>,
    pub gpu_joules: Option<f64>,
}

impl Default for ModulePower {
    fn default() -> Self {
        Self { ring: Ring::power(MODULE_POWER), gpu: GpuPower::default(), is_on_module: None, refusals: 0 }
    }
}

impl ModulePower {
    /// Reads the power of module and GPU; nothing for a GPU without a module power or without a CPU on its module,
    /// whose other power readings and energy counter are those of the GPU. The driver has no energy counter of the
    /// module, so its power is integrated; time without readings adds nothing.
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle, elapsed: f64) -> ModuleStep {
        if self.is_on_module == Some(false) {
            return ModuleStep::default();
        }
        let values = rows::field_results(caller, handle, &POWER);
        let (of_gpu, of_module) = values.split_at(POWER.len() / 2);
        let first = |values: &[Result<f64, CallRefusal>]| values.iter().flatten().next().copied();
        let (gpu, module) = (first(of_gpu), first(of_module));
        if self.is_on_module.is_none() {
            let is_refused = of_module.iter().all(|value| *value == Err(CallRefusal::Unsupported));
            self.refusals += u32::from(is_refused);
            self.is_on_module = match module {
                None => (self.refusals >= ATTEMPTS).then_some(false),
                Some(_) => {
                    let c2c = platform::is_c2c_enabled(caller, handle);
                    Some(!matches!(c2c, Ok(false) | Err(CallRefusal::Unsupported)))
                }
            };
        }
        if self.is_on_module != Some(true) {
            return ModuleStep::default();
        }
        let joules = self.ring.advance(caller, handle, elapsed, |_| module).integral;
        let (gpu_watts, gpu_joules) = self.gpu.advance(elapsed, gpu, module);
        ModuleStep { watts: module, joules, gpu_watts, gpu_joules }
    }
}

/// The power of a GPU on a module. Holders are charged for it, so it is unknown until it has been below the module's: a
/// driver may return the module's in both scopes.
#[derive(Default)]
struct GpuPower {
    integral: RingIntegral,
    /// The passes in a row below the module's power, up to the proof.
    below: u32,
    /// The joules of these passes.
    withheld: f64,
}

impl GpuPower {
    fn is_proven(&self) -> bool {
        self.below >= PROOF
    }

    /// The GPU's watts and joules of a pass. The pass that completes the proof includes the joules of those before it.
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

#[cfg(test)]
mod tests {
    use super::*;

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
