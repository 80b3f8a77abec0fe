//! Parsers of foreign strings, each format once. The fuzz corpora are not used, because they grow.

use std::hint::black_box;

use podmeter::attribution::{parse_claim_device, parse_device_id};
use podmeter::hardware::parse_kernel_line;
use podmeter::processes::cgroup;

use crate::rounds;

const DEVICE_IDS: [&str; 12] = [
    "GPU-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21",
    "MIG-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21",
    "MIG-GPU-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21/7/0",
    "GPU-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21::3",
    "MIG-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21::11",
    "GPU-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21-4",
    "nvidia3",
    "nvidia3/gi7",
    "nvidia12/vgpu4",
    "tegra::0",
    "all",
    "0000:3b:00.0",
];
const CLAIM_DEVICES: [(&str, &str); 3] = [
    ("gpu.nvidia.com", "gpu-5"),
    ("gpu.nvidia.com", "gpu-0-mig-1g12gb-19-4"),
    ("compute-domain.nvidia.com", "channel-0"),
];
const KERNEL_LINES: [&str; 6] = [
    "3,1234,56789,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
    "3,1235,56790,-;NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)",
    "3,1236,56791,-;NVRM: Xid (PCI:0000:CB:00): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No",
    "3,1237,56792,-;NVRM: GPU at PCI:0000:01:00 has fallen off the bus",
    "6,1238,56793,-;eth0: renamed from veth1a2b3c4",
    "6,1239,56794,-,caller=T12;IPv6: ADDRCONF(NETDEV_CHANGE): veth1a2b3c4: link becomes ready",
];
/// cgroup v2: a pod's in the systemd and cgroupfs formats, and one of no pod.
const CGROUPS: [&str; 3] = [
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f5d2c1e_90ab_4cde_8123_456789abcdef.slice/\
     cri-containerd-0fdb462000db5bb00c161392e7bf2821aea5b75611e8b40debadab16a33aa2b0.scope\n",
    "0::/kubepods/besteffort/pod229836ee3ad078911e99a2b8134d6713/\
     0fdb462000db5bb00c161392e7bf2821aea5b75611e8b40debadab16a33aa2b0\n",
    "0::/system.slice/containerd.service\n",
];

pub fn device_ids(count: u64) {
    rounds(
        count,
        |_| (),
        |()| {
            for id in DEVICE_IDS {
                black_box(parse_device_id(black_box(id)));
            }
            for (driver, device) in CLAIM_DEVICES {
                black_box(parse_claim_device(black_box(driver), black_box(device)));
            }
        },
    );
}

/// `CGROUPS`, and a real container's under cgroup v1.
pub fn cgroups(count: u64) {
    let recorded = include_str!("../../tests/captures/20_proc_cgroup.txt");
    rounds(
        count,
        |_| (),
        |()| {
            for text in CGROUPS.into_iter().chain([recorded]) {
                black_box(cgroup::parse(black_box(text)));
            }
        },
    );
}

pub fn kernel_lines(count: u64) {
    rounds(
        count,
        |_| (),
        |()| {
            for line in KERNEL_LINES {
                black_box(parse_kernel_line(black_box(line)));
            }
        },
    );
}
