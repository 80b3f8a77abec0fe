//! Allocate over the socket and `/-/healthy` on the probe listener: alone, and beside as many clients of the page as the
//! listener takes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use podmeter::wire::v1beta1::device_plugin_client::DevicePluginClient;
use podmeter::wire::v1beta1::{AllocateRequest, ContainerAllocateRequest, Empty};

use crate::hostile::StopOnDrop;
use crate::measure::{ScrapeConnection, quantiles, row};
use crate::support::agent;
use crate::support::kubelet::{self, KubeletNode};
use crate::{Bench, GPUS, uuid};

const CALLS: usize = 4000;
const CLIENTS: usize = 64;

pub fn measure(bench: &Bench) {
    let node = bench.empty_node();
    let probes = free_address();
    let running = agent::agent(node.root.path(), &["--probe-listen", &probes], &bench.driver.env());
    let mut sockets = vec![bench.runtime.block_on(registered(&node))];
    sockets.extend(bench.compared.beside.clone());
    calls(&sockets, "alone");
    probe(&probes, "alone");
    beside_pages(&running.address, CLIENTS, || {
        calls(&sockets, &format!("beside {CLIENTS} clients"));
        probe(&probes, &format!("beside {CLIENTS} clients"));
    });
}

/// Measures while this many clients load pages without a pause.
pub fn beside_pages(address: &str, clients: usize, measure: impl FnOnce()) {
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(done);
        let detail: &'static str = format!("/detail?key={}", uuid(0)).leak();
        for path in ["/", detail, "/api/v1/history", "/?window=30m"].into_iter().cycle().take(clients) {
            scope.spawn(move || {
                let mut connection = ScrapeConnection::open_at(address, path);
                while !done.load(Ordering::Relaxed) {
                    connection.bytes();
                }
            });
        }
        measure();
    });
}

/// `/-/healthy` on a new connection each, as the kubelet asks.
fn probe(address: &str, beside: &str) {
    let seconds = (0..CALLS / 4).map(|_| {
        let began = Instant::now();
        assert_eq!(ScrapeConnection::open_at(address, "/-/healthy").scrape(), "healthy\n");
        began.elapsed().as_secs_f64()
    });
    row(
        &format!("`/-/healthy`, median / p99 of {}, {beside}", CALLS / 4),
        &quantiles(seconds, 0.99, 1e3, "ms"),
        "≤ 20 ms",
    );
}

/// Of podmeter's socket and another plugin's, call by call in turns.
fn calls(sockets: &[PathBuf], beside: &str) {
    // The client has a thread of its own, like the kubelet.
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (socket, seconds) in sockets.iter().zip(client.block_on(in_turns(sockets))) {
        let name = socket.file_name().unwrap().to_string_lossy();
        let figure = format!("Allocate, median / p99 of {CALLS}, {name}, {beside}");
        row(&figure, &quantiles(seconds, 0.99, 1e3, "ms"), "≤ 5 ms");
    }
}

async fn registered(node: &KubeletNode) -> PathBuf {
    let all = |gpus: &kubelet::DeviceCount| gpus.allocatable == GPUS;
    assert!(node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(all)).await);
    let mut entries = std::fs::read_dir(node.device_plugin_directory()).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_string_lossy().contains("podmeter-")).unwrap()
}

async fn in_turns(sockets: &[PathBuf]) -> Vec<Vec<f64>> {
    let mut plugins = vec![];
    for socket in sockets {
        plugins.push((plugin(socket).await, Vec::with_capacity(CALLS)));
    }
    for call in 0..CALLS {
        for ((client, ids), seconds) in &mut plugins {
            let container = ContainerAllocateRequest { devices_ids: vec![ids[call % ids.len()].clone()] };
            let began = Instant::now();
            let answer = client.allocate(AllocateRequest { container_requests: vec![container] }).await.unwrap();
            seconds.push(began.elapsed().as_secs_f64());
            assert_eq!(answer.get_ref().container_responses.len(), 1);
        }
    }
    plugins.into_iter().map(|(_, seconds)| seconds).collect()
}

/// A client, and the device IDs of the first list.
async fn plugin(socket: &Path) -> (DevicePluginClient<tonic::transport::Channel>, Vec<String>) {
    let mut client = DevicePluginClient::new(kubelet::connect(socket).await.unwrap());
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let first = lists.message().await.unwrap().unwrap();
    (client, first.devices.into_iter().map(|device| device.id).collect())
}

fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
