//! Whether a GPU is virtualized, and its licence in a virtual machine.

use std::sync::LazyLock;

use super::family::{Group, gauge};
use super::labels::{DEVICE, devices, medium, slow};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Virtual machines",
    labels: DEVICE,
    source: "NVML",
    metrics: vec![
        gauge("podmeter_device_virtualization_info")
            .help("A virtualized GPU: passthrough or vgpu in a virtual machine, host_vgpu or host_vsga on a host.")
            .source("NVML GetVirtualizationMode")
            .by("mode", devices, |readings| Some([(medium(readings)?.virtualization?, Some(1u64))])),
        gauge("podmeter_device_vgpu_licensed")
            .help("In a virtual machine with a vGPU: whether it has a licence.")
            .source("NVML GetGridLicensableFeatures_v4")
            .each(devices, |readings| {
                let is_guest = medium(readings)?.virtualization == Some("vgpu");
                slow(readings)?.vgpu_licensed.filter(|_| is_guest)
            }),
    ],
});
