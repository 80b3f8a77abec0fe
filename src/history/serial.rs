use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use super::{Device, History, INTERVAL_SECONDS, Point, Points};

/// `{at, interval_seconds, devices, events}`; events newest first.
impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let second = self.at.monotonic.as_duration().as_secs();
        let row = |(device, points)| Row { device, points, seconds_ago: second.saturating_sub(Points::latest(points)) };
        let devices: Vec<Row<'_>> = self.devices().map(row).collect();
        let mut history = serializer.serialize_struct("History", 4)?;
        history.serialize_field("at", &self.at)?;
        history.serialize_field("interval_seconds", &INTERVAL_SECONDS)?;
        history.serialize_field("devices", &devices)?;
        history.serialize_field("events", &self.events().collect::<Vec<_>>())?;
        history.end()
    }
}

struct Row<'a> {
    device: &'a Device,
    points: &'a Points,
    /// How long before `at` the last point is.
    seconds_ago: u64,
}

/// Oldest first; `null` without a reading.
impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let column = |of: fn(Point) -> Option<f64>| self.points.iter().map(of).collect::<Vec<_>>();
        let mut row = serializer.serialize_struct("Row", 6)?;
        row.serialize_field("gpu", &self.device.gpu)?;
        row.serialize_field("mig", &self.device.mig)?;
        row.serialize_field("seconds_ago", &self.seconds_ago)?;
        row.serialize_field("busy_ratio", &column(|point| point.busy.map(|ratio| (ratio * 1e4).round() / 1e4)))?;
        row.serialize_field("memory_used_bytes", &column(|point| point.memory))?;
        row.serialize_field("power_watts", &column(|point| point.power.map(|watts| (watts * 10.0).round() / 10.0)))?;
        row.end()
    }
}
