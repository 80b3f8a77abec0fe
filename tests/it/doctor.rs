//! `podmeter doctor`: the binary on the demo and on an empty node; the module with hanging and wrong files and sockets.

use crate::support::agent;
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::demo::Demo;
use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::add_pci_device;
use crate::support::kubelet::{Options, node};
use crate::support::polling::PATIENCE;
use crate::support::stand_in_plugin::StandInPlugin;
use podmeter::clock::Clock;
use podmeter::commands::cli::check_text;
use podmeter::commands::doctor::{Check, CheckStatus, DoctorReport, DoctorSettings, examine};
use podmeter::domain::model::HardwareSource;
use podmeter::hardware::nvml::LibrarySearch;
use podmeter::simulation::kubelet::ListedDevice;
use serde_json::{Value, json};

#[test]
fn the_demo_passes_every_check_and_stays_unchanged_and_the_report_in_json_has_its_schema() {
    let demo = Demo::start(&[]);
    demo.until_held();
    let plugins = demo.root().join("device-plugins");
    let before = files(&plugins);
    let (code, text, error) = doctor_of(&demo, &[]);
    assert_eq!(code, 0, "{text}{error}");
    assert!(text.ends_with("20 checks: 0 failed, 0 warnings, 15 ok, 5 skipped\n"), "{text}");
    assert!(!text.contains('\x1b'), "no colours into a pipe");

    assert_eq!(files(&plugins), before, "nothing was made or removed");
    let page = demo.running.metrics();
    assert_eq!(page.value("podmeter_plugin_registered", &["resource=\"nvidia.com/gpu\""]), Some(1.0));
    assert_eq!(page.value("podmeter_plugin_registrations_total", &["resource=\"nvidia.com/gpu\""]), Some(1.0));

    let (code, json, error) = doctor_of(&demo, &["-o", "json"]);
    assert_eq!(code, 0, "{error}");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["schema"], "podmeter.doctor/v1");
    let skipped = report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == "skipped");
    let skipped: Vec<&Value> = skipped.map(|check| &check["id"]).collect();
    let lacking = ["plugin_profile", "claim_files", "driver", "driver_versions", "device_answers"];
    assert_eq!(skipped, lacking, "what a demo lacks");
    let keys: Vec<&str> = report["checks"][0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["found", "id", "status", "title", "to_do", "why"]);
}

