//! Driver libraries that hang, end the process or are cut off while they are loaded.

use crate::support::agent;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::agent::{Running, binary, ended};
use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{Node, Options, node};
use serde_json::json;

/// What podmeter promises after a signal.
const END: Duration = Duration::from_secs(5);
const HANGS: &str = "#include <unistd.h>\n__attribute__((constructor)) static void load(void) { for (;;) pause(); }\n";
const CRASHES: &str = "#include <signal.h>\n__attribute__((constructor)) static void load(void) { raise(SIGBUS); }\n";

/// A library with this initialiser.
fn library(directory: &Path, source: &str) -> PathBuf {
    let (code, library) = (directory.join("library.c"), directory.join("libnvidia-ml.so.1"));
    std::fs::write(&code, source).unwrap();
    let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &code]).status();
    assert!(status.expect("cc is there").success());
    library
}

fn arguments(node: &Node, library: &Path) -> Vec<String> {
    let inside = |name: &str| node.root.path().join(name).to_str().unwrap().to_owned();
    let all = [
        ("--listen", "127.0.0.1:0".to_owned()),
        ("--kubelet-root", inside("")),
        ("--admin-socket", inside("admin.sock")),
        ("--state-dir", inside("state")),
        ("--sys-root", "/nonexistent".to_owned()),
        ("--nvml-library", library.to_str().unwrap().to_owned()),
    ];
    let all = all.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    ["agent".to_owned()].into_iter().chain(all).collect()
}

fn start(node: &Node, library: &Path) -> Running {
    let arguments = arguments(node, library);
    Running::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), &[], None)
}

fn end(running: &mut Running) -> Option<i32> {
    let began = Instant::now();
    running.signal("TERM");
    let code = running.wait().code();
    assert!(began.elapsed() < END, "{:?}\n{}", began.elapsed(), running.log());
    code
}

fn pages_answer(running: &Running) {
    for path in ["/metrics", "/metrics/dcgm", "/", "/-/healthy", "/api/v1/node", "/api/v1/record"] {
        let began = Instant::now();
        assert_eq!(running.get(path).status, 200, "{path}");
        assert!(began.elapsed() < Duration::from_secs(2), "{path}: {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_hangs_while_it_is_loaded_holds_up_no_page_and_no_end() {
    let node = node(Options::default()).await;
    let library = library(node.root.path(), HANGS);
    let mut running = start(&node, &library);
    let began = Instant::now();
    // Longer than the runtime keeps an idle thread, and than the driver may take.
    while began.elapsed() < Duration::from_secs(16) {
        pages_answer(&running);
        std::thread::sleep(Duration::from_secs(if began.elapsed().as_secs() < 2 { 0 } else { 4 }));
    }
    assert!(running.log().contains("opening or closing the driver has not come back"), "{}", running.log());
    assert!(running.get("/").body.contains("opening or closing the driver has not come back"));
    assert_eq!(end(&mut running), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_just_after_the_start_is_not_held_up_by_a_library_that_hangs() {
    let node = node(Options::default()).await;
    let library = library(node.root.path(), HANGS);
    let mut running = start(&node, &library);
    assert_eq!(end(&mut running), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_call_that_hangs_does_not_hold_up_the_end() {
    let node = node(Options::default()).await;
    let driver = FakeNvml::start(json!({"gpus": [{}, {}], "hang": ["*"]}));
    let mut running = agent::agent(node.root.path(), &["--sample-interval", "100ms"], &driver.env());
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(end(&mut running), Some(0));
}

#[test]
fn doctor_and_the_probe_end_though_the_library_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let library = library(directory.path(), HANGS);
    let (library, root) = (library.to_str().unwrap(), directory.path().to_str().unwrap());
    let probe = std::thread::scope(|scope| {
        let probe = scope.spawn(|| ended(&["probe-nvml", "--nvml-library", library, "--deadline", "2s"]));
        let doctor = ["doctor", "--nvml-library", library, "--kubelet-root", root, "--admin-socket", "none"];
        let (code, printed) = ended(&doctor);
        assert_eq!(code, 1, "{printed}");
        assert!(printed.contains("the driver hangs"), "{printed}");
        probe.join().unwrap()
    });
    assert_eq!(probe.0, 1, "{}", probe.1);
    assert!(probe.1.contains("has not finished within 2s"), "{}", probe.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_library_is_named_and_loaded_once_it_is_complete() {
    let node = node(Options::default()).await;
    let driver = FakeNvml::start(json!({"gpus": [{}, {}]}));
    let library = driver.library_path();
    let whole = std::fs::read(&library).unwrap();
    let replace = |bytes: &[u8]| {
        let beside = driver.folder().join("new");
        std::fs::write(&beside, bytes).unwrap();
        std::fs::rename(beside, &library).unwrap();
    };
    replace(&whole[..whole.len() / 2]);
    let mut running = start(&node, &library);
    running.until("the problem", |_| running.log().contains("it is cut off"));
    pages_answer(&running);
    replace(&whole);
    running.until("two GPUs", |page| page.count("podmeter_device_info", &[]) == 2);
    assert_eq!(end(&mut running), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_library_that_ended_podmeter_is_named_at_the_next_start_and_left_alone() {
    let node = node(Options::default()).await;
    let library = library(node.root.path(), CRASHES);
    let crashed = Command::new(binary()).args(arguments(&node, &library)).output().unwrap();
    assert_eq!(crashed.status.code(), None, "a signal ends it: {}", String::from_utf8_lossy(&crashed.stderr));
    let mut running = start(&node, &library);
    running.until("the problem", |_| running.log().contains("podmeter ended while it loaded"));
    assert!(running.log().contains(library.to_str().unwrap()), "{}", running.log());
    pages_answer(&running);
    let driver = FakeNvml::start(json!({"gpus": [{}]}));
    std::fs::remove_file(&library).unwrap();
    std::fs::copy(driver.library_path(), &library).unwrap();
    std::fs::write(library.with_file_name("fake-nvml.json"), r#"{"gpus": [{}]}"#).unwrap();
    running.until("the new library", |page| page.count("podmeter_device_info", &[]) == 1);
    assert!(!node.root.path().join("state/driver-library.json").exists());
    assert_eq!(end(&mut running), Some(0));
}
