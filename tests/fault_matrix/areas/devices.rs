use serde_json::json;

use super::driver::reload;
use crate::rig::{Rig, until};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};

const SICK: &[&str] = &["gpu=\"3\""];
const LOST_BEFORE: &[&str] = &["gpu_uuid=\"GPU-00000000-0000-0000-0000-000000000003\""];
const UNHEALTHY: Metric = Metric("podmeter_device_healthy", SICK, Is::Value(0.0));
const UNREAD: Metric = Metric("podmeter_device_power_watts", SICK, Is::Absent);
/// The pod is on another GPU, or on this one: it goes on either way.
const SEVEN_DEVICES: &[GoesOn] =
    &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(7), GoesOn::Admits, GoesOn::Pod];
const SEVEN_OF_ALL: &[GoesOn] =
    &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(7), GoesOn::Devices(7), GoesOn::Admits, GoesOn::Pod];

const HUNG: &[GoesOn] = &[
    GoesOn::Pages,
    GoesOn::Promptly,
    GoesOn::Holder,
    GoesOn::Readings(7),
    GoesOn::Devices(7),
    GoesOn::Admits,
    GoesOn::Pod,
];

pub const AREA: Area = Area {
    name: "A device",
    setup: |_| {},
    rows: &[
        Row {
            id: "gpu-lost",
            happens: "A GPU falls off the bus",
            how: |rig| rig.gpu(3, |gpu| gpu["lost"] = json!(true)),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    UNREAD,
                    Metric("podmeter_device_info", SICK, Is::Series(1)),
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"lost\""], Is::Value(1.0)),
                ],
                log: Log::Line("the GPU is lost or requires a reset"),
                page: Some(Text("/", "the driver reports that it is lost or needs a reset")),
            },
            goes_on: SEVEN_OF_ALL,
            undone: "it answers",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["lost"] = json!(false))),
            within: 15,
        },
        Row {
            id: "gpu-lost-before-start",
            happens: "A GPU is lost while podmeter does not run, and podmeter is started",
            how: |rig| {
                rig.stop();
                rig.gpu(3, |gpu| gpu["fail"] = json!({"*": 15}));
                rig.begin();
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_healthy", LOST_BEFORE, Is::Value(0.0)),
                    Metric("podmeter_device_info", LOST_BEFORE, Is::Series(1)),
                    Metric("podmeter_device_unhealthy_reason", &[LOST_BEFORE[0], "reason=\"lost\""], Is::Value(1.0)),
                ],
                log: Log::Line("the driver does not list it"),
                page: Some(Text("/", "the driver does not list it")),
            },
            goes_on: SEVEN_OF_ALL,
            undone: "the driver lists it",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["fail"] = json!({}))),
            within: 30,
        },
        Row {
            id: "gpus-all-lost",
            happens: "Every GPU falls off the bus",
            how: |rig| rig.gpus(|gpu| gpu["lost"] = json!(true)),
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_power_watts", &[], Is::Absent),
                    Metric("podmeter_device_unhealthy_reason", &["reason=\"lost\""], Is::Series(8)),
                ],
                log: Log::Line("every GPU is lost; the driver is opened again until one answers"),
                page: Some(Text("/", "every GPU is lost")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "they answer",
            undo: Some(|rig| rig.gpus(|gpu| gpu["lost"] = json!(false))),
            within: 30,
        },
        Row {
            id: "gpu-sentinels",
            happens: "A GPU's firmware gives all ones for its temperature, its clock and its memory",
            how: |rig| {
                rig.gpu(3, |gpu| {
                    gpu["temperatures"] = json!({ "gpu": -1 });
                    gpu["clocks"] = json!({ "sm": u32::MAX });
                    gpu["memory"] = json!({ "total_bytes": u64::MAX });
                });
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_temperature_celsius", &["gpu=\"3\"", "sensor=\"gpu\""], Is::Absent),
                    Metric("podmeter_device_clock_hertz", &["gpu=\"3\"", "clock=\"sm\""], Is::Absent),
                    Metric("podmeter_device_memory_bytes", SICK, Is::Absent),
                    Metric(
                        "podmeter_nvml_implausible_readings_total",
                        &["quantity=\"temperature_celsius\""],
                        Is::Rises,
                    ),
                    Metric("podmeter_nvml_implausible_readings_total", &["quantity=\"memory_bytes\""], Is::Rises),
                ],
                log: Log::Silent,
                page: None,
            },
            goes_on: ALL,
            undone: "the readings are plausible again",
            undo: Some(|rig| {
                rig.gpu(3, |gpu| {
                    gpu["temperatures"] = json!({});
                    gpu["clocks"] = json!({});
                    gpu["memory"] = json!({});
                });
            }),
            within: 15,
        },
        Row {
            id: "gpu-xid-79",
            happens: "The driver reports XID 79, and the GPU goes on answering",
            how: |rig| rig.gpu(3, |gpu| gpu["events"] = json!([{"sequence": 1, "xid": 79}])),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"xid\""], Is::Value(1.0)),
                    Metric("podmeter_xid_errors_total", &["gpu=\"3\"", "class=\"node_reboot\""], Is::Rises),
                ],
                log: Log::Line("XID 79 (the GPU has fallen off the bus)"),
                page: Some(Text("/", "XID 79")),
            },
            goes_on: SEVEN_DEVICES,
            undone: "the driver is reloaded",
            undo: Some(reload),
            within: 20,
        },
        Row {
            id: "gpu-xid-119",
            happens: "The driver reports XID 119 and asks for a reset of the GPU",
            how: |rig| {
                rig.gpu(3, |gpu| gpu["events"] = json!([{"sequence": 2, "xid": 119}]));
                // Seen the other way round, the recovery action is the turn that the log tells.
                let counted =
                    |rig: &Rig| rig.metrics().value("podmeter_xid_errors_total", &[SICK[0], "class=\"gpu_reset\""]);
                until("the XID is counted", || counted(rig) > Some(0.0));
                rig.gpu(3, |gpu| {
                    gpu["recovery_action"] = json!(1);
                    gpu["events"] = json!([{"sequence": 3, "kind": 0x8000}]);
                });
            },
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_recovery_action", &["gpu=\"3\"", "action=\"gpu_reset\""], Is::Value(1.0)),
                    Metric("podmeter_xid_errors_total", &["gpu=\"3\"", "class=\"gpu_reset\""], Is::Rises),
                ],
                log: Log::Line("XID 119"),
                page: Some(Text("/", "XID 119")),
            },
            goes_on: SEVEN_DEVICES,
            undone: "the GPU is reset, and the driver asks for nothing",
            undo: Some(|rig| {
                rig.gpu(3, |gpu| {
                    gpu["recovery_action"] = json!(0);
                    gpu["events"] = json!([{"sequence": 4, "kind": 0x8000}]);
                });
            }),
            within: 15,
        },
        Row {
            id: "gpu-application-xid",
            happens: "A program makes an XID of its own doing, 31",
            how: |rig| rig.gpu(3, |gpu| gpu["events"] = json!([{"sequence": 5, "xid": 31}])),
            seen: Seen {
                metrics: &[
                    Metric("podmeter_xid_errors_total", &["gpu=\"3\"", "class=\"application\""], Is::Rises),
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "nothing: it is counted",
            undo: None,
            within: 10,
        },
        Row {
            id: "gpu-xid-storm",
            happens: "The driver reports XID 45 a hundred thousand times",
            how: |rig| rig.gpu(3, |gpu| gpu["events"] = json!([{"sequence": 6, "xid": 45, "count": 100_000}])),
            seen: Seen {
                metrics: &[
                    Metric(
                        "podmeter_xid_errors_total",
                        &["gpu=\"3\"", "class=\"corroborating\""],
                        Is::Value(100_000.0),
                    ),
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "nothing: each is counted",
            undo: None,
            within: 10,
        },
        Row {
            id: "gpu-recovery-action",
            happens: "The driver asks for a reset of a GPU",
            how: |rig| {
                rig.gpu(3, |gpu| {
                    gpu["recovery_action"] = json!(1);
                    gpu["events"] = json!([{"sequence": 7, "kind": 0x8000}]);
                });
            },
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric(
                        "podmeter_device_unhealthy_reason",
                        &["gpu=\"3\"", "reason=\"recovery_action\""],
                        Is::Value(1.0),
                    ),
                ],
                log: Log::Line("reason=\"recovery_action\""),
                page: Some(Text("/api/v1/node", "\"reason\":\"recovery_action\"")),
            },
            goes_on: SEVEN_DEVICES,
            undone: "it is reset",
            undo: Some(|rig| {
                rig.gpu(3, |gpu| {
                    gpu["recovery_action"] = json!(0);
                    gpu["events"] = json!([{"sequence": 8, "kind": 0x8000}]);
                });
            }),
            within: 15,
        },
        Row {
            id: "gpu-row-remap-failed",
            happens: "A memory row of a GPU cannot be replaced",
            how: |rig| remap(rig, true, 9),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_row_remap_failed", SICK, Is::Value(1.0)),
                    Metric(
                        "podmeter_device_unhealthy_reason",
                        &["gpu=\"3\"", "reason=\"row_remap_failed\""],
                        Is::Value(1.0),
                    ),
                ],
                log: Log::Line("reason=\"row_remap_failed\""),
                page: Some(Text("/api/v1/node", "\"reason\":\"row_remap_failed\"")),
            },
            goes_on: SEVEN_DEVICES,
            undone: "the driver no longer says so, as of another board",
            undo: Some(|rig| remap(rig, false, 10)),
            within: 15,
        },
        Row {
            id: "gpu-call-hangs",
            happens: "A call on one GPU hangs",
            how: |rig| rig.gpu(3, |gpu| gpu["hang"] = json!(["nvmlDeviceGetPowerUsage"])),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    UNREAD,
                    Metric("podmeter_collector_stuck", &["collector=\"fast\""], Is::Value(1.0)),
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"stuck\""], Is::Value(1.0)),
                ],
                log: Log::Line("a driver call on this GPU has not come back"),
                page: Some(Text("/", "a driver call on it does not return")),
            },
            goes_on: HUNG,
            undone: "the call comes back",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["hang"] = json!([]))),
            within: 15,
        },
        Row {
            id: "gpu-marked",
            happens: "An operator marks a GPU that flickers",
            how: |rig| assert_eq!(rig.order("/mark", r#"{"device": "3", "reason": "it flickers"}"#).status, 200),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"admin\""], Is::Value(1.0)),
                ],
                log: Log::Line("reason=\"admin\""),
                page: Some(Text("/", "it flickers")),
            },
            goes_on: SEVEN_DEVICES,
            undone: "`POST /unmark`",
            undo: Some(|rig| assert_eq!(rig.order("/unmark", r#"{"device": "3"}"#).status, 200)),
            within: 10,
        },
    ],
};

fn remap(rig: &mut Rig, failure: bool, sequence: u64) {
    rig.gpu(3, |gpu| {
        gpu["remapped_rows"] = json!({"failure": failure});
        gpu["events"] = json!([{"sequence": sequence, "kind": 0x800}]);
    });
}
