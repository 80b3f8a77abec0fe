//! Latency of Allocate over the socket: `cargo bench --bench allocate`.
//!
//! Compared with another running plugin, with the same client and call by call in turns:
//! `cargo bench --bench allocate -- --beside SOCKET`. Prints one table; checks no limit.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock and starts the binary")]

#[path = "../tests/support/mod.rs"]
mod support;

use crate::support::agent;
use crate::support::kubelet;
use std::path::PathBuf;
use std::time::Instant;

use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{Count, Node, Options, node};
use podmeter::wire::v1beta1::device_plugin_client::DevicePluginClient;
use podmeter::wire::v1beta1::{AllocateRequest, ContainerAllocateRequest, Empty};
use serde_json::json;
use tonic::transport::Channel;

const GPUS: usize = 8;
const CALLS: usize = 4000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo bench` passes `--bench`; `cargo test --benches` does not and measures nothing.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    // Kubelet and client have their own threads, like real ones.
    let kubelets = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let clients = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let driver = FakeNvml::start(json!({ "gpus": vec![json!({}); GPUS] }));
    let node = kubelets.block_on(node(Options::default()));
    let _running = agent::agent(node.root.path(), &[], &driver.env());
    let mut sockets = vec![kubelets.block_on(registered(&node))];
    let beside = arguments.iter().position(|argument| argument == "--beside");
    sockets.extend(beside.map(|place| PathBuf::from(&arguments[place + 1])));

    println!("| Allocate, {CALLS} calls | median | p99 |\n|---|---|---|");
    for (socket, mut seconds) in sockets.iter().zip(clients.block_on(in_turns(&sockets))) {
        seconds.sort_by(f64::total_cmp);
        let at = |quantile: f64| seconds[((seconds.len() - 1) as f64 * quantile).round() as usize] * 1e3;
        let name = socket.file_name().unwrap().to_string_lossy();
        println!("| {name} | {:.3} ms | {:.3} ms |", at(0.5), at(0.99));
    }
}

async fn registered(node: &Node) -> PathBuf {
    let all = |gpus: &Count| gpus.allocatable == GPUS;
    assert!(node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(all)).await);
    let mut entries = std::fs::read_dir(node.device_plugin_directory()).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.to_string_lossy().contains("podmeter-")).unwrap()
}

async fn in_turns(sockets: &[PathBuf]) -> Vec<Vec<f64>> {
    let mut plugins = vec![];
    for socket in sockets {
        let mut client = DevicePluginClient::new(kubelet::connect(socket).await.unwrap());
        let ids = listed(&mut client).await;
        plugins.push((client, ids, Vec::with_capacity(CALLS)));
    }
    for call in 0..CALLS {
        for (client, ids, seconds) in &mut plugins {
            let container = ContainerAllocateRequest { devices_ids: vec![ids[call % ids.len()].clone()] };
            let began = Instant::now();
            let answer = client.allocate(AllocateRequest { container_requests: vec![container] }).await.unwrap();
            seconds.push(began.elapsed().as_secs_f64());
            assert_eq!(answer.get_ref().container_responses.len(), 1);
        }
    }
    plugins.into_iter().map(|(_, _, seconds)| seconds).collect()
}

async fn listed(client: &mut DevicePluginClient<Channel>) -> Vec<String> {
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let first = lists.message().await.unwrap().unwrap();
    first.devices.into_iter().map(|device| device.id).collect()
}
