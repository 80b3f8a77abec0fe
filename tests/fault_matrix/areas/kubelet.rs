use tonic::Code;

use crate::row::{Area, FaultRow, GoesOn, Is, Logged, READY, ROW, Reply, Sample};
use crate::support::kubelet::Method;

const FAILS: Sample = Sample("podmeter_collector_success", &["collector=\"kubelet\""], Is::Value(0.0));
const HUNG: &[GoesOn] =
    &[GoesOn::Pages, GoesOn::Promptly, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(8), GoesOn::Admits];
const WITHOUT_KUBELET: &[GoesOn] = &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8)];

pub const AREA: Area = Area {
    name: "The kubelet",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "kubelet-stopped",
            happens: "The kubelet stops and leaves its sockets",
            how: |rig| rig.kubelet.stop(),
            metrics: &[
                FAILS,
                Sample("podmeter_plugin_registered", &[], Is::Value(0.0)),
                Sample("podmeter_podresources_age_seconds", &[], Is::AtLeast(3.0)),
            ],
            log: Logged::Line("the kubelet is down or restarting; retrying"),
            page: Some(Reply("/", "no process listens on")),
            goes_on: WITHOUT_KUBELET,
            undone: "the kubelet starts",
            undo: Some(|rig| rig.kubelet.restart().unwrap()),
            ..ROW
        },
        FaultRow {
            id: "kubelet-restarted",
            happens: "The kubelet restarts: it removes every plugin's socket, and its first answer lists no pods",
            how: |rig| rig.kubelet.restart().unwrap(),
            metrics: &[
                Sample("podmeter_plugin_kubelet_restarts_total", &[], Is::Rises),
                Sample("podmeter_plugin_registrations_total", &[], Is::Rises),
            ],
            log: Logged::Line("registered with the kubelet"),
            page: READY,
            undone: "not needed: podmeter registers again",
            ..ROW
        },
        FaultRow {
            id: "kubelet-sockets-gone",
            happens: "The kubelet's sockets are missing, as where its directory is not mounted",
            how: |rig| {
                rig.kubelet.stop();
                std::fs::remove_file(rig.kubelet.pod_resources_socket()).unwrap();
                std::fs::remove_file(rig.kubelet.device_plugin_directory().join("kubelet.sock")).unwrap();
            },
            metrics: &[
                FAILS,
                Sample("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"unavailable\""], Is::Rises),
            ],
            log: Logged::Line("is the kubelet running, and is its directory mounted here (see --kubelet-root)?"),
            page: Some(Reply("/", "there is no socket")),
            goes_on: WITHOUT_KUBELET,
            undone: "the kubelet starts",
            undo: Some(|rig| rig.kubelet.restart().unwrap()),
            ..ROW
        },
        FaultRow {
            id: "kubelet-hangs",
            happens: "The kubelet accepts `List` and does not answer",
            how: |rig| rig.kubelet.hang(Method::List),
            metrics: &[
                FAILS,
                Sample(
                    "podmeter_podresources_errors_total",
                    &["method=\"List\"", "code=\"deadline_exceeded\""],
                    Is::Rises,
                ),
            ],
            log: Logged::Line("did not answer List within 5s: the kubelet hangs; retrying"),
            page: Some(Reply("/", "did not answer List within 5s")),
            goes_on: HUNG,
            undone: "the kubelet answers",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 15,
        },
        FaultRow {
            id: "kubelet-refuses",
            happens: "The kubelet answers `List` with an error",
            how: |rig| rig.kubelet.fail(Method::List, Code::Unknown, "checkpoint is corrupt"),
            metrics: &[
                FAILS,
                Sample("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"other\""], Is::Rises),
            ],
            log: Logged::Line("List failed: Unknown, checkpoint is corrupt"),
            page: Some(Reply("/", "checkpoint is corrupt")),
            undone: "the kubelet answers",
            undo: Some(|rig| rig.kubelet.heal()),
            ..ROW
        },
        FaultRow {
            id: "kubelet-answer-too-large",
            happens: "A DRA claim makes the kubelet's answer larger than 16 MiB",
            how: |rig| rig.kubelet.answer_bytes(17 << 20),
            metrics: &[
                FAILS,
                Sample("podmeter_podresources_pods_truncated", &[], Is::Value(1.0)),
                Sample("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"too_large\""], Is::Rises),
            ],
            log: Logged::Line("delete the pod whose DRA claim is listed many times over"),
            page: Some(Reply("/", "delete the pod whose DRA claim")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8)],
            undone: "the claim is removed",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 20,
        },
    ],
};
