//! The last half hour: readings per device, how its busy time is divided, the use of each holder, and events.
//!
//! Inputs: each published `Snapshot`, with its time. Outputs: points, divisions, usage, events. Does not use: HTTP, or
//! the source of a reading. All state is bounded, for any number of devices over time.

mod changes;
mod event;
mod points;
mod sums;

use std::collections::{BTreeMap, VecDeque};

pub use event::{HistoryEvent, HistoryEventKind, Severity};
use points::COLUMNS;
pub use points::{INTERVAL_SECONDS, POINTS, Point, Points, Window};
pub use sums::{ShareOwner, WindowShares};

use crate::domain::model::{DeviceRef, GpuUuid, MigUuid, Moment, Snapshot, busy_ratio};

/// The most events kept; the oldest are dropped first.
pub const EVENTS: usize = 200;

#[derive(Clone, Debug, Default)]
pub struct NodeHistory {
    /// The time of the first snapshot.
    began: Option<Moment>,
    at: Moment,
    points: BTreeMap<DeviceRef, Points>,
    changes: changes::Changes,
    sums: sums::WindowSums,
    /// The events, newest last.
    events: VecDeque<HistoryEvent>,
    numbered: u64,
}

impl NodeHistory {
    /// Adds a published snapshot. Snapshots come in the order of their time.
    pub fn add(&mut self, snapshot: &Snapshot) {
        self.began.get_or_insert(snapshot.at);
        self.at = snapshot.at;
        self.add_points(snapshot);
        self.sums.advance(snapshot);
        for event in self.changes.between(snapshot) {
            self.numbered += 1;
            if self.events.len() == EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(HistoryEvent { number: self.numbered, ..event });
        }
    }

    /// The time of the last snapshot.
    pub fn at(&self) -> Moment {
        self.at
    }

    pub fn devices(&self) -> impl Iterator<Item = (&DeviceRef, &Points)> {
        self.points.iter()
    }

    /// The columns of the window up to the last snapshot, oldest first, without those before the first snapshot.
    #[must_use]
    pub fn columns(&self, gpu: &GpuUuid, mig: Option<&MigUuid>, window: Window) -> Vec<Point> {
        let column = |at: Moment| at.monotonic.as_duration().as_secs() / window.step();
        let count = column(self.at) - column(self.began.unwrap_or(self.at)) + 1;
        let now = self.at.monotonic.as_duration().as_secs();
        let columns = self.points(gpu, mig).map_or([Point::default(); COLUMNS], |points| points.columns(window, now));
        columns[COLUMNS.saturating_sub(count as usize)..].to_vec()
    }

    pub fn points(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Option<&Points> {
        self.points.get(&DeviceRef { gpu: gpu.clone(), mig: mig.cloned() })
    }

    /// The events, newest first.
    pub fn events(&self) -> impl ExactSizeIterator<Item = &HistoryEvent> {
        self.events.iter().rev()
    }

    fn add_points(&mut self, snapshot: &Snapshot) {
        let second = snapshot.at.monotonic.as_duration().as_secs();
        let mut add = |device, point| self.points.entry(device).or_default().add(second, point);
        for gpu in snapshot.hardware.inventory.gpus.values() {
            let readings = snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings);
            let fast = readings.and_then(|readings| readings.fast.as_ref()).map(|stamped| &stamped.value);
            let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
            let whole = Point {
                busy: busy_ratio(gpu, readings, None),
                memory: medium.and_then(|medium| medium.memory).map(|memory| memory.used as f64),
                power: fast.and_then(|fast| fast.power_watts),
            };
            add(DeviceRef { gpu: gpu.uuid.clone(), mig: None }, whole);
            for mig in &gpu.mig_devices {
                let mut instances = medium.into_iter().flat_map(|medium| &medium.instances);
                let instance = instances.find(|instance| instance.members.contains(&mig.uuid));
                let memory = instance.and_then(|instance| instance.memory).map(|memory| memory.used as f64);
                let point = Point { busy: busy_ratio(gpu, readings, Some(mig)), memory, power: None };
                add(DeviceRef { gpu: gpu.uuid.clone(), mig: Some(mig.uuid.clone()) }, point);
            }
        }
        // A device without points for the longest window is dropped.
        let kept = Window::HalfHour.seconds();
        self.points.retain(|_, points| second.saturating_sub(points.latest()) < kept);
    }
}

#[cfg(test)]
mod tests;
