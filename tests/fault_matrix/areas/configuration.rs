use crate::rig::{CONFIG, Rig};
use crate::row::{ALL, Area, GoesOn, Is, Log, Metric, Row, Seen, Text};

const NOT_READ: Metric = Metric("podmeter_config_last_reload_successful", &[], Is::Value(0.0));
const OLD_STAYS: &str = "configuration not re-read: the old one stays in force";
const WEB_OLD_STAYS: &str = "web configuration not re-read: the old one stays in force";
const ON_NODE: Option<Text> = Some(Text("/api/v1/node", "\"config_reload\":{\"successful\":false"));
const GOOD_WEB: &str = "http_server_config: {headers: {X-Frame-Options: sameorigin}}\n";

pub const AREA: Area = Area {
    name: "The configuration",
    setup: |_| {},
    rows: &[
        Row {
            id: "config-bad-value",
            happens: "The file has a bad value, and SIGHUP has it re-read",
            how: |rig| rig.reload("retention: forever\n"),
            seen: Seen { metrics: &[NOT_READ], log: Log::Line(OLD_STAYS), page: ON_NODE },
            goes_on: ALL,
            undone: "a good file and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "config-file-gone",
            happens: "The file is gone when SIGHUP has it re-read",
            how: |rig| {
                std::fs::remove_file(rig.path("podmeter.yaml")).unwrap();
                rig.signal("HUP");
            },
            seen: Seen { metrics: &[NOT_READ], log: Log::Line(OLD_STAYS), page: ON_NODE },
            goes_on: ALL,
            undone: "the file is back, and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "config-bad-resource",
            happens: "A resource in the file has a name that the kubelet would refuse",
            how: |rig| rig.reload("devicePlugin: {resources: [{kind: simulated, name: nonsense, devices: 1}]}\n"),
            seen: Seen { metrics: &[NOT_READ], log: Log::Line("it has no domain"), page: ON_NODE },
            goes_on: ALL,
            undone: "a good file and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "config-needs-restart",
            happens: "An option changes that needs a restart, and SIGHUP has the file read again",
            how: |rig| rig.reload(&format!("{CONFIG}nodeName: another\n")),
            seen: Seen {
                metrics: &[Metric("podmeter_config_last_reload_success_timestamp_seconds", &[], Is::Rises)],
                log: Log::Line("changed options need a restart of podmeter"),
                page: Some(Text("/-/ready", "200 OK")),
            },
            goes_on: ALL,
            undone: "the key is as before, and SIGHUP",
            undo: Some(|rig| rig.reload(CONFIG)),
            within: 10,
        },
        Row {
            id: "web-config-bad",
            happens: "The web configuration is changed to one that cannot be used",
            how: |rig| rig.write("web-config.yaml", "http_server_config: {headers: {X-Frame-Options: maybe}}\n"),
            seen: Seen { metrics: &[NOT_READ], log: Log::Line(WEB_OLD_STAYS), page: ON_NODE },
            goes_on: ALL,
            undone: "a good file",
            undo: Some(|rig| rig.write("web-config.yaml", GOOD_WEB)),
            within: 10,
        },
        Row {
            id: "web-config-no-certificate",
            happens: "The web configuration names a certificate that is not there",
            how: |rig| rig.write("web-config.yaml", "tls_server_config: {cert_file: gone.crt, key_file: gone.key}\n"),
            seen: Seen { metrics: &[NOT_READ], log: Log::Line("gone.crt"), page: ON_NODE },
            goes_on: ALL,
            undone: "a good file",
            undo: Some(|rig| rig.write("web-config.yaml", GOOD_WEB)),
            within: 10,
        },
        Row {
            id: "config-misspelt-at-start",
            happens: "It is started with a misspelt key: exit code 2 before anything is opened",
            how: |rig| {
                rig.stop();
                rig.write("podmeter.yaml", "refreshIntervall: 5s\n");
                assert_eq!(rig.begin_in_vain(&[]), 2, "{}", rig.log());
            },
            seen: Seen { metrics: &[], log: Log::Line("refreshIntervall"), page: None },
            goes_on: &[GoesOn::Devices(0), GoesOn::Pod],
            undone: "the key is right, and it is started",
            undo: Some(|rig| {
                rig.write("podmeter.yaml", CONFIG);
                rig.begin();
            }),
            within: 15,
        },
        Row {
            id: "config-address-in-use",
            happens: "It is started on an address that somebody has: exit code 3",
            how: address_in_use,
            seen: Seen { metrics: &[], log: Log::Line("--listen"), page: None },
            goes_on: &[GoesOn::Devices(0), GoesOn::Pod],
            undone: "it is started on a free one",
            undo: Some(Rig::begin),
            within: 15,
        },
    ],
};

fn address_in_use(rig: &mut Rig) {
    rig.stop();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(rig.begin_in_vain(&["--listen", &address]), 3, "{}", rig.log());
}
