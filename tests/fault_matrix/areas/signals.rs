use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::rig::{Rig, until};
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, READY, ROW, Sample};

/// The documented limit of a shutdown.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const KUBELET: &[GoesOn] = &[GoesOn::Devices(0), GoesOn::Pod];

pub const AREA: Area = Area {
    name: "A signal",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "signal-term",
            happens: "SIGTERM: podmeter removes its sockets and exits with 0 within 5 s",
            how: |rig| ends(rig, "TERM"),
            log: Logged::Line("ending"),
            goes_on: KUBELET,
            undone: "podmeter is started",
            undo: Some(Rig::begin),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "signal-kill",
            happens: "SIGKILL, as by the OOM killer: the sockets remain",
            how: Rig::kill,
            goes_on: KUBELET,
            undone: "podmeter is started: it removes the sockets and continues its journal",
            undo: Some(|rig| {
                rig.begin();
                until("the stale socket is removed", || rig.log().contains("that an earlier podmeter left behind"));
            }),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "signal-term-while-driver-hangs",
            happens: "SIGTERM while every driver call hangs: podmeter still ends within 5 s",
            how: |rig| {
                hang(rig, true);
                ends(rig, "TERM");
            },
            log: Logged::Line("ending"),
            goes_on: KUBELET,
            undone: "the driver answers, and podmeter is started",
            undo: Some(|rig| {
                hang(rig, false);
                rig.begin();
            }),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "signal-term-twice",
            happens: "A second SIGTERM while podmeter waits for a client: podmeter ends at once",
            how: |rig| {
                let mut client = TcpStream::connect(rig.address()).unwrap();
                client.write_all(b"GET /metrics HTT").unwrap();
                rig.hold(client);
                rig.signal("TERM");
                let mark = rig.log().len();
                until("the shutdown begins", || rig.log()[mark.saturating_sub(200)..].contains("ending"));
                ends(rig, "TERM");
            },
            log: Logged::Line("a second signal ended the process at once"),
            goes_on: KUBELET,
            undone: "podmeter is started",
            undo: Some(|rig| {
                rig.drop_held();
                rig.begin();
            }),
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "signal-log-blocked",
            happens: "The log pipe is full and not read, and a GPU fails: the kubelet lists it as unhealthy and allocates \
                      another; podmeter drops log lines",
            how: |rig| {
                rig.block_log();
                rig.gpu(7, |gpu| gpu["events"] = json!([{"sequence": 1, "xid": 119}]));
                until("the kubelet lists the GPU as unhealthy", || rig.healthy_devices() == 7);
                rig.admits().unwrap();
                assert_eq!(rig.order("/clear-faults", r#"{"device": "7"}"#).status, 200);
                let dropped = |rig: &Rig| rig.metrics().value("podmeter_log_lines_dropped_total", &[]);
                while dropped(rig) < Some(100.0) {
                    for _ in 0..50 {
                        assert_eq!(rig.order("/mark", r#"{"device": "7", "reason": "a row"}"#).status, 200);
                        assert_eq!(rig.order("/unmark", r#"{"device": "7"}"#).status, 200);
                    }
                }
                rig.unblock_log();
            },
            metrics: &[Sample("podmeter_log_lines_dropped_total", &[], Is::AtLeast(100.0))],
            log: Logged::Line(" log lines dropped"),
            page: READY,
            undone: "the pipe is read again, and the GPU's faults are cleared",
            within: 20,
            ..ROW
        },
        FaultRow {
            id: "signal-hup-storm",
            happens: "SIGHUP 200 times",
            how: |rig| {
                let pid = Pid::from_raw(i32::try_from(rig.pid()).unwrap()).unwrap();
                (0..200).for_each(|_| kill_process(pid, Signal::HUP).unwrap());
            },
            metrics: &[Sample("podmeter_config_last_reload_success_timestamp_seconds", &[], Is::Rises)],
            log: Logged::Line("configuration re-read"),
            page: READY,
            ..ROW
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
