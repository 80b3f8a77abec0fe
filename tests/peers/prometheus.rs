//! A real Prometheus server scrapes the running demo; its answers are compared with what the simulation really did.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::agent::Running;
use crate::support::prometheus::Prometheus;
use serde_json::Value;

/// namespace → (allocated, busy) GPU-seconds.
type NamespaceSums = BTreeMap<String, (f64, f64)>;

#[test]
fn gpu_seconds_per_namespace_match_while_pods_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("truth.jsonl");
    // A pod's end is seen at the next call to the kubelet: five seconds by default are more than one per cent of a
    // job that runs for one minute.
    let often = ["demo", "--listen", "127.0.0.1:0", "--churn", "--refresh-interval", "1s", "--ground-truth"];
    let demo = Running::start(&[&often[..], &[file.to_str().unwrap()]].concat(), &[], None);
    let prometheus = Prometheus::start(&configuration(&demo.address, directory.path()));
    prometheus.until("sum(podmeter_container_allocated_seconds_total)", |seconds| seconds > 420.0);
    let (read, known) = known(&prometheus);
    let truth = truth(&file, read);
    assert!(truth.len() >= 3, "several namespaces: {truth:?}");
    assert_eq!(truth.keys().collect::<Vec<_>>(), known.keys().collect::<Vec<_>>());
    let within = |ours: f64, theirs: f64| (ours - theirs).abs() <= theirs * 0.01;
    for (namespace, (allocated, busy)) in &truth {
        let ours = known[namespace];
        assert!(within(ours.0, *allocated) && within(ours.1, *busy), "{namespace}: {known:?} is not {truth:?}");
    }

    // The labels arrived as they were exported, and device series took none from their target.
    assert_eq!(prometheus.query("{exported_pod!=\"\"}").len(), 0, "no label was in the way");
    assert_eq!(prometheus.query("{__name__=~\".+_created\"}").len(), 0, "Prometheus 2 cannot use them");
    let devices = prometheus.query("podmeter_device_power_watts");
    assert_eq!(devices.len(), 8);
    assert!(
        devices.iter().all(|(labels, _)| !labels.contains_key("pod") && labels["node"] == "demo-node"),
        "{devices:?}"
    );
    assert_eq!(prometheus.scalar("up"), Some(1.0));
    rules_are_well_and_quiet(&prometheus, truth.len());
}

/// As the documentation recommends it, at a pace for tests.
const CONFIGURATION: &str = r#"
global:
  scrape_interval: 500ms
  evaluation_interval: 1s
rule_files: [RULES]
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

/// With the rules copied into `directory`: the group with its own interval of minutes is evaluated at the server's.
fn configuration(address: &str, directory: &Path) -> String {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rules");
    let cost = rules.join("cost.rules.yaml");
    let own_pace = "    interval: 3m\n";
    let text = std::fs::read_to_string(rules.join("podmeter.rules.yaml")).unwrap();
    assert!(text.contains(own_pace), "a group has another pace: say so here");
    let rules = directory.join("podmeter.rules.yaml");
    std::fs::write(&rules, text.replace(own_pace, "")).unwrap();
    CONFIGURATION.replace("ADDRESS", address).replace("RULES", &format!("{}, {}", rules.display(), cost.display()))
}

/// What the simulation gave, by its own account, at the unix time nearest to `at`.
fn truth(file: &Path, at: f64) -> NamespaceSums {
    let text = std::fs::read_to_string(file).unwrap();
    // The last line may be half written.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let distance = |line: &Value| (line["unix"].as_f64().unwrap() - at).abs();
    let nearest = lines.min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
    assert!(distance(&nearest) < 0.5, "the truth was written all the time");
    let mut sums = NamespaceSums::new();
    for row in nearest["holdings"].as_array().unwrap() {
        let sum = sums.entry(row["namespace"].as_str().unwrap().to_owned()).or_default();
        sum.0 += row["held_seconds"].as_f64().unwrap();
        sum.1 += row["busy_seconds"].as_f64().unwrap();
    }
    sums
}

/// What Prometheus has at one instant, and the time of the device readings behind it.
fn known(prometheus: &Prometheus) -> (f64, NamespaceSums) {
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

/// Every rule of ours evaluates, the recording rules have input, and a healthy node has no alert.
fn rules_are_well_and_quiet(prometheus: &Prometheus, namespaces: usize) {
    let answer = prometheus.ask("rules", "type=").unwrap();
    let rules: Vec<&Value> = answer["data"]["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert!(rules.len() > 50, "all are loaded: {}", rules.len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    assert_eq!(prometheus.query("ALERTS"), vec![], "an alert on a healthy node");
    for record in ["allocated_gpus:sum", "idle:ratio_rate5m", "allocated_gpu_hours:increase1h"] {
        let rows = prometheus.query(&format!("namespace:podmeter_container_{record}"));
        assert!(rows.len() >= namespaces, "{record}: {rows:?}");
    }
    costs_add_up(prometheus, namespaces);
}

/// The prices are those of the example, which has a price for the demo's GPUs.
fn costs_add_up(prometheus: &Prometheus, namespaces: usize) {
    let sum = |record: &str| prometheus.scalar(&format!("sum({record}:increase1h)")).unwrap();
    assert!(prometheus.query("namespace:podmeter_container_cost:increase1h").len() >= namespaces);
    assert_eq!(prometheus.query("cluster_model:podmeter_gpu_unpriced:count"), vec![]);
    let cost = sum("namespace:podmeter_container_cost");
    let parts =
        ["used_cost", "idle_cost", "uncovered_cost"].map(|part| sum(&format!("namespace:podmeter_container_{part}")));
    assert!(cost > 0.0 && (parts.iter().sum::<f64>() / cost - 1.0).abs() < 0.01, "{parts:?} of {cost}");
    assert!(sum("gpu_uuid:podmeter_device_unallocated_cost") >= 0.0);
}
