//! The load of simulated containers on the devices they hold: load curves that are pure functions of a seed and an age.

use super::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// Near full load, with a dip at each checkpoint it saves.
    Training,
    /// Bursts of requests.
    Inference,
    /// An interactive notebook: idle, with short bursts.
    Notebook,
    /// A steady job; with churn it ends after 20 to 120 seconds.
    Batch,
}

/// One running workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub kind: WorkloadKind,
    pub seed: u64,
}

/// The load of each of its devices for one second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The utilization, 0 to 1.
    pub utilization: f64,
    /// The part of the device's memory in use, 0 to 1.
    pub memory: f64,
}

impl Workload {
    /// The load at an age, constant within each second.
    pub fn level(&self, age_seconds: u64) -> Level {
        let mut second = Random::seeded(self.seed ^ (age_seconds + 1).wrapping_mul(0x9e37_79b9));
        // Workloads have different phases, so that their loads do not change at the same time.
        let at = age_seconds + self.seed % 40;
        let (utilization, memory) = match self.kind {
            WorkloadKind::Training if at % 45 < 3 => (second.between(0.02, 0.1), 0.82),
            WorkloadKind::Training => (second.between(0.92, 0.99), 0.82),
            WorkloadKind::Inference if at % 20 < 9 => (second.between(0.45, 0.8), 0.45),
            WorkloadKind::Inference => (second.between(0.03, 0.2), 0.45),
            WorkloadKind::Notebook if at % 40 < 2 => (second.between(0.2, 0.6), 0.12),
            WorkloadKind::Notebook => (0.0, 0.12),
            WorkloadKind::Batch if age_seconds < 2 => (0.0, 0.05),
            WorkloadKind::Batch => (second.between(0.7, 0.9), 0.6),
        };
        Level { utilization, memory }
    }
}
