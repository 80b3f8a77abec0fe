//! The usual node: start-up time, cost of scrapes, and the delay of a new allocation.

use std::time::{Duration, Instant};

use crate::measure::{Cpu, GZIP, Resident, ScrapeConnection, quantiles, row, series};
use crate::support::agent::{self, Running};
use crate::{Bench, GPUS, PLAIN_PODS, complete, exporter, pods};

pub fn start(bench: &Bench) {
    let node = bench.usual_node();
    let agent_seconds = (0..20).map(|_| {
        let began = Instant::now();
        let running = agent::agent(node.root.path(), &["--device-plugin=off"], &bench.driver.env());
        while !complete(&running.metrics().0) {}
        began.elapsed().as_secs_f64()
    });
    row(
        "exec → first page with GPU data and pod labels, agent, median / worst of 20",
        &quantiles(agent_seconds, 1.0, 1e3, "ms"),
        "≤ 100 ms",
    );
    let demo_seconds = (0..10).map(|_| {
        let began = Instant::now();
        let running = Running::start(&["demo", "--listen", "127.0.0.1:0"], &[], None);
        while !complete(&running.metrics().0) {}
        began.elapsed().as_secs_f64()
    });
    row("the same, demo, median / worst of 10", &quantiles(demo_seconds, 1.0, 1e3, "ms"), "≤ 1000 ms");
}

pub fn steady(bench: &Bench) {
    let running = exporter(&bench.usual_node(), &bench.driver);
    let mut connection = ScrapeConnection::open(&running.address);
    for _ in 0..200 {
        connection.scrape();
    }
    row("resident memory without the device plugin, after 200 scrapes", &Resident::of(running.pid()).to_string(), "–");
    let scrapes: Vec<f64> = (0..3000)
        .map(|scrape| {
            // Spread over some seconds, so that new snapshots are included.
            if scrape % 100 == 0 {
                std::thread::sleep(Duration::from_millis(200));
            }
            let began = Instant::now();
            connection.scrape();
            began.elapsed().as_secs_f64()
        })
        .collect();
    let page = running.metrics().0;
    row(
        &format!("scrape, {} series, {} bytes, one connection, median / p99 of 3000", series(&page), page.len()),
        &quantiles(scrapes, 0.99, 1e3, "ms"),
        "≤ 0.4 / 1.5 ms",
    );
    let cost = |connection: &mut ScrapeConnection| {
        let cpu = Cpu::of(running.pid());
        for _ in 0..3000 {
            connection.bytes();
        }
        cpu.since() / 3000.0 * 1e3
    };
    let (plain, packed) = (cost(&mut connection), cost(&mut ScrapeConnection::open_with(&running.address, GZIP)));
    row("processor time per scrape, warm, plain / gzip", &format!("{plain:.4} / {packed:.4} ms"), "≤ 0.1 ms");
    let fresh = (0..1000).map(|_| {
        let began = Instant::now();
        ScrapeConnection::open(&running.address).scrape();
        began.elapsed().as_secs_f64()
    });
    row("scrape on a new connection, median / p99 of 1000", &quantiles(fresh, 0.99, 1e3, "ms"), "–");
}

/// Another plugin's allocations, detected through the checkpoint file.
pub fn new_allocations(bench: &Bench) {
    let node = bench.usual_node();
    let running = exporter(&node, &bench.driver);
    let mut connection = ScrapeConnection::open(&running.address);
    let seconds = (0..60).map(|round| {
        let name = format!("fresh-{round}");
        let mut all = pods(PLAIN_PODS);
        all[round % GPUS].name.clone_from(&name);
        // Out of step with the agent's timers.
        std::thread::sleep(Duration::from_millis(500 + (round as u64 * 377) % 700));
        let began = Instant::now();
        node.set_pods(all);
        while !connection.scrape().contains(&name) {}
        began.elapsed().as_secs_f64()
    });
    let seconds = quantiles(seconds, 0.99, 1e3, "ms");
    row("new allocation by another plugin → on the page, median / p99 of 60", &seconds, "– / ≤ 0.5 s");
}
