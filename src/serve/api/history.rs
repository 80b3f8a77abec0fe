//! The JSON of `/api/v1/history`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::objects::{written, written_and_read};
use crate::domain::history::{self, HistoryEvent, INTERVAL_SECONDS, Point};
use crate::domain::model::{DeviceRef, GpuUuid, MigUuid, Moment};

/// `/api/v1/history`: the points of the last minutes, and the events, newest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryResponse {
    pub at: Moment,
    pub interval_seconds: u64,
    pub devices: Vec<DeviceHistory>,
    pub events: Vec<HistoryEvent>,
}

/// The points of one device, oldest first; `None` without a reading.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceHistory {
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// How long before `at` the last point is.
    pub seconds_ago: u64,
    pub busy_ratio: Vec<Option<f64>>,
    pub memory_used_bytes: Vec<Option<f64>>,
    pub power_watts: Vec<Option<f64>>,
}

written_and_read! {
    HistoryEvent { number, at, kind, severity, text, devices, containers }
    DeviceRef { gpu, mig }
}

impl From<&history::NodeHistory> for HistoryResponse {
    fn from(history: &history::NodeHistory) -> Self {
        let now = history.at().monotonic.as_duration().as_secs();
        let past = |(device, points): (&DeviceRef, &history::Points)| {
            let column = |of: fn(Point) -> Option<f64>| points.iter().map(of).collect();
            DeviceHistory {
                gpu: device.gpu.clone(),
                mig: device.mig.clone(),
                seconds_ago: now.saturating_sub(points.latest()),
                busy_ratio: column(|point| point.busy.map(|ratio| (ratio * 1e4).round() / 1e4)),
                memory_used_bytes: column(|point| point.memory),
                power_watts: column(|point| point.power.map(|watts| (watts * 10.0).round() / 10.0)),
            }
        };
        Self {
            at: history.at(),
            interval_seconds: INTERVAL_SECONDS,
            devices: history.devices().map(past).collect(),
            events: history.events().cloned().collect(),
        }
    }
}
