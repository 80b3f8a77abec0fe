use rustix::fs::{CWD, RenameFlags};
use serde_json::json;

use crate::rig::{CONDITION, Rig, until};
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, ROW, Reply, Sample};
use crate::support::agent::ended;

const UNKNOWN: i32 = 2;

/// What reads the condition of the node's devices: repair systems.
pub const AREA: Area = Area {
    name: "A repair system",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "condition-gpus-lost",
            happens: "Every GPU is lost, that of the pod too",
            how: |rig| rig.gpus(|gpu| gpu["lost"] = json!(true)),
            metrics: &[Sample("podmeter_device_unhealthy_reason", &["reason=\"lost\""], Is::Series(8))],
            log: Logged::Line("unhealthy"),
            page: Some(Reply("/api/v1/health", "lost since")),
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Devices(0), GoesOn::Pod],
            undone: "the GPUs answer",
            undo: Some(|rig| {
                let condition = rig.get("/api/v1/health").unwrap().body;
                assert!(condition.contains("\"team/trainer\""), "the pod is named: {condition}");
                assert_eq!(check(rig).0, 1);
                rig.gpus(|gpu| gpu["lost"] = json!(false));
            }),
            within: 30,
        },
        FaultRow {
            id: "condition-agent-down",
            happens: "podmeter is killed, and a repair system checks the node",
            how: |rig| {
                rig.kill();
                let (code, output) = check(rig);
                assert_eq!(code, UNKNOWN, "without an agent nothing is healthy: {output}");
            },
            goes_on: &[GoesOn::Devices(0), GoesOn::Pod],
            undone: "podmeter is started, and the check finds every GPU healthy",
            undo: Some(|rig| {
                rig.begin();
                until("a healthy node", || check(rig).0 == 0);
            }),
            within: 20,
            ..ROW
        },
        FaultRow {
            id: "condition-file-not-written",
            happens: "The condition file can no longer be written, and becomes old",
            how: |rig| {
                // A directory in its place, from one moment to the next.
                let (file, directory) = (rig.path(CONDITION), rig.path("directory"));
                std::fs::create_dir(&directory).unwrap();
                rustix::fs::renameat_with(CWD, &file, CWD, &directory, RenameFlags::EXCHANGE).unwrap();
                let text = std::fs::read_to_string(directory).unwrap();
                let mut condition: serde_json::Value = serde_json::from_str(&text).unwrap();
                for (name, age) in [("written", 61), ("until", 1)] {
                    condition[name] = json!(condition[name].as_u64().unwrap() - 60 - age);
                }
                rig.write("old.json", &condition.to_string());
                let file = rig.path("old.json");
                let (code, output) = ended(&["health", "-o", "npd", "--file", file.to_str().unwrap()]);
                assert!(code == UNKNOWN && output.contains("was last written"), "{code}: {output}");
            },
            log: Logged::Line("the condition file cannot be written"),
            page: Some(Reply("/api/v1/health", "\"status\": \"healthy\"")),
            undone: "the file can be written",
            undo: Some(|rig| std::fs::remove_dir(rig.path(CONDITION)).unwrap()),
            within: 20,
            ..ROW
        },
    ],
};

/// Exit code and output of the check on the admin socket.
fn check(rig: &Rig) -> (i32, String) {
    let socket = rig.path("admin.sock");
    ended(&["health", "-o", "npd", "--admin-socket", socket.to_str().unwrap()])
}
