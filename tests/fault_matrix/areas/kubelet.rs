use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;

use tonic::Code;

use crate::rig::Rig;
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};
use crate::support::kubelet::Method;

const FAILS: Metric = Metric("podmeter_collector_success", &["collector=\"kubelet\""], Is::Value(0.0));
const HUNG: &[GoesOn] =
    &[GoesOn::Pages, GoesOn::Promptly, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(8), GoesOn::Admits];
const WITHOUT_KUBELET: &[GoesOn] = &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8)];

pub const AREA: Area = Area {
    name: "The kubelet",
    setup: |_| {},
    rows: &[
        Row {
            id: "kubelet-stopped",
            happens: "The kubelet stops and leaves its sockets",
            how: |rig| rig.kubelet.stop(),
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric("podmeter_plugin_registered", &[], Is::Value(0.0)),
                    Metric("podmeter_podresources_age_seconds", &[], Is::AtLeast(3.0)),
                ],
                log: Log::Line("the kubelet is down or restarting; retrying"),
                page: Some(Text("/", "no process listens on")),
            },
            goes_on: WITHOUT_KUBELET,
            undone: "the kubelet starts",
            undo: Some(|rig| rig.kubelet.restart().unwrap()),
            within: 10,
        },
        Row {
            id: "kubelet-restarted",
            happens: "The kubelet restarts: it removes every plugin's socket, and its first answer lists no pods",
            how: |rig| rig.kubelet.restart().unwrap(),
            seen: Seen {
                metrics: &[
                    Metric("podmeter_plugin_kubelet_restarts_total", &[], Is::Rises),
                    Metric("podmeter_plugin_registrations_total", &[], Is::Rises),
                ],
                log: Log::Line("registered with the kubelet"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "not needed: podmeter registers again",
            undo: None,
            within: 10,
        },
        Row {
            id: "kubelet-sockets-gone",
            happens: "The kubelet's sockets are missing, as where its directory is not mounted",
            how: |rig| {
                rig.kubelet.stop();
                std::fs::remove_file(rig.kubelet.pod_resources_socket()).unwrap();
                std::fs::remove_file(rig.kubelet.device_plugin_directory().join("kubelet.sock")).unwrap();
            },
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric(
                        "podmeter_podresources_errors_total",
                        &["method=\"List\"", "code=\"unavailable\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("is the kubelet running, and is its directory mounted here (see --kubelet-root)?"),
                page: Some(Text("/", "there is no socket")),
            },
            goes_on: WITHOUT_KUBELET,
            undone: "the kubelet starts",
            undo: Some(|rig| rig.kubelet.restart().unwrap()),
            within: 10,
        },
        Row {
            id: "kubelet-hangs",
            happens: "The kubelet accepts `List` and does not answer",
            how: |rig| rig.kubelet.hang(Method::List),
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric(
                        "podmeter_podresources_errors_total",
                        &["method=\"List\"", "code=\"deadline_exceeded\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("did not answer List within 5s: the kubelet hangs; retrying"),
                page: Some(Text("/", "did not answer List within 5s")),
            },
            goes_on: HUNG,
            undone: "the kubelet answers",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 15,
        },
        Row {
            id: "kubelet-refuses",
            happens: "The kubelet answers `List` with an error",
            how: |rig| rig.kubelet.fail(Method::List, Code::Unknown, "checkpoint is corrupt"),
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"other\""], Is::Rises),
                ],
                log: Log::Line("List failed: Unknown, checkpoint is corrupt"),
                page: Some(Text("/", "checkpoint is corrupt")),
            },
            goes_on: ALL,
            undone: "the kubelet answers",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 10,
        },
        Row {
            id: "kubelet-rate-limit",
            happens: "Another client exhausts the kubelet's rate limit",
            how: |rig| rig.kubelet.fail(Method::List, Code::ResourceExhausted, "rejected by rate limit"),
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric(
                        "podmeter_podresources_errors_total",
                        &["method=\"List\"", "code=\"rate_limited\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("another client of the socket asks too often; retrying later"),
                page: Some(Text("/", "rate limit refused List")),
            },
            goes_on: ALL,
            undone: "the other client stops",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 10,
        },
        Row {
            id: "kubelet-answer-too-large",
            happens: "A DRA claim makes the kubelet's answer larger than 16 MiB",
            how: |rig| rig.kubelet.answer_bytes(17 << 20),
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric("podmeter_podresources_pods_truncated", &[], Is::Value(1.0)),
                    Metric("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"too_large\""], Is::Rises),
                ],
                log: Log::Line("delete the pod whose DRA claim is listed many times over"),
                page: Some(Text("/", "delete the pod whose DRA claim")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8)],
            undone: "the claim is removed",
            undo: Some(|rig| rig.kubelet.heal()),
            within: 20,
        },
        Row {
            id: "kubelet-other-server",
            happens: "Another server answers on the kubelet's socket",
            how: another_server,
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"malformed\""], Is::Rises),
                ],
                log: Log::Line("is it the kubelet's socket?"),
                page: Some(Text("/", "does not serve PodResources")),
            },
            goes_on: WITHOUT_KUBELET,
            undone: "the kubelet starts",
            undo: Some(|rig| rig.kubelet.restart().unwrap()),
            within: 15,
        },
        Row {
            id: "kubelet-socket-is-a-file",
            happens: "A regular file exists at the path of the kubelet's socket",
            how: |rig| {
                rig.kubelet.stop();
                std::fs::remove_file(rig.kubelet.pod_resources_socket()).unwrap();
                std::fs::write(rig.kubelet.pod_resources_socket(), "").unwrap();
            },
            seen: Seen {
                metrics: &[
                    FAILS,
                    Metric(
                        "podmeter_podresources_errors_total",
                        &["method=\"List\"", "code=\"not_a_socket\""],
                        Is::Rises,
                    ),
                ],
                log: Log::Line("is not a socket: point --pod-resources-socket at the kubelet's"),
                page: Some(Text("/", "is not a socket")),
            },
            goes_on: WITHOUT_KUBELET,
            undone: "the kubelet starts",
            undo: Some(|rig| rig.kubelet.restart().unwrap()),
            within: 10,
        },
        Row {
            id: "kubelet-without-allocatable",
            happens: "The kubelet is replaced by one without `GetAllocatableResources`",
            how: |rig| {
                rig.kubelet.fail(Method::GetAllocatableResources, Code::Unimplemented, "unknown method");
                rig.kubelet.restart().unwrap();
            },
            seen: Seen {
                metrics: &[Metric(
                    "podmeter_podresources_errors_total",
                    &["method=\"GetAllocatableResources\"", "code=\"unimplemented\""],
                    Is::Rises,
                )],
                log: Log::Line("this kubelet is too old to report what is allocatable"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "a kubelet with it starts",
            undo: Some(|rig| {
                rig.kubelet.heal();
                rig.kubelet.restart().unwrap();
            }),
            within: 10,
        },
    ],
};

/// Answers every connection with an HTTP/1.1 error.
fn another_server(rig: &mut Rig) {
    rig.kubelet.stop();
    let socket = rig.kubelet.pod_resources_socket();
    std::fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            if stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nwho are you?\r\n").is_ok() {
                let _ = stream.read(&mut [0; 4096]);
            }
        }
    });
}
