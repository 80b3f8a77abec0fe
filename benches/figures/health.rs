//! The time from a fault of a GPU to the kubelet's list and the page.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::measure::{ScrapeConnection, quantiles, row};
use crate::support::agent::{self, Running};
use crate::support::fake_nvml::FakeNvml;
use crate::{Bench, GPUS, costly, uuid};

/// Counted from the XID in the driver's state.
pub fn measure(bench: &Bench) {
    on(bench, &bench.driver, "");
    on(bench, &costly::driver(GPUS), ", on a driver with an H100's costs");
}

fn on(bench: &Bench, driver: &FakeNvml, conditions: &str) {
    let runtime = &bench.runtime;
    let node = bench.empty_node();
    let _inside = runtime.enter();
    let inside = |name: &str| node.root.path().join(name);
    let socket = inside("admin.sock");
    let (root, socket_name) = (node.root.path().to_str().unwrap(), socket.to_str().unwrap());
    let arguments = ["agent", "--listen", "127.0.0.1:0", "--kubelet-root", root, "--admin-socket", socket_name];
    let running = Running::start(&arguments, &driver.env(), None);
    let mut connection = ScrapeConnection::open(&running.address);
    let offered = |count: usize| {
        let becomes =
            node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(|gpu| gpu.allocatable == count));
        assert!(runtime.block_on(becomes), "{:?}", node.node_status());
    };
    offered(GPUS);
    running.until("the events collector succeeds", |page| {
        page.value("podmeter_collector_success", &["collector=\"events\""]) == Some(1.0)
    });
    let mut sequence = 0;
    let mut xids = || {
        let (mut to_kubelet, mut to_page) = (vec![], vec![]);
        for _ in 0..30 {
            sequence += 1;
            let gpu = sequence as usize % GPUS;
            std::thread::sleep(Duration::from_millis(900 + (sequence * 377) % 700));
            let began = Instant::now();
            driver.update(|state| state["gpus"][gpu]["events"] = json!([{"sequence": sequence, "xid": 119}]));
            offered(GPUS - 1);
            to_kubelet.push(began.elapsed().as_secs_f64());
            let unhealthy = format!("podmeter_device_healthy{{gpu_uuid=\"{}\",gpu=\"{gpu}\"}} 0\n", uuid(gpu));
            while !connection.scrape().contains(&unhealthy) {}
            to_page.push(began.elapsed().as_secs_f64());
            assert_eq!(agent::post(&socket, "/clear-faults", &format!("{{\"device\": \"{gpu}\"}}")).status, 200);
            offered(GPUS);
        }
        (to_kubelet, to_page)
    };
    let (to_kubelet, to_page) = xids();
    running.block_log();
    let (to_kubelet_blocked, to_page_blocked) = xids();
    running.unblock_log();
    for (what, values, target) in [
        ("XID → Unhealthy in the kubelet's list", to_kubelet, "≤ 50 ms / –"),
        ("the same with a full log pipe", to_kubelet_blocked, "≤ 50 ms / –"),
        ("XID → on the page", to_page, "– / ≤ 1000 ms"),
        ("the same with a full log pipe", to_page_blocked, "– / ≤ 1000 ms"),
    ] {
        row(&format!("{what}{conditions}, median / worst of 30"), &quantiles(values, 1.0, 1e3, "ms"), target);
    }
}
