//! The journal of allocations, end to end: killed at any moment, on a full disk, and compared with the metrics of a
//! demo.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::agent::{Page, Running, binary};
use podmeter::journal::{AllocationRecord, Bounds, Device, FILE, Query, Store, StoreError, read_directory};
use podmeter::model::UnixSeconds;
use serde_json::Value;

/// Set to the directory for the process that writes until it is killed.
const WRITER: &str = "PODMETER_TEST_JOURNAL_WRITER";
const KILLS: u64 = 40;
const BOUNDS: Bounds = Bounds { bytes: 64 << 20, age: Duration::from_secs(1_000_000) };

fn record(id: u64, word: u64, ended: bool) -> AllocationRecord {
    AllocationRecord {
        id,
        namespace: "team".into(),
        pod: format!("pod-{id}").into(),
        container: "main".into(),
        device: Device { gpu_uuid: "GPU-1".into(), ..Device::default() },
        began: id as f64,
        seen: word as f64,
        ended: ended.then_some(word as f64),
        ..AllocationRecord::default()
    }
}

/// The process that is killed; a test only with the variable above. It prints each version of a record once it is
/// written.
#[test]
fn writes_until_it_is_killed() {
    let Some(directory) = std::env::var_os(WRITER) else { return };
    let mut store = Store::open(&Path::new(&directory).join(FILE), BOUNDS).unwrap();
    let (open, last) = store.open_records().unwrap();
    let mut word = open.iter().map(|record| record.seen as u64).max().unwrap_or(0).max(last);
    let mut open: Vec<u64> = open.iter().map(|record| record.id).collect();
    loop {
        word += 1;
        open.push(word);
        // One begins, all continue, sometimes the oldest ends.
        let ending = (word % 3 == 0).then(|| open.remove(0));
        let mut batch: Vec<AllocationRecord> = open.iter().map(|id| record(*id, word, false)).collect();
        batch.extend(ending.map(|id| record(id, word, true)));
        if open.len() > 20 {
            batch.extend(open.drain(..10).map(|id| record(id, word, true)));
            let mut latest: BTreeMap<u64, AllocationRecord> = BTreeMap::new();
            latest.extend(batch.into_iter().map(|record| (record.id, record)));
            batch = latest.into_values().collect();
        }
        store.write(&batch).unwrap();
        for record in &batch {
            println!("written {} {} {}", record.id, record.seen, record.ended.is_some());
        }
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed_at_any_moment() {
    let directory = tempfile::tempdir().unwrap();
    // Id → the last acknowledged version, and whether it had ended.
    let mut written: BTreeMap<u64, (f64, bool)> = BTreeMap::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..KILLS {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "journal::writes_until_it_is_killed", "--nocapture"])
            .env(WRITER, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        // After some versions, at any point of the next write.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let words = (random >> 33) % 60;
        let within = Duration::from_micros((random >> 13) % 9000);
        let mut read = |line: String| {
            let Some(rest) = line.strip_prefix("written ") else { return false };
            let [id, word, ended] = rest.split(' ').collect::<Vec<_>>()[..] else { return false };
            written.insert(id.parse().unwrap(), (word.parse().unwrap(), ended == "true"));
            true
        };
        let mut lines_read = 0;
        while lines_read <= words {
            let line = lines.next().expect("it writes until it is killed").unwrap();
            lines_read += u64::from(read(line));
        }
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            std::hint::spin_loop();
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        // Its complete output lines.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        rest.into_iter().filter(|line| line.split(' ').count() == 4).for_each(|line| {
            let complete = line.ends_with("true") || line.ends_with("false");
            if complete {
                read(line);
            }
        });
        let store = Store::open(&directory.path().join(FILE), BOUNDS)
            .unwrap_or_else(|error: StoreError| panic!("after kill {round}: {error}"));
        let records = store.records(&Query { limit: usize::MAX, ..Query::all() }).unwrap();
        let on_disk: BTreeMap<u64, AllocationRecord> = records.into_iter().map(|record| (record.id, record)).collect();
        for (id, (word, has_ended)) in &written {
            let record = on_disk.get(id).unwrap_or_else(|| panic!("after kill {round}: holding {id} is lost"));
            assert!(record.seen >= *word, "after kill {round}: {id} written {word} and is at {}", record.seen);
            assert!(!has_ended || record.ended.is_some(), "after kill {round}: {id} had ended");
        }
    }
    assert!(written.len() > KILLS as usize, "{}", written.len());
}

