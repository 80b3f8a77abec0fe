//! The energy of each superchip module, from the readings of each of its GPUs.
//!
//! In: the totals of a GPU after a pass. Out: one total for each module, which never falls. Does not use: drivers, clocks.

use std::collections::BTreeMap;

use crate::domain::model::{DeviceTotals, GpuUuid, Monotonic, PciBusId};

#[derive(Debug, Default)]
pub struct ModuleEnergy {
    modules: BTreeMap<PciBusId, ModuleTotal>,
    /// The time and the joules of the last reading of the module by each GPU.
    read: BTreeMap<GpuUuid, (Monotonic, f64)>,
}

#[derive(Debug, Default)]
struct ModuleTotal {
    joules: f64,
    /// The end of the time that the joules include.
    complete_until: Monotonic,
}

impl ModuleEnergy {
    /// Adds what a GPU has read of its module. The GPUs of a module read the same power at different times, so only the
    /// part of a gain after `complete_until` counts: earlier time was counted for another GPU.
    pub fn add_totals(&mut self, module: &PciBusId, gpu: &GpuUuid, totals: &DeviceTotals) {
        let Some(joules) = totals.module_energy_joules else { return };
        let module = self.modules.entry(module.clone()).or_default();
        let (since, before) = *self.read.entry(gpu.clone()).or_insert((totals.complete_until, joules));
        let gained = joules - before;
        if gained <= 0.0 {
            return;
        }
        // A gap adds nothing.
        let since = since.max(totals.gaps.until);
        let seconds = totals.complete_until.since(since).as_secs_f64();
        let uncounted = totals.complete_until.since(since.max(module.complete_until)).as_secs_f64();
        if seconds > 0.0 {
            module.joules += gained * uncounted / seconds;
        }
        module.complete_until = module.complete_until.max(totals.complete_until);
        self.read.insert(gpu.clone(), (totals.complete_until, joules));
    }

    pub fn joules(&self) -> BTreeMap<PciBusId, f64> {
        self.modules.iter().map(|(name, module)| (name.clone(), module.joules)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ReadingGaps;

    /// A module of 600 W has two GPUs, each read once a second, half a second apart, except while it is lost.
    #[test]
    fn a_module_is_counted_once_and_by_whichever_gpu_is_read() {
        let mut energy = ModuleEnergy::default();
        let mut totals = [DeviceTotals::default(), DeviceTotals::default()];
        let is_lost = |gpu, tick| match gpu {
            0 => (60..160).contains(&tick),
            _ => (200..280).contains(&tick),
        };
        let mut joules: Vec<f64> = vec![];
        for tick in 0..400_u64 {
            let gpu = usize::from(tick % 2 == 1);
            if is_lost(gpu, tick) {
                joules.extend(energy.joules().values());
                continue;
            }
            let at = Monotonic::from_millis(tick * 500);
            let of_gpu = &mut totals[gpu];
            let begins = tick < 2 || is_lost(gpu, tick - 2);
            if begins && tick >= 2 {
                of_gpu.gaps = ReadingGaps { until: at, ..of_gpu.gaps };
            }
            *of_gpu.module_energy_joules.get_or_insert(0.0) += if begins { 0.0 } else { 600.0 };
            of_gpu.complete_until = at;
            energy.add_totals(&"0008:06:00.0".into(), &["GPU-a", "GPU-b"][gpu].into(), of_gpu);
            joules.extend(energy.joules().values());
        }
        // 300 J in half a second; while one GPU is lost, 600 J in every second.
        assert!(joules.windows(2).all(|pair| pair[0] <= pair[1] && pair[1] <= pair[0] + 600.0));
        for (tick, joules) in joules.iter().enumerate() {
            assert!((joules - tick as f64 * 300.0).abs() <= 600.0, "{tick}: {joules}");
        }
    }
}
