//! A GPU that is bound to vfio-pci and back while podmeter runs.

use std::path::Path;

use crate::support::hardware::{bind, pci_bus, pci_bus_id};
use crate::support::sick_node::{GPU, QUICK, SickNode, eight_gpus, on_gpu, uuid};
use serde_json::json;

const REBOUND: usize = 7;

fn device(sys: &Path, gpu: usize) -> std::path::PathBuf {
    sys.join("bus/pci/devices").join(pci_bus_id(gpu))
}

/// As the driver has to be closed for it, and is in `podmeter release`.
fn rebind(node: &SickNode, sys: &Path, driver: &str) {
    assert_eq!(node.post("/release", r#"{"for": "10m"}"#).status, 200);
    bind(&device(sys, REBOUND), driver);
    let fail = if driver == "nvidia" { json!({}) } else { json!({"*": 6}) };
    node.driver.update(|state| state["gpus"][REBOUND]["fail"] = fail.clone());
    assert_eq!(node.post("/resume", "").status, 200);
}

/// The GPU is bound to vfio-pci, and podmeter shows that.
async fn bound_to_vfio() -> (SickNode, tempfile::TempDir) {
    let sys = pci_bus(8, &[("device", "0x2330")]);
    let node = SickNode::start_with(eight_gpus(), QUICK, &["--sys-root", sys.path().to_str().unwrap()]).await;
    node.until_unhealthy(GPU, &[]).await;
    rebind(&node, sys.path(), "vfio-pci");
    node.until_page("a GPU that is not served", |page| {
        page.value("podmeter_node_devices", &["state=\"unserved\""]) == Some(1.0)
            && page.count("podmeter_device_healthy", &[]) == 7
            && page.count("podmeter_device_power_watts", &[]) == 7
    });
    (node, sys)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_bound_to_vfio_is_one_device_without_health() {
    let (node, _sys) = bound_to_vfio().await;
    let (page, gpu) = (node.running.metrics(), on_gpu(REBOUND));
    assert_eq!(page.count("podmeter_device_info", &[]), 8, "it is one device");
    assert_eq!(page.count("podmeter_device_healthy", &[&gpu]), 0);
    assert_eq!(page.count("podmeter_device_unhealthy_reason", &[&gpu]), 0);
    assert_eq!(page.value("podmeter_node_devices", &["state=\"expected\""]), Some(7.0));
    node.until_unhealthy(GPU, &[uuid(REBOUND)]).await;
    assert_eq!(node.transitions().len(), 0, "no device turned unhealthy: {:?}", node.transitions());
    node.running.until_logged("kernel driver vfio-pci");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_bound_to_nvidia_again_is_read_and_offered() {
    let (node, sys) = bound_to_vfio().await;
    node.until_unhealthy(GPU, &[uuid(REBOUND)]).await;
    rebind(&node, sys.path(), "nvidia");
    let page = node.until_page("its readings", |page| {
        page.count("podmeter_device_power_watts", &[]) == 8 && page.count("podmeter_device_healthy", &[]) == 8
    });
    assert_eq!(page.value("podmeter_node_devices", &["state=\"unserved\""]), Some(0.0));
    node.until_unhealthy(GPU, &[]).await;
}
