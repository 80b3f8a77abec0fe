use crate::rig::CONFIG;
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, READY, ROW, Reply, Sample};

const RELOAD_FAILED: Sample = Sample("podmeter_config_last_reload_successful", &[], Is::Value(0.0));
const RELOAD_ERROR: &str = "configuration rejected: the previous one remains in use";
const WEB_RELOAD_ERROR: &str = "web configuration rejected: the previous one remains in use";
const RELOAD_ON_NODE_ROUTE: Option<Reply> = Some(Reply("/api/v1/node", "\"config_reload\":{\"successful\":false"));
const GOOD_WEB: &str = "http_server_config: {headers: {X-Frame-Options: sameorigin}}\n";

pub const AREA: Area = Area {
    name: "The configuration",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "config-bad-value",
            happens: "The configuration has an invalid value at a reload (SIGHUP)",
            how: |rig| rig.reload("retention: forever\n"),
            metrics: &[RELOAD_FAILED],
            log: Logged::Line(RELOAD_ERROR),
            page: RELOAD_ON_NODE_ROUTE,
            undone: "a valid file and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            ..ROW
        },
        FaultRow {
            id: "config-file-gone",
            happens: "The configuration file is missing at a reload (SIGHUP)",
            how: |rig| {
                std::fs::remove_file(rig.path("podmeter.yaml")).unwrap();
                rig.signal("HUP");
            },
            metrics: &[RELOAD_FAILED],
            log: Logged::Line(RELOAD_ERROR),
            page: RELOAD_ON_NODE_ROUTE,
            undone: "the file is restored, and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            ..ROW
        },
        FaultRow {
            id: "config-is-a-pipe",
            happens: "A named pipe is in place of the configuration file at a reload (SIGHUP)",
            how: |rig| {
                use rustix::fs::{CWD, FileType, mknodat};
                std::fs::remove_file(rig.path("podmeter.yaml")).unwrap();
                mknodat(CWD, rig.path("podmeter.yaml"), FileType::Fifo, 0o600.into(), 0).unwrap();
                rig.signal("HUP");
            },
            metrics: &[RELOAD_FAILED],
            log: Logged::Line("it is not a regular file"),
            page: RELOAD_ON_NODE_ROUTE,
            goes_on: &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(8), GoesOn::Promptly],
            undone: "a file again, and SIGHUP",
            undo: Some(|rig| {
                std::fs::remove_file(rig.path("podmeter.yaml")).unwrap();
                rig.reload(CONFIG);
            }),
            ..ROW
        },
        FaultRow {
            id: "config-needs-restart",
            happens: "An option that needs a restart is changed, at a reload (SIGHUP)",
            how: |rig| rig.reload(&format!("{CONFIG}nodeName: another\n")),
            metrics: &[Sample("podmeter_config_last_reload_success_timestamp_seconds", &[], Is::Rises)],
            log: Logged::Line("changed options need a restart of podmeter"),
            page: READY,
            undone: "the former value and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            ..ROW
        },
        FaultRow {
            id: "web-config-bad",
            happens: "The web configuration is changed to an invalid one",
            how: |rig| rig.write("web-config.yaml", "http_server_config: {headers: {X-Frame-Options: maybe}}\n"),
            metrics: &[RELOAD_FAILED],
            log: Logged::Line(WEB_RELOAD_ERROR),
            page: RELOAD_ON_NODE_ROUTE,
            undone: "a valid file",
            undo: Some(|rig| rig.write("web-config.yaml", GOOD_WEB)),
            ..ROW
        },
        FaultRow {
            id: "web-config-no-certificate",
            happens: "The web configuration names a certificate file that does not exist",
            how: |rig| rig.write("web-config.yaml", "tls_server_config: {cert_file: gone.crt, key_file: gone.key}\n"),
            metrics: &[RELOAD_FAILED],
            log: Logged::Line("gone.crt"),
            page: RELOAD_ON_NODE_ROUTE,
            undone: "a valid file",
            undo: Some(|rig| rig.write("web-config.yaml", GOOD_WEB)),
            ..ROW
        },
        FaultRow {
            id: "config-misspelt-at-start",
            happens: "podmeter is started with a misspelt key: it exits with 2 before it opens anything",
            how: |rig| {
                rig.stop();
                rig.write("podmeter.yaml", "refreshIntervall: 5s\n");
                assert_eq!(rig.start_failing(&[]), 2, "{}", rig.log());
            },
            log: Logged::Line("refreshIntervall"),
            goes_on: &[GoesOn::Devices(0), GoesOn::Pod],
            undone: "the key is corrected, and podmeter is started",
            undo: Some(|rig| {
                rig.write("podmeter.yaml", CONFIG);
                rig.begin();
            }),
            within: 15,
            ..ROW
        },
    ],
};
