//! The cost of `/metrics/dcgm` in each generation beside `/metrics`, on the demo's eight time-sliced GPUs.

use std::time::Duration;

use crate::Bench;
use crate::measure::{Cpu, ScrapeConnection, median, row, series};
use crate::support::agent::Running;

const PATHS: [&str; 4] =
    ["/metrics", "/metrics/dcgm?generation=4.8", "/metrics/dcgm?generation=4.9", "/metrics/dcgm?generation=both"];
const ROUNDS: usize = 3;
const SCRAPES: usize = 20;

pub fn measure(_: &Bench) {
    let demo = Running::start(&["demo", "--profile", "8xh100-timesliced", "--listen", "127.0.0.1:0"], &[], None);
    // The pods' first readings of every tier.
    std::thread::sleep(Duration::from_secs(30));
    // One scrape a second: each renders a page of a new snapshot.
    let seconds_per_scrape = |scrape: &mut dyn FnMut()| {
        let cpu = Cpu::of(demo.pid());
        for _ in 0..SCRAPES {
            scrape();
            std::thread::sleep(Duration::from_millis(1020));
        }
        cpu.since() / SCRAPES as f64
    };
    let mut rounds = [const { Vec::new() }; PATHS.len()];
    for _ in 0..ROUNDS {
        let idle = seconds_per_scrape(&mut || {});
        for (path, costs) in PATHS.into_iter().zip(&mut rounds) {
            let mut connection = ScrapeConnection::open_at(&demo.address, path);
            costs.push(seconds_per_scrape(&mut || drop(connection.bytes())) - idle);
        }
    }
    for (path, costs) in PATHS.into_iter().zip(rounds) {
        let page = ScrapeConnection::open_at(&demo.address, path).scrape();
        let cost = median(costs) * 1e3;
        row(
            &format!("{path}, 8 GPUs time-sliced by 4: series, bytes, processor time per scrape of a new snapshot"),
            &format!("{}, {}, {cost:.2} ms", series(&page), page.len()),
            "–",
        );
    }
}
