use std::time::Duration;

use crate::rig::unix_now;
use crate::row::{ALL, Area, Is, Log, Metric, Row, Seen, Text};

const DAY: i64 = 86_400;
const STAMP: &str = "podmeter_collector_last_success_timestamp_seconds";
const OF_KUBELET: &[&str] = &["collector=\"kubelet\""];
/// Seconds are counted, not read off the wall clock.
const NO_LEAP: Metric = Metric("podmeter_conservation_violations_total", &[], Is::Value(0.0));
const READY: Option<Text> = Some(Text("/-/ready", "200 OK"));

pub const AREA: Area = Area {
    name: "The clock",
    setup: |setup| setup.skewed_clock = true,
    rows: &[
        Row {
            id: "clock-ahead",
            happens: "The wall clock leaps a day ahead",
            how: |rig| rig.set_clock_ahead(DAY),
            seen: Seen {
                metrics: &[Metric(STAMP, OF_KUBELET, Is::Ahead(86_000.0)), NO_LEAP],
                log: Log::Silent,
                page: READY,
            },
            goes_on: ALL,
            undone: "it is set right",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            within: 10,
        },
        Row {
            id: "clock-back",
            happens: "The wall clock leaps a day back",
            how: |rig| rig.set_clock_ahead(-DAY),
            seen: Seen {
                metrics: &[Metric(STAMP, OF_KUBELET, Is::Behind(86_000.0)), NO_LEAP],
                log: Log::Silent,
                page: READY,
            },
            goes_on: ALL,
            undone: "it is set right",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            within: 10,
        },
        Row {
            id: "clock-years-ahead",
            happens: "The wall clock leaps ten years ahead",
            how: |rig| rig.set_clock_ahead(3650 * DAY),
            seen: Seen {
                metrics: &[Metric(STAMP, OF_KUBELET, Is::Ahead(3e8)), NO_LEAP],
                log: Log::Silent,
                page: READY,
            },
            goes_on: ALL,
            undone: "it is set right",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            within: 10,
        },
        Row {
            id: "clock-1970",
            happens: "It is started on a machine whose clock is not set yet, in 1970",
            how: |rig| {
                rig.stop();
                rig.set_clock_ahead(100 - unix_now() as i64);
                rig.begin();
            },
            seen: Seen {
                metrics: &[Metric(STAMP, OF_KUBELET, Is::Behind(1e9)), NO_LEAP],
                log: Log::Silent,
                page: READY,
            },
            goes_on: ALL,
            undone: "it is set right",
            undo: Some(|rig| rig.set_clock_ahead(0)),
            within: 10,
        },
        Row {
            id: "clock-suspended",
            happens: "The process stands still for six seconds, as on a machine that is suspended",
            how: |rig| {
                rig.signal("STOP");
                std::thread::sleep(Duration::from_secs(6));
                rig.signal("CONT");
            },
            seen: Seen {
                metrics: &[Metric("podmeter_scrape_duration_seconds_count", &[], Is::Rises), NO_LEAP],
                log: Log::Silent,
                page: READY,
            },
            goes_on: ALL,
            undone: "nothing: it goes on",
            undo: None,
            within: 10,
        },
    ],
};
