use crate::rig::{CONFIG, Rig};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};

const RELOAD_FAILED: Metric = Metric("podmeter_config_last_reload_successful", &[], Is::Value(0.0));
const RELOAD_ERROR: &str = "configuration not re-read: the old one stays in force";
const WEB_RELOAD_ERROR: &str = "web configuration not re-read: the old one stays in force";
const RELOAD_ON_NODE_ROUTE: Option<Text> = Some(Text("/api/v1/node", "\"config_reload\":{\"successful\":false"));
const GOOD_WEB: &str = "http_server_config: {headers: {X-Frame-Options: sameorigin}}\n";

pub const AREA: Area = Area {
    name: "The configuration",
    setup: |_| {},
    rows: &[
        Row {
            id: "config-bad-value",
            happens: "The configuration has an invalid value at a reload (SIGHUP)",
            how: |rig| rig.reload("retention: forever\n"),
            seen: Seen { metrics: &[RELOAD_FAILED], log: Log::Line(RELOAD_ERROR), page: RELOAD_ON_NODE_ROUTE },
            goes_on: ALL,
            undone: "a valid file and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "config-file-gone",
            happens: "The configuration file is missing at a reload (SIGHUP)",
            how: |rig| {
                std::fs::remove_file(rig.path("podmeter.yaml")).unwrap();
                rig.signal("HUP");
            },
            seen: Seen { metrics: &[RELOAD_FAILED], log: Log::Line(RELOAD_ERROR), page: RELOAD_ON_NODE_ROUTE },
            goes_on: ALL,
            undone: "the file is restored, and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "config-bad-resource",
            happens: "The configuration has a resource name that the kubelet would reject, at a reload (SIGHUP)",
            how: |rig| rig.reload("devicePlugin: {resources: [{kind: simulated, name: nonsense, devices: 1}]}\n"),
            seen: Seen { metrics: &[RELOAD_FAILED], log: Log::Line("it has no domain"), page: RELOAD_ON_NODE_ROUTE },
            goes_on: ALL,
            undone: "a valid file and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "config-needs-restart",
            happens: "An option that needs a restart is changed, at a reload (SIGHUP)",
            how: |rig| rig.reload(&format!("{CONFIG}nodeName: another\n")),
            seen: Seen {
                metrics: &[Metric("podmeter_config_last_reload_success_timestamp_seconds", &[], Is::Rises)],
                log: Log::Line("changed options need a restart of podmeter"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "the former value and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "web-config-bad",
            happens: "The web configuration is changed to an invalid one",
            how: |rig| rig.write("web-config.yaml", "http_server_config: {headers: {X-Frame-Options: maybe}}\n"),
            seen: Seen { metrics: &[RELOAD_FAILED], log: Log::Line(WEB_RELOAD_ERROR), page: RELOAD_ON_NODE_ROUTE },
            goes_on: ALL,
            undone: "a valid file",
            undo: Some(|rig| rig.write("web-config.yaml", GOOD_WEB)),
            within: 10,
        },
        Row {
            id: "web-config-no-certificate",
            happens: "The web configuration names a certificate file that does not exist",
            how: |rig| rig.write("web-config.yaml", "tls_server_config: {cert_file: gone.crt, key_file: gone.key}\n"),
            seen: Seen { metrics: &[RELOAD_FAILED], log: Log::Line("gone.crt"), page: RELOAD_ON_NODE_ROUTE },
            goes_on: ALL,
            undone: "a valid file",
            undo: Some(|rig| rig.write("web-config.yaml", GOOD_WEB)),
            within: 10,
        },
        Row {
            id: "config-misspelt-at-start",
            happens: "podmeter is started with a misspelt key: it exits with 2 before it opens anything",
            how: |rig| {
                rig.stop();
                rig.write("podmeter.yaml", "refreshIntervall: 5s\n");
                assert_eq!(rig.start_failing(&[]), 2, "{}", rig.log());
            },
            seen: Seen { metrics: &[], log: Log::Line("refreshIntervall"), page: None },
            goes_on: &[GoesOn::Devices(0), GoesOn::Pod],
            undone: "the key is corrected, and podmeter is started",
            undo: Some(|rig| {
                rig.write("podmeter.yaml", CONFIG);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "config-address-in-use",
            happens: "podmeter is started on an address that is in use: it exits with 3",
            how: address_in_use,
            seen: Seen { metrics: &[], log: Log::Line("--listen"), page: None },
            goes_on: &[GoesOn::Devices(0), GoesOn::Pod],
            undone: "podmeter is started on a free address",
            undo: Some(Rig::begin),
            within: 15,
        },
    ],
};

fn address_in_use(rig: &mut Rig) {
    rig.stop();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(rig.start_failing(&["--listen", &address]), 3, "{}", rig.log());
}
