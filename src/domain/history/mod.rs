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

use crate::domain::model::{
    Account, DeviceReadings, DeviceRef, Gpu, GpuUuid, InstanceReading, MigUuid, Moment, Snapshot, busy_ratio,
};

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

    /// How the busy time of this GPU is divided. `None` in the first second.
    pub fn division(&self, gpu: &GpuUuid, window: Window) -> Option<WindowShares> {
        self.sums.division(gpu, window)
    }

    /// The idle time of this holder in the window as a part of its known GPU time, 0 to 1.
    pub fn idle_ratio(&self, account: &Account, window: Window) -> Option<f64> {
        self.sums.idle_ratio(account, window)
    }

    fn add_points(&mut self, snapshot: &Snapshot) {
        let second = snapshot.at.monotonic.as_duration().as_secs();
        for gpu in snapshot.hardware.inventory.gpus.values() {
            let readings = snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings);
            let fast = readings.and_then(|readings| readings.fast.as_ref()).map(|stamped| &stamped.value);
            let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
            let whole = Point {
                busy: busy_ratio(gpu, readings, None),
                memory: medium.and_then(|medium| medium.memory).map(|memory| memory.used as f64),
                power: fast.and_then(|fast| fast.power_watts),
            };
            self.add_point(DeviceRef { gpu: gpu.uuid.clone(), mig: None }, second, whole);
            let instances = medium.map_or(&[][..], |medium| &medium.instances);
            self.add_mig_points(gpu, readings, instances, second);
        }
        // A device without points for the longest window is dropped.
        let kept = Window::HalfHour.seconds();
        self.points.retain(|_, points| second.saturating_sub(points.latest()) < kept);
    }

    fn add_mig_points(
        &mut self,
        gpu: &Gpu,
        readings: Option<&DeviceReadings>,
        instances: &[InstanceReading],
        second: u64,
    ) {
        for mig in &gpu.mig_devices {
            let reading = instances.iter().find(|instance| instance.members.contains(&mig.uuid));
            let point = Point {
                busy: busy_ratio(gpu, readings, Some(mig)),
                memory: reading.and_then(|reading| reading.memory).map(|memory| memory.used as f64),
                power: None,
            };
            self.add_point(DeviceRef { gpu: gpu.uuid.clone(), mig: Some(mig.uuid.clone()) }, second, point);
        }
    }

    fn add_point(&mut self, device: DeviceRef, second: u64, point: Point) {
        self.points.entry(device).or_default().add(second, point);
    }
}

#[cfg(test)]
mod tests;
