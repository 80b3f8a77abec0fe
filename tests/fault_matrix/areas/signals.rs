use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::rig::{Rig, until};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};

/// The documented limit of a shutdown.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const KUBELET: &[GoesOn] = &[GoesOn::Devices(0), GoesOn::Pod];

pub const AREA: Area = Area {
    name: "A signal",
    setup: |_| {},
    rows: &[
        Row {
            id: "signal-term",
            happens: "SIGTERM: podmeter removes its sockets and exits with 0 within 5 s",
            how: |rig| ends(rig, "TERM"),
            seen: Seen { metrics: &[], log: Log::Line("ending"), page: None },
            goes_on: KUBELET,
            undone: "podmeter is started",
            undo: Some(Rig::begin),
            within: 15,
        },
        Row {
            id: "signal-int",
            happens: "SIGINT, handled as SIGTERM",
            how: |rig| ends(rig, "INT"),
            seen: Seen { metrics: &[], log: Log::Line("ending"), page: None },
            goes_on: KUBELET,
            undone: "podmeter is started",
            undo: Some(Rig::begin),
            within: 15,
        },
        Row {
            id: "signal-kill",
            happens: "SIGKILL, as by the OOM killer: the sockets remain",
            how: Rig::kill,
            seen: Seen { metrics: &[], log: Log::Silent, page: None },
            goes_on: KUBELET,
            undone: "podmeter is started: it removes the sockets and continues its journal",
            undo: Some(|rig| {
                rig.begin();
                until("the stale socket is removed", || rig.log().contains("that an earlier podmeter left behind"));
            }),
            within: 15,
        },
        Row {
            id: "signal-term-with-an-open-fault",
            happens: "SIGTERM while a GPU has XID 48, and podmeter is started, as in a rolling update",
            how: |rig| {
                rig.gpu(6, |gpu| gpu["events"] = json!([{"sequence": 1, "xid": 48}]));
                until("the kubelet lists the GPU as unhealthy", || rig.healthy_devices() == 7);
                // Unlike a driver's, the fake's energy counters restart with podmeter.
                rig.gpus(|gpu| gpu["energy_millijoules"] = json!(50_000_000));
                rig.restart();
            },
            seen: Seen {
                metrics: &[Metric(
                    "podmeter_device_unhealthy_reason",
                    &["gpu=\"6\"", "reason=\"xid\""],
                    Is::Value(1.0),
                )],
                log: Log::Line("XID 48 (double-bit memory error) is restored from before podmeter started"),
                page: Some(Text("/api/v1/health", "\"status\": \"unhealthy\"")),
            },
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(7), GoesOn::Admits],
            undone: "the driver requests a reset, and then none",
            undo: Some(|rig| {
                let request = |action: u32, sequence: u32| {
                    rig.gpu(6, |gpu| {
                        gpu["recovery_action"] = json!(action);
                        gpu["events"] = json!([{"sequence": sequence, "kind": 0x8000}]);
                    });
                };
                request(1, 2);
                let requested = ["gpu=\"6\"", "action=\"gpu_reset\""];
                let is_read = |rig: &Rig| rig.metrics().value("podmeter_device_recovery_action", &requested);
                until("the request is read", || is_read(rig) == Some(1.0));
                request(0, 3);
            }),
            within: 15,
        },
        Row {
            id: "signal-overlap",
            happens: "podmeter starts while another agent still listens on the admin socket, as in a rolling update",
            how: |rig| {
                rig.stop();
                rig.hold(UnixListener::bind(rig.path("admin.sock")).unwrap());
                rig.begin();
            },
            seen: Seen {
                metrics: &[],
                log: Log::Line(
                    "another process listens on the admin socket; podmeter retries until that process has ended",
                ),
                page: Some(Text("/-/healthy", "200 OK")),
            },
            goes_on: ALL,
            undone: "the other agent ends",
            undo: Some(|rig| {
                rig.drop_held();
                let path = rig.path("admin.sock");
                until("the admin socket answers", || {
                    UnixStream::connect(&path).is_ok() && rig.order("/mark", "{}").status >= 400
                });
            }),
            within: 10,
        },
        Row {
            id: "signal-term-while-driver-hangs",
            happens: "SIGTERM while every driver call hangs: podmeter still ends within 5 s",
            how: |rig| {
                hang(rig, true);
                ends(rig, "TERM");
            },
            seen: Seen {
                metrics: &[],
                log: Log::Line("the wait for events has not returned and is abandoned"),
                page: None,
            },
            goes_on: KUBELET,
            undone: "the driver answers, and podmeter is started",
            undo: Some(|rig| {
                hang(rig, false);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "signal-term-twice",
            happens: "A second SIGTERM while podmeter waits for a hung driver: podmeter ends at once",
            how: |rig| {
                hang(rig, true);
                rig.signal("TERM");
                let mark = rig.log().len();
                until("the shutdown begins", || rig.log()[mark.saturating_sub(200)..].contains("ending"));
                ends(rig, "TERM");
            },
            seen: Seen { metrics: &[], log: Log::Line("a second signal ended the process at once"), page: None },
            goes_on: KUBELET,
            undone: "the driver answers, and podmeter is started",
            undo: Some(|rig| {
                hang(rig, false);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "signal-term-while-log-is-blocked-and-driver-hangs",
            happens: "SIGTERM while the log pipe is full and not read, and every driver call hangs: podmeter still ends \
                      within 5 s",
            how: |rig| {
                hang(rig, true);
                rig.block_log();
                ends(rig, "TERM");
            },
            seen: Seen { metrics: &[], log: Log::Silent, page: None },
            goes_on: KUBELET,
            undone: "the driver answers, and podmeter is started",
            undo: Some(|rig| {
                hang(rig, false);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "signal-log-blocked",
            happens: "The log pipe is full and not read, and a GPU fails: the kubelet lists it as unhealthy and allocates \
                      another; podmeter drops log lines",
            how: |rig| {
                rig.block_log();
                rig.gpu(7, |gpu| gpu["events"] = json!([{"sequence": 1, "xid": 119}]));
                until("the kubelet lists the GPU as unhealthy", || rig.healthy_devices() == 7);
                rig.admits().unwrap();
                let dropped = |rig: &Rig| rig.metrics().value("podmeter_log_lines_dropped_total", &[]);
                while dropped(rig) < Some(100.0) {
                    for _ in 0..50 {
                        assert_eq!(rig.order("/mark", r#"{"device": "7", "reason": "a row"}"#).status, 200);
                        assert_eq!(rig.order("/unmark", r#"{"device": "7"}"#).status, 200);
                    }
                }
                rig.unblock_log();
            },
            seen: Seen {
                metrics: &[Metric("podmeter_log_lines_dropped_total", &[], Is::AtLeast(100.0))],
                log: Log::Line(" log lines dropped"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "the pipe is read again, and the GPU is unmarked",
            undo: None,
            within: 20,
        },
        Row {
            id: "signal-without-meaning",
            happens: "SIGUSR1, SIGUSR2 and SIGXFSZ, which podmeter ignores",
            how: |rig| ["USR1", "USR2", "XFSZ"].iter().for_each(|signal| rig.signal(signal)),
            seen: Seen {
                metrics: &[Metric("podmeter_scrape_duration_seconds_count", &[], Is::Rises)],
                log: Log::Silent,
                page: Some(Text("/-/healthy", "200 OK")),
            },
            goes_on: ALL,
            undone: "not needed",
            undo: None,
            within: 10,
        },
        Row {
            id: "signal-hup-storm",
            happens: "SIGHUP 200 times",
            how: |rig| {
                let pid = Pid::from_raw(i32::try_from(rig.pid()).unwrap()).unwrap();
                (0..200).for_each(|_| kill_process(pid, Signal::HUP).unwrap());
            },
            seen: Seen {
                metrics: &[Metric("podmeter_config_last_reload_success_timestamp_seconds", &[], Is::Rises)],
                log: Log::Line("configuration re-read"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "not needed",
            undo: None,
            within: 10,
        },
    ],
};

fn ends(rig: &mut Rig, signal: &str) {
    let began = Instant::now();
    rig.signal(signal);
    assert_eq!(rig.ended(), Some(0), "{}", rig.log());
    assert!(began.elapsed() < ENDS_WITHIN, "{:?}\n{}", began.elapsed(), rig.log());
    assert!(!rig.path("admin.sock").exists(), "the admin socket remains");
}

fn hang(rig: &mut Rig, hangs: bool) {
    rig.driver.update(|state| state["hang"] = if hangs { json!(["*"]) } else { json!([]) });
    if hangs {
        // Until every thread is in a driver call.
        std::thread::sleep(Duration::from_millis(500));
    }
}
