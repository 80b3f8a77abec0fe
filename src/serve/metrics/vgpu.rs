//! Virtual machines' view of GPUs, and the vGPUs of a host.

use super::family::{Family, Group, SampleValue, gauge};
use super::labels::{DEVICE, Labels, medium, of_device, per_device, slow, with_readings};
use crate::domain::model::{Gpu, Snapshot, Vgpu};

pub(super) static GROUP: Group = Group {
    section: "Virtual machines",
    labels: "gpu_uuid vgpu_uuid",
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
        .labels(DEVICE)
        .source("NVML GetGridLicensableFeatures_v4"),
        gauge("podmeter_vgpu_info", "A vGPU that runs on this host.", |snapshot, family| {
            for (gpu, vgpu) in vgpus(snapshot) {
                let labels = of_vgpu(gpu, vgpu)
                    .and_known("vgpu_type", vgpu.vgpu_type.as_ref())
                    .and_known("vm_id", vgpu.vm_id.as_ref())
                    .and_known("mdev_uuid", vgpu.mdev_uuid.as_ref());
                family.push(labels, 1u64);
            }
        })
        .labels("gpu_uuid vgpu_uuid vgpu_type vm_id mdev_uuid")
        .source("NVML GetActiveVgpus"),
        gauge("podmeter_vgpu_memory_used_bytes", "Memory of a vGPU in use.", |snapshot, family| {
            per_vgpu(snapshot, family, |vgpu| vgpu.memory_used_bytes);
        })
        .source("NVML VgpuInstanceGetFbUsage"),
        gauge("podmeter_vgpu_memory_capacity_bytes", "Memory of a vGPU by its type.", |snapshot, family| {
            per_vgpu(snapshot, family, |vgpu| vgpu.memory_total_bytes);
        })
        .source("NVML VgpuTypeGetFramebufferSize"),
        gauge(
            "podmeter_vgpu_sm_utilization_ratio",
            "SM use by a vGPU in the driver's last sample, of the whole GPU.",
            |snapshot, family| per_vgpu(snapshot, family, |vgpu| vgpu.sm_utilization_ratio),
        )
        .source("NVML GetVgpuUtilization"),
        gauge("podmeter_vgpu_license_state", "Licence of a vGPU: one series per state.", |snapshot, family| {
            for (gpu, vgpu) in vgpus(snapshot) {
                let Some(current) = vgpu.license_state else { continue };
                for state in Vgpu::LICENSE_STATES {
                    family.push(of_vgpu(gpu, vgpu).and("state", state), state == current);
                }
            }
        })
        .labels("gpu_uuid vgpu_uuid state")
        .source("NVML VgpuInstanceGetLicenseInfo_v2"),
    ],
};

fn vgpus(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &Vgpu)> {
    with_readings(snapshot).flat_map(|(gpu, readings)| {
        medium(readings).into_iter().flat_map(|medium| &medium.vgpus).map(move |one| (gpu, one))
    })
}

fn of_vgpu(gpu: &Gpu, vgpu: &Vgpu) -> Labels {
    Labels::new("gpu_uuid", &gpu.uuid).and("vgpu_uuid", &vgpu.uuid)
}

fn per_vgpu<V: Into<SampleValue>>(snapshot: &Snapshot, family: &mut Family, read: impl Fn(&Vgpu) -> Option<V>) {
    for (gpu, vgpu) in vgpus(snapshot) {
        family.push_known(of_vgpu(gpu, vgpu), read(vgpu));
    }
}
