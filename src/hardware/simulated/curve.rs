//! The load of a simulated GPU over time, and its exact integral.

use std::collections::VecDeque;

use super::profile::scramble;
use crate::model::Monotonic;

/// Unread changes; beyond this the oldest are added to the integral.
const SEGMENTS: usize = 1024;
/// How long the generated load keeps one level.
const BLOCK_SECONDS: u64 = 15;

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
    #[must_use]
    pub fn new(utilization: f64, memory_used: u64) -> Self {
        let utilization = utilization.clamp(0.0, 1.0);
        Self { utilization, sm_active: utilization * 0.7, memory_used }
    }
}

/// Seconds at full rate since the start: exact integrals of the load curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub busy: f64,
    pub sm_active: f64,
    /// Of the board, instances included.
    pub power_share: f64,
}

/// A load that changes in steps, and its integral.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    through: Monotonic,
    load: Load,
    sums: Sums,
    ahead: VecDeque<(Monotonic, Load)>,
    generated: Option<u64>,
    memory: u64,
}

impl Curve {
    pub fn new(seed: u64, memory: u64) -> Self {
        let load = generated_load(seed, 0, memory);
        let (ahead, sums) = (VecDeque::new(), Sums::default());
        Self { through: Monotonic::default(), load, sums, ahead, generated: Some(seed), memory }
    }

    pub fn idle(at: Monotonic) -> Self {
        Self { through: at, load: Load::default(), generated: None, ..Self::new(0, 0) }
    }

    /// A change before the last reading takes effect at that reading.
    pub fn set(&mut self, at: Monotonic, load: Load) {
        if self.ahead.len() >= SEGMENTS
            && let Some((oldest, _)) = self.ahead.front().copied()
        {
            self.advance(oldest);
        }
        self.ahead.push_back((at.max(self.through), load));
    }

    pub fn advance(&mut self, now: Monotonic) -> (Load, Sums) {
        while let Some((at, load)) = self.next_change().filter(|(at, _)| *at <= now) {
            self.accumulate(at);
            self.load = load;
            if self.generated.is_none() {
                self.ahead.pop_front();
            }
        }
        self.accumulate(now);
        (self.load, self.sums)
    }

    /// Idle from `at` on, until it is set.
    pub fn take_over(&mut self, at: Monotonic) {
        self.advance(at);
        self.generated = None;
        self.load = Load::default();
    }

    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.ahead.len()
    }

    fn next_change(&self) -> Option<(Monotonic, Load)> {
        let Some(seed) = self.generated else { return self.ahead.front().copied() };
        let block = self.through.as_duration().as_secs() / BLOCK_SECONDS + 1;
        Some((Monotonic::from_secs(block * BLOCK_SECONDS), generated_load(seed, block, self.memory)))
    }

    fn accumulate(&mut self, until: Monotonic) {
        let seconds = until.since(self.through).as_secs_f64();
        self.through = self.through.max(until);
        self.sums.busy += self.load.utilization * seconds;
        self.sums.sm_active += self.load.sm_active * seconds;
        self.sums.power_share += self.load.utilization * seconds;
    }
}

/// Three of four blocks are busy, the others idle.
fn generated_load(seed: u64, block: u64, memory: u64) -> Load {
    let random = scramble(seed, block / 4 + 1);
    let occupied = !random.is_multiple_of(4);
    if !occupied {
        return Load::default();
    }
    let level = 0.35 + 0.6 * ((scramble(seed, block + 7_000) % 1_000) as f64 / 1_000.0);
    let used = memory as f64 * (0.3 + 0.6 * ((random >> 20) % 1_000) as f64 / 1_000.0);
    Load::new(level, used as u64)
}
