//! Cost without scrapes: plugin and exporter, every collector at its default interval.

use std::time::{Duration, Instant};

use crate::measure::{ScrapeConnection, process_seconds, row};
use crate::resident::plugin_and_exporter;
use crate::{Bench, GPUS, PLAIN_PODS, agent, complete, driver};

/// The interval of the slow tier.
const SECONDS: u64 = 60;

pub fn measure(bench: &Bench) {
    let gpus = driver(GPUS);
    let (_node, running) = plugin_and_exporter(bench, &gpus, "nvidia.com/gpu", GPUS, GPUS + PLAIN_PODS);
    // Driver calls are counted in a second agent: counting costs the fake driver more than the calls do.
    let node = bench.usual_node();
    let counted = agent::agent(node.root.path(), &["--device-plugin=off"], &bench.driver.env());
    counted.until("a complete page", |page| complete(&page.0));
    // Exclude the cost of the start.
    std::thread::sleep(Duration::from_secs(5));
    let calls = || bench.driver.calls().values().sum::<u64>() as f64;
    let (before, cpu, began) = (calls(), process_seconds(running.pid()), Instant::now());
    std::thread::sleep(Duration::from_secs(SECONDS));
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (process_seconds(running.pid()) - cpu) / seconds * 100.0;
    if running.log().contains("no inotify") {
        // The agent then polls its directories ten times a second.
        eprintln!("idle: no inotify instance left for this user; polling directories costs the agent time");
    }
    let idle = (calls() - before) / seconds / GPUS as f64;
    let figure = format!("processor time, plugin and exporter, no scrape, over {SECONDS} s");
    row(&figure, &format!("{cpu:.2} % of a core"), "≤ 0.3 %");
    row(&format!("NVML calls per GPU and second, all tiers, over {SECONDS} s"), &format!("{idle:.2}"), "≤ 12");

    let mut connection = ScrapeConnection::open(&counted.address);
    let (before, began, mut scraped) = (calls(), Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(10) {
        connection.bytes();
        scraped += 1;
    }
    let extra = calls() - before - idle * GPUS as f64 * began.elapsed().as_secs_f64();
    row(
        &format!("NVML calls per scrape, beyond the idle rate, over {scraped} scrapes"),
        &format!("{:.4}", (extra / f64::from(scraped)).max(0.0)),
        "0",
    );
}
