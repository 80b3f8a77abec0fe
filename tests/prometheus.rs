//! A real Prometheus server scrapes the running demo; its answers are compared with what the simulation really did.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test starts servers and waits for them")]

#[path = "support/agent.rs"]
mod agent;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent::Running;
use serde_json::Value;
use tempfile::TempDir;

/// As the documentation recommends it, at a pace for tests.
const CONFIGURATION: &str = r#"
global:
  scrape_interval: 500ms
scrape_configs:
  - job_name: podmeter
    honor_labels: true
    relabel_configs:
      - target_label: node
        replacement: demo-node
      # Or device series, which have no pod of their own, would take the exporter's.
      - action: labeldrop
        regex: namespace|pod|container|service|endpoint
    static_configs:
      - targets: ["ADDRESS"]
        labels: { namespace: monitoring, pod: podmeter-abcde, container: podmeter }
"#;

struct Prometheus {
    server: Child,
    address: String,
    _directory: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Prometheus {
    fn start(configuration: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, configuration).unwrap();
        // Free when asked; whoever else wants a port takes another.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let server = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed (scripts/test does that)");
        Self { server, address, _directory: directory }
    }

    /// The vector that a query gives, as (labels, value); empty while the server starts.
    fn query(&self, query: &str) -> Vec<(BTreeMap<String, String>, f64)> {
        let output = Command::new("curl")
            .args(["-s", "-G", &format!("http://{}/api/v1/query", self.address)])
            .args(["--data-urlencode", &format!("query={query}")])
            .output()
            .expect("curl is installed (scripts/test does that)");
        let Ok(answer) = serde_json::from_slice::<Value>(&output.stdout) else { return vec![] };
        assert_ne!(answer["status"], "error", "{query}: {answer}");
        let result = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let row = |row: Value| {
            let labels = serde_json::from_value(row["metric"].clone()).unwrap();
            (labels, row["value"][1].as_str().unwrap().parse().unwrap())
        };
        result.into_iter().map(row).collect()
    }

    fn scalar(&self, query: &str) -> Option<f64> {
        self.query(query).first().map(|(_, value)| *value)
    }

