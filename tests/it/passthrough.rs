//! A GPU that is bound to vfio-pci and back while podmeter runs.

use std::os::unix::fs::symlink;
use std::path::Path;

use podmeter::simulation::kubelet::ListedDevice;
use podmeter::simulation::plugin::StandInPlugin;

use crate::support::hardware::{add_pci_device, bind, pci_bus_id};
use crate::support::kubelet::{ContainerSpec, PodSpec};
use crate::support::plugin_harness::counts;
use crate::support::sick_node::{GPU, QUICK, SickNode, eight_gpus, on_gpu, uuid};
use serde_json::json;

const VM_GPU: &str = "nvidia.com/GH100_H100_SXM5_80GB";
const REBOUND: usize = 7;
const GROUP: &str = "51";

fn pci_bus() -> tempfile::TempDir {
    let sys = tempfile::tempdir().unwrap();
    for gpu in 0..8 {
        add_pci_device(sys.path(), &pci_bus_id(gpu), &[("device", "0x2330")]);
    }
    let group = format!("../../../../kernel/iommu_groups/{GROUP}");
    symlink(group, device(sys.path(), REBOUND).join("iommu_group")).unwrap();
    sys
}

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
async fn passed_through() -> (SickNode, tempfile::TempDir) {
    let sys = pci_bus();
    let node = SickNode::start_with(eight_gpus(), QUICK, &["--sys-root", sys.path().to_str().unwrap()]).await;
    node.until_unhealthy(GPU, &[]).await;
    rebind(&node, sys.path(), "vfio-pci");
    let gpu = on_gpu(REBOUND);
    let labels = [gpu.as_str(), "kernel_driver=\"vfio-pci\"", "iommu_group=\"51\"", "pci_device_id=\"2330\""];
    node.until_page("a GPU for virtual machines", |page| {
        page.count("podmeter_device_passthrough_info", &labels) == 1
            && page.count("podmeter_device_healthy", &[]) == 7
            && page.count("podmeter_device_power_watts", &[]) == 7
    });
    (node, sys)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_machine_holds_its_gpu_and_is_never_idle() {
    let (node, _sys) = passed_through().await;
    let plugins = node.kubelet.device_plugin_directory();
    let offered = [GROUP, "77"].map(ListedDevice::new).to_vec();
    let _kubevirt = StandInPlugin::start(&plugins, VM_GPU, offered);
    counts(&node.kubelet, VM_GPU, 2, 2).await;
    let pod = PodSpec::new("vms", "virt-launcher-one").container(ContainerSpec::new("compute").asks(VM_GPU, 2));
    node.kubelet.add_pod(pod).await;
    let gpu = on_gpu(REBOUND);
    let holder = ["pod=\"virt-launcher-one\"", gpu.as_str()];
    let page = node.until_page("its holder, never idle", |page| {
        page.value("podmeter_container_uncovered_seconds_total", &holder) > Some(0.0)
    });
    let allocated = page.value("podmeter_container_allocated_seconds_total", &holder);
    assert_eq!(allocated, page.value("podmeter_container_uncovered_seconds_total", &holder));
    assert_eq!(page.count("podmeter_container_idle_seconds_total", &holder), 0);
    let unresolved = [&format!("resource=\"{VM_GPU}\"")[..], "form=\"iommu_group\""];
    assert_eq!(page.value("podmeter_unresolved_devices", &unresolved), Some(1.0), "no GPU is in group 77");
    let drift: f64 = page.samples("podmeter_resource_drift_devices", &unresolved[..1]).map(|(_, value)| value).sum();
    assert_eq!(drift, 0.0, "what KubeVirt should offer is unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_bound_to_nvidia_again_is_read_and_offered() {
    let (node, sys) = passed_through().await;
    node.until_unhealthy(GPU, &[uuid(REBOUND)]).await;
    rebind(&node, sys.path(), "nvidia");
    let page = node.until_page("its readings", |page| {
        page.count("podmeter_device_power_watts", &[]) == 8 && page.count("podmeter_device_healthy", &[]) == 8
    });
    assert_eq!(page.count("podmeter_device_passthrough_info", &[]), 0);
    node.until_unhealthy(GPU, &[]).await;
    node.running.until_logged("the GPU is no longer passed through to virtual machines");
}
