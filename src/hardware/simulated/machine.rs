//! The simulated machines: constants of their GPUs, and where each GPU is.
//!
//! The constants of Grace and Blackwell machines are from `nvidia-smi -q` and `nvidia-smi topo -m` of real nodes.

/// A node: its GPUs, all of one model, and its driver.
#[derive(Debug)]
pub(super) struct SimulatedMachine {
    pub model: &'static str,
    pub architecture: &'static str,
    pub compute_capability: &'static str,
    /// The VBIOS version; `None`: no source has it.
    pub vbios_version: Option<&'static str>,
    pub memory_bytes: u64,
    pub idle_watts: f64,
    pub limit_watts: f64,
    pub sm_hertz: (f64, f64),
    pub memory_hertz: f64,
    pub has_gpm: bool,
    /// The conditions of the NVLink fabric that the driver reports. Empty: it has no fabric.
    pub fabric_conditions: &'static [&'static str],
    pub nvlinks: u32,
    pub has_nvlink5: bool,
    /// The PCIe generation; `None`: the GPU is attached to its CPU by NVLink-C2C, and no source has the driver's value.
    pub pcie_generation: Option<u32>,
    /// The superchips of its GPUs, each with a CPU, whose power the driver reports.
    pub superchip: Option<Superchip>,
    pub software: Software,
    /// Whether every link goes to a switch; otherwise the links of a GPU go to the other GPUs of the node.
    pub has_switches: bool,
    pub rack: Option<Rack>,
    /// The GPUs in the driver's order, which is that of the addresses.
    pub positions: &'static [GpuPosition],
}

/// What a superchip has beside its GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Superchip {
    /// What the CPU and its memory draw, whatever the GPUs do.
    pub cpu_watts: f64,
    /// NVLink-C2C links between a GPU and the CPU, and the bytes a second of each; `None`: no source has the number.
    pub c2c_links: Option<(u32, f64)>,
}

/// The driver of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Software {
    pub driver: &'static str,
    pub cuda: &'static str,
    pub nvml: &'static str,
}

/// Where a node is in its NVLink rack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    pub slot: u8,
    pub tray: u8,
    pub clique_id: u32,
}

/// Where a GPU is.
#[derive(Debug)]
pub(super) struct GpuPosition {
    pub pci_bus_id: &'static str,
    /// The minor number of the device node, not the index: on the board of eight H100 the fourth and fifth are swapped.
    pub minor: u32,
    /// The NUMA node of its CPU.
    pub numa_node: u32,
    /// The board that has its serial number; two GPUs may share one.
    pub board: u32,
    /// The platform's number of the GPU, since Blackwell.
    pub module_id: Option<u8>,
}

pub(super) const MIB: u64 = 1 << 20;

const fn position(pci_bus_id: &'static str, minor: u32, numa_node: u32) -> GpuPosition {
    GpuPosition { pci_bus_id, minor, numa_node, board: minor, module_id: None }
}

const fn numbered(pci_bus_id: &'static str, minor: u32, numa_node: u32, module_id: u8) -> GpuPosition {
    GpuPosition { module_id: Some(module_id), ..position(pci_bus_id, minor, numa_node) }
}

const R570: Software = Software { driver: "570.124.06", cuda: "12.8", nvml: "12.570.124.06" };
const R580: Software = Software { driver: "580.173.02", cuda: "13.0", nvml: "13.580.173.02" };

/// Eight H100, four on each socket.
pub(super) static H100: SimulatedMachine = SimulatedMachine {
    model: "NVIDIA H100 80GB HBM3",
    architecture: "hopper",
    compute_capability: "9.0",
    vbios_version: Some("96.00.A5.00.01"),
    memory_bytes: 81_559 * MIB,
    idle_watts: 70.0,
    limit_watts: 700.0,
    sm_hertz: (345e6, 1_980e6),
    memory_hertz: 2_619e6,
    has_gpm: true,
    fabric_conditions: &["degraded_bandwidth"],
    nvlinks: 18,
    has_nvlink5: false,
    pcie_generation: Some(5),
    superchip: None,
    software: R570,
    has_switches: true,
    rack: None,
    positions: &[
        position("0000:1b:00.0", 0, 0),
        position("0000:43:00.0", 1, 0),
        position("0000:52:00.0", 2, 0),
        GpuPosition { board: 3, ..position("0000:61:00.0", 4, 0) },
        GpuPosition { board: 4, ..position("0000:9d:00.0", 3, 1) },
        position("0000:c3:00.0", 5, 1),
        position("0000:d1:00.0", 6, 1),
        position("0000:df:00.0", 7, 1),
    ],
};

