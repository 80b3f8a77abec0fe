use serde_json::json;

use crate::rig::Rig;
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, READY, ROW, Reply, Sample};

const NO_READINGS: Sample = Sample("podmeter_device_power_watts", &[], Is::Absent);
const IDENTITY: Sample = Sample("podmeter_device_info", &[], Is::Series(8));

pub const AREA: Area = Area {
    name: "The driver",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "driver-reloaded",
            happens: "The driver is reloaded while podmeter runs, and its counters restart at 0",
            how: reload,
            metrics: &[
                Sample("podmeter_nvml_errors_total", &["code=\"uninitialized\""], Is::Rises),
                Sample("podmeter_device_healthy", &[], Is::Value(1.0)),
            ],
            log: Logged::Line("readings resumed"),
            page: READY,
            undone: "not needed: podmeter opens the driver again",
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "driver-not-loaded",
            happens: "The driver is unloaded",
            how: |rig| refuse(rig, 9),
            metrics: &[
                NO_READINGS,
                IDENTITY,
                Sample(
                    "podmeter_nvml_errors_total",
                    &["call=\"nvmlInit_v2\"", "code=\"driver_not_loaded\""],
                    Is::Rises,
                ),
            ],
            log: Logged::Line("load the NVIDIA kernel driver (nvidia-smi on the node says more)"),
            page: Some(Reply("/", "cannot be initialised: driver_not_loaded (9)")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Pod],
            undone: "the driver is loaded",
            undo: Some(|rig| rig.driver.update(|state| state["init"] = json!(0))),
            within: 20,
        },
        FaultRow {
            id: "driver-hangs",
            happens: "Every driver call hangs",
            how: |rig| rig.driver.update(|state| state["hang"] = json!(["*"])),
            metrics: &[
                NO_READINGS,
                IDENTITY,
                Sample("podmeter_collector_stuck", &["collector=\"fast\""], Is::Value(1.0)),
                Sample("podmeter_device_unhealthy_reason", &["reason=\"stuck\""], Is::Series(8)),
            ],
            log: Logged::Line("a driver call on this GPU has not come back"),
            page: Some(Reply("/", "a driver call on it does not return")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "the calls return",
            undo: Some(|rig| rig.driver.update(|state| state["hang"] = json!([]))),
            within: 30,
        },
        FaultRow {
            id: "driver-events-fail",
            happens: "The wait for driver events fails",
            how: |rig| rig.driver.update(|state| state["fail"] = json!({"nvmlEventSetWait_v2": 999})),
            metrics: &[
                Sample("podmeter_collector_success", &["collector=\"events\""], Is::Value(0.0)),
                Sample("podmeter_nvml_errors_total", &["call=\"nvmlEventSetWait_v2\"", "code=\"unknown\""], Is::Rises),
            ],
            page: READY,
            undone: "the wait succeeds",
            undo: Some(|rig| rig.driver.update(|state| state["fail"] = json!({}))),
            within: 40,
            ..ROW
        },
        FaultRow {
            id: "driver-lists-nothing",
            happens: "The driver lists no GPU",
            how: |rig| {
                let state = rig.driver_state();
                rig.write("eight-gpus.json", &state["gpus"].to_string());
                rig.driver.update(|state| state["gpus"] = json!([]));
            },
            metrics: &[
                NO_READINGS,
                IDENTITY,
                Sample("podmeter_device_unhealthy_reason", &["reason=\"lost\""], Is::Series(8)),
            ],
            log: Logged::Line("the GPU is lost or requires a reset"),
            page: Some(Reply("/api/v1/node", "\"reason\":\"lost\"")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "the driver lists the GPUs",
            undo: Some(|rig| {
                let gpus = std::fs::read_to_string(rig.path("eight-gpus.json")).unwrap();
                let gpus: serde_json::Value = serde_json::from_str(&gpus).unwrap();
                rig.driver.update(|state| state["gpus"] = gpus);
            }),
            within: 40,
        },
        FaultRow {
            id: "driver-released",
            happens: "An operator has podmeter release the driver, for an upgrade",
            how: |rig| {
                let answer = rig.order("/release", r#"{"for": "10m"}"#);
                assert_eq!(answer.status, 200, "{}", answer.body);
            },
            metrics: &[NO_READINGS, IDENTITY, Sample("podmeter_released", &[], Is::Value(1.0))],
            log: Logged::Line("the driver is released on request"),
            page: Some(Reply("/", "the driver was released on request")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(8), GoesOn::Pod],
            undone: "`POST /resume`",
            undo: Some(|rig| assert_eq!(rig.order("/resume", "").status, 200)),
            within: 15,
        },
    ],
};

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
