use crate::support::stand_in_plugin::StandInPlugin;
use podmeter::simulation::kubelet::ListedDevice;

use crate::support::kubelet::holding_pod;
use tonic::Code;

use crate::rig::{GPU, Rig, wait_for};
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, READY, ROW, Reply, Sample};
use crate::support::kubelet::Method;

const SHARED: &str = "nvidia.com/gpu.shared";
const UNREGISTERED: Sample = Sample("podmeter_plugin_registered", &["resource=\"nvidia.com/gpu\""], Is::Value(0.0));
const REGISTERED_AGAIN: Sample =
    Sample("podmeter_plugin_registrations_total", &["resource=\"nvidia.com/gpu\""], Is::Rises);
const EXPORTER: &[GoesOn] = &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Pod];

/// A registered plugin with the devices of podmeter.
fn other_plugin(rig: &Rig, resource: &str, socket: Option<&str>) -> StandInPlugin {
    let devices = rig.kubelet.allocatable_ids(GPU).iter().map(|id| ListedDevice::new(id)).collect();
    let plugin = StandInPlugin::start_on(&rig.kubelet.device_plugin_directory(), resource, devices, socket);
    assert!(wait_for(plugin.registered()));
    plugin
}

pub const AREA: Area = Area {
    name: "The device plugin",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "plugin-socket-removed",
            happens: "podmeter's socket is removed from the kubelet's directory",
            how: |rig| std::fs::remove_file(rig.own_socket()).unwrap(),
            metrics: &[REGISTERED_AGAIN],
            log: Logged::Line("not registered: our socket file was removed"),
            page: READY,
            undone: "not needed: podmeter registers again",
            ..ROW
        },
        FaultRow {
            id: "plugin-stream-lost",
            happens: "The `ListAndWatch` connection breaks",
            how: |rig| assert!(rig.kubelet.lose_stream(GPU)),
            metrics: &[REGISTERED_AGAIN, Sample("podmeter_plugin_unregistered_seconds_total", &[], Is::Rises)],
            log: Logged::Line("not registered: the kubelet ended the device list"),
            page: READY,
            undone: "not needed: podmeter registers again",
            ..ROW
        },
        FaultRow {
            id: "plugin-refused",
            happens: "The kubelet rejects the registration",
            how: |rig| {
                rig.kubelet.fail(Method::Register, Code::Unknown, "the device manager is not ready");
                assert!(rig.kubelet.lose_stream(GPU));
            },
            metrics: &[UNREGISTERED, Sample("podmeter_plugin_unregistered_seconds_total", &[], Is::Rises)],
            log: Logged::Line("the kubelet does not register the plugin: the device manager is not ready"),
            page: Some(Reply("/", "not registered: the kubelet does not register the plugin")),
            goes_on: EXPORTER,
            undone: "the kubelet accepts the registration",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 20,
        },
        FaultRow {
            id: "plugin-not-listed",
            happens: "The kubelet registers the plugin and does not call `ListAndWatch`",
            how: |rig| {
                rig.kubelet.hang(Method::ListAndWatch);
                assert!(rig.kubelet.lose_stream(GPU));
            },
            metrics: &[UNREGISTERED, REGISTERED_AGAIN],
            log: Logged::Line("the kubelet registered the plugin but did not call ListAndWatch within 10s"),
            page: Some(Reply("/api/v1/node", "did not call ListAndWatch within 10s")),
            goes_on: EXPORTER,
            undone: "the kubelet calls it",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 20,
        },
        FaultRow {
            id: "plugin-registration-hangs",
            happens: "The kubelet does not answer the registration",
            how: |rig| {
                rig.kubelet.hang(Method::Register);
                assert!(rig.kubelet.lose_stream(GPU));
            },
            metrics: &[UNREGISTERED],
            log: Logged::Line("the kubelet does not register the plugin: no answer within 15s"),
            page: Some(Reply("/", "not registered: the kubelet does not register the plugin: no answer within 15s")),
            goes_on: EXPORTER,
            undone: "the kubelet answers",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 30,
        },
        FaultRow {
            id: "plugin-directory-gone",
            happens: "The kubelet stops, and its device-plugin directory is missing, as where it is not mounted",
            how: |rig| {
                rig.kubelet.stop();
                let directory = rig.kubelet.device_plugin_directory();
                std::fs::rename(&directory, directory.with_extension("away")).unwrap();
            },
            metrics: &[UNREGISTERED],
            log: Logged::Line(
                "kubelet.sock is not there: the kubelet is not running, or --device-plugin-dir is not its directory",
            ),
            page: Some(Reply("/", "kubelet.sock is not there")),
            goes_on: EXPORTER,
            undone: "the directory is restored, and the kubelet starts",
            undo: Some(|rig| {
                let directory = rig.kubelet.device_plugin_directory();
                std::fs::rename(directory.with_extension("away"), &directory).unwrap();
                rig.kubelet.restart().unwrap();
            }),
            within: 15,
        },
        FaultRow {
            id: "plugin-conflict",
            happens: "Another vendor's plugin registers the resource after podmeter",
            how: |rig| rig.hold(other_plugin(rig, GPU, Some("nvidia-gpu.sock"))),
            metrics: &[
                Sample("podmeter_plugin_conflict", &["resource=\"nvidia.com/gpu\""], Is::Value(1.0)),
                UNREGISTERED,
            ],
            log: Logged::Line("waiting: another device plugin serves nvidia.com/gpu on nvidia-gpu.sock"),
            page: Some(Reply("/", "waiting: another device plugin serves")),
            goes_on: EXPORTER,
            undone: "the other plugin ends",
            undo: Some(Rig::drop_held),
            within: 15,
        },
        FaultRow {
            id: "plugin-unserved",
            happens: "The kubelet drops the resource, while another plugin listens that has no registration",
            how: |rig| {
                let socket = rig.kubelet.device_plugin_directory().join("nvidiaGPU-1.sock");
                rig.hold(std::os::unix::net::UnixListener::bind(socket).unwrap());
                assert!(rig.kubelet.lose_stream(GPU));
            },
            metrics: &[
                Sample("podmeter_plugin_unserved", &["resource=\"nvidia.com/gpu\""], Is::Value(1.0)),
                UNREGISTERED,
            ],
            log: Logged::Line(
                "the kubelet lists no healthy device of nvidia.com/gpu, although a device plugin listens on nvidiaGPU-1.sock",
            ),
            page: Some(Reply("/", "waiting: the kubelet lists no healthy device")),
            goes_on: EXPORTER,
            undone: "the other plugin is removed",
            undo: Some(|rig| {
                rig.drop_held();
                std::fs::remove_file(rig.kubelet.device_plugin_directory().join("nvidiaGPU-1.sock")).unwrap();
            }),
            within: 15,
        },
        FaultRow {
            id: "plugin-other-resource",
            happens: "Another plugin offers the same GPUs as another resource, and a container holds one of them so",
            how: |rig| {
                let free = rig.kubelet.allocatable_ids(GPU).into_iter().next_back().unwrap();
                rig.hold(other_plugin(rig, SHARED, None));
                wait_for(rig.kubelet.runs(holding_pod("sharer", SHARED, &format!("{free}::0"))));
            },
            metrics: &[
                Sample("podmeter_plugin_conflict", &["resource=\"nvidia.com/gpu\""], Is::Value(1.0)),
                Sample(
                    "podmeter_plugin_devices",
                    &["resource=\"nvidia.com/gpu\"", "health=\"unhealthy\""],
                    Is::Value(1.0),
                ),
                Sample("podmeter_plugin_registered", &["resource=\"nvidia.com/gpu\""], Is::Value(1.0)),
            ],
            log: Logged::Line("the device plugin of nvidia.com/gpu.shared offers"),
            page: Some(Reply("/", "held by team/sharer as nvidia.com/gpu.shared")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(7), GoesOn::Pod],
            undone: "the other plugin and the pod end",
            undo: Some(|rig| {
                rig.drop_held();
                assert!(rig.kubelet.remove_pod("team", "sharer"));
            }),
            within: 15,
        },
    ],
};
