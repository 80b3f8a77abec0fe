//! What a simulated GPU does over time, and the exact integral of it.

use std::collections::VecDeque;

use super::profile::scramble;
use crate::model::Monotonic;

/// Changes that nobody has read yet; beyond this the oldest are folded into the integral.
const SEGMENTS: usize = 1024;
/// How long the self-running load keeps one level.
const BLOCK_SECONDS: u64 = 15;

/// What a device (or one of its GPU instances) does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// 0 to 1: share of the time in which a kernel runs.
    pub utilization: f64,
    /// 0 to 1: share of the SMs that are busy. What GPM says, and all that an instance says.
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
#[derive(Debug)]
pub(super) struct Curve {
    through: Monotonic,
    load: Load,
    sums: Sums,
    ahead: VecDeque<(Monotonic, Load)>,
    runs_itself: Option<u64>,
    memory: u64,
}

impl Curve {
    pub fn new(seed: u64, memory: u64) -> Self {
        let load = own_load(seed, 0, memory);
        let (ahead, sums) = (VecDeque::new(), Sums::default());
        Self { through: Monotonic::default(), load, sums, ahead, runs_itself: Some(seed), memory }
    }

    pub fn idle(at: Monotonic) -> Self {
        Self { through: at, load: Load::default(), runs_itself: None, ..Self::new(0, 0) }
    }

    /// A change in the past of what was read already takes effect where the reading ended.
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
            if self.runs_itself.is_none() {
                self.ahead.pop_front();
            }
        }
        self.accumulate(now);
        (self.load, self.sums)
    }

    /// Idle from `at` on, until it is set.
    pub fn take_over(&mut self, at: Monotonic) {
        self.advance(at);
        self.runs_itself = None;
        self.load = Load::default();
    }

    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.ahead.len()
    }

    fn next_change(&self) -> Option<(Monotonic, Load)> {
        let Some(seed) = self.runs_itself else { return self.ahead.front().copied() };
        let block = self.through.as_duration().as_secs() / BLOCK_SECONDS + 1;
        Some((Monotonic::from_secs(block * BLOCK_SECONDS), own_load(seed, block, self.memory)))
    }

    fn accumulate(&mut self, until: Monotonic) {
        let seconds = until.since(self.through).as_secs_f64();
        self.through = self.through.max(until);
        self.sums.busy += self.load.utilization * seconds;
        self.sums.sm_active += self.load.sm_active * seconds;
        self.sums.power_share += self.load.utilization * seconds;
    }
}

/// Three of four blocks are at work, the others idle.
fn own_load(seed: u64, block: u64, memory: u64) -> Load {
    let random = scramble(seed, block / 4 + 1);
    let occupied = !random.is_multiple_of(4);
    if !occupied {
        return Load::default();
    }
    let level = 0.35 + 0.6 * ((scramble(seed, block + 7_000) % 1_000) as f64 / 1_000.0);
    let used = memory as f64 * (0.3 + 0.6 * ((random >> 20) % 1_000) as f64 / 1_000.0);
    Load::new(level, used as u64)
}
