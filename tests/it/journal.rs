//! The journal of allocations, end to end: killed at any moment, on a full disk, and compared with the metrics of a
//! demo.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::agent::{Page, Running, binary, ended, output};
use crate::support::polling::until_true;
use podmeter::domain::model::UnixSeconds;
use podmeter::journal::{AllocationRecord, Query, read_directory};
use serde_json::Value;

fn demo(directory: &Path, more: &[&str]) -> Running {
    let state = directory.to_str().unwrap();
    let mut all = vec!["demo", "--listen", "127.0.0.1:0", "--churn", "--refresh-interval", "1s", "--state-dir", state];
    all.extend(more);
    Running::start(&all, &[], None)
}

/// Its output; it must succeed.
fn usage(arguments: &[&str]) -> String {
    let (code, out, err) = output(&binary(), &[&["usage"], arguments].concat());
    assert_eq!(code, 0, "usage {arguments:?}: {err}");
    out
}

fn usage_json(arguments: &[&str]) -> Value {
    serde_json::from_str(&usage(&[arguments, &["-o", "json"]].concat())).unwrap()
}

fn page_sum(page: &Page, metric: &str) -> f64 {
    let lines = page.0.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

const BUSY: &str = "podmeter_container_busy_seconds_total";

fn until_used(running: &Running) {
    running.until("some seconds of use in the journal", |page| {
        page_sum(page, BUSY) > 5.0 && page.value("podmeter_journal_entries_total", &[]) > Some(1.0)
    });
}

#[test]
fn usage_is_printed_from_the_journal_after_the_agent_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = demo(directory.path(), &[]);
    until_used(&running);
    let table = usage(&["--url", &format!("http://{}", running.address), "--by", "namespace"]);
    assert!(table.contains("NAMESPACE") && table.contains("total"), "{table}");
    let last = page_sum(&running.metrics(), "podmeter_container_allocated_seconds_total");
    running.signal("TERM");
    assert!(running.wait().success());
    let state = directory.path().to_str().unwrap();
    let offline = ["--admin-socket", "/nowhere/podmeter.sock", "--state-dir", state];
    let kept = usage_json(&offline);
    let allocated = kept["total"]["allocated_seconds"].as_f64().unwrap();
    assert!(allocated >= last - 1e-6, "{allocated} on disk, {last} on the last page");
    // The hardware of one of the pods.
    let answer = read_directory(directory.path(), &Query::all(), UnixSeconds(0.0)).unwrap();
    let one = &answer.allocations[0];
    let pod = format!("{}/{}", one.namespace, one.pod);
    let of_pod = usage_json(&[&offline[..], &["--pod", &pod]].concat());
    let holding = &of_pod["allocations"][0];
    assert_eq!(holding["gpu_uuid"], *one.device.gpu_uuid);
    assert!(holding["model"].as_str().unwrap().contains("H100") && holding["driver_version"].is_string());
    let (code, text) = ended(&[&["usage"], &offline[..], &["--since", "1h", "--pod", "no/such"]].concat());
    assert!(code == 1 && text.starts_with("podmeter: no holding of pod no/such from 20"), "{text}");
    let csv = usage(&[&offline[..], &["--by", "pod", "-o", "csv"]].concat());
    assert!(csv.starts_with("namespace,pod,holdings,held_seconds,allocated_seconds,"), "{csv}");
}

