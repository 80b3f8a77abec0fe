//! What one GPU did over time: the states of the file, each from when it was written.
//!
//! In: states. Out: exact integrals of any quantity over any stretch of time; the samples, the energy counter and GPM
//! follow from them.

use std::sync::Arc;

use crate::clock::Micros;
use crate::state::Gpu;

/// The quantities of nvmlDeviceGetSamples, at the index of their type: 0 power, 1-4 GPU, memory, encoder, decoder,
/// 5-6 clocks, 7 module power, 8-9 JPEG, OFA.
pub const QUANTITIES: usize = 10;
const POWER: usize = 0;
const MODULE_POWER: usize = 7;

/// More changes than any test makes; beyond it the older half goes.
const MOST_STRETCHES: usize = 8_192;

pub struct History {
    energy_base: u64,
    stretches: Vec<Stretch>,
}

struct Stretch {
    from: Micros,
    gpu: Arc<Gpu>,
    loads: [f64; QUANTITIES],
    /// Load times microseconds from the beginning up to `from`.
    before: [f64; QUANTITIES],
}

impl History {
    pub fn new(from: Micros, gpu: &Arc<Gpu>) -> Self {
        let first = Stretch { from, gpu: Arc::clone(gpu), loads: loads(gpu), before: [0.0; QUANTITIES] };
        Self { energy_base: gpu.energy_millijoules, stretches: vec![first] }
    }

    pub fn add(&mut self, from: Micros, gpu: &Arc<Gpu>) {
        let from = from.max(self.last_change());
        let before = std::array::from_fn(|quantity| self.integral(quantity, from));
        self.stretches.push(Stretch { from, gpu: Arc::clone(gpu), loads: loads(gpu), before });
        if self.stretches.len() > MOST_STRETCHES {
            self.stretches.drain(..MOST_STRETCHES / 2);
        }
    }

    pub fn begin(&self) -> Micros {
        self.stretches.first().map_or(0, |stretch| stretch.from)
    }

    pub fn last_change(&self) -> Micros {
        self.stretches.last().map_or(0, |stretch| stretch.from)
    }

    /// The quantity times microseconds, from the beginning.
    pub fn integral(&self, quantity: usize, at: Micros) -> f64 {
        let following = self.stretches.partition_point(|stretch| stretch.from <= at);
        let Some(stretch) = following.checked_sub(1).and_then(|index| self.stretches.get(index)) else { return 0.0 };
        stretch.before[quantity] + stretch.loads[quantity] * (at - stretch.from) as f64
    }

    pub fn energy_millijoules(&self, now: Micros) -> u64 {
        let counts_module = self.stretches.first().is_some_and(|first| first.gpu.power_limits.energy_counts_module);
        let quantity = if counts_module { MODULE_POWER } else { POWER };
        self.energy_base + (self.integral(quantity, now) / 1e6) as u64
    }

    /// The states that held in a stretch of time.
    pub fn during(&self, from: Micros, to: Micros) -> impl Iterator<Item = &Arc<Gpu>> {
        let ends = self.stretches.iter().skip(1).map(|next| next.from).chain([Micros::MAX]);
        let held = self.stretches.iter().zip(ends);
        held.filter(move |(stretch, end)| stretch.from < to && *end > from).map(|(stretch, _)| &stretch.gpu)
    }

    /// Any other quantity over a stretch of time: its integral, or `None` where a state in it does not have it.
    pub fn sum(&self, from: Micros, to: Micros, quantity: impl Fn(&Gpu) -> Option<f64>) -> Option<f64> {
        let mut sum = 0.0;
        for (index, stretch) in self.stretches.iter().enumerate() {
            let end = self.stretches.get(index + 1).map_or(Micros::MAX, |next| next.from);
            let (begin, end) = (stretch.from.max(from), end.min(to));
            if begin < end {
                sum += quantity(&stretch.gpu)? * (end - begin) as f64;
            }
        }
        Some(sum)
    }
}

fn loads(gpu: &Gpu) -> [f64; QUANTITIES] {
    let busy = &gpu.utilization;
    [
        f64::from(gpu.power_milliwatts),
        busy.gpu,
        busy.memory,
        busy.encoder,
        busy.decoder,
        f64::from(gpu.clocks.sm),
        f64::from(gpu.clocks.memory),
        f64::from(gpu.power_limits.module_milliwatts.unwrap_or(0)),
        busy.jpeg,
        busy.ofa,
    ]
}
