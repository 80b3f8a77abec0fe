//! Whether a GPU is virtualized, and its licence in a virtual machine.

use super::family::{Group, gauge};
use super::labels::{DEVICE, medium, of_device, per_device, slow, with_readings};

pub(super) static GROUP: Group = Group {
    section: "Virtual machines",
    labels: DEVICE,
    source: "NVML",
    metrics: &[
        gauge(
            "podmeter_device_virtualization_info",
            "A virtualized GPU: passthrough or vgpu in a virtual machine, host_vgpu or host_vsga on a host.",
            |snapshot, family| {
                for (gpu, readings) in with_readings(snapshot) {
                    let mode = medium(readings).and_then(|medium| medium.virtualization);
                    family.push_known(of_device(gpu).and_known("mode", mode), mode.map(|_| 1u64));
                }
            },
        )
        .labels("gpu_uuid gpu mode")
        .source("NVML GetVirtualizationMode"),
        gauge(
            "podmeter_device_vgpu_licensed",
            "In a virtual machine with a vGPU: whether it has a licence.",
            |snapshot, family| {
                per_device(snapshot, family, |readings| {
                    let is_guest = medium(readings)?.virtualization == Some("vgpu");
                    slow(readings)?.vgpu_licensed.filter(|_| is_guest)
                });
            },
        )
        .source("NVML GetGridLicensableFeatures_v4"),
    ],
};