#[test]
fn usage_with_prices_has_the_cost_of_each_row_and_a_part_of_a_gpu_costs_its_part() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = demo(directory.path(), &["--profile", "8xh100-timesliced"]);
    until_used(&running);
    running.signal("TERM");
    assert!(running.wait().success());
    let state = directory.path().to_str().unwrap();
    let offline = ["--admin-socket", "/nowhere/podmeter.sock", "--state-dir", state];
    let with = |more: &[&str]| usage_json(&[&offline[..], more].concat());
    let priced = with(&["--price", "NVIDIA H100*=3600", "--currency", "EUR", "--by", "pod"]);
    assert_eq!(priced["currency"], "EUR");
    let near = |one: &Value, two: f64| (one.as_f64().unwrap() - two).abs() < 1e-6;
    let sum = |row: &Value, parts: &[&str]| parts.iter().filter_map(|part| row[*part].as_f64()).sum::<f64>();
    let mut total = 0.0;
    for row in priced["rows"].as_array().unwrap().iter().filter(|row| row["allocated_seconds"].is_number()) {
        assert!(near(&row["cost"], sum(row, &["allocated_seconds"])), "a second costs 1: {row}");
        assert!(near(&row["cost"], sum(row, &["used_cost", "idle_cost", "uncovered_cost"])), "{row}");
        assert!(sum(row, &["cost"]) <= sum(row, &["held_seconds"]) * 0.5, "a slot is a part: {row}");
        total += sum(row, &["cost"]);
    }
    assert!(near(&priced["total"]["cost"], total) && total > 0.0, "{priced}");
    let (_, out, err) = output(&binary(), &[&["usage"], &offline[..], &["--price", "NVIDIA L4=2"]].concat());
    assert!(
        err.contains("no --price matches NVIDIA H100") && out.contains("COST") && !out.contains("0.000\n"),
        "{out}{err}"
    );
    let row = &priced["rows"][0];
    let pod = format!("{}/{}", row["namespace"].as_str().unwrap(), row["pod"].as_str().unwrap());
    let of_pod = with(&["--price", "2", "--currency", "EUR", "--pod", &pod]);
    assert!(of_pod["allocations"][0]["cost"].is_number() && of_pod["allocations"][0]["currency"] == "EUR", "{of_pod}");
    let csv = usage(&[&offline[..], &["--price", "2", "--pod", &pod, "-o", "csv"]].concat());
    assert!(csv.lines().next().unwrap().ends_with(",events,cost,used_cost,idle_cost,uncovered_cost,currency"), "{csv}");
}

#[test]
fn a_price_that_is_none_is_refused() {
    for (arguments, reason) in [
        (&["--price", "2.80EUR"][..], "\"2.80EUR\" is no price: write a number"),
        (&["--price", "-2"], "\"-2\" is no price"),
        (&["--price", "*H100*=NaN"], "\"NaN\" is no price"),
        (&["--price", "2", "--price", "*=3"], "two prices for *"),
        (&["--currency", "EUR"], "--price"),
    ] {
        let (code, text) = ended(&[&["usage"], arguments].concat());
        assert!(code == 2 && text.contains(reason), "{arguments:?}: {text}");
    }
}

#[test]
fn a_killed_agent_leaves_its_records_and_the_next_one_continues() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = demo(directory.path(), &[]);
    running.until("holdings in the journal", |page| page.value("podmeter_journal_entries_total", &[]) > Some(4.0));
    running.kill();
    let before = read_directory(directory.path(), &Query::all(), UnixSeconds(0.0)).unwrap().allocations;
    assert!(!before.is_empty());
    // The same seed, later: the pods are others, so open holdings end when they were last seen.
    let running = demo(directory.path(), &["--seed", "2"]);
    running.until("a journal", |page| page.value("podmeter_journal_up", &[]) == Some(1.0));
    until_true("the end of the holdings that were open", || {
        let answer: Value = serde_json::from_str(&running.get("/api/v1/allocations?limit=500").body).unwrap();
        let now: BTreeMap<u64, AllocationRecord> =
            serde_json::from_value::<Vec<AllocationRecord>>(answer["allocations"].clone())
                .unwrap()
                .into_iter()
                .map(|record| (record.id, record))
                .collect();
        assert!(before.iter().all(|record| now.contains_key(&record.id)), "each is still there");
        let open = before.iter().filter(|record| record.is_open());
        let closed = open.clone().filter(|record| now[&record.id].ended == Some(record.seen)).count();
        closed == open.count()
    });
}
