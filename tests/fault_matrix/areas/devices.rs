use serde_json::{Value, json};

use super::driver::reload;
use crate::rig::{Rig, until};
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, ROW, Reply, Sample};
use crate::support::hardware::{add_pci_device, bind};

const GPU_3: &[&str] = &["gpu=\"3\""];
const GPU_3_UUID: &[&str] = &["gpu_uuid=\"GPU-00000000-0000-0000-0000-000000000003\""];
const CARDS: [&str; 2] = ["0000:e9:00.0", "0000:ea:00.0"];
const UNHEALTHY: Sample = Sample("podmeter_device_healthy", GPU_3, Is::Value(0.0));
const NO_READINGS: Sample = Sample("podmeter_device_power_watts", GPU_3, Is::Absent);
/// The pod keeps its GPU, whether it is this one or another.
const SEVEN_DEVICES: &[GoesOn] =
    &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(7), GoesOn::Admits, GoesOn::Pod];
const SEVEN_GPUS: &[GoesOn] =
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
    setup: |setup| setup.pci_bus = true,
    rows: &[
        FaultRow {
            id: "gpu-lost",
            happens: "A GPU falls off the bus",
            how: |rig| rig.gpu(3, |gpu| gpu["lost"] = json!(true)),
            metrics: &[
                UNHEALTHY,
                NO_READINGS,
                Sample("podmeter_device_info", GPU_3, Is::Series(1)),
                Sample("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"lost\""], Is::Value(1.0)),
            ],
            log: Logged::Line("the GPU is lost or requires a reset"),
            page: Some(Reply("/", "the driver reports that it is lost or needs a reset")),
            goes_on: SEVEN_GPUS,
            undone: "the GPU answers",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["lost"] = json!(false))),
            within: 15,
        },
        FaultRow {
            id: "gpu-lost-before-start",
            happens: "A GPU is lost while podmeter is stopped; podmeter starts",
            how: |rig| {
                rig.stop();
                rig.gpu(3, |gpu| gpu["fail"] = json!({"*": 15}));
                rig.begin();
            },
            metrics: &[
                Sample("podmeter_device_healthy", GPU_3_UUID, Is::Value(0.0)),
                Sample("podmeter_device_info", GPU_3_UUID, Is::Series(1)),
                Sample("podmeter_device_unhealthy_reason", &[GPU_3_UUID[0], "reason=\"lost\""], Is::Value(1.0)),
            ],
            log: Logged::Line("the driver does not list it"),
            page: Some(Reply("/", "the driver does not list it")),
            goes_on: SEVEN_GPUS,
            undone: "the driver lists it",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["fail"] = json!({}))),
            within: 30,
        },
        FaultRow {
            id: "display-card",
            happens: "An old display card without a kernel driver is on the PCI bus, and one that nouveau has",
            how: |rig| {
                add_pci_device(&rig.path("sys"), CARDS[0], &[("device", "0x1288")]);
                let device = add_pci_device(&rig.path("sys"), CARDS[1], &[("device", "0x1288")]);
                bind(&device, "nouveau");
                std::fs::remove_file(rig.path("sys/bus/pci/devices").join(CARDS[0]).join("driver")).unwrap();
                rig.stop();
                rig.begin();
            },
            metrics: &[
                Sample("podmeter_node_devices", &["state=\"unserved\""], Is::Value(2.0)),
                Sample("podmeter_node_devices", &["state=\"expected\""], Is::Value(8.0)),
                Sample("podmeter_device_healthy", &[], Is::Value(1.0)),
                Sample("podmeter_device_healthy", &[], Is::Series(8)),
            ],
            log: Logged::Line("the NVIDIA driver does not serve this GPU"),
            page: Some(Reply("/api/v1/health", "\"status\": \"healthy\"")),
            undone: "the cards are removed",
            undo: Some(|rig| {
                for card in CARDS {
                    std::fs::remove_dir_all(rig.path("sys/bus/pci/devices").join(card)).unwrap();
                }
            }),
            within: 10,
            ..ROW
        },
        FaultRow {
            id: "gpu-sentinels",
            happens: "The driver returns all ones for the temperature, the clock and the memory of a GPU",
            how: |rig| {
                rig.gpu(3, |gpu| {
                    gpu["temperatures"] = json!({ "gpu": -1 });
                    gpu["clocks"] = json!({ "sm": u32::MAX });
                    gpu["memory"] = json!({ "total_bytes": u64::MAX });
                });
            },
            metrics: &[
                Sample("podmeter_device_temperature_celsius", &["gpu=\"3\"", "sensor=\"gpu\""], Is::Absent),
                Sample("podmeter_device_clock_hertz", &["gpu=\"3\"", "clock=\"sm\""], Is::Absent),
                Sample("podmeter_device_memory_bytes", GPU_3, Is::Absent),
                Sample("podmeter_nvml_implausible_readings_total", &["quantity=\"temperature_celsius\""], Is::Rises),
                Sample("podmeter_nvml_implausible_readings_total", &["quantity=\"memory_bytes\""], Is::Rises),
            ],
            undone: "the readings are plausible again",
            undo: Some(|rig| {
                rig.gpu(3, |gpu| {
                    gpu["temperatures"] = json!({});
                    gpu["clocks"] = json!({});
                    gpu["memory"] = json!({});
                });
            }),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "gpu-xid-79",
            happens: "The driver reports XID 79, and the GPU still answers",
            how: |rig| rig.gpu(3, |gpu| gpu["events"] = json!([{"sequence": 1, "xid": 79}])),
            metrics: &[
                UNHEALTHY,
                Sample("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"xid\""], Is::Value(1.0)),
                Sample("podmeter_xid_errors_total", &["gpu=\"3\"", "class=\"node_reboot\""], Is::Rises),
            ],
            log: Logged::Line("XID 79 (the GPU has fallen off the bus)"),
            page: Some(Reply("/", "XID 79")),
            goes_on: SEVEN_DEVICES,
            undone: "the driver is reloaded",
            undo: Some(reload),
            within: 20,
        },
        FaultRow {
            id: "gpu-xid-119",
            happens: "The driver reports XID 119 and the recovery action GPU reset",
            how: |rig| {
                rig.gpu(3, |gpu| gpu["events"] = json!([{"sequence": 2, "xid": 119}]));
                // Otherwise the recovery action may be read first, and the log names it as the reason.
                let counted =
                    |rig: &Rig| rig.metrics().value("podmeter_xid_errors_total", &[GPU_3[0], "class=\"gpu_reset\""]);
                until("the XID is counted", || counted(rig) > Some(0.0));
                rig.gpu(3, |gpu| {
                    gpu["recovery_action"] = json!(1);
                    gpu["events"] = json!([{"sequence": 3, "kind": 0x8000}]);
                });
            },
            metrics: &[
                UNHEALTHY,
                Sample("podmeter_device_recovery_action", &["gpu=\"3\"", "action=\"gpu_reset\""], Is::Value(1.0)),
                Sample("podmeter_xid_errors_total", &["gpu=\"3\"", "class=\"gpu_reset\""], Is::Rises),
            ],
            log: Logged::Line("XID 119"),
            page: Some(Reply("/", "XID 119")),
            goes_on: SEVEN_DEVICES,
            undone: "the GPU is reset, and the recovery action is none",
            undo: Some(|rig| {
                rig.gpu(3, |gpu| {
                    gpu["recovery_action"] = json!(0);
                    gpu["events"] = json!([{"sequence": 4, "kind": 0x8000}]);
                });
            }),
            within: 15,
        },
        FaultRow {
            id: "gpu-fabric-lost",
            happens: "A GPU of a rack loses its registration with the NVLink fabric",
            how: |rig| fabric(rig, json!({"state": 2}), 11),
            metrics: &[
                UNHEALTHY,
                Sample("podmeter_device_fabric_state", &["gpu=\"3\"", "state=\"in_progress\""], Is::Value(1.0)),
                Sample("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"fabric\""], Is::Value(1.0)),
            ],
            log: Logged::Line("reason=fabric"),
            page: Some(Reply("/", "the NVLink fabric is not ready: in progress")),
            goes_on: SEVEN_DEVICES,
            undone: "the registration completes",
            undo: Some(|rig| fabric(rig, json!({}), 12)),
            within: 15,
        },
        FaultRow {
            id: "gpu-call-hangs",
            happens: "A driver call on one GPU hangs",
            how: |rig| rig.gpu(3, |gpu| gpu["hang"] = json!(["nvmlDeviceGetTotalEnergyConsumption"])),
            metrics: &[
                UNHEALTHY,
                NO_READINGS,
                Sample("podmeter_collector_stuck", &["collector=\"fast\""], Is::Value(1.0)),
                Sample("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"stuck\""], Is::Value(1.0)),
            ],
            log: Logged::Line("a driver call on this GPU has not come back"),
            page: Some(Reply("/", "a driver call on it does not return")),
            goes_on: HUNG,
            undone: "the call returns",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["hang"] = json!([]))),
            within: 15,
        },
        FaultRow {
            id: "gpu-marked",
            happens: "An operator marks a GPU as unhealthy",
            how: |rig| assert_eq!(rig.order("/mark", r#"{"device": "3", "reason": "in repair"}"#).status, 200),
            metrics: &[
                UNHEALTHY,
                Sample("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"admin\""], Is::Value(1.0)),
            ],
            log: Logged::Line("reason=admin"),
            page: Some(Reply("/", "in repair")),
            goes_on: SEVEN_DEVICES,
            undone: "`POST /unmark`",
            undo: Some(|rig| assert_eq!(rig.order("/unmark", r#"{"device": "3"}"#).status, 200)),
            ..ROW
        },
    ],
};

/// Changes the registration of a GPU, with an event, as after which the driver is read.
fn fabric(rig: &mut Rig, fabric: Value, sequence: u64) {
    rig.gpu(3, |gpu| {
        gpu["fabric"] = fabric.clone();
        gpu["events"] = json!([{"sequence": sequence, "kind": 0x8000}]);
    });
}
