//! Whether a GPU is virtualized, and its licence in a virtual machine.

use super::family::{Group, gauge};
use super::labels::{DEVICE, devices, medium, slow};

pub(super) static GROUP: Group = Group {
    section: "Virtual machines",
    labels: DEVICE,
    source: "NVML",
    metrics: &[
        gauge(
            "podmeter_device_virtualization_info",
            "A virtualized GPU: passthrough or vgpu in a virtual machine, host_vgpu or host_vsga on a host.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some([(medium(readings)?.virtualization?, Some(1u64))]));
            },
        )
        .labels("gpu_uuid gpu mode")
        .source("NVML GetVirtualizationMode"),
        gauge(
            "podmeter_device_vgpu_licensed",
            "In a virtual machine with a vGPU: whether it has a licence.",
            |snapshot, family| {
                family.each(devices(snapshot), |readings| {
                    let is_guest = medium(readings)?.virtualization == Some("vgpu");
                    slow(readings)?.vgpu_licensed.filter(|_| is_guest)
                });
            },
        )
        .source("NVML GetGridLicensableFeatures_v4"),
    ],
};
