//! Containers that run between two scrapes, and pods that return under their name, end to end: the real binary on a
//! fake kubelet and the fake driver.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::agent::{Page, Running, agent};
use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{GPU, KubeletNode, ListedDevice, Options, PodSpec, holding_pod, node};
use crate::support::polling;
use crate::support::test_data::uuid;
use serde_json::{Value, json};

const BURST: &[&str] = &["namespace=\"team\"", "pod=\"burst\"", "container=\"main\""];
const WATTS: f64 = 300.0;

#[tokio::test(flavor = "multi_thread")]
async fn a_container_between_two_scrapes_is_on_the_next_two_with_its_seconds_and_joules() {
    let driver = FakeNvml::start(two_gpus());
    let (node, running) = with_trainer(&driver).await;
    let (at_least, at_most) = run_burst(&node, &running);

    let page = running.metrics();
    let [allocated, busy, uncovered] = ["allocated", "busy", "uncovered"]
        .map(|name| of_burst(&page, &format!("podmeter_container_{name}_seconds_total")));
    assert!(
        (at_least.as_secs_f64()..at_most.as_secs_f64()).contains(&allocated),
        "{at_least:?} {allocated} {at_most:?}"
    );
    // On a busy machine the last reading before its end may be late.
    let read = allocated - uncovered;
    assert!((busy - read / 2.0).abs() < 0.4, "busy {busy} of {read}");
    let joules = of_burst(&page, "podmeter_container_energy_joules_total");
    assert!((0.8 * read * WATTS..1.2 * allocated * WATTS).contains(&joules), "{joules} J in {allocated} s");
    assert_eq!(page.count("podmeter_container_allocation_info", BURST), 0, "it holds nothing");

    let again = running.metrics();
    for name in ["allocated_seconds", "busy_seconds", "energy_joules"] {
        let name = format!("podmeter_container_{name}_total");
        assert_eq!(page.value(&name, BURST), again.value(&name, BURST), "final");
    }
    // Two have read it, and its retention is over.
    running.until("it to leave", |page| page.count("podmeter_container_allocated_seconds_total", BURST) == 0);
}

/// `burst` with UID `old` has held a GPU for three seconds.
async fn with_old_burst(driver: &FakeNvml, state: &Path) -> (KubeletNode, Running) {
    let node = node(Options::default()).await;
    node.set_devices("nvidia.com/gpu", (0..2).map(|gpu| ListedDevice::new(&uuid(gpu))).collect());
    node.set_pods(vec![pod("trainer", 0), pod("burst", 1).uid("old")]);
    let arguments = ["--sample-interval", "100ms", "--refresh-interval", "10m", "--state-dir", state.to_str().unwrap()];
    let running = agent(node.root.path(), &arguments, &driver.env());
    running.until("the old pod at work, and its UID", |page| {
        page.value("podmeter_container_allocated_seconds_total", BURST).is_some_and(|held| held > 3.0)
            && page.value("podmeter_pod_info", &["pod=\"burst\"", "uid=\"old\""]).is_some()
    });
    (node, running)
}

