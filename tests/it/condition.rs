//! The condition of a node's devices: `/api/v1/health`, `podmeter health`, the condition file, and the custom plugin of
//! node-problem-detector that reads it.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::agent;
use crate::support::demo::{Demo, until};

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/node-problem-detector");

fn ended(program: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(error, "", "{arguments:?}");
    (output.status.code().unwrap(), text.into_owned())
}

fn health(arguments: &[&str]) -> (i32, String) {
    ended(&agent::binary(), &[&["health"], arguments].concat())
}

fn plugin(file: &str) -> (i32, String) {
    ended(Path::new("/bin/sh"), &[&format!("{RECIPE}/podmeter-gpu-problem.sh"), file])
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn a_marked_device_is_named_with_its_pods_and_nothing_is_healthy_without_evidence() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let url = demo.url();
    let npd = ["-o", "npd", "--url", url.as_str()];
    let healthy = until("a healthy node", || Some(health(&npd)).filter(|(code, _)| *code == 0));
    assert_eq!(healthy.1, "8 GPUs are healthy\n");

    let page = demo.running.metrics();
    let held = page.samples("podmeter_container_allocation_info", &[]).next().expect("a holder").0.to_owned();
    let label = |name: &str| held.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned();
    let (gpu, pod) = (label("gpu_uuid"), format!("{}/{}", label("namespace"), label("pod")));
    let mark = json!({"device": gpu, "reason": "in \"repair\""}).to_string();
    assert_eq!(agent::post(&demo.admin_socket(), "/mark", &mark).status, 200);
    let (code, line) = until("a marked GPU", || Some(health(&npd)).filter(|(_, line)| line.contains(&gpu)));
    assert_eq!(code, 0, "a mark asks for no repair: {line}");
    assert!(line.contains("7 GPUs are healthy") && line.contains(": admin since ") && line.contains(&pod), "{line}");
    assert!(line.len() <= 513 && line.is_ascii() && line.lines().count() == 1, "{line}");
    let (code, text) = health(&["--url", &url]);
    assert!(code == 0 && text.contains(" is marked since ") && text.contains("recovers after an unmark"), "{text}");
    let (code, text) = health(&["-o", "json", "--admin-socket", demo.admin_socket().to_str().unwrap()]);
    let condition: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &condition["schema"], &condition["status"]),
        (0, &"podmeter.condition/v1".into(), &"healthy".into())
    );
    let device = &condition["devices"][0];
    assert_eq!((&device["gpu_uuid"], &device["reasons"][0]["reason"]), (&gpu.as_str().into(), &"admin".into()));
    assert!(device["pods"].as_array().unwrap().contains(&pod.as_str().into()), "{device}");

    assert_eq!(agent::post(&demo.admin_socket(), "/unmark", &json!({"device": gpu}).to_string()).status, 200);
    until("a healthy node again", || (health(&npd).0 == 0).then_some(()));
    assert_eq!(agent::post(&demo.admin_socket(), "/release", r#"{"for": "1m"}"#).status, 200);
    let (_, line) = until("an unknown node", || Some(health(&npd)).filter(|(code, _)| *code == 2));
    assert!(line.contains("released"), "{line}");
    drop(demo);
    let (code, line) = health(&npd);
    assert_eq!(code, 2, "no agent is no healthy agent");
    assert!(line.contains("cannot be reached"), "{line}");
}

#[test]
fn the_agent_writes_the_file_and_both_checks_read_it_alike() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("health.json");
    let file = file.to_str().unwrap();
    let arguments = ["--hardware=simulated", "--condition-file", file];
    let mut running = agent::agent(directory.path(), &arguments, &[]);
    until("a healthy node", || (health(&["--file", file]).0 == 0).then_some(()));
    assert_eq!(plugin(file), (0, "8 GPUs are healthy\n".to_owned()));
    assert_eq!(health(&["-o", "npd", "--file", file]), plugin(file));
    running.kill();

    let written = std::fs::read_to_string(file).unwrap();
    let field = |name: &str| serde_json::from_str::<Value>(&written).unwrap()[name].as_u64().unwrap();
    let (at, until) = (field("written"), field("until"));
    assert_eq!(until - at, 60, "an old file is no healthy node");
    // Line by line as the agent writes it.
    let of = |status: &str, begin: u64| {
        written
            .replace("\"status\": \"healthy\"", &format!("\"status\": \"{status}\""))
            .replace(&format!("\"written\": {at}"), &format!("\"written\": {begin}"))
            .replace(&format!("\"until\": {until}"), &format!("\"until\": {}", begin + 60))
            .replace("8 GPUs are healthy", "GPU 3 (GPU-1): xid since 2026-01-01T00:00:00Z; pods a/b, a/c")
    };
    for (text, code, part) in [
        (of("healthy", now()), 0, "GPU 3"),
        (of("unhealthy", now()), 1, "pods a/b"),
        (of("unknown", now()), 2, "GPU 3"),
        (of("healthy", now() - 70), 2, "was last written 7"),
        (of("unhealthy", now() - 3600), 2, "does not run, or cannot write it"),
        (of("healthy", now() + 600), 2, "the clock was set back"),
        (of("fine", now()), 2, "not a condition of podmeter's"),
        (of("healthy", now()).replace("/v1", "/v2"), 2, "not a condition of podmeter's"),
        (of("healthy", now()).split_inclusive('\n').take(5).collect(), 2, "not a condition of podmeter's"),
        (of("healthy", now()).split_inclusive('\n').take(7).collect(), 2, "not a condition of podmeter's"),
        (of("healthy", now()).repeat(2), 2, "not a condition of podmeter's"),
        (String::new(), 2, "not a condition of podmeter's"),
        ("{}".to_owned(), 2, "not a condition of podmeter's"),
    ] {
        std::fs::write(file, &text).unwrap();
        for (code_of_check, line) in [plugin(file), health(&["-o", "npd", "--file", file])] {
            assert_eq!(code_of_check, code, "{text}: {line}");
            assert!(line.contains(part) && line.lines().count() == 1, "{text}: {line}");
        }
    }
    std::fs::remove_file(file).unwrap();
    assert_eq!((plugin(file).0, health(&["--file", file]).0), (2, 2));
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(agent::binary()).args(["health", "--file", file]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(2), "a failed write is no fault of a device");
}