    fn until(&self, query: &str, condition: impl Fn(f64) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !self.scalar(query).is_some_and(&condition) {
            assert!(Instant::now() < deadline, "never: {query}, now {:?}", self.query(query));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn configuration(address: &str) -> String {
    CONFIGURATION.replace("ADDRESS", address)
}

/// namespace → (allocated, busy) GPU-seconds.
type Sums = BTreeMap<String, (f64, f64)>;

/// What the simulation gave, by its own account, at the unix time nearest to `at`.
fn truth(file: &Path, at: f64) -> Sums {
    let text = std::fs::read_to_string(file).unwrap();
    // The last line may be half written.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let distance = |line: &Value| (line["unix"].as_f64().unwrap() - at).abs();
    let nearest = lines.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
    assert!(distance(&nearest) < 0.5, "the truth was written all the time");
    let mut sums = Sums::new();
    for row in nearest["holdings"].as_array().unwrap() {
        let sum = sums.entry(row["namespace"].as_str().unwrap().to_owned()).or_default();
        sum.0 += row["held_seconds"].as_f64().unwrap();
        sum.1 += row["busy_seconds"].as_f64().unwrap();
    }
    sums
}

/// What Prometheus knows at one instant, and the time of the device readings behind it.
fn known(prometheus: &Prometheus) -> (f64, Sums) {
    let at = prometheus.scalar("vector(time())").unwrap() - 1.0;
    let read = format!("podmeter_collector_last_success_timestamp_seconds{{collector=\"fast\"}} @ {at}");
    let sum = |metric: &str| {
        let rows = prometheus.query(&format!("sum by (namespace) ({metric} @ {at})"));
        rows.into_iter().map(|(labels, value)| (labels["namespace"].clone(), value)).collect::<BTreeMap<_, _>>()
    };
    let busy = sum("podmeter_container_busy_seconds_total");
    let allocated = sum("podmeter_container_allocated_seconds_total").into_iter();
    let sums = allocated.map(|(namespace, seconds)| {
        let busy = busy[&namespace];
        (namespace, (seconds, busy))
    });
    (prometheus.scalar(&read).unwrap(), sums.collect())
}

fn gpu_seconds_match(arguments: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("truth.jsonl");
    let mut all = vec!["demo", "--listen", "127.0.0.1:0", "--ground-truth", file.to_str().unwrap()];
    all.extend(arguments);
    let demo = Running::start(&all, &[], None);
    let prometheus = Prometheus::start(&configuration(&demo.address));
    prometheus.until("sum(podmeter_container_allocated_seconds_total)", |seconds| seconds > 420.0);
    let (read, known) = known(&prometheus);
    let truth = truth(&file, read);
    assert!(truth.len() >= 3, "several namespaces: {truth:?}");
    assert_eq!(truth.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>());
    let within = |ours: f64, theirs: f64| (ours - theirs).abs() <= theirs * 0.01;
    for (namespace, (allocated, busy)) in &truth {
        let ours = known[namespace];
        println!("{namespace}: allocated {:.2} of {allocated:.2}, busy {:.2} of {busy:.2}", ours.0, ours.1);
        assert!(within(ours.0, *allocated) && within(ours.1, *busy), "{namespace}: {known:?} is not {truth:?}");
    }

    // The labels arrived as they were exported, and device series took none from their target.
    assert_eq!(prometheus.query("{exported_pod!=\"\"}").len(), 0, "no label was in the way");
    let devices = prometheus.query("podmeter_device_power_watts");
    assert_eq!(devices.len(), 8);
    assert!(
        devices.iter().all(|(labels, _)| !labels.contains_key("pod") && labels["node"] == "demo-node"),
        "{devices:?}"
    );
    assert_eq!(prometheus.scalar("up"), Some(1.0));
}

/// Containers and remainder, less the device: by GPU, at one instant.
fn left_over(parts: &str, device: &str, at: f64) -> String {
    let sum = |metrics: &str| format!("sum by (gpu_uuid) ({metrics} @ {at})");
    format!("{} - {}", sum(&format!("{{__name__=~\"{parts}\"}}")), sum(device))
}

/// Σ containers + Σ remainder − device is 0 but for floating point, whenever it is asked.
fn everything_is_somebodys(profile: &str, gpus_with_busy_time: usize) {
    let demo = Running::start(
        &["demo", "--listen", "127.0.0.1:0", "--profile", profile, "--churn", "--refresh-interval", "1s"],
        &[],
        None,
    );
    let prometheus = Prometheus::start(&configuration(&demo.address));
    prometheus.until("sum(podmeter_container_busy_seconds_total)", |seconds| seconds > 60.0);
    let now = prometheus.scalar("vector(time())").unwrap() - 1.0;
    let busy = "podmeter_container_busy_seconds_total|podmeter_device_unattributed_busy_seconds_total";
    let energy = "podmeter_container_energy_joules_total|podmeter_device_unattributed_energy_joules_total";
    let memory = "podmeter_container_memory_used_bytes|podmeter_device_unattributed_memory_bytes";
    let quantities = [
        (busy, "podmeter_device_busy_seconds_total", gpus_with_busy_time),
        (energy, "podmeter_device_energy_joules_total", 8),
        (memory, "podmeter_device_memory_bytes{state=\"used\"}", 8),
    ];
    // Pods come and go in these seconds, and some scrapes fall between two readings.
    for at in (0..10).map(|number| now - 0.7 * f64::from(number)) {
        for (parts, device, gpus) in quantities {
            let whole = prometheus.scalar(&format!("sum({device} @ {at})")).unwrap();
            let rows = prometheus.query(&left_over(parts, device, at));
            assert_eq!(rows.len(), gpus, "{profile}: {device} at {at}");
            let most = rows.iter().map(|(_, left)| left.abs()).fold(0.0, f64::max);
            assert!(most <= 1e-9 * whole, "{profile}: {most} of {whole} {device} is nobody's: {rows:?}");
        }
    }
    assert_eq!(prometheus.scalar("sum(podmeter_conservation_violations_total)"), Some(0.0));
}

#[test]
fn shares_and_remainder_are_the_device_while_slots_are_shared() {
    everything_is_somebodys("8xh100-timesliced", 8);
}

#[test]
fn shares_and_remainder_are_the_device_while_gpus_are_partitioned() {
    // Four are partitioned: the driver tells no busy time of them as a whole.
    everything_is_somebodys("8xh100-mig", 4);
}

#[test]
fn gpu_seconds_per_namespace_match_what_the_simulation_did() {
    gpu_seconds_match(&[]);
}

#[test]
fn gpu_seconds_per_namespace_match_while_pods_come_and_go() {
    // A pod's end is seen at the next look at the kubelet: five seconds by default are more than one per cent of a
    // job that lives for one minute.
    gpu_seconds_match(&["--churn", "--refresh-interval", "1s"]);
}
