//! The queries of dashboards and rules in a real VictoriaMetrics beside Prometheus, with pods that come and go. Both have
//! the same samples, so that only the servers' evaluation differs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::dashboards::{configuration, substituted};
use crate::support::agent::Running;
use crate::support::dashboards::queries;
use crate::support::polling::until;
use crate::support::prometheus::{Prometheus, free_address};

const RULES: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rules/podmeter.rules.yaml"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/rules/cost.rules.yaml"),
];
const JOB: &str = "churn";

fn all_rules() -> Vec<Value> {
    let files = RULES.map(|file| serde_saphyr::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap());
    let groups = files.iter().flat_map(|file| file["groups"].as_array().unwrap());
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// The expression of each rule by its name.
fn rules() -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |rule: Value| (text(rule.get("alert").unwrap_or(&rule["record"])), text(&rule["expr"]));
    all_rules().into_iter().map(of).collect()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

type Vector = BTreeMap<BTreeMap<String, String>, f64>;

fn vector(server: &Prometheus, query: &str, seconds: u64) -> Vector {
    let name = "__name__";
    let rows = server.query_at(query, seconds).into_iter();
    rows.map(|(labels, value)| (labels.into_iter().filter(|(label, _)| label != name).collect(), value)).collect()
}

/// How they differ, if not by what a series had at its first sample, which Prometheus' increase() leaves out, or by what
/// Prometheus extrapolates.
fn difference(one: &Vector, other: &Vector) -> Option<String> {
    let largest = one.values().chain(other.values()).fold(0.0f64, |largest, value| largest.max(value.abs()));
    let of = |vector: &Vector, labels: &BTreeMap<String, String>| vector.get(labels).copied().unwrap_or(0.0);
    let apart = |labels: &BTreeMap<String, String>| (of(one, labels) - of(other, labels)).abs();
    let labels = one.keys().chain(other.keys()).find(|labels| apart(labels) > largest * 0.15 + 0.02)?;
    Some(format!("{labels:?}: Prometheus {}, VictoriaMetrics {}", of(one, labels), of(other, labels)))
}

#[test]
fn dashboards_and_rules_give_the_same_in_victoria_metrics_while_pods_come_and_go() {
    let victoria = Prometheus::start_victoria("scrape_configs: []\n");
    victoria.until("vector(1)", |one| one == 1.0);
    let demo =
        Running::start(&["demo", "--listen", "127.0.0.1:0", "--profile", "8xh100-timesliced", "--churn"], &[], None);
    let write = format!("http://{}/api/v1/write", victoria.address);
    let queue = "queue_config: { batch_send_deadline: 500ms }";
    let text = configuration(&[(JOB, &demo.address)]) + &format!("remote_write: [{{ url: \"{write}\", {queue} }}]\n");
    let prometheus = Prometheus::start(&text);
    prometheus.until("count_over_time(up[1m])", |scrapes| scrapes >= 35.0);
    let at = unix_seconds() - 2;
    until("VictoriaMetrics has the samples", || {
        (victoria.scalar(&format!("timestamp(up) > {at}")).is_some()).then_some(())
    });

    // The dashboard of podmeter itself counts few events, of which one more or less is in a window.
    let panels = queries().into_iter().filter(|query| !query.place.starts_with("podmeter / "));
    let panels = panels.map(|query| (query.place, query.expression));
    let mut compared = 0;
    let breaches: Vec<String> = panels
        .chain(rules())
        .filter_map(|(place, expression)| {
            // Of what is equal the first twenty are any.
            let short = expression.replace("topk(20", "topk(1000");
            let query = substituted(&short, JOB, ".+");
            let [one, other] = [&prometheus, &victoria].map(|server| vector(server, &query, at));
            compared += usize::from(!one.is_empty());
            difference(&one, &other).map(|difference| format!("{place}: {query}: {difference}"))
        })
        .collect();
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    assert!(compared > 120, "{compared}");

    // Containers and what is unattributed add up to the devices.
    let sum = |metric: &str| {
        let sum: f64 = vector(&victoria, &format!("sum(increase({metric}[20s]))"), at).values().sum();
        assert!(sum > 0.0, "{metric}");
        sum
    };
    let shares =
        sum("podmeter_container_energy_joules_total") + sum("podmeter_device_unattributed_energy_joules_total");
    let devices = sum("podmeter_device_energy_joules_total");
    assert!((shares / devices - 1.0).abs() < 0.1, "{shares} of {devices}");
}

/// A running vmalert. Dropping it kills it.
struct Vmalert(Child);

impl Drop for Vmalert {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A day of an unhealthy GPU with old errors, whose podmeter got another address a few minutes ago; no label `cluster`.
fn old_errors(now: u64) -> String {
    let mut lines = String::new();
    for (instance, times) in [("old", now - 26 * 3600..now - 400), ("new", now - 400..now + 600)] {
        for milliseconds in times.step_by(60).map(|seconds| seconds * 1000) {
            let of_gpu = format!("node=\"n\",job=\"podmeter\",instance=\"{instance}\",gpu_uuid=\"GPU-a\",gpu=\"0\"");
            let ecc = "podmeter_device_ecc_errors_total";
            writeln!(lines, "{ecc}{{{of_gpu},error=\"uncorrected\",location=\"dram\"}} 3 {milliseconds}").unwrap();
            writeln!(lines, "podmeter_device_healthy{{{of_gpu}}} 0 {milliseconds}").unwrap();
            writeln!(lines, "podmeter_device_unhealthy_reason{{{of_gpu},reason=\"xid\"}} 1 {milliseconds}").unwrap();
            let holder = "namespace=\"research\",pod=\"training-0\",container=\"main\"";
            writeln!(lines, "podmeter_container_allocation_info{{{of_gpu},{holder}}} 1 {milliseconds}").unwrap();
        }
    }
    lines
}

#[test]
fn vmalert_fires_no_old_errors_again_and_names_pods_without_a_cluster_label() {
    let victoria = Prometheus::start_victoria("scrape_configs: []\n");
    victoria.until("vector(1)", |one| one == 1.0);
    let directory = tempfile::tempdir().unwrap();
    let samples = directory.path().join("samples");
    std::fs::write(&samples, old_errors(unix_seconds())).unwrap();
    let server = format!("http://{}", victoria.address);
    let import = format!("{server}/api/v1/import/prometheus");
    let data = format!("@{}", samples.display());
    let sent = Command::new("curl").args(["-sf", "--data-binary", &data, &import]).status();
    assert!(sent.expect("curl is installed (scripts/check does that)").success());
    victoria.until("count(podmeter_device_healthy)", |instances| instances >= 1.0);

    let address = free_address();
    let vmalert = Command::new("vmalert")
        .args(["-rule", RULES[0], "-rule", RULES[1]])
        .args(["-evaluationInterval=1s", "-notifier.url=http://127.0.0.1:1"])
        .args([format!("-datasource.url={server}"), format!("-remoteWrite.url={server}")])
        .arg(format!("-httpListenAddr={address}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("vmalert is installed (scripts/check does that)");
    let _vmalert = Vmalert(vmalert);
    let get = |route: &str| {
        let output = Command::new("curl").args(["-s", &format!("http://{address}/api/v1/{route}")]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).ok()
    };
    let description = until("the alert of the unhealthy GPU", || {
        let alerts = get("alerts")?["data"]["alerts"].as_array()?.clone();
        let alert = alerts.into_iter().find(|alert| alert["name"] == "PodmeterDeviceUnhealthyButAllocated")?;
        Some(alert["annotations"]["description"].as_str()?.to_owned())
    });
    let named = "pod research/training-0 holds GPU 0 of n (GPU-a), which is unhealthy: xid.";
    assert!(description.contains(named), "{description}");
    let groups = get("rules").unwrap()["data"]["groups"].as_array().unwrap().clone();
    let all: Vec<_> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert_eq!(all.len(), all_rules().len());
    let failed: Vec<_> = all.iter().filter(|rule| rule["lastError"] != "").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    // Its group is evaluated every three minutes.
    assert_eq!(victoria.query(&rules()["PodmeterDeviceUncorrectableEcc"]), []);
}
