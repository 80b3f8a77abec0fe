//! The machines that are simulated: constants of their GPUs, and where each GPU is.

/// The constants of one model.
#[derive(Debug)]
pub(super) struct Model {
    pub name: &'static str,
    pub architecture: &'static str,
    pub compute_capability: &'static str,
    pub vbios_version: &'static str,
    pub memory_bytes: u64,
    pub idle_watts: f64,
    pub limit_watts: f64,
    pub sm_hertz: (f64, f64),
    pub memory_hertz: f64,
    pub has_gpm: bool,
    /// The driver registers it with the NVLink fabric.
    pub has_fabric: bool,
    pub nvlinks: u32,
    pub pcie_generation: u32,
}

/// A node's GPUs.
#[derive(Debug)]
pub(super) struct Machine {
    pub model: &'static Model,
    /// In the driver's order.
    pub places: &'static [Place],
}

/// Where a GPU is.
#[derive(Debug)]
pub(super) struct Place {
    pub pci_bus_id: &'static str,
    /// A minor number is not an index: on the board of eight the fourth and fifth device node are swapped.
    pub minor: u32,
    pub numa_node: u32,
}

const MIB: u64 = 1 << 20;

const fn place(pci_bus_id: &'static str, minor: u32, numa_node: u32) -> Place {
    Place { pci_bus_id, minor, numa_node }
}

/// Four on each socket.
static EIGHT: [Place; 8] = [
    place("0000:1b:00.0", 0, 0),
    place("0000:43:00.0", 1, 0),
    place("0000:52:00.0", 2, 0),
    place("0000:61:00.0", 4, 0),
    place("0000:9d:00.0", 3, 1),
    place("0000:c3:00.0", 5, 1),
    place("0000:d1:00.0", 6, 1),
    place("0000:df:00.0", 7, 1),
];

pub(super) static H100: Machine = Machine {
    model: &Model {
        name: "NVIDIA H100 80GB HBM3",
        architecture: "hopper",
        compute_capability: "9.0",
        vbios_version: "96.00.A5.00.01",
        memory_bytes: 81_559 * MIB,
        idle_watts: 70.0,
        limit_watts: 700.0,
        sm_hertz: (345e6, 1_980e6),
        memory_hertz: 2_619e6,
        has_gpm: true,
        has_fabric: true,
        nvlinks: 18,
        pcie_generation: 5,
    },
    places: &EIGHT,
};

pub(super) static A100: Machine = Machine {
    model: &Model {
        name: "NVIDIA A100-SXM4-80GB",
        architecture: "ampere",
        compute_capability: "8.0",
        vbios_version: "92.00.45.00.03",
        memory_bytes: 81_920 * MIB,
        idle_watts: 60.0,
        limit_watts: 400.0,
        sm_hertz: (210e6, 1_410e6),
        memory_hertz: 1_593e6,
        has_gpm: false,
        has_fabric: false,
        nvlinks: 12,
        pcie_generation: 4,
    },
    places: &EIGHT,
};

pub(super) static EMPTY: Machine = Machine { model: H100.model, places: &[] };
