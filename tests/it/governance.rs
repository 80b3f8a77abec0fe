//! `podmeter record` of the demo; `scripts/check-record` validates it by its schema.

use serde_json::{Value, json};

use crate::support::agent;
use crate::support::demo::{self, Demo};

fn record(arguments: &[&str]) -> String {
    let (code, output) = agent::ended(&[&["record"], arguments].concat());
    assert_eq!(code, 0, "{output}");
    output
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_record_names_the_hardware_of_holders_and_this_process() {
    for profile in ["8xh100-timesliced", "8xh100-mig"] {
        let demo = Demo::start(&["--profile", profile]);
        demo.until_held();
        let record = parsed(&record(&["--admin-socket", demo.admin_socket().to_str().unwrap()]));
        assert_eq!(record["running"]["version"], env!("CARGO_PKG_VERSION"));
        let holders = record["allocations"]["containers"].as_array().unwrap();
        let gpus: Vec<&Value> =
            record["hardware"]["devices"].as_array().unwrap().iter().map(|gpu| &gpu["uuid"]).collect();
        for holder in holders {
            for behind in holder["hardware"].as_array().unwrap() {
                assert!(gpus.contains(&&behind["gpu"]), "{behind}");
            }
        }
        assert!(holders.iter().any(|holder| holder["hardware"] != json!([])), "{holders:?}");
        let resources = record["device_plugin"]["resources"].as_array().unwrap();
        assert!(resources.iter().any(|resource| resource["registered"] == true), "{resources:?}");
        let uid = std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap();
        assert_eq!(record["process"]["privileges"]["uid"], uid);
    }
}

#[test]
fn serial_numbers_are_on_the_admin_socket_only_and_json_equals_yaml() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let private = record(&["--admin-socket", demo.admin_socket().to_str().unwrap()]);
    assert!(parsed(&private)["hardware"]["devices"][0]["serial"].is_string(), "{private}");
    let public = record(&["--url", &demo.url()]);
    assert!(!public.contains("\"serial\""), "{public}");
    let mut yaml: Value = serde_saphyr::from_str(&record(&["--url", &demo.url(), "-o", "yaml"])).unwrap();
    let mut json = parsed(&public);
    for changing in ["at", "health", "allocations"] {
        (yaml[changing], json[changing]) = (Value::Null, Value::Null);
    }
    assert_eq!(yaml, json);
    let answer = demo.running.get("/api/v1/record?output=xml");
    assert_eq!(answer.status, 400, "{}", answer.body);
}

#[test]
fn a_health_transition_is_in_the_history_with_its_holders() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let socket = demo.admin_socket();
    let path = socket.to_str().unwrap();
    let holders = parsed(&record(&["--admin-socket", path]));
    let gpu = holders["allocations"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|holder| holder["hardware"][0]["gpu"].as_str())
        .unwrap()
        .to_owned();
    let marked = agent::post(&socket, "/mark", &json!({"device": gpu, "reason": "noisy"}).to_string());
    assert_eq!(marked.status, 200, "{}", marked.body);
    let record = demo::until("the transition", || {
        let record = parsed(&record(&["--admin-socket", path]));
        (record["health"]["history"]["transitions"] != json!([])).then_some(record)
    });
    let transition = &record["health"]["history"]["transitions"][0];
    assert_eq!(
        (&transition["gpu"], &transition["healthy"], &transition["reason"]),
        (&json!(gpu), &json!(false), &json!("admin"))
    );
    assert!(transition["holders"][0]["pod"].is_string(), "{transition}");
    let devices = record["health"]["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["gpu"] == gpu.as_str()).unwrap();
    assert!(device["causes"][0]["detail"].as_str().is_some_and(|detail| detail.contains("noisy")), "{device}");
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
    let digest = podmeter::governance::sha256(text.as_bytes());
    assert_eq!(before["configuration"]["files"], json!([{"path": config, "sha256": digest}]));
    assert_eq!(
        (&before["running"]["image"], &before["running"]["pod"]),
        (&json!("example.com/podmeter:1"), &json!("podmeter-x"))
    );
    assert_eq!(
        (&before["device_plugin"], &before["allocations"]["containers"]),
        (&Value::Null, &Value::Null),
        "unknown is not none"
    );
    std::fs::write(&file, text.replace("7s", "8s")).unwrap();
    running.signal("HUP");
    let after = demo::until("the reload", || {
        let after = read();
        (after["configuration"]["settings_sha256"] != before["configuration"]["settings_sha256"]).then_some(after)
    });
    assert_ne!(after["configuration"]["files"], before["configuration"]["files"]);
}

#[test]
fn without_an_agent_the_error_names_the_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let (code, output) = agent::ended(&["record", "--admin-socket", socket.to_str().unwrap()]);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("none.sock") && output.contains("--url"), "{output}");
    let (code, output) = agent::ended(&["record", "--url", "ftp://127.0.0.1"]);
    assert_eq!(code, 2, "{output}");
}
