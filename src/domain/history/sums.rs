//! The use of each holder in the last minutes. In: a snapshot's counters. Out: shares of a GPU's time and a holder's
//! figures, by window. Does not know points and events.

use std::collections::BTreeMap;

use super::Window;
use crate::domain::model::{Account, ContainerRef, Figures, GpuUuid, MigUuid, Monotonic, Snapshot, UnattributedReason};

/// A window is nine to ten of these steps long.
const STEPS: usize = 10;

/// To what a part of a device's time is attributed.
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
    /// Of the time that is known; `None` without any.
    #[must_use]
    pub fn known_ratio(&self, busy: f64) -> Option<f64> {
        (self.uncovered < 1.0).then(|| (busy / (1.0 - self.uncovered)).min(1.0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CounterSubject {
    Holder(ContainerRef, Option<MigUuid>),
    Unattributed(UnattributedReason),
    /// Its busy time is all time.
    Gpu,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WindowSums {
    noted: Option<(Monotonic, u64)>,
    rows: BTreeMap<(GpuUuid, CounterSubject), CounterWindows>,
}

/// What was added to four counters, by window and step.
#[derive(Clone, Debug, Default)]
struct CounterWindows {
    counters: [f64; 4],
    added: [[[f32; 4]; STEPS]; Window::ALL.len()],
    is_current: bool,
}

impl CounterWindows {
    /// A counter that is new or has fallen began at zero.
    fn note(&mut self, counters: [f64; 4], slots: [usize; Window::ALL.len()]) {
        for (quantity, counter) in counters.into_iter().enumerate() {
            let before = self.counters[quantity];
            let more = if counter < before { counter } else { counter - before };
            for (steps, slot) in self.added.iter_mut().zip(slots) {
                steps[slot][quantity] += more as f32;
            }
        }
        (self.counters, self.is_current) = (counters, true);
    }

    fn sums(&self, window: Window) -> [f64; 4] {
        std::array::from_fn(|quantity| self.added[window as usize].iter().map(|step| f64::from(step[quantity])).sum())
    }
}

impl WindowSums {
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at.monotonic;
        let second = at.as_duration().as_secs();
        // Use before the first snapshot is in no window.
        let is_first = self.noted.is_none();
        let (last, last_second) = self.noted.replace((at, second)).unwrap_or((at, second));
        let number = |window: Window, second: u64| second / (window.seconds() / STEPS as u64);
        let slots = Window::ALL.map(|window| number(window, second) as usize % STEPS);
        for (index, window) in Window::ALL.into_iter().enumerate() {
            let (from, to) = (number(window, last_second), number(window, second));
            for step in (from + 1..=to).rev().take(STEPS) {
                self.rows.values_mut().for_each(|row| row.added[index][step as usize % STEPS] = [0.0; 4]);
            }
        }
        let elapsed = at.since(last).as_secs_f64();
        for account in &snapshot.accounts {
            let usage = [
                account.figures.busy_seconds,
                account.figures.idle_seconds,
                account.figures.borrowed_seconds,
                account.figures.uncovered_seconds,
            ];
            self.row(&account.gpu, holder(account)).note(usage.map(Option::unwrap_or_default), slots);
        }
        for unattributed in &snapshot.unattributed {
            for (reason, seconds) in &unattributed.busy_seconds {
                self.row(&unattributed.gpu, CounterSubject::Unattributed(*reason))
                    .note([*seconds, 0.0, 0.0, 0.0], slots);
            }
        }
        for gpu in snapshot.hardware.inventory.gpus.keys() {
            let readings = snapshot.hardware.readings.get(gpu);
            let readings =
                readings.filter(|readings| readings.fast.is_some() && readings.totals.busy_seconds.is_some());
            let row = self.row(gpu, CounterSubject::Gpu);
            // The driver's uncovered time includes that of a gap once there are readings again.
            let uncovered = match readings {
                Some(readings) => readings.totals.uncovered_seconds.max(row.counters[3]),
                None => row.counters[3] + elapsed,
            };
            row.note([row.counters[0] + elapsed, 0.0, 0.0, uncovered], slots);
        }
        self.rows.retain(|_, row| std::mem::take(&mut row.is_current));
        if is_first {
            self.rows.values_mut().for_each(|row| row.added = Default::default());
        }
    }

    fn row(&mut self, gpu: &GpuUuid, subject: CounterSubject) -> &mut CounterWindows {
        self.rows.entry((gpu.clone(), subject)).or_default()
    }

    /// Busy, idle, borrowed and uncovered seconds.
    pub(super) fn figures(&self, account: &Account, window: Window) -> Option<Figures> {
        let row = self.rows.get(&(account.gpu.clone(), holder(account)))?;
        let [busy_seconds, idle_seconds, borrowed_seconds, uncovered_seconds] = row.sums(window).map(Some);
        Some(Figures { busy_seconds, idle_seconds, borrowed_seconds, uncovered_seconds, ..Figures::default() })
    }

    /// `None` in the first second.
    pub(super) fn division(&self, gpu: &GpuUuid, window: Window) -> Option<WindowShares> {
        let [all, _, _, uncovered] = self.rows.get(&(gpu.clone(), CounterSubject::Gpu))?.sums(window);
        if all < 1.0 {
            return None;
        }
        let mut division = WindowShares { uncovered: (uncovered / all).min(1.0), ..WindowShares::default() };
        let first = (gpu.clone(), CounterSubject::Holder(ContainerRef::new("", "", ""), None));
        for ((_, subject), row) in self.rows.range(first..).take_while(|((of, _), _)| of == gpu) {
            let part = match subject {
                CounterSubject::Holder(container, _) => ShareOwner::Container(container.clone()),
                CounterSubject::Unattributed(reason) => ShareOwner::Unattributed(*reason),
                CounterSubject::Gpu => continue,
            };
            *division.busy.entry(part).or_default() += row.sums(window)[0] / all;
        }
        // Counters lag behind by varying amounts, so a window may have a little more busy time than its length.
        let excess = division.busy.values().sum::<f64>() / (1.0 - division.uncovered).max(f64::MIN_POSITIVE);
        if excess > 1.0 {
            division.busy.values_mut().for_each(|ratio| *ratio /= excess);
        }
        Some(division)
    }
}

fn holder(account: &Account) -> CounterSubject {
    CounterSubject::Holder(account.container.clone(), account.mig.clone())
}