#[test]
fn on_an_empty_node_every_check_reports_it_and_the_exit_code_is_1() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let library = directory.path().join("libnvidia-ml.so.1");
    let arguments = format!(
        "--kubelet-root {root} --proc-root {root} --listen 127.0.0.1:1 --nvml-library {}",
        library.to_str().unwrap()
    );
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let (code, text, error) = doctor(&[&arguments[..], &["-o", "json"]].concat());
    assert_eq!(code, 1, "{text}");
    assert!(error.contains("checks failed"), "{error}");
    let report: Value = serde_json::from_str(&text).unwrap();
    let by_id: BTreeMap<&str, &Value> =
        report["checks"].as_array().unwrap().iter().map(|check| (check["id"].as_str().unwrap(), check)).collect();
    for id in ["pod_resources", "registration_socket", "plugin_directory", "driver"] {
        assert_eq!(by_id[id]["status"], "failed", "{}", by_id[id]);
    }
    assert!(by_id["pod_resources"]["found"].as_str().unwrap().contains("there is no socket"));
    assert!(by_id["driver"]["found"].as_str().unwrap().contains("was not found"), "{}", by_id["driver"]);
    for (id, check) in by_id {
        let is_told = check["to_do"].is_string();
        assert_eq!(is_told, ["failed", "warning"].contains(&check["status"].as_str().unwrap()), "{id}: {check}");
    }
    let (code, _, error) = doctor(&["--refresh-interval", "0s"]);
    assert_eq!(code, 2, "{error}");
    let (code, _, error) = doctor(&["--no-such-flag"]);
    assert_eq!(code, 2, "{error}");
    let (code, text, _) = doctor(&[&arguments[..], &["--hardware", "none", "--url", "http://127.0.0.1:1"]].concat());
    assert_eq!(code, 1);
    assert!(text.contains("http://127.0.0.1:1 cannot be reached"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_plugin_is_seen_and_not_disturbed() {
    let node = node(Options::default()).await;
    let directory = node.device_plugin_directory();
    let plugin = StandInPlugin::start(&directory, "nvidia.com/gpu", vec![ListedDevice::new("GPU-1")]);
    assert!(plugin.registered().await);
    assert!(node.node_status_becomes(|status| status.contains_key("nvidia.com/gpu")).await);
    let report = examine(settings(node.root.path()), Clock::start()).await;
    let conflict = check(&report, "plugin_conflicts");
    assert_eq!(conflict.status, CheckStatus::Warning, "its socket's name is not known: {conflict:?}");
    assert!(conflict.found.contains("1 device of nvidia.com/gpu"), "{conflict:?}");

    let vendors = UnixListener::bind(directory.join("nvidia-gpu.sock")).unwrap();
    let (before, connected) = (files(&directory), node.connected_plugins("nvidia.com/gpu"));
    let report = examine(settings(node.root.path()), Clock::start()).await;
    let conflict = check(&report, "plugin_conflicts");
    assert_eq!(conflict.status, CheckStatus::Failed);
    assert!(conflict.found.contains("serves nvidia.com/gpu on nvidia-gpu.sock"), "{conflict:?}");
    let mut off = settings(node.root.path());
    off.node.reloadable.device_plugin = None;
    let off = examine(off, Clock::start()).await;
    assert_eq!(check(&off, "plugin_conflicts").status, CheckStatus::Skipped);

    assert_eq!(files(&directory), before);
    assert_eq!((node.connected_plugins("nvidia.com/gpu"), connected), (1, 1), "the kubelet still has it");
    vendors.set_nonblocking(true).unwrap();
    let (mut stream, _) = vendors.accept().unwrap();
    let mut received = vec![];
    std::io::Read::read_to_end(&mut stream, &mut received).unwrap();
    assert!(received.is_empty(), "it only connects");
}

/// With the fake driver.
fn with_nvml(fake: &FakeNvml, mut settings: DoctorSettings) -> DoctorSettings {
    settings.node.hardware = HardwareSource::Nvml;
    settings.node.nvml = LibrarySearch { library: Some(fake.library_path()), driver_roots: vec![] };
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver_is_opened_and_compared_with_the_bus_and_its_module() {
    let root = tempfile::tempdir().unwrap();
    let (fake, proc) = (FakeNvml::start(json!({"gpus": [{}, {}]})), root.path().join("proc"));
    std::fs::create_dir_all(proc.join("driver/nvidia")).unwrap();
    std::fs::write(proc.join("driver/nvidia/version"), "NVRM version: NVIDIA UNIX Kernel Module  1.2.3  Wed\n")
        .unwrap();
    for slot in 0..3 {
        add_pci_device(&root.path().join("sys"), &format!("0000:0{slot}:00.0"), &[]);
    }
    let mut settings = with_nvml(&fake, settings(root.path()));
    (settings.node.devices.proc_root, settings.node.devices.sys_root) = (proc, root.path().join("sys"));
    let report = examine(settings, Clock::start()).await;
    assert_eq!(check(&report, "driver").status, CheckStatus::Ok, "{:?}", check(&report, "driver"));
    assert!(check(&report, "driver").found.contains("2 GPUs"));
    let versions = check(&report, "driver_versions");
    assert!(versions.status == CheckStatus::Failed && versions.found.contains("1.2.3"), "{versions:?}");
    let devices = check(&report, "devices");
    assert_eq!((devices.status, devices.found.as_str()), (CheckStatus::Failed, "3 expected, 2 seen"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_hangs_is_left_behind() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeNvml::start(json!({"gpus": [{}], "hang": ["nvmlDeviceGetCount_v2"]}));
    let report = examine(with_nvml(&fake, impatient(root.path())), Clock::start()).await;
    let driver = check(&report, "driver");
    assert!(driver.status == CheckStatus::Failed && driver.found == "did not answer within 2 s", "{driver:?}");
    assert_eq!(check(&report, "device_answers").status, CheckStatus::Skipped);
    fake.set(json!({"gpus": [{}]}));
}

/// As of an agent with these directories and nothing else.
fn settings(root: &Path) -> DoctorSettings {
    let text = format!("kubeletRoot: {0}\nhardware: none\nnodeName: node\npodLogsRoot: {0}/logs\n", root.display());
    let mut node = check_text(&text).unwrap();
    (node.admin_socket, node.listen, node.kubelet.deadline) = (None, vec![], PATIENCE);
    (node.kubelet.claim_directories.cdi, node.kubelet.claim_directories.proc) = (root.join("cdi"), root.join("proc"));
    DoctorSettings { remote: None, driver_deadline: PATIENCE, node }
}

/// For sockets and drivers that do not answer.
fn impatient(root: &Path) -> DoctorSettings {
    let mut settings = settings(root);
    settings.node.kubelet.deadline = Duration::from_secs(2);
    DoctorSettings { driver_deadline: Duration::from_secs(2), ..settings }
}

fn check<'a>(report: &'a DoctorReport, id: &str) -> &'a Check {
    report.checks.iter().find(|check| check.id == id).expect(id)
}

fn doctor(arguments: &[&str]) -> (i32, String, String) {
    agent::output(&agent::binary(), &[&["doctor"], arguments].concat())
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// With the flags of the demo's own agent.
fn doctor_of(demo: &Demo, more: &[&str]) -> (i32, String, String) {
    let flags = [("--kubelet-root", ""), ("--proc-root", "node/proc"), ("--pod-logs-root", "node/pods")];
    let paths = flags.map(|(flag, path)| [flag.to_owned(), demo.root().join(path).to_str().unwrap().to_owned()]);
    let paths = paths.as_flattened().iter().map(String::as_str);
    let socket = demo.admin_socket();
    let others = ["--admin-socket", socket.to_str().unwrap(), "--hardware", "simulated", "--device-plugin", "on"];
    doctor(&paths.chain(others).chain(more.iter().copied()).collect::<Vec<_>>())
}
