//! `podmeter record` of the demo and of an agent.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::agent;
use crate::support::demo::Demo;
use crate::support::polling::until;

fn record(arguments: &[&str]) -> String {
    let (code, output) = agent::ended(&[&["record"], arguments].concat());
    assert_eq!(code, 0, "{output}");
    output
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn the_record_has_what_governance_asks() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let record = parsed(&record(&["--admin-socket", demo.admin_socket().to_str().unwrap()]));
    let all = "schema at node running configuration listeners hardware resources health_monitoring process";
    let all: BTreeSet<&str> = all.split(' ').collect();
    assert_eq!((keys(&record), &record["schema"]), (all, &json!("podmeter.record/v2")));
    assert_eq!(record["running"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&record["node"]["name"], &record["hardware"]["source"]), (&json!("demo"), &json!("simulated")));
    assert_eq!(record["resources"], json!([{"name": "nvidia.com/gpu", "api": "v1beta1", "registered": true}]));
    let monitoring = &record["health_monitoring"];
    assert_eq!(monitoring["sources"], json!(["readings", "events", "operator"]), "{monitoring}");
    assert_eq!((&monitoring["recovery"], monitoring["hold_down_seconds"].is_f64()), (&json!("auto"), true));
    let process = &record["process"];
    let uid = std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap();
    assert_eq!(process["privileges"]["uid"], uid);
    assert_eq!(keys(&process["privileges"]["capabilities"]), ["effective", "permitted", "bounding"].into());
    assert!(process["service_account_token"].is_boolean() && process["read_only_root"].is_boolean(), "{process}");
    assert!(process["namespaces"]["pid"]["id"].is_u64(), "{process}");
    let mount = &process["mounts"][0];
    assert!(mount["path"].is_string() && mount["root"].is_string() && mount["read_only"].is_boolean(), "{mount}");
}

#[test]
fn serial_numbers_are_on_the_admin_socket_only_and_json_equals_yaml() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let private = record(&["--admin-socket", demo.admin_socket().to_str().unwrap()]);
    let serial = &parsed(&private)["hardware"]["devices"][0]["serial"];
    let node = demo.running.get("/api/v1/node").body;
    assert!(!node.contains(serial.as_str().unwrap()), "{node}");
    let public = record(&["--url", &demo.url()]);
    assert!(!public.contains("\"serial\""), "{public}");
    let mut yaml: Value = serde_saphyr::from_str(&record(&["--url", &demo.url(), "-o", "yaml"])).unwrap();
    let mut json = parsed(&public);
    (yaml["at"], json["at"]) = (Value::Null, Value::Null);
    assert_eq!(yaml, json);
    let answer = demo.running.get("/api/v1/record?output=xml");
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[test]
fn the_digest_changes_with_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let (file, socket) = (directory.path().join("podmeter.yaml"), directory.path().join("admin.sock"));
    let text = "hardware: none\ndevicePlugin: off\nretention: 7s\n";
    std::fs::write(&file, text).unwrap();
    let (root, config, path) = (directory.path().to_str().unwrap(), file.to_str().unwrap(), socket.to_str().unwrap());
    let arguments =
        ["agent", "--listen", "127.0.0.1:0", "--kubelet-root", root, "--config", config, "--admin-socket", path];
    let variables = [("PODMETER_IMAGE", "example.com/podmeter:1".into()), ("PODMETER_POD_NAME", "podmeter-x".into())];
    let running = agent::Running::start(&arguments, &variables, None);
    let read = || parsed(&record(&["--admin-socket", path]));
    let before = read();
    let digest = podmeter::serve::governance::sha256(text.as_bytes());
    assert_eq!(before["configuration"]["files"], json!([{"path": config, "sha256": digest}]));
    assert_eq!(
        (&before["running"]["image"], &before["running"]["pod"]),
        (&json!("example.com/podmeter:1"), &json!("podmeter-x"))
    );
    assert_eq!(before["resources"], Value::Null, "the plugin is off");
    std::fs::write(&file, text.replace("7s", "8s")).unwrap();
    running.signal("HUP");
    let after = until("the reload", || {
        let after = read();
        (after["configuration"]["settings_sha256"] != before["configuration"]["settings_sha256"]).then_some(after)
    });
    assert_ne!(after["configuration"]["files"], before["configuration"]["files"]);
    drop(running);
    let on_another_node = [&arguments[..], &["--node-name", "another"]].concat();
    let _running = agent::Running::start(&on_another_node, &variables, None);
    assert_eq!(read()["configuration"]["settings_sha256"], after["configuration"]["settings_sha256"]);
}
