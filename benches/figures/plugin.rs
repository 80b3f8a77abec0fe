//! Registration and allocations of the bundled device plugin.

use std::time::{Duration, Instant};

use crate::measure::{ScrapeConnection, quantiles, row};
use crate::support::agent::{self, Running};
use crate::support::kubelet::{GPU, KubeletNode, asking_pod};
use crate::{Bench, GPUS};

pub fn measure(bench: &Bench) {
    let (runtime, driver) = (&bench.runtime, &bench.driver);
    let node = bench.empty_node();
    let _inside = runtime.enter();
    let both = || agent::agent(node.root.path(), &[], &driver.env());
    let offered = |count: usize| {
        let becomes =
            node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(|gpu| gpu.allocatable == count));
        assert!(runtime.block_on(becomes), "{:?}", node.node_status());
    };
    let registered = (0..20).map(|_| {
        // Without a pause the agents exceed the kubelet's request limit.
        std::thread::sleep(Duration::from_millis(250));
        let began = Instant::now();
        let running = both();
        offered(GPUS);
        let seconds = began.elapsed().as_secs_f64();
        drop(running);
        offered(0);
        seconds
    });
    let registered = quantiles(registered, 1.0, 1e3, "ms");
    row("exec → registered and listed, median / worst of 20", &registered, "≤ 20 ms");

    let running = both();
    offered(GPUS);
    let seen = own_allocations(runtime, &node, &running);
    row("bundled plugin's allocation, listed by the kubelet → on the page, median / p99 of 60", &seen, "– / ≤ 100 ms");
}

/// Counted from the pod's admission: Allocate is answered and the kubelet lists the pod.
fn own_allocations(runtime: &tokio::runtime::Runtime, node: &KubeletNode, running: &Running) -> String {
    let mut connection = ScrapeConnection::open(&running.address);
    let seconds = (0..60).map(|round| {
        let name = format!("own-{round}");
        std::thread::sleep(Duration::from_millis(500 + (round * 377) % 700));
        runtime.block_on(node.runs(asking_pod(&name, GPU, 1)));
        let began = Instant::now();
        while !connection.scrape().contains(&name) {}
        let seconds = began.elapsed().as_secs_f64();
        assert!(node.remove_pod("team", &name));
        seconds
    });
    quantiles(seconds, 0.99, 1e3, "ms")
}
