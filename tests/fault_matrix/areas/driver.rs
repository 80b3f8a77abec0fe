use serde_json::json;

use crate::rig::{Rig, TRAINER, until};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};

const NO_READINGS: Metric = Metric("podmeter_device_power_watts", &[], Is::Absent);
const UNCOVERED: &str = "podmeter_container_uncovered_seconds_total";
const IDENTITY: Metric = Metric("podmeter_device_info", &[], Is::Series(8));

pub const AREA: Area = Area {
    name: "The driver",
    setup: |_| {},
    rows: &[
        Row {
            id: "driver-reloaded",
            happens: "The driver is reloaded while podmeter runs, and its counters restart at 0",
            how: reload,
            seen: Seen {
                metrics: &[
                    Metric("podmeter_nvml_errors_total", &["code=\"uninitialized\""], Is::Rises),
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                ],
                log: Log::Line("readings resumed"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "not needed: podmeter opens the driver again",
            undo: None,
            within: 15,
        },
        Row {
            id: "driver-not-loaded",
            happens: "The driver is unloaded",
            how: |rig| refuse(rig, 9),
            seen: Seen {
                metrics: &[
                    NO_READINGS,
                    IDENTITY,
                    Metric(
                        "podmeter_nvml_errors_total",
                        &["call=\"nvmlInit_v2\"", "code=\"driver_not_loaded\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("load the NVIDIA kernel driver (nvidia-smi on the node says more)"),
                page: Some(Text("/", "cannot be initialised: driver_not_loaded (9)")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Pod],
            undone: "the driver is loaded",
            undo: Some(|rig| rig.driver.update(|state| state["init"] = json!(0))),
            within: 20,
        },
        Row {
            id: "driver-half-upgraded",
            happens: "The versions of driver library and kernel module differ, as during an upgrade",
            how: |rig| refuse(rig, 18),
            seen: Seen {
                metrics: &[
                    NO_READINGS,
                    IDENTITY,
                    Metric(
                        "podmeter_nvml_errors_total",
                        &["call=\"nvmlInit_v2\"", "code=\"lib_rm_version_mismatch\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("finish the driver upgrade: the library and the loaded kernel module differ in version"),
                page: Some(Text("/", "finish the driver upgrade")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Pod],
            undone: "the upgrade is finished",
            undo: Some(|rig| rig.driver.update(|state| state["init"] = json!(0))),
            within: 20,
        },
        Row {
            id: "driver-no-permission",
            happens: "podmeter has no permission to open the device nodes",
            how: |rig| refuse(rig, 4),
            seen: Seen {
                metrics: &[
                    NO_READINGS,
                    Metric(
                        "podmeter_nvml_errors_total",
                        &["call=\"nvmlInit_v2\"", "code=\"no_permission\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("run the agent as a user that may open /dev/nvidiactl, or as root"),
                page: Some(Text("/", "cannot be initialised: no_permission (4)")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Pod],
            undone: "podmeter gets the permission",
            undo: Some(|rig| rig.driver.update(|state| state["init"] = json!(0))),
            within: 20,
        },
        Row {
            id: "driver-fails-some-calls",
            happens: "Some driver calls fail on every GPU",
            how: |rig| {
                rig.gpus(|gpu| {
                    gpu["fail"] = json!({
                        "nvmlDeviceGetMemoryInfo_v2": 999, "nvmlDeviceGetMemoryInfo": 999,
                        "nvmlDeviceGetPerformanceState": 999, "nvmlDeviceGetClockInfo": 999,
                    });
                });
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_memory_bytes", &[], Is::Absent),
                    Metric("podmeter_device_clock_hertz", &[], Is::Absent),
                    Metric("podmeter_nvml_errors_total", &["code=\"unknown\""], Is::Rises),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "the calls succeed",
            undo: Some(|rig| {
                rig.gpus(|gpu| gpu["fail"] = json!({}));
                rig.until_series("podmeter_device_memory_bytes");
            }),
            within: 20,
        },
        Row {
            id: "driver-hangs",
            happens: "Every driver call hangs",
            how: |rig| rig.driver.update(|state| state["hang"] = json!(["*"])),
            seen: Seen {
                metrics: &[
                    NO_READINGS,
                    IDENTITY,
                    Metric("podmeter_collector_stuck", &["collector=\"fast\""], Is::Value(1.0)),
                    Metric("podmeter_device_unhealthy_reason", &["reason=\"stuck\""], Is::Series(8)),
                ],
                log: Log::Line("a driver call on this GPU has not come back"),
                page: Some(Text("/", "a driver call on it does not return")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "the calls return",
            undo: Some(|rig| rig.driver.update(|state| state["hang"] = json!([]))),
            within: 30,
        },
        Row {
            id: "driver-events-fail",
            happens: "The wait for driver events fails",
            how: |rig| rig.driver.update(|state| state["fail"] = json!({"nvmlEventSetWait_v2": 999})),
            seen: Seen {
                metrics: &[
                    Metric("podmeter_collector_success", &["collector=\"events\""], Is::Value(0.0)),
                    Metric(
                        "podmeter_nvml_errors_total",
                        &["call=\"nvmlEventSetWait_v2\"", "code=\"unknown\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "the wait succeeds",
            undo: Some(|rig| rig.driver.update(|state| state["fail"] = json!({}))),
            within: 40,
        },
        Row {
            id: "driver-lists-nothing",
            happens: "The driver lists no GPU",
            how: |rig| {
                let state = rig.driver_state();
                rig.write("eight-gpus.json", &state["gpus"].to_string());
                rig.driver.update(|state| state["gpus"] = json!([]));
            },
            seen: Seen {
                metrics: &[
                    NO_READINGS,
                    IDENTITY,
                    Metric("podmeter_device_unhealthy_reason", &["reason=\"lost\""], Is::Series(8)),
                ],
                log: Log::Line("the GPU is lost or requires a reset"),
                page: Some(Text("/api/v1/node", "\"reason\":\"lost\"")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "the driver lists the GPUs",
            undo: Some(|rig| {
                let gpus = std::fs::read_to_string(rig.path("eight-gpus.json")).unwrap();
                let gpus: serde_json::Value = serde_json::from_str(&gpus).unwrap();
                rig.driver.update(|state| state["gpus"] = gpus);
            }),
            within: 40,
        },
        Row {
            id: "driver-uuids-fail-at-start",
            happens: "nvmlDeviceGetUUID fails on every GPU; podmeter starts",
            how: |rig| {
                rig.stop();
                rig.driver.update(|state| state["fail"] = json!({"nvmlDeviceGetUUID": 999}));
                rig.begin();
            },
            seen: Seen {
                metrics: &[
                    NO_READINGS,
                    IDENTITY,
                    Metric("podmeter_device_unhealthy_reason", &["reason=\"lost\""], Is::Series(8)),
                ],
                log: Log::Line("the driver does not list it"),
                page: Some(Text("/", "8 unhealthy")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "the calls succeed",
            undo: Some(|rig| rig.driver.update(|state| state["fail"] = json!({}))),
            within: 40,
        },
        Row {
            id: "driver-released",
            happens: "An operator has podmeter release the driver, for an upgrade",
            how: |rig| {
                let answer = rig.order("/release", r#"{"for": "10m"}"#);
                assert_eq!(answer.status, 200, "{}", answer.body);
            },
            seen: Seen {
                metrics: &[NO_READINGS, IDENTITY, Metric("podmeter_released", &[], Is::Value(1.0))],
                log: Log::Line("the driver is released on request"),
                page: Some(Text("/", "the driver was released on request")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(8), GoesOn::Pod],
            undone: "`POST /resume`",
            undo: Some(|rig| assert_eq!(rig.order("/resume", "").status, 200)),
            within: 15,
        },
        Row {
            id: "driver-released-under-a-pod",
            happens: "podmeter releases the driver while a pod holds a GPU: the time is uncovered, not idle",
            how: release_under_a_pod,
            seen: Seen {
                metrics: &[
                    Metric(UNCOVERED, TRAINER, Is::Rises),
                    Metric("podmeter_container_last_active_timestamp_seconds", TRAINER, Is::Absent),
                    Metric(
                        "podmeter_container_allocation_info",
                        &["pod=\"trainer\"", "attribution=\"estimated\""],
                        Is::Series(1),
                    ),
                ],
                log: Log::Line("the driver is released on request"),
                page: Some(Text("/api/v1/node", "\"released\":{")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Pod],
            undone: "`POST /resume`",
            undo: Some(|rig| {
                let idle = std::fs::read_to_string(rig.path("idle")).unwrap();
                assert_eq!(idle_of_the_pod(rig), idle, "idle seconds grew while the driver was released");
                assert_eq!(rig.order("/resume", "").status, 200);
            }),
            within: 15,
        },
    ],
};

fn idle_of_the_pod(rig: &Rig) -> String {
    format!("{:?}", rig.metrics().value("podmeter_container_idle_seconds_total", TRAINER))
}

/// Releases the driver; once the pod's time is uncovered, saves its idle seconds.
fn release_under_a_pod(rig: &mut Rig) {
    let uncovered = |rig: &Rig| rig.metrics().value(UNCOVERED, TRAINER).unwrap_or_default();
    let answer = rig.order("/release", r#"{"for": "10m"}"#);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let before = uncovered(rig);
    until("uncovered seconds of the pod", || uncovered(rig) > before + 1.0);
    rig.write("idle", &idle_of_the_pod(rig));
}

pub fn reload(rig: &mut Rig) {
    rig.driver.update(|state| {
        state["generation"] = json!(state["generation"].as_u64().unwrap_or(1) + 1);
        for gpu in state["gpus"].as_array_mut().unwrap() {
            gpu["energy_millijoules"] = json!(0);
        }
    });
}

/// Ends the session, and makes nvmlInit fail.
fn refuse(rig: &mut Rig, code: u32) {
    rig.driver.update(|state| state["init"] = json!(code));
    reload(rig);
}