fn demo(directory: &Path, more: &[&str]) -> Running {
    let state = directory.to_str().unwrap();
    let mut all = vec!["demo", "--listen", "127.0.0.1:0", "--churn", "--refresh-interval", "1s", "--state-dir", state];
    all.extend(more);
    Running::start(&all, &[], None)
}

/// Its output; it must succeed.
fn usage(arguments: &[&str]) -> String {
    let output = Command::new(binary()).arg("usage").args(arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "usage {arguments:?}: {err}");
    out.into_owned()
}

fn usage_json(arguments: &[&str]) -> Value {
    serde_json::from_str(&usage(&[arguments, &["-o", "json"]].concat())).unwrap()
}

fn page_sum(page: &Page, metric: &str) -> f64 {
    let lines = page.0.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn usage_equals_the_metrics_also_after_the_agent_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = demo(directory.path(), &[]);
    let busy = "podmeter_container_busy_seconds_total";
    running.until("some seconds of use in the journal", |page| {
        page_sum(page, busy) > 5.0 && page.value("podmeter_journal_entries_total", &[]) > Some(1.0)
    });
    let url = format!("http://{}", running.address);
    for by in ["namespace", "pod", "device"] {
        let before = running.metrics();
        let usage = usage_json(&["--url", &url, "--by", by]);
        let after = running.metrics();
        assert!(!usage["rows"].as_array().unwrap().is_empty());
        for (figure, metric) in [
            ("allocated_seconds", "podmeter_container_allocated_seconds_total"),
            ("busy_seconds", busy),
            ("energy_joules", "podmeter_container_energy_joules_total"),
        ] {
            let total = usage["total"][figure].as_f64().unwrap();
            let rows = usage["rows"].as_array().unwrap().iter();
            let sum: f64 = rows.filter_map(|row| row[figure].as_f64()).sum();
            assert!((sum - total).abs() < 1e-6, "{figure}: rows {sum}, total {total}");
            let (least, most) = (page_sum(&before, metric), page_sum(&after, metric));
            // A holding first seen up to a second before the end of the window crosses it by that.
            assert!(least * 0.98 - 1.0 <= total && total <= most + 1e-6, "{by}: {least} ≤ {total} ≤ {most} {figure}");
        }
    }
    let table = usage(&["--url", &url, "--by", "namespace"]);
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
    let csv = usage(&[&offline[..], &["--by", "pod", "-o", "csv"]].concat());
    assert!(csv.starts_with("namespace,pod,holdings,held_seconds,allocated_seconds,"), "{csv}");
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
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
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
        if closed == open.count() {
            break;
        }
        assert!(Instant::now() < deadline, "{}", running.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// No file of this process may become larger than a few KiB: like a full disk, without privileges.
#[test]
fn a_full_disk_stops_only_the_journal_and_waiting_records_are_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let (binary, state) = (binary(), directory.path().join("state"));
    let shell = directory.path().join("podmeter-on-a-full-disk");
    let script = format!("#!/bin/sh\nulimit -S -f 8\nexec {} \"$@\"\n", binary.display());
    std::fs::write(&shell, script).unwrap();
    std::fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let arguments =
        ["demo", "--listen", "127.0.0.1:0", "--refresh-interval", "1s", "--state-dir", state.to_str().unwrap()];
    let running = Running::start_binary(&shell, &arguments, &[], None);
    let page = running.until("errors of the journal, and use", |page| {
        page.value("podmeter_journal_errors_total", &[]) > Some(0.0)
            && page_sum(page, "podmeter_container_busy_seconds_total") > 1.0
    });
    assert_eq!(page.value("podmeter_journal_up", &[]), Some(0.0));
    assert!(running.get("/").body.contains("the journal of allocations is not written"));
    assert_eq!(running.get("/-/healthy").status, 200);
    let answer: Value = serde_json::from_str(&running.get("/api/v1/allocations").body).unwrap();
    assert!(answer["problem"].is_string() && !answer["allocations"].as_array().unwrap().is_empty(), "{answer}");
    let first = answer["allocations"][0]["id"].as_u64().unwrap();
    let written = running.log().matches("the journal of allocations is not written").count();
    assert_eq!(written, 1, "once: {}", running.log());
    let pid = running.pid().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:"]).status().unwrap().success());
    running.until("written", |page| {
        page.value("podmeter_journal_up", &[]) == Some(1.0)
            && page.value("podmeter_journal_entries_total", &[]) > Some(0.0)
    });
    let kept = read_directory(&state, &Query::all(), UnixSeconds(0.0)).unwrap().allocations;
    assert!(kept.iter().any(|record| record.id == first), "records of the time without space are there");
}
