use std::collections::BTreeMap;

use crate::model::{Account, ContainerRef, GpuUuid, MigUuid, Monotonic, Reason, Snapshot};

/// A window is one to two of these long.
const STEP_SECONDS: u64 = 10;

/// To what a part of a device's time is attributed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Container(ContainerRef),
    Unattributed(Reason),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Portion {
    pub part: Part,
    /// Of the whole GPU's time, 0 to 1.
    pub ratio: f64,
}

/// The counters at two earlier times.
#[derive(Debug, Default)]
pub(super) struct Window {
    older: Option<Sample>,
    newer: Option<Sample>,
}

#[derive(Debug)]
struct Sample {
    at: Monotonic,
    /// Uncovered seconds since the start of the agent.
    uncovered: BTreeMap<GpuUuid, f64>,
    busy: BTreeMap<(GpuUuid, Part, Option<MigUuid>), f64>,
}

impl Window {
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at.monotonic;
        let due = self.newer.as_ref().is_none_or(|newer| at.since(newer.at).as_secs() >= STEP_SECONDS);
        if due {
            let busy = snapshot.hardware.inventory.gpus.keys().flat_map(|gpu| {
                counters(snapshot, gpu).map(|(part, mig, seconds)| ((gpu.clone(), part, mig.cloned()), seconds))
            });
            let readings = snapshot.hardware.readings.iter();
            let uncovered = readings.map(|(gpu, readings)| (gpu.clone(), readings.totals.uncovered_seconds));
            let sample = Sample { at, uncovered: uncovered.collect(), busy: busy.collect() };
            self.older = self.newer.replace(sample);
        }
    }

    pub(super) fn portions(&self, snapshot: &Snapshot, gpu: &GpuUuid) -> Option<Vec<Portion>> {
        let before = self.older.as_ref().or(self.newer.as_ref())?;
        // Without readings the GPU is not known to be idle.
        let readings = snapshot.hardware.readings.get(gpu).filter(|readings| readings.fast.is_some())?;
        let uncovered = readings.totals.uncovered_seconds - before.uncovered.get(gpu).copied().unwrap_or(0.0);
        let elapsed = snapshot.at.monotonic.since(before.at).as_secs_f64() - uncovered;
        if elapsed < 1.0 {
            return None;
        }
        let mut portions: BTreeMap<Part, f64> = BTreeMap::new();
        for (part, mig, seconds) in counters(snapshot, gpu) {
            let key = (gpu.clone(), part, mig.cloned());
            // A counter that is new or was reset since then began at zero.
            let since = before.busy.get(&key).filter(|then| **then <= seconds).map_or(seconds, |then| seconds - then);
            *portions.entry(key.1).or_default() += since / elapsed;
        }
        if portions.is_empty() {
            return None;
        }
        // Counters lag behind by varying amounts, so a window may have a little more busy time than its length.
        let whole = portions.values().sum::<f64>().max(1.0);
        Some(portions.into_iter().map(|(part, ratio)| Portion { part, ratio: ratio / whole }).collect())
    }
}

/// Busy seconds on this GPU, of containers and unattributed.
fn counters<'a>(
    snapshot: &'a Snapshot,
    gpu: &'a GpuUuid,
) -> impl Iterator<Item = (Part, Option<&'a MigUuid>, f64)> + 'a {
    let of = move |account: &&Account| account.gpu == *gpu;
    let containers = snapshot.accounts.iter().filter(of).filter_map(|account| {
        Some((Part::Container(account.container.clone()), account.mig.as_ref(), account.figures.busy_seconds?))
    });
    let unattributed = snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == *gpu);
    let reasons = unattributed.into_iter().flat_map(|unattributed| &unattributed.busy_seconds);
    containers.chain(reasons.map(|(reason, seconds)| (Part::Unattributed(*reason), None, *seconds)))
}
