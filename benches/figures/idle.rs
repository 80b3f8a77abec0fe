//! What podmeter costs while nobody asks: both halves, every collector at its usual pace, no scrape.

use std::time::{Duration, Instant};

use crate::measure::{Connection, process_seconds, row};
use crate::resident::both_halves;
use crate::{Bench, GPUS, PLAIN_PODS, agent, complete, driver};

/// The slowest tier's pace.
const SECONDS: u64 = 60;

pub fn measure(bench: &Bench) {
    let gpus = driver(GPUS);
    let (_node, running) = both_halves(bench, &gpus, "nvidia.com/gpu", GPUS, GPUS + PLAIN_PODS);
    // Beside it, another whose driver calls are counted, which costs the fake driver more than the calls do.
    let node = bench.usual_node();
    let counted = agent::agent(node.root.path(), &["--device-plugin=off"], &bench.driver.env());
    counted.until("a complete page", |page| complete(&page.0));
    // Past what a start costs.
    std::thread::sleep(Duration::from_secs(5));
    let calls = || bench.driver.calls().values().sum::<u64>() as f64;
    let (before, cpu, began) = (calls(), process_seconds(running.pid()), Instant::now());
    std::thread::sleep(Duration::from_secs(SECONDS));
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (process_seconds(running.pid()) - cpu) / seconds * 100.0;
    if running.log().contains("no inotify") {
        // Then it looks at directories ten times a second instead.
        eprintln!("idle: another process has all of fs.inotify.max_user_instances, which costs the agent time");
    }
    let idle = (calls() - before) / seconds / GPUS as f64;
    let figure = format!("processor time at 1 Hz sampling, both halves, no scrape, over {SECONDS} s");
    row(&figure, &format!("{cpu:.2} % of a core"), "≤ 0.3 %");
    row(&format!("NVML calls per GPU and second, all tiers, over {SECONDS} s"), &format!("{idle:.2}"), "≤ 12");

    let mut connection = Connection::open(&counted.address);
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