/// Its UID is `new` from now on, and it holds the GPU for over a second.
fn recreate_burst(node: &KubeletNode, running: &Running) -> Page {
    node.set_pods(vec![pod("trainer", 0), pod("burst", 1).uid("new")]);
    running.until("the new pod", |page| {
        let info: Vec<_> = page.samples("podmeter_pod_info", &["pod=\"burst\""]).collect();
        assert!(info.len() <= 1, "{info:?}");
        page.count("podmeter_pod_info", &["pod=\"burst\"", "uid=\"new\""]) == 1
            && page.value("podmeter_container_allocated_seconds_total", BURST).is_some_and(|held| held > 1.0)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_recreated_under_its_name_has_counters_of_its_own_at_once() {
    let (driver, state) = (FakeNvml::start(two_gpus()), tempfile::tempdir().unwrap());
    let (node, running) = with_old_burst(&driver, state.path()).await;
    let timer = |page: &Page| page.value("podmeter_refresh_triggers_total", &["trigger=\"timer\""]);
    let (before, first) = (running.metrics(), held_since(&running));
    let came = Instant::now();
    let page = recreate_burst(&node, &running);
    assert_eq!(timer(&page), timer(&before), "noticed by its event");
    let allocated = of_burst(&page, "podmeter_container_allocated_seconds_total");
    assert!(allocated < came.elapsed().as_secs_f64() + 1.0, "{allocated} s after {:?}", came.elapsed());

    let second = held_since(&running);
    assert!(second > first + 3.0, "{first} and then {second}: in the record and in `top`");
}

/// Two GPUs that are half busy, and have drawn an hour's energy before the agent starts.
fn two_gpus() -> Value {
    let gpu = json!({
        "utilization": { "gpu": 50, "memory": 20 }, "power_milliwatts": 300_000, "energy_millijoules": 1_080_000_000,
    });
    json!({ "gpus": vec![gpu; 2] })
}

fn pod(name: &str, gpu: usize) -> PodSpec {
    holding_pod(name, GPU, &uuid(gpu))
}

/// The kubelet's pods are these from now on, and its checkpoint changes.
fn change(node: &KubeletNode, pods: Vec<PodSpec>) {
    node.set_pods(pods);
    std::fs::write(node.device_plugin_directory().join("kubelet_internal_checkpoint"), "{}").unwrap();
}

/// Waits for the account of `burst` without reading a page of metrics.
fn until(running: &Running, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    polling::until(what, || {
        let accounts = running.node()["accounts"].as_array().cloned().unwrap_or_default();
        accounts.into_iter().find(|account| account["container"]["pod"] == "burst").filter(&condition)
    })
}

fn of_burst(page: &Page, name: &str) -> f64 {
    page.value(name, BURST).unwrap_or_else(|| panic!("no {name}:\n{}", page.0))
}

/// When the counters of the one account of `burst` that holds a device began.
fn held_since(running: &Running) -> f64 {
    let snapshot = running.node();
    let accounts = snapshot["accounts"].as_array().unwrap().iter();
    let held: Vec<&Value> =
        accounts.filter(|account| account["container"]["pod"] == "burst" && !account["holding"].is_null()).collect();
    assert_eq!(held.len(), 1);
    held[0]["created"].as_f64().unwrap()
}

/// `trainer` is at work on GPU 0.
async fn with_trainer(driver: &FakeNvml) -> (KubeletNode, Running) {
    let node = node(Options::default()).await;
    node.set_devices("nvidia.com/gpu", (0..2).map(|gpu| ListedDevice::new(&uuid(gpu))).collect());
    change(&node, vec![pod("trainer", 0)]);
    let arguments = ["--sample-interval", "100ms", "--refresh-interval", "1s", "--retention", "1s"];
    let running = agent(node.root.path(), &arguments, &driver.env());
    let before = running.until("the trainer at work", |page| {
        page.samples("podmeter_container_busy_seconds_total", &["pod=\"trainer\""]).any(|(_, busy)| busy > 0.5)
    });
    assert_eq!(before.count("podmeter_container_allocated_seconds_total", BURST), 0);
    (node, running)
}

/// `burst` runs for two seconds, and its retention passes, without a scrape: the least and most that it ran.
fn run_burst(node: &KubeletNode, running: &Running) -> (Duration, Duration) {
    let came = Instant::now();
    change(node, vec![pod("trainer", 0), pod("burst", 1)]);
    until(running, "burst", |_| true);
    let seen = Instant::now();
    until(running, "two seconds", |burst| burst["allocated_seconds"].as_f64().is_some_and(|held| held > 2.0));
    let at_least = seen.elapsed();
    change(node, vec![pod("trainer", 0)]);
    until(running, "its end", |burst| burst["holding"].is_null());
    let at_most = came.elapsed();
    let left = Instant::now();
    until(running, "some time after its end", |_| left.elapsed() > Duration::from_secs(2));
    (at_least, at_most)
}
