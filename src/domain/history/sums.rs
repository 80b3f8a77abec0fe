//! The use of each holder in the last minutes. In: a snapshot's counters. Out: shares of a GPU's time and a holder's
//! counters, by window.

use std::collections::BTreeMap;

use super::{NodeHistory, Window};
use crate::domain::model::{
    Account, ContainerRef, DeviceReadings, GpuUuid, HoldingCounters, MigUuid, Monotonic, Snapshot, UnattributedReason,
};

/// The steps kept of a window, which is nine to ten steps long.
const STEPS: usize = 10;

/// Less time than this is a remainder of rounding.
const ROUNDING_SECONDS: f64 = 1e-3;

/// The container or the reason to which a part of a device's time is attributed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShareOwner {
    Container(ContainerRef),
    Unattributed(UnattributedReason),
}

/// How the time of a GPU in a window is divided, as ratios of the window. The rest is idle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowShares {
    pub busy: BTreeMap<ShareOwner, f64>,
    pub uncovered: f64,
}

impl WindowShares {
    /// The busy ratio as a part of the known time; `None` without any.
    #[must_use]
    pub fn known_ratio(&self, busy: f64) -> Option<f64> {
        (self.uncovered < 1.0).then(|| (busy / (1.0 - self.uncovered)).min(1.0))
    }
}

/// The counters of the last snapshot, with their increases in the windows.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowSums {
    last: Option<Monotonic>,
    gpus: BTreeMap<GpuUuid, GpuTime>,
    shares: BTreeMap<GpuUuid, BTreeMap<ShareKey, ShareTime>>,
}

/// The key of a share; a container may have shares of several MIG devices.
type ShareKey = (ShareOwner, Option<MigUuid>);

#[derive(Clone, Debug, Default)]
struct GpuTime {
    seconds: WindowedCounter,
    uncovered_seconds: WindowedCounter,
    /// The end of the counted time: the readings are of an earlier time than the snapshot.
    counted_to: Option<Monotonic>,
    /// The uncovered seconds before the first readings, which the readings' total lacks; `None` until then.
    uncovered_before_readings: Option<f64>,
}

#[derive(Clone, Debug, Default)]
struct ShareTime {
    busy_seconds: WindowedCounter,
    idle_seconds: WindowedCounter,
    /// The GPU time held for which it is known whether it was busy.
    known_seconds: WindowedCounter,
}

/// A counter, and its increases by window and step. The steps of a window are a ring.
#[derive(Clone, Debug, Default)]
struct WindowedCounter {
    last: f64,
    added: [[f32; STEPS]; Window::ALL.len()],
}

/// The time from the last snapshot to this one.
struct SnapshotInterval {
    to: Monotonic,
    /// Whether there is no last snapshot: use before the first one is in no window.
    is_first: bool,
    /// The number of the current step of each window, and how many steps began.
    steps: [(u64, u64); Window::ALL.len()],
}

impl SnapshotInterval {
    fn new(last: Option<Monotonic>, at: Monotonic) -> Self {
        let from = last.unwrap_or(at);
        let steps = Window::ALL.map(|window| {
            let step = |at: Monotonic| at.as_duration().as_secs() / (window.seconds() / STEPS as u64);
            (step(at), step(at) - step(from))
        });
        Self { to: at, is_first: last.is_none(), steps }
    }
}

impl WindowedCounter {
    /// Adds the increase of the counter; one that is new or has fallen began at zero. A difference of counters may fall by rounding.
    fn advance(&mut self, counter: f64, interval: &SnapshotInterval) {
        let has_begun_anew = counter < self.last - ROUNDING_SECONDS;
        let more = if has_begun_anew { counter } else { (counter - self.last).max(0.0) };
        self.last = counter;
        for (added, (current, begun)) in self.added.iter_mut().zip(interval.steps) {
            for step in (current - begun + 1..=current).rev().take(STEPS) {
                added[step as usize % STEPS] = 0.0;
            }
            if !interval.is_first {
                added[current as usize % STEPS] += more as f32;
            }
        }
    }

    fn sum(&self, window: Window) -> f64 {
        self.added[window as usize].iter().copied().map(f64::from).sum()
    }
}

