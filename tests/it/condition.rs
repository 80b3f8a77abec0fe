//! The condition of a node's devices: `/api/v1/health`, `podmeter health`, the condition file, and the custom plugin of
//! node-problem-detector that reads it.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::support::agent;
use crate::support::polling::until_true;

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/node-problem-detector");

#[test]
fn the_agent_writes_a_file_that_both_checks_judge_by_its_status_and_age() {
    let directory = tempfile::tempdir().unwrap();
    let (file, written) = written_by_an_agent(directory.path());
    let condition: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(condition["until"].as_u64().unwrap() - condition["written"].as_u64().unwrap(), 60);
    both_checks_say(&file, &written, 0, "8 GPUs are healthy\n");
    for (status, age_seconds, code, part) in [
        ("healthy", 0, 0, "GPU 3"),
        ("unhealthy", 0, 1, "pods a/b"),
        ("unknown", 0, 2, "GPU 3"),
        ("healthy", 70, 2, "was last written 7"),
        ("unhealthy", 3600, 2, "does not run, or cannot write it"),
        ("healthy", -600, 2, "the clock was set back"),
        ("fine", 0, 2, "not a condition of podmeter's"),
    ] {
        both_checks_say(&file, &with_status(&written, status, age_seconds), code, part);
    }
}

#[test]
fn a_file_that_is_damaged_or_missing_is_no_evidence() {
    let directory = tempfile::tempdir().unwrap();
    let (file, written) = written_by_an_agent(directory.path());
    let healthy = || with_status(&written, "healthy", 0);
    for text in [
        healthy().replace("/v1", "/v2"),
        healthy().split_inclusive('\n').take(5).collect(),
        healthy().split_inclusive('\n').take(7).collect(),
        healthy().repeat(2),
        String::new(),
        "{}".to_owned(),
    ] {
        both_checks_say(&file, &text, 2, "not a condition of podmeter's");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!((plugin(&file).0, health(&["--file", &file]).0), (2, 2));
}

#[test]
fn the_file_is_read_where_the_chart_disables_the_admin_socket_and_a_failed_write_is_code_2() {
    let directory = tempfile::tempdir().unwrap();
    let (file, written) = written_by_an_agent(directory.path());
    std::fs::write(&file, with_status(&written, "healthy", 0)).unwrap();
    let mut command = Command::new(agent::binary());
    let output = command.args(["health", "--file", &file]).env("PODMETER_ADMIN_SOCKET", "none").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    // A failed write is no fault of a device.
    std::fs::write(&file, with_status(&written, "unhealthy", 0)).unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let status = Command::new(agent::binary()).args(["health", "--file", &file]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(2));
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

fn ended(program: &Path, arguments: &[&str]) -> (i32, String) {
    let (code, out, err) = agent::output(program, arguments);
    assert_eq!(err, "", "{arguments:?}");
    (code, out)
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

/// The path of a file that an agent has written, and its text.
fn written_by_an_agent(directory: &Path) -> (String, String) {
    let file = directory.join("health.json").to_str().unwrap().to_owned();
    let running = agent::agent(directory, &["--hardware=simulated", "--condition-file", &file], &[]);
    until_true("a healthy node", || health(&["--file", &file]).0 == 0);
    drop(running);
    let text = std::fs::read_to_string(&file).unwrap();
    (file, text)
}

/// The file with another status and age, line by line as the agent writes it.
fn with_status(written: &str, status: &str, age_seconds: i64) -> String {
    let field = |name: &str| serde_json::from_str::<Value>(written).unwrap()[name].as_u64().unwrap();
    let begin = now().checked_add_signed(-age_seconds).unwrap();
    written
        .replace("\"status\": \"healthy\"", &format!("\"status\": \"{status}\""))
        .replace(&format!("\"written\": {}", field("written")), &format!("\"written\": {begin}"))
        .replace(&format!("\"until\": {}", field("until")), &format!("\"until\": {}", begin + 60))
        .replace("8 GPUs are healthy", "GPU 3 (GPU-1): xid since 2026-01-01T00:00:00Z; pods a/b, a/c")
}

/// Both checks must give this code, and one line with this part.
fn both_checks_say(file: &str, text: &str, code: i32, part: &str) {
    std::fs::write(file, text).unwrap();
    for (code_of_check, line) in [plugin(file), health(&["-o", "npd", "--file", file])] {
        assert_eq!(code_of_check, code, "{text}: {line}");
        assert!(line.contains(part) && line.lines().count() == 1, "{text}: {line}");
    }
}
