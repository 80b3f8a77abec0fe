//! Scrapes while the pods of a large node change and one GPU hangs.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::measure::{ScrapeConnection, quantiles, row, series};
use crate::{Bench, GPUS, exporter, pods};

const PODS: usize = 1000;
const CHANGES: usize = 60;
/// After a change: enough for the List to be sent, answered, applied and shown.
const WINDOW: Duration = Duration::from_millis(150);

pub fn measure(bench: &Bench) {
    let node = bench.usual_node();
    node.set_pods(pods(PODS - GPUS));
    let running = exporter(&node, &bench.driver);
    let mut connection = ScrapeConnection::open(&running.address);
    let figure = |state: &str, seconds: Vec<f64>, page: &str, limit: &str| {
        let (count, worst) = (seconds.len(), seconds.iter().copied().fold(0.0, f64::max) * 1e3);
        let figure = format!("scrape, {} series, {PODS} pods, {state}, median / p99 of {count}", series(page));
        row(&figure, &format!("{}, worst {worst:.1} ms", quantiles(seconds, 0.99, 1e3, "ms")), limit);
    };
    let (mut quiet, mut page) = (vec![], String::new());
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(350));
        page = scrapes(&mut connection, &mut quiet);
    }
    figure("no fault", quiet, &page, "–");

    bench.driver.update(|state| state["gpus"][3]["hang"] = json!(["nvmlDeviceGetPowerUsage"]));
    running.until("no power reading of the hung GPU", |page| page.count("podmeter_device_power_watts", &[]) < GPUS);
    let (mut busy, mut late) = (vec![], 0);
    for change in 0..CHANGES {
        let name = format!("changed-{change}");
        let mut all = pods(PODS - GPUS);
        all[0].name.clone_from(&name);
        // The agent calls List at most twice a second on average.
        std::thread::sleep(Duration::from_millis(450 + (change as u64 * 37) % 100));
        node.set_pods(all);
        page = scrapes(&mut connection, &mut busy);
        // Absent: the List was applied after the window.
        late += usize::from(!page.contains(&name));
        while !connection.scrape().contains(&name) {}
    }
    let state = format!("a List applied meanwhile ({late} of {CHANGES} later), one GPU hangs");
    figure(&state, busy, &page, "≤ 1.5 ms p99");
    bench.driver.update(|state| state["gpus"][3]["hang"] = json!([]));
}

/// Scrapes one after another, half a millisecond between them; returns the last page.
fn scrapes(connection: &mut ScrapeConnection, seconds: &mut Vec<f64>) -> String {
    let began = Instant::now();
    loop {
        let sent = Instant::now();
        let page = connection.bytes();
        seconds.push(sent.elapsed().as_secs_f64());
        if began.elapsed() > WINDOW {
            return String::from_utf8(page).unwrap();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}