impl GpuTime {
    fn advance(&mut self, readings: Option<&DeviceReadings>, interval: &SnapshotInterval) {
        let readings = readings.filter(|readings| readings.fast.is_some() && readings.totals.busy_seconds.is_some());
        let counted = self.uncovered_seconds.last;
        let to = readings.map_or(interval.to, |readings| readings.totals.complete_until);
        let before = self.counted_to.unwrap_or(to);
        let seconds = to.since(before).as_secs_f64();
        self.counted_to = Some(to.max(before));
        let uncovered = match readings {
            Some(readings) => {
                let total = readings.totals.uncovered_seconds;
                let before = *self.uncovered_before_readings.get_or_insert((counted - total).max(0.0));
                // The total includes a gap, which was counted here, only once there are readings again.
                (before + total).max(counted)
            }
            None => counted + seconds,
        };
        self.seconds.advance(self.seconds.last + seconds, interval);
        self.uncovered_seconds.advance(uncovered, interval);
    }
}

impl ShareTime {
    fn advance(&mut self, counters: &HoldingCounters, interval: &SnapshotInterval) {
        self.busy_seconds.advance(counters.busy_seconds.unwrap_or_default(), interval);
        self.idle_seconds.advance(counters.idle_seconds.unwrap_or_default(), interval);
        self.known_seconds.advance(counters.known_seconds().unwrap_or_default(), interval);
    }
}

impl WindowSums {
    pub(super) fn advance(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at.monotonic;
        let interval = SnapshotInterval::new(self.last.replace(at), at);
        let mut before = std::mem::take(self);
        self.last = before.last;
        for gpu in snapshot.hardware.inventory.gpus.keys() {
            let mut time = before.gpus.remove(gpu).unwrap_or_default();
            time.advance(snapshot.hardware.readings.get(gpu).map(|readings| &**readings), &interval);
            self.gpus.insert(gpu.clone(), time);
        }
        let attributed = snapshot.accounts.iter().map(|account| (&account.gpu, share_key(account), account.counters));
        let unattributed = snapshot.unattributed.iter().flat_map(|unattributed| {
            unattributed.busy_seconds.iter().map(|(reason, seconds)| {
                let counters = HoldingCounters { busy_seconds: Some(*seconds), ..HoldingCounters::default() };
                (&unattributed.gpu, (ShareOwner::Unattributed(*reason), None), counters)
            })
        });
        for (gpu, key, counters) in attributed.chain(unattributed) {
            let of_gpu = before.shares.get_mut(gpu);
            let mut time = of_gpu.and_then(|of_gpu| of_gpu.remove(&key)).unwrap_or_default();
            time.advance(&counters, &interval);
            self.shares.entry(gpu.clone()).or_default().insert(key, time);
        }
    }
}

impl NodeHistory {
    /// The idle time of the account in the window as a part of its known GPU time, 0 to 1.
    pub fn idle_ratio(&self, account: &Account, window: Window) -> Option<f64> {
        let time = self.sums.shares.get(&account.gpu)?.get(&share_key(account))?;
        let known = time.known_seconds.sum(window);
        (known > ROUNDING_SECONDS).then(|| (time.idle_seconds.sum(window) / known).min(1.0))
    }

    /// How the GPU's time in the window is divided; `None` in the first second.
    pub fn division(&self, gpu: &GpuUuid, window: Window) -> Option<WindowShares> {
        let time = self.sums.gpus.get(gpu)?;
        let all = time.seconds.sum(window);
        if all < 1.0 {
            return None;
        }
        let uncovered = (time.uncovered_seconds.sum(window) / all).min(1.0);
        let mut busy: BTreeMap<ShareOwner, f64> = BTreeMap::new();
        for ((owner, _), time) in self.sums.shares.get(gpu).into_iter().flatten() {
            *busy.entry(owner.clone()).or_default() += time.busy_seconds.sum(window) / all;
        }
        // Counters lag behind by varying amounts, so a window may have a little more busy time than its length.
        let excess = busy.values().sum::<f64>() / (1.0 - uncovered).max(f64::MIN_POSITIVE);
        if excess > 1.0 {
            busy.values_mut().for_each(|ratio| *ratio /= excess);
        }
        Some(WindowShares { busy, uncovered })
    }
}

fn share_key(account: &Account) -> ShareKey {
    (ShareOwner::Container(account.container.clone()), account.mig.clone())
}