pub(super) static A100: SimulatedMachine = SimulatedMachine {
    model: "NVIDIA A100-SXM4-80GB",
    architecture: "ampere",
    compute_capability: "8.0",
    vbios_version: Some("92.00.45.00.03"),
    memory_bytes: 81_920 * MIB,
    idle_watts: 60.0,
    limit_watts: 400.0,
    sm_hertz: (210e6, 1_410e6),
    memory_hertz: 1_593e6,
    has_gpm: false,
    fabric_conditions: &[],
    nvlinks: 12,
    pcie_generation: Some(4),
    ..H100
};

/// An HGX board of eight B200.
pub(super) static B200: SimulatedMachine = SimulatedMachine {
    model: "NVIDIA B200",
    architecture: "blackwell",
    compute_capability: "10.0",
    vbios_version: Some("97.00.FA.00.09"),
    memory_bytes: 183_359 * MIB,
    idle_watts: 140.0,
    limit_watts: 1_000.0,
    sm_hertz: (120e6, 1_965e6),
    memory_hertz: 3_996e6,
    fabric_conditions: &["access_timeout_recovery"],
    has_nvlink5: true,
    software: R580,
    positions: &[
        numbered("0000:8f:00.0", 0, 0, 6),
        numbered("0000:90:00.0", 1, 0, 8),
        numbered("0000:96:00.0", 2, 0, 7),
        numbered("0000:97:00.0", 3, 0, 5),
        numbered("0000:c4:00.0", 4, 1, 2),
        numbered("0000:c5:00.0", 5, 1, 4),
        numbered("0000:cb:00.0", 6, 1, 3),
        numbered("0000:cc:00.0", 7, 1, 1),
    ],
    ..H100
};

/// A compute tray of a GB200 NVL72 rack: two superchips, each with a CPU and two GPUs.
pub(super) static GB200: SimulatedMachine = SimulatedMachine {
    model: "NVIDIA GB200",
    vbios_version: Some("97.00.B9.00.69"),
    memory_bytes: 189_471 * MIB,
    idle_watts: 160.0,
    limit_watts: 1_200.0,
    sm_hertz: (120e6, 2_062e6),
    fabric_conditions: &["degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery"],
    superchip: Some(Superchip { cpu_watts: 130.0, c2c_links: None }),
    rack: Some(Rack { slot: 14, tray: 4, clique_id: 2 }),
    positions: &[
        GpuPosition { board: 0, ..numbered("0008:01:00.0", 0, 0, 2) },
        GpuPosition { board: 0, ..numbered("0009:01:00.0", 1, 0, 1) },
        GpuPosition { board: 1, ..numbered("0018:01:00.0", 2, 1, 4) },
        GpuPosition { board: 1, ..numbered("0019:01:00.0", 3, 1, 3) },
    ],
    ..B200
};

/// Two superchips, each with a CPU and a GPU; the GPUs are linked to each other.
pub(super) static GH200: SimulatedMachine = SimulatedMachine {
    model: "NVIDIA GH200 144G HBM3e",
    vbios_version: None,
    memory_bytes: 146_831 * MIB,
    idle_watts: 90.0,
    limit_watts: 900.0,
    memory_hertz: 3_201e6,
    fabric_conditions: &[],
    pcie_generation: None,
    superchip: Some(Superchip { cpu_watts: 100.0, c2c_links: Some((10, 44.712e9)) }),
    software: R580,
    has_switches: false,
    positions: &[position("0009:01:00.0", 0, 0), position("0019:01:00.0", 1, 1)],
    ..H100
};

pub(super) static EMPTY: SimulatedMachine = SimulatedMachine { positions: &[], ..H100 };
