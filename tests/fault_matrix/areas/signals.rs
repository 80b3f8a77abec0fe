use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::rig::{Rig, until};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};

/// The promise to whoever ends it.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
const KUBELET: &[GoesOn] = &[GoesOn::Devices(0), GoesOn::Pod];

pub const AREA: Area = Area {
    name: "A signal",
    setup: |_| {},
    rows: &[
        Row {
            id: "signal-term",
            happens: "SIGTERM: it ends within 5 s with exit code 0 and takes its sockets along",
            how: |rig| ends(rig, "TERM"),
            seen: Seen { metrics: &[], log: Log::Says("ending"), page: None },
            goes_on: KUBELET,
            undone: "it is started",
            undo: Some(Rig::begin),
            within: 15,
        },
        Row {
            id: "signal-int",
            happens: "SIGINT: as SIGTERM",
            how: |rig| ends(rig, "INT"),
            seen: Seen { metrics: &[], log: Log::Says("ending"), page: None },
            goes_on: KUBELET,
            undone: "it is started",
            undo: Some(Rig::begin),
            within: 15,
        },
        Row {
            id: "signal-kill",
            happens: "SIGKILL, as when memory runs out: its sockets stay behind",
            how: Rig::kill,
            seen: Seen { metrics: &[], log: Log::Silent, page: None },
            goes_on: KUBELET,
            undone: "it is started: it removes them and goes on with its journal",
            undo: Some(|rig| {
                rig.begin();
                until("the stale socket is removed", || rig.log().contains("that an earlier podmeter left behind"));
            }),
            within: 15,
        },
        Row {
            id: "signal-term-while-driver-hangs",
            happens: "SIGTERM while every call into the driver hangs: it ends within 5 s all the same",
            how: |rig| {
                hang(rig, true);
                ends(rig, "TERM");
            },
            seen: Seen {
                metrics: &[],
                log: Log::Says("the wait for events has not come back and is left behind"),
                page: None,
            },
            goes_on: KUBELET,
            undone: "the driver answers, and it is started",
            undo: Some(|rig| {
                hang(rig, false);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "signal-term-twice",
            happens: "A second SIGTERM while it waits for a driver that hangs: it ends at once",
            how: |rig| {
                hang(rig, true);
                rig.signal("TERM");
                let mark = rig.log().len();
                until("it begins to end", || rig.log()[mark.saturating_sub(200)..].contains("ending"));
                ends(rig, "TERM");
            },
            seen: Seen { metrics: &[], log: Log::Says("ended at once, as asked"), page: None },
            goes_on: KUBELET,
            undone: "the driver answers, and it is started",
            undo: Some(|rig| {
                hang(rig, false);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "signal-hup-storm",
            happens: "SIGHUP two hundred times",
            how: |rig| {
                let pid = Pid::from_raw(i32::try_from(rig.pid()).unwrap()).unwrap();
                (0..200).for_each(|_| kill_process(pid, Signal::HUP).unwrap());
            },
            seen: Seen {
                metrics: &[Metric("podmeter_config_last_reload_success_timestamp_seconds", &[], Is::Rises)],
                log: Log::Says("configuration re-read"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "nothing",
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
    assert!(!rig.path("admin.sock").exists(), "the admin socket is left behind");
}

fn hang(rig: &mut Rig, hangs: bool) {
    rig.driver.update(|state| state["hang"] = if hangs { json!(["*"]) } else { json!([]) });
    if hangs {
        // Every reader is in a call.
        std::thread::sleep(Duration::from_millis(500));
    }
}
