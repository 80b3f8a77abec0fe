//! What one GPU does now: the mean of the last ten seconds that were read.
//!
//! In: what each pass adds to the totals. Out: ratios in the place of the driver's last samples. Does not use: clocks.

use std::collections::BTreeMap;

use super::source::Integrals;
use crate::domain::model::{Fast, Medium, Monotonic, RecentRatio};

/// Since the last gap.
#[derive(Debug, Default)]
pub struct RecentUse {
    busy: ReadRatio,
    memory: ReadRatio,
    instances: BTreeMap<u32, ReadRatio>,
    engines: BTreeMap<&'static str, ReadRatio>,
}

/// One ratio, and when it was read last.
#[derive(Debug, Default)]
struct ReadRatio {
    read: Option<Monotonic>,
    recent: RecentRatio,
}

impl RecentUse {
    /// Adds what the fast tier read.
    pub fn add_fast(&mut self, at: Monotonic, integrals: &Integrals) {
        self.busy.add(at, integrals.uncovered_seconds, integrals.busy_seconds);
        self.memory.add(at, integrals.uncovered_seconds, integrals.memory_busy_seconds);
        if let Some(instances) = &integrals.instance_busy_seconds {
            add_each(&mut self.instances, at, instances);
        }
    }

    /// Adds what the medium tier read of the engines.
    pub fn add_engines(&mut self, at: Monotonic, engines: &[(&'static str, f64)]) {
        if !engines.is_empty() {
            add_each(&mut self.engines, at, engines);
        }
    }

    /// A ratio that the driver does not give stays absent. Before the second reading the driver's last sample stands.
    pub fn set_fast(&self, fast: &mut Fast) {
        self.busy.set(fast.utilization_ratio.as_mut());
        for (instance, ratio) in &mut fast.instance_utilization_ratios {
            self.instances.get(instance).inspect(|recent| recent.set(Some(ratio)));
        }
    }

    pub fn set_medium(&self, medium: &mut Medium) {
        self.memory.set(medium.rates.memory_utilization_ratio.as_mut());
        for (engine, ratio) in &mut medium.rates.engine_utilization_ratios {
            self.engines.get(engine).inspect(|recent| recent.set(Some(ratio)));
        }
    }
}

/// Those that were not read begin anew when they are.
fn add_each<K: Copy + Ord>(ratios: &mut BTreeMap<K, ReadRatio>, at: Monotonic, read: &[(K, f64)]) {
    ratios.retain(|key, _| read.iter().any(|(other, _)| other == key));
    for (key, seconds) in read {
        ratios.entry(*key).or_default().add(at, 0.0, Some(*seconds));
    }
}

impl ReadRatio {
    /// Adds the time since it was read last, less what no sample covers.
    fn add(&mut self, at: Monotonic, uncovered_seconds: f64, active_seconds: Option<f64>) {
        let Some(active) = active_seconds else {
            *self = Self::default();
            return;
        };
        if let Some(before) = self.read.replace(at) {
            self.recent.add(at.since(before).as_secs_f64() - uncovered_seconds, active);
        }
    }

    fn set(&self, ratio: Option<&mut f64>) {
        if let (Some(ratio), Some(recent)) = (ratio, self.recent.ratio()) {
            *ratio = recent;
        }
    }
}