/// By the rules of node-problem-detector's validation (pkg/custompluginmonitor/types/config.go), and by its cut of the
/// output.
#[test]
fn the_configuration_of_the_plugin_is_valid() {
    let text = std::fs::read_to_string(format!("{RECIPE}/podmeter-gpu-problem.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let seconds = |value: &Value| value.as_str().unwrap().strip_suffix('s').unwrap().parse::<u64>().unwrap();
    let plugin = &config["pluginConfig"];
    assert_eq!((&config["plugin"], plugin["max_output_length"].as_u64()), (&"custom".into(), Some(512)));
    assert!(seconds(&plugin["invoke_interval"]) > 0);
    // The first status would be healthy without a check.
    assert_eq!(plugin["skip_initial_status"], true);
    // Pods and reasons change while the status does not.
    assert_eq!(plugin["enable_message_change_based_condition_update"], true);
    let conditions: Vec<&Value> = config["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
    for rule in config["rules"].as_array().unwrap() {
        // A temporary rule sends an event for what is unknown, too.
        assert_eq!(rule["type"], "permanent");
        assert!(conditions.contains(&&rule["condition"]));
        assert!(seconds(&rule["timeout"]) <= seconds(&plugin["timeout"]));
        assert!(Path::new(rule["path"].as_str().unwrap()).exists(), "node-problem-detector checks that it exists");
    }
    let component = std::fs::read_to_string(format!("{RECIPE}/kustomization.yaml")).unwrap();
    for path in ["/podmeter/podmeter-gpu-problem.json", "mountPath: /podmeter", "mountPath: /run/podmeter"] {
        assert!(component.contains(path), "{path}");
    }
}
