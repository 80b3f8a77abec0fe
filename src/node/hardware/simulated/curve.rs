//! The load of a simulated GPU over time, and its exact integral.

use std::collections::VecDeque;

use crate::domain::model::Monotonic;

/// The load of a device or of a GPU instance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// 0 to 1: share of the time in which a kernel runs.
    pub utilization: f64,
    /// 0 to 1: share of the SMs that are busy, as GPM reports it.
    pub sm_active: f64,
    pub memory_used: u64,
}

impl Load {
    /// A kernel that runs for `utilization` of the time, with seven of ten SMs busy while it runs.
    pub fn new(utilization: f64, memory_used: u64) -> Self {
        let utilization = utilization.clamp(0.0, 1.0);
        Self { utilization, sm_active: utilization * 0.7, memory_used }
    }
}

/// Seconds at full rate since the start: exact integrals of the load curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LoadSums {
    pub busy: f64,
    pub sm_active: f64,
}

/// A load that changes in steps, and its integral.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    through: Monotonic,
    load: Load,
    sums: LoadSums,
    ahead: VecDeque<(Monotonic, Load)>,
}

impl Curve {
    pub fn new(at: Monotonic, load: Load) -> Self {
        Self { through: at, load, sums: LoadSums::default(), ahead: VecDeque::new() }
    }

    /// A change before the last reading takes effect at that reading.
    pub fn set(&mut self, at: Monotonic, load: Load) {
        self.ahead.push_back((at.max(self.through), load));
    }

    pub fn advance(&mut self, now: Monotonic) -> (Load, LoadSums) {
        while let Some((at, load)) = self.ahead.pop_front_if(|(at, _)| *at <= now) {
            self.accumulate(at);
            self.load = load;
        }
        self.accumulate(now);
        (self.load, self.sums)
    }

    /// Idle from `at` on, until it is set.
    pub fn set_idle(&mut self, at: Monotonic) {
        self.advance(at);
        self.load = Load::default();
    }

    fn accumulate(&mut self, until: Monotonic) {
        let seconds = until.since(self.through).as_secs_f64();
        self.through = self.through.max(until);
        self.sums.busy += self.load.utilization * seconds;
        self.sums.sm_active += self.load.sm_active * seconds;
    }
}
