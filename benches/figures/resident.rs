//! Memory of plugin and exporter, with every device allocated through the bundled plugin.

use serde_json::{Value, json};

use crate::measure::{Resident, ScrapeConnection, row, series};
use crate::support::agent::{self, Running};
use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{KubeletNode, asking_pod};
use crate::{Bench, GPUS, PLAIN_PODS, complete, plain_pod, quiet};

const MIG_GPUS: usize = 16;
const INSTANCES: usize = 7;

pub fn measure(bench: &Bench) {
    let (_node, running) = plugin_and_exporter(bench, &bench.driver, "nvidia.com/gpu", GPUS, GPUS + PLAIN_PODS);
    figure(&running, "8 GPUs, 38 pods", "private ≤ 6 MiB, total ≤ 20 MiB");
    drop(running);
    let instance = |number| json!({ "gpu_instance": number, "profile": "1g.10gb" });
    let instances: Vec<Value> = (0..INSTANCES).map(instance).collect();
    let driver = FakeNvml::start(json!({
        "gpus": vec![json!({ "mig": { "enabled": true, "instances": instances } }); MIG_GPUS]
    }));
    let (_node, running) = plugin_and_exporter(bench, &driver, "nvidia.com/mig-1g.10gb", MIG_GPUS * INSTANCES, 250);
    figure(&running, "16 GPUs × 7 MIG, 250 pods", "private ≤ 10 MiB, total ≤ 20 MiB");
}

fn figure(running: &Running, conditions: &str, limit: &str) {
    let mut connection = ScrapeConnection::open(&running.address);
    for _ in 0..200 {
        connection.scrape();
    }
    let figure = format!(
        "resident memory, plugin and exporter, {conditions}, {} series, after 200 scrapes",
        series(&connection.scrape())
    );
    row(&figure, &Resident::of(running.pid()).to_string(), limit);
}

/// Starts an agent and allocates every device, one per pod, beside pods without a device.
pub fn plugin_and_exporter(
    bench: &Bench,
    driver: &FakeNvml,
    resource: &str,
    devices: usize,
    all_pods: usize,
) -> (KubeletNode, Running) {
    let node = bench.empty_node();
    let file = node.root.path().join("nvidia.yaml");
    std::fs::write(&file, "version: v1\nflags:\n  migStrategy: mixed\n").unwrap();
    let running = agent::agent(node.root.path(), &["--nvidia-config", file.to_str().unwrap()], &quiet(driver));
    bench.runtime.block_on(async {
        let offered = |count: Option<&crate::support::kubelet::DeviceCount>| {
            count.is_some_and(|count| count.allocatable == devices)
        };
        assert!(node.node_status_becomes(|status| offered(status.get(resource))).await, "{:?}", node.node_status());
        for number in 0..devices {
            node.runs(asking_pod(&format!("trainer-{number}"), resource, 1)).await;
        }
        for number in devices..all_pods {
            node.runs(plain_pod(number)).await;
        }
    });
    let last = format!("trainer-{}\"", devices - 1);
    running.until("every pod", |page| complete(&page.0) && page.0.contains(&last));
    (node, running)
}
