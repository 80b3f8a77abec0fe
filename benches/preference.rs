//! Cost of the choice of whole GPUs: `cargo bench --bench preference`. The target is 1 ms for sixteen GPUs at any size.
//! Prints one table; checks no limit.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::support::links::{Draw as _, Node, Random, nvswitch, pcie_tree, seeded};
use podmeter::domain::preference::choose_gpus;

const GPUS: usize = 16;
const REQUESTS: usize = 200;

fn main() {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not and measures nothing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("Choosing from {GPUS} GPUs, µs, median / worst of {REQUESTS} requests, each the best of five\n");
    println!("| size | NVSwitch | PCIe tree | random tree | random mesh |\n|---|---|---|---|---|");
    for size in 1..=GPUS {
        let cells = [
            measure(size, |_| nvswitch(GPUS)),
            measure(size, |_| pcie_tree(GPUS, 20)),
            measure(size, |random| random.tree(GPUS)),
            measure(size, |random| random.mesh(GPUS)),
        ];
        println!("| {size} | {} |", cells.join(" | "));
    }
}

fn measure(size: usize, node: impl Fn(&mut Random) -> Node) -> String {
    let mut random = seeded(size as u64);
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|number| {
            let node = node(&mut random);
            let drawbacks = node.gpus.iter().map(|gpu| (gpu.clone(), random.drawbacks()));
            let healthy = drawbacks.map(|(gpu, drawbacks)| {
                (gpu, podmeter::domain::preference::GpuDrawbacks { throttled: false, ..drawbacks })
            });
            let healthy: BTreeMap<_, _> = if number % 4 < 2 { healthy.collect() } else { BTreeMap::new() };
            let required = if number % 2 == 0 { 0 } else { 1 << random.below(GPUS) };
            let request = node.request((1 << GPUS) - 1, required, size);
            // The best of five, to exclude other load on the machine.
            let once = |_| {
                let start = Instant::now();
                black_box(choose_gpus(&request, &node.topology, &healthy));
                start.elapsed()
            };
            (0..5).map(once).min().unwrap()
        })
        .collect();
    times.sort_unstable();
    format!("{} / {}", times[REQUESTS / 2].as_micros(), times[REQUESTS - 1].as_micros())
}
