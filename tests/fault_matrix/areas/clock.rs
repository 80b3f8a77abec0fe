use std::time::Duration;

use crate::rig::unix_now;
use crate::row::{Area, Is, Metric, ROW, Row, Text};

const DAY: i64 = 86_400;
const STAMP: &str = "podmeter_collector_last_success_timestamp_seconds";
const KUBELET: &[&str] = &["collector=\"kubelet\""];
/// Durations come from the monotonic clock.
const NO_VIOLATION: Metric = Metric("podmeter_conservation_violations_total", &[], Is::Value(0.0));
const READY: Option<Text> = Some(Text("/-/ready", "200 OK"));

pub const AREA: Area = Area {
    name: "The clock",
    setup: |setup| setup.skewed_clock = true,
    rows: &[
        Row {
            id: "clock-ahead",
            happens: "The wall clock jumps one day ahead",
            how: |rig| rig.set_clock_ahead(DAY),
            metrics: &[Metric(STAMP, KUBELET, Is::Ahead(86_000.0)), NO_VIOLATION],
            page: READY,
            undone: "the clock is corrected",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            ..ROW
        },
        Row {
            id: "clock-back",
            happens: "The wall clock jumps one day back",
            how: |rig| rig.set_clock_ahead(-DAY),
            metrics: &[Metric(STAMP, KUBELET, Is::Behind(86_000.0)), NO_VIOLATION],
            page: READY,
            undone: "the clock is corrected",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            ..ROW
        },
        Row {
            id: "clock-1970",
            happens: "podmeter starts before the clock is set, in 1970",
            how: |rig| {
                rig.stop();
                rig.set_clock_ahead(100 - unix_now() as i64);
                rig.begin();
            },
            metrics: &[Metric(STAMP, KUBELET, Is::Behind(1e9)), NO_VIOLATION],
            page: READY,
            undone: "the clock is corrected",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            ..ROW
        },
        Row {
            id: "clock-suspended",
            happens: "The process is stopped for six seconds, as on a suspended machine",
            how: |rig| {
                rig.signal("STOP");
                std::thread::sleep(Duration::from_secs(6));
                rig.signal("CONT");
            },
            metrics: &[Metric("podmeter_scrape_duration_seconds_count", &[], Is::Rises), NO_VIOLATION],
            page: READY,
            undone: "not needed: podmeter continues",
            ..ROW
        },
    ],
};
