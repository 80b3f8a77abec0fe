use podmeter::simulation::kubelet::ListedDevice;
use podmeter::simulation::plugin::StandInPlugin;
use serde_json::{Value, json};

use super::driver::reload;
use crate::rig::{Rig, until, wait_for};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};
use crate::support::kubelet::{ContainerSpec, PodSpec};

const GPU_3: &[&str] = &["gpu=\"3\""];
const GPU_3_UUID: &[&str] = &["gpu_uuid=\"GPU-00000000-0000-0000-0000-000000000003\""];
const GPU_7_UUID: &[&str] = &["gpu_uuid=\"GPU-00000000-0000-0000-0000-000000000007\""];
const VM_GPU: &str = "nvidia.com/GH100_H100_SXM5_80GB";
const UNHEALTHY: Metric = Metric("podmeter_device_healthy", GPU_3, Is::Value(0.0));
const NO_READINGS: Metric = Metric("podmeter_device_power_watts", GPU_3, Is::Absent);
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

/// The driver has to be closed for it.
fn rebind(rig: &mut Rig, driver: &str) {
    assert_eq!(rig.order("/release", r#"{"for": "10m"}"#).status, 200);
    rig.bind(7, driver);
    let fail = if driver == "nvidia" { json!({}) } else { json!({"*": 6}) };
    rig.gpu(7, |gpu| gpu["fail"] = fail.clone());
    assert_eq!(rig.order("/resume", "").status, 200);
}

pub const AREA: Area = Area {
    name: "A device",
    setup: |setup| setup.pci_bus = true,
    rows: &[
        Row {
            id: "gpu-lost",
            happens: "A GPU falls off the bus",
            how: |rig| rig.gpu(3, |gpu| gpu["lost"] = json!(true)),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    NO_READINGS,
                    Metric("podmeter_device_info", GPU_3, Is::Series(1)),
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"lost\""], Is::Value(1.0)),
                ],
                log: Log::Line("the GPU is lost or requires a reset"),
                page: Some(Text("/", "the driver reports that it is lost or needs a reset")),
            },
            goes_on: SEVEN_GPUS,
            undone: "the GPU answers",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["lost"] = json!(false))),
            within: 15,
        },
        Row {
            id: "gpu-lost-before-start",
            happens: "A GPU is lost while podmeter is stopped; podmeter starts",
            how: |rig| {
                rig.stop();
                rig.gpu(3, |gpu| gpu["fail"] = json!({"*": 15}));
                rig.begin();
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_healthy", GPU_3_UUID, Is::Value(0.0)),
                    Metric("podmeter_device_info", GPU_3_UUID, Is::Series(1)),
                    Metric("podmeter_device_unhealthy_reason", &[GPU_3_UUID[0], "reason=\"lost\""], Is::Value(1.0)),
                ],
                log: Log::Line("the driver does not list it"),
                page: Some(Text("/", "the driver does not list it")),
            },
            goes_on: SEVEN_GPUS,
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
            undone: "the GPUs answer",
            undo: Some(|rig| rig.gpus(|gpu| gpu["lost"] = json!(false))),
            within: 30,
        },
        Row {
            id: "gpu-rebound",
            happens: "A GPU is bound to vfio-pci while the driver is released; the driver is resumed",
            how: |rig| rebind(rig, "vfio-pci"),
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_passthrough_info", GPU_7_UUID, Is::Series(1)),
                    Metric("podmeter_device_healthy", GPU_7_UUID, Is::Absent),
                    Metric("podmeter_device_unhealthy_reason", &[GPU_7_UUID[0], "reason=\"lost\""], Is::Absent),
                    Metric("podmeter_device_power_watts", GPU_7_UUID, Is::Absent),
                ],
                log: Log::Line("the GPU is passed through to virtual machines"),
                page: Some(Text("/", "kernel driver vfio-pci, IOMMU group 47")),
            },
            goes_on: SEVEN_GPUS,
            undone: "it is bound to nvidia, with the driver released",
            undo: Some(|rig| rebind(rig, "nvidia")),
            within: 30,
        },
        Row {
            id: "kubevirt-id-unresolved",
            happens: "A virtual machine's pod holds an IOMMU group that has no GPU",
            how: |rig| {
                let plugins = rig.kubelet.device_plugin_directory();
                rig.hold(StandInPlugin::start(&plugins, VM_GPU, vec![ListedDevice::new("99")]));
                until("the virtual machine's device", || rig.kubelet.node_status().contains_key(VM_GPU));
                let container = ContainerSpec::new("compute").asks(VM_GPU, 1);
                let _ = wait_for(rig.kubelet.add_pod(PodSpec::new("vms", "virt-launcher").container(container)));
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_unresolved_devices", &["form=\"iommu_group\""], Is::Value(1.0)),
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                ],
                log: Log::Silent,
                page: None,
            },
            goes_on: ALL,
            undone: "the virtual machine ends",
            undo: Some(|rig| {
                rig.kubelet.remove_pod("vms", "virt-launcher");
                rig.drop_held();
            }),
            within: 30,
        },
        Row {
            id: "gpu-sentinels",
            happens: "The driver returns all ones for the temperature, the clock and the memory of a GPU",
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
                    Metric("podmeter_device_memory_bytes", GPU_3, Is::Absent),
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
            happens: "The driver reports XID 79, and the GPU still answers",
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
            undone: "the GPU is reset, and the recovery action is none",
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
            happens: "An application causes XID 31",
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
            undone: "not needed: podmeter counts it",
            undo: None,
            within: 10,
        },
        Row {
            id: "gpu-xid-storm",
            happens: "The driver reports XID 45 100,000 times",
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
            undone: "not needed: podmeter counts each",
            undo: None,
            within: 10,
        },
        Row {
            id: "gpu-recovery-action",
            happens: "The driver reports the recovery action GPU reset",
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
            undone: "the GPU is reset",
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
            happens: "A row remap of a GPU fails",
            how: |rig| remap(rig, true, 9),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_row_remap_failed", GPU_3, Is::Value(1.0)),
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
            undone: "the driver no longer reports the failure, as after a replacement of the GPU",
            undo: Some(|rig| remap(rig, false, 10)),
            within: 15,
        },
        Row {
            id: "gpu-fabric-lost",
            happens: "A GPU of a rack loses its registration with the NVLink fabric",
            how: |rig| fabric(rig, json!({"state": 2}), 11),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_fabric_state", &["gpu=\"3\"", "state=\"in_progress\""], Is::Value(1.0)),
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"fabric\""], Is::Value(1.0)),
                ],
                log: Log::Line("reason=\"fabric\""),
                page: Some(Text("/", "the NVLink fabric is not ready: in progress")),
            },
            goes_on: SEVEN_DEVICES,
            undone: "the registration completes",
            undo: Some(|rig| fabric(rig, json!({}), 12)),
            within: 15,
        },
        Row {
            id: "gpu-rack-idle",
            happens: "A rack is idle: no IMEX, and its GPU has no partition",
            how: |rig| {
                // The mask of a healthy fabric, with the group of the partition false.
                fabric(rig, json!({"cluster_uuid": vec![7_u8; 16], "clique_id": 2, "health_mask": 0x61AA}), 13);
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                    Metric("podmeter_device_fabric_info", &["gpu=\"3\"", "clique_id=\"2\""], Is::Value(1.0)),
                    Metric(
                        "podmeter_device_fabric_condition",
                        &["gpu=\"3\"", "condition=\"partition_unassigned\""],
                        Is::Value(1.0),
                    ),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "not needed: it is no fault",
            undo: Some(|rig| fabric(rig, json!({}), 14)),
            within: 10,
        },
        Row {
            id: "gpu-without-fabric",
            happens: "A superchip is in no rack: the driver has no NVLink fabric",
            how: |rig| fabric(rig, json!(null), 15),
            seen: Seen {
                metrics: &[
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                    Metric("podmeter_device_fabric_state", &["gpu=\"3\"", "state=\"not_supported\""], Is::Value(1.0)),
                    Metric("podmeter_device_fabric_condition", GPU_3, Is::Absent),
                    Metric("podmeter_device_fabric_info", GPU_3, Is::Absent),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "not needed: it is no fault",
            undo: Some(|rig| fabric(rig, json!({}), 16)),
            within: 10,
        },
        Row {
            id: "module-power-stops",
            happens: "The driver no longer gives the power of a superchip module",
            how: |rig| {
                rig.stop();
                rig.gpu(3, |gpu| gpu["power_limits"] = json!({"module_milliwatts": 900_000}));
                rig.begin();
                rig.until_series("podmeter_module_power_watts");
                until("power of the GPU", || rig.metrics().count("podmeter_device_power_watts", GPU_3) > 0);
                rig.gpu(3, |gpu| gpu["power_limits"] = json!({}));
            },
            seen: Seen {
                metrics: &[
                    Metric("podmeter_module_power_watts", &[], Is::Absent),
                    Metric("podmeter_module_energy_joules_total", &[], Is::Series(1)),
                    Metric("podmeter_device_power_watts", GPU_3, Is::AtLeast(1.0)),
                    Metric("podmeter_device_energy_joules_total", GPU_3, Is::AtLeast(1.0)),
                    Metric("podmeter_device_healthy", &[], Is::Value(1.0)),
                ],
                log: Log::Silent,
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "the driver gives it again",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["power_limits"] = json!({"module_milliwatts": 900_000}))),
            within: 10,
        },
        Row {
            id: "gpu-call-hangs",
            happens: "A driver call on one GPU hangs",
            how: |rig| rig.gpu(3, |gpu| gpu["hang"] = json!(["nvmlDeviceGetTotalEnergyConsumption"])),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    NO_READINGS,
                    Metric("podmeter_collector_stuck", &["collector=\"fast\""], Is::Value(1.0)),
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"stuck\""], Is::Value(1.0)),
                ],
                log: Log::Line("a driver call on this GPU has not come back"),
                page: Some(Text("/", "a driver call on it does not return")),
            },
            goes_on: HUNG,
            undone: "the call returns",
            undo: Some(|rig| rig.gpu(3, |gpu| gpu["hang"] = json!([]))),
            within: 15,
        },
        Row {
            id: "gpu-marked",
            happens: "An operator marks a GPU as unhealthy",
            how: |rig| assert_eq!(rig.order("/mark", r#"{"device": "3", "reason": "in repair"}"#).status, 200),
            seen: Seen {
                metrics: &[
                    UNHEALTHY,
                    Metric("podmeter_device_unhealthy_reason", &["gpu=\"3\"", "reason=\"admin\""], Is::Value(1.0)),
                ],
                log: Log::Line("reason=\"admin\""),
                page: Some(Text("/", "in repair")),
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

/// Changes the registration of a GPU, with an event, as after which the driver is read.
fn fabric(rig: &mut Rig, fabric: Value, sequence: u64) {
    rig.gpu(3, |gpu| {
        gpu["fabric"] = fabric.clone();
        gpu["events"] = json!([{"sequence": sequence, "kind": 0x8000}]);
    });
}
