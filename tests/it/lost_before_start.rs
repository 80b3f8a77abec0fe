//! GPUs that were lost before podmeter started: the driver does not list them, the PCI bus or the kubelet does.

use std::path::Path;

use crate::support::agent::Page;
use crate::support::hardware::{pci_bus, pci_bus_id};
use crate::support::polling::until_true;
use crate::support::sick_node::{GPU, QUICK, SickNode, eight_gpus, on_gpu, uuid};
use serde_json::{Value, json};

const TRAINER: &[&str] = &["namespace=\"team\"", "pod=\"trainer\""];

async fn start(machine: Value, config: &str, sys: &Path) -> SickNode {
    SickNode::start_with(machine, config, &["--sys-root", sys.to_str().unwrap()]).await
}

/// The driver counts the GPU, and reports no UUID or other value of it.
fn lose(node: &SickNode, gpu: usize) {
    node.driver.update(|state| state["gpus"][gpu]["fail"] = json!({"*": 15}));
}

fn find(node: &SickNode, gpu: usize) {
    node.driver.update(|state| state["gpus"][gpu]["fail"] = json!({}));
}

fn is_lost(page: &Page, gpu: &str) -> bool {
    page.value("podmeter_device_healthy", &[gpu]) == Some(0.0)
        && page.value("podmeter_device_unhealthy_reason", &[gpu, "reason=\"lost\""]) == Some(1.0)
}

fn seconds(page: &Page) -> f64 {
    page.value("podmeter_container_allocated_seconds_total", TRAINER).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_lost_before_the_start_is_unhealthy_and_held_and_returns_as_the_same_device() {
    let sys = pci_bus(8, &[("numa_node", "0")]);
    let mut node = start(eight_gpus(), QUICK, sys.path()).await;
    node.until_unhealthy(GPU, &[]).await;
    let held = node.runs("trainer", GPU).await;
    let sick = (0..8).find(|gpu| held == uuid(*gpu)).unwrap();
    lose(&node, sick);
    node.restart().await;
    node.until_unhealthy(GPU, &[uuid(sick)]).await;
    assert_eq!(node.kubelet.dropped_devices(), []);
    let gpu = on_gpu(sick);
    let page = node.until_page("a lost GPU that is held", |page| is_lost(page, &gpu) && seconds(page) > 0.5);
    let bus_id = format!("pci_bus_id=\"{}\"", pci_bus_id(sick));
    assert_eq!(page.count("podmeter_device_info", &[&gpu, &bus_id]), 1);
    assert_eq!(page.count("podmeter_device_info", &[]), 8);
    assert_eq!(page.count("podmeter_device_healthy", &[]), 8);
    assert_eq!(page.count("podmeter_container_allocation_info", &[TRAINER, &[&gpu]].concat()), 1);
    assert!(page.value("podmeter_device_uncovered_seconds_total", &[&gpu]) > Some(0.0), "{}", page.0);
    assert_eq!(page.count("podmeter_device_power_watts", &[&gpu]), 0);
    assert_eq!(page.value("podmeter_node_devices", &["state=\"visible\""]), Some(7.0));
    let html = node.running.get("/").body;
    assert!(html.contains("1 unhealthy") && html.contains(&pci_bus_id(sick)), "{html}");
    let log = node.running.until_logged("the driver does not list it");
    assert!(log.contains(&uuid(sick)), "{log}");
    until_true("ready", || node.running.get("/-/ready").status == 200);

    find(&node, sick);
    node.until_unhealthy(GPU, &[]).await;
    let page = node.until_page("its readings", |page| page.count("podmeter_device_power_watts", &[&gpu]) == 1);
    assert_eq!((page.count("podmeter_device_info", &[]), page.count("podmeter_device_healthy", &[])), (8, 8));
    assert_eq!(page.count("podmeter_device_info", &[&gpu]), 1, "{}", page.0);
    assert_eq!(page.count("podmeter_container_allocation_info", TRAINER), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_only_the_pci_bus_has_is_shown_by_its_address_and_not_offered() {
    let sys = pci_bus(8, &[("numa_node", "0")]);
    let mut machine = eight_gpus();
    machine["gpus"][5]["fail"] = json!({"*": 15});
    let node = start(machine, QUICK, sys.path()).await;
    let gpu = format!("gpu_uuid=\"PCI-{}\"", pci_bus_id(5));
    let page = node.until_page("the lost GPU", |page| is_lost(page, &gpu));
    let bus_id = format!("pci_bus_id=\"{}\"", pci_bus_id(5));
    assert_eq!(page.count("podmeter_device_info", &[&gpu, &bus_id]), 1);
    assert!(node.kubelet.node_status_becomes(|status| status.get(GPU).is_some_and(|gpu| gpu.capacity == 7)).await);
    find(&node, 5);
    // Readings are published before the health that follows from them.
    let page = node.until_page("one device, with its health", |page| {
        page.count("podmeter_device_power_watts", &[&on_gpu(5)]) == 1
            && page.count("podmeter_device_healthy", &[&on_gpu(5)]) == 1
    });
    assert_eq!((page.count("podmeter_device_info", &[]), page.count("podmeter_device_healthy", &[])), (8, 8));
    assert_eq!(page.count("podmeter_device_info", &[&gpu]), 0);
    assert!(node.kubelet.node_status_becomes(|status| status.get(GPU).is_some_and(|gpu| gpu.allocatable == 8)).await);
}
