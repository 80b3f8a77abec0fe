//! GPUs that were lost before podmeter started: the driver does not list them, the PCI bus or the kubelet does.

use std::path::Path;

use crate::support::agent::Page;
use crate::support::agent::ended;
use crate::support::hardware::{add_pci_device, bind, pci_bus_id};
use crate::support::polling::until_true;
use crate::support::sick_node::{GPU, MIXED, QUICK, SickNode, eight_gpus, mig, on_gpu, partitioned, uuid};
use serde_json::{Value, json};

const TRAINER: &[&str] = &["namespace=\"team\"", "pod=\"trainer\""];

/// What sysfs shows of the fake driver's GPUs.
fn pci_bus(gpus: usize) -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    for gpu in 0..gpus {
        add_pci_device(sys.path(), &pci_bus_id(gpu), &[("numa_node", "0")]);
    }
    sys
}

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
    let sys = pci_bus(8);
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
async fn where_every_uuid_call_fails_at_the_start_every_gpu_is_lost() {
    let sys = pci_bus(8);
    let mut node = start(eight_gpus(), QUICK, sys.path()).await;
    node.until_unhealthy(GPU, &[]).await;
    node.runs("trainer", GPU).await;
    node.driver.update(|state| state["fail"] = json!({"nvmlDeviceGetUUID": 999}));
    node.restart().await;
    let page = node.until_page("eight lost GPUs", |page| {
        page.count("podmeter_device_unhealthy_reason", &["reason=\"lost\""]) == 8 && seconds(page) > 0.5
    });
    assert_eq!(page.count("podmeter_device_info", &[]), 8);
    let all: Vec<String> = (0..8).map(uuid).collect();
    assert!(node.kubelet.node_status_becomes(|_| node.unhealthy(GPU) == all).await, "{:?}", node.unhealthy(GPU));
    node.driver.update(|state| state["fail"] = json!({}));
    node.until_unhealthy(GPU, &[]).await;
    let page = node.until_page("readings", |page| page.count("podmeter_device_power_watts", &[]) == 8);
    assert_eq!(page.count("podmeter_device_healthy", &[]), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_only_the_pci_bus_has_is_shown_by_its_address_and_not_offered() {
    let sys = pci_bus(8);
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

/// The exit code of `podmeter health`.
fn health(node: &SickNode) -> i32 {
    ended(&["health", "--url", &format!("http://{}", node.running.address)]).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_display_card_that_the_driver_does_not_serve_needs_no_repair() {
    let sys = pci_bus(8);
    let card = |bus_id, device_id| add_pci_device(sys.path(), bus_id, &[("device", device_id)]);
    let without_driver = card("0000:e9:00.0", "0x1288");
    std::fs::remove_file(without_driver.join("driver")).unwrap();
    bind(&card("0000:ea:00.0", "0x1288"), "nouveau");
    let mut node = start(eight_gpus(), QUICK, sys.path()).await;
    let counted = |page: &Page, state: &str| page.value("podmeter_node_devices", &[&format!("state=\"{state}\"")]);
    let page = node.until_page("two cards that are not served", |page| counted(page, "unserved") == Some(2.0));
    assert_eq!((counted(&page, "expected"), counted(&page, "visible")), (Some(8.0), Some(8.0)));
    node.until_unhealthy(GPU, &[]).await;
    until_true("a healthy node", || health(&node) == 0);
    let page = node.running.metrics();
    assert_eq!((page.count("podmeter_device_info", &[]), page.count("podmeter_device_healthy", &[])), (10, 8));
    let html = node.running.get("/").body;
    assert!(html.contains("kernel driver nouveau") && html.contains("2 not served"), "{html}");
    let log = node.running.until_logged("set ignoreGpus: [\"0000:e9:00.0\"]");
    assert!(!log.contains("a GPU is missing"), "{log}");

    // It had NVIDIA's driver once: it is lost.
    bind(&without_driver, "nvidia");
    node.until_page("a lost card", |page| is_lost(page, "gpu_uuid=\"PCI-0000:e9:00.0\""));
    std::fs::remove_file(without_driver.join("driver")).unwrap();
    until_true("a node to repair", || health(&node) == 1);

    let config = format!("{QUICK}\nignoreGpus: [\"0000:e9:00.0\", \"00000000:EA:00.0\"]\n");
    std::fs::write(node.kubelet.root.path().join("podmeter.yaml"), config).unwrap();
    node.restart().await;
    let page = node.until_page("eight GPUs", |page| page.count("podmeter_device_healthy", &[]) == 8);
    assert_eq!((counted(&page, "unserved"), page.count("podmeter_device_info", &[])), (Some(0.0), 8));
    until_true("a healthy node", || health(&node) == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_was_replaced_is_neither_lost_nor_offered() {
    let sys = pci_bus(8);
    let mut node = start(eight_gpus(), QUICK, sys.path()).await;
    node.until_unhealthy(GPU, &[]).await;
    node.driver.update(|state| state["gpus"][5]["uuid"] = json!(uuid(9)));
    node.restart().await;
    let page = node.until_page("the new GPU", |page| {
        page.value("podmeter_device_healthy", &[&on_gpu(9)]) == Some(1.0)
            && page.value("podmeter_plugin_devices", &["health=\"healthy\""]) == Some(8.0)
    });
    assert_eq!((page.count("podmeter_device_info", &[]), page.count("podmeter_device_info", &[&on_gpu(5)])), (8, 0));
    assert_eq!(page.count("podmeter_device_unhealthy_reason", &[]), 0, "{}", page.0);
    let all = |gpu: &crate::support::kubelet::DeviceCount| (gpu.capacity, gpu.allocatable) == (8, 8);
    assert!(node.kubelet.node_status_becomes(|status| status.get(GPU).is_some_and(all)).await);
    until_true("ready", || node.running.get("/-/ready").status == 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mig_device_of_a_gpu_lost_before_the_start_stays_held() {
    const SLICE: &str = "nvidia.com/mig-1g.10gb";
    let sys = pci_bus(2);
    let mut node = start(partitioned(), &format!("{MIXED}{QUICK}"), sys.path()).await;
    node.until_unhealthy(SLICE, &[]).await;
    let held = node.runs("trainer", SLICE).await;
    let sick = (0..2).find(|gpu| (0..3).any(|position| held == mig(*gpu, position))).unwrap();
    lose(&node, sick);
    node.restart().await;
    node.until_unhealthy(SLICE, &[0, 1, 2].map(|position| mig(sick, position))).await;
    let held = format!("mig_uuid=\"{held}\"");
    let labels = [TRAINER, &[&held]].concat();
    let page = node.until_page("the holder", |page| page.count("podmeter_container_allocation_info", &labels) == 1);
    assert_eq!(page.count("podmeter_device_unhealthy_reason", &["reason=\"lost\""]), 1);
    find(&node, sick);
    node.until_unhealthy(SLICE, &[]).await;
    node.until_page("the holder on its GPU", |page| {
        page.count("podmeter_container_allocation_info", &[&labels[..], &[&on_gpu(sick)]].concat()) == 1
            && page.count("podmeter_container_allocation_info", &[]) == 1
    });
}
