use std::time::Duration;

use crate::rig::unix_now;
use crate::row::{Area, FaultRow, Is, ROW, Reply, Sample};

const DAY: i64 = 86_400;
const STAMP: &str = "podmeter_collector_last_success_timestamp_seconds";
const KUBELET: &[&str] = &["collector=\"kubelet\""];
/// Durations come from the monotonic clock.
const NO_VIOLATION: Sample = Sample("podmeter_conservation_violations_total", &[], Is::Value(0.0));
const READY: Option<Reply> = Some(Reply("/-/ready", "200 OK"));

pub const AREA: Area = Area {
    name: "The clock",
    setup: |setup| setup.skewed_clock = true,
    rows: &[
        FaultRow {
            id: "clock-ahead",
            happens: "The wall clock jumps one day ahead",
            how: |rig| rig.set_clock_ahead(DAY),
            metrics: &[Sample(STAMP, KUBELET, Is::Ahead(86_000.0)), NO_VIOLATION],
            page: READY,
            undone: "the clock is corrected",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            ..ROW
        },
        FaultRow {
            id: "clock-back",
            happens: "The wall clock jumps one day back",
            how: |rig| rig.set_clock_ahead(-DAY),
            metrics: &[Sample(STAMP, KUBELET, Is::Behind(86_000.0)), NO_VIOLATION],
            page: READY,
            undone: "the clock is corrected",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            ..ROW
        },
        FaultRow {
            id: "clock-1970",
            happens: "podmeter starts before the clock is set, in 1970",
            how: |rig| {
                rig.stop();
                rig.set_clock_ahead(100 - unix_now() as i64);
                rig.begin();
            },
            metrics: &[Sample(STAMP, KUBELET, Is::Behind(1e9)), NO_VIOLATION],
            page: READY,
            undone: "the clock is corrected",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            ..ROW
        },
        FaultRow {
            id: "clock-suspended",
            happens: "The process is stopped for six seconds, as on a suspended machine",
            how: |rig| {
                rig.signal("STOP");
                std::thread::sleep(Duration::from_secs(6));
                rig.signal("CONT");
            },
            metrics: &[Sample("podmeter_scrape_duration_seconds_count", &[], Is::Rises), NO_VIOLATION],
            page: READY,
            undone: "not needed: podmeter continues",
            ..ROW
        },
    ],
};
