//! The load of a simulated GPU over time, and its exact integral.

use std::collections::VecDeque;

use crate::domain::model::Monotonic;

/// The load of a device or of a GPU instance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The part of the time in which a kernel runs, 0 to 1.
    pub utilization: f64,
    /// The part of the SMs that are busy, 0 to 1, as GPM reports it.
    pub sm_active: f64,
    pub memory_used: u64,
}

impl Load {
    /// The load of a kernel that runs for `utilization` of the time, with seven of ten SMs busy while it runs.
    pub fn new(utilization: f64, memory_used: u64) -> Self {
        let utilization = utilization.clamp(0.0, 1.0);
        Self { utilization, sm_active: utilization * 0.7, memory_used }
    }
}

/// A load that changes in steps, and its exact integral since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// The time of the last reading, of which the load and the sums are.
    at: Monotonic,
    pub load: Load,
    pub busy_seconds: f64,
    pub sm_active_seconds: f64,
    changes: VecDeque<(Monotonic, Load)>,
}

impl Curve {
    pub fn new(at: Monotonic, load: Load) -> Self {
        Self { at, load, ..Self::default() }
    }

    /// Sets the load from `at` on. A change before the last reading takes effect at that reading.
    pub fn set(&mut self, at: Monotonic, load: Load) {
        self.changes.push_back((at.max(self.at), load));
    }

    pub fn advance(&mut self, now: Monotonic) {
        while let Some((at, load)) = self.changes.pop_front_if(|(at, _)| *at <= now) {
            self.accumulate(at);
            self.load = load;
        }
        self.accumulate(now);
    }

    fn accumulate(&mut self, until: Monotonic) {
        let seconds = until.since(self.at).as_secs_f64();
        self.at = self.at.max(until);
        self.busy_seconds += self.load.utilization * seconds;
        self.sm_active_seconds += self.load.sm_active * seconds;
    }

    /// The means of utilization and of active SMs since an earlier reading; `None` for the same reading.
    pub fn means_since(&self, before: &Self) -> Option<(f64, f64)> {
        let seconds = self.at.since(before.at).as_secs_f64();
        let busy = self.busy_seconds - before.busy_seconds;
        let sm_active = self.sm_active_seconds - before.sm_active_seconds;
        (seconds > 0.0).then(|| (busy / seconds, sm_active / seconds))
    }
}
