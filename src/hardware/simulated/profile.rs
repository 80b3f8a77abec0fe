//! The simulated nodes: each is a machine with a MIG layout and sharing.

use std::str::FromStr;
use std::sync::Arc;

use super::machine::{self, GpuPosition, SimulatedMachine};
use crate::domain::model::{
    DriverInfo, FabricDomain, Gpu, GpuUuid, Inventory, MigDevice, MigUuid, NvLinkPeers, Platform,
};

/// The simulated hardware: a machine, how its GPUs are partitioned, and how the plugin shares them.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedProfile {
    pub name: &'static str,
    pub(super) machine: &'static SimulatedMachine,
    /// The partitions of each GPU; GPUs past the end are whole. Only for machines with GPM, which reads the instances.
    partitions: &'static [&'static [Partition]],
    /// The slots of each whole GPU; `None`: it is not shared.
    pub replicas: Option<u32>,
    /// Whether a DRA driver allocates the devices, not a plugin.
    pub is_claimed: bool,
}

impl SimulatedProfile {
    pub const H100: Self =
        Self { name: "8xh100", machine: &machine::H100, partitions: &[], replicas: None, is_claimed: false };
    pub const H100_TIME_SLICED: Self = Self { name: "8xh100-timesliced", replicas: Some(4), ..Self::H100 };
    /// GPUs 0 to 3 are partitioned, the others whole.
    pub const H100_MIG: Self = Self {
        name: "8xh100-mig",
        partitions: &[H100_SEVEN_1G, H100_SEVEN_1G, &[H100_3G, H100_2G, H100_1G], &[H100_3G; 2]],
        ..Self::H100
    };
    /// All GPUs are partitioned into seven MIG devices.
    pub const H100_SEVEN_MIG: Self = Self { name: "8xh100-mig-1g", partitions: &[H100_SEVEN_1G; 8], ..Self::H100 };
    pub const A100: Self = Self { name: "8xa100", machine: &machine::A100, ..Self::H100 };
    /// A compute tray of an NVLink rack.
    pub const GB200: Self = Self { name: "4xgb200", machine: &machine::GB200, ..Self::H100 };
    /// GPU 7 is partitioned, with a MIG device of each of four kinds.
    pub const B200: Self = Self {
        name: "8xb200",
        machine: &machine::B200,
        partitions: &[WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, B200_MIXED],
        ..Self::H100
    };
    pub const GH200: Self = Self { name: "2xgh200", machine: &machine::GH200, ..Self::H100 };
    /// A DRA driver allocates the GPUs; GPU 7 is partitioned.
    pub const CLAIMED: Self = Self {
        name: "dra",
        partitions: &[WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, &[H100_3G, H100_2G, H100_1G]],
        is_claimed: true,
        ..Self::H100
    };
    pub const EMPTY: Self = Self { name: "empty", machine: &machine::EMPTY, ..Self::H100 };

    pub const ALL: [Self; 10] = [
        Self::H100,
        Self::H100_TIME_SLICED,
        Self::H100_MIG,
        Self::H100_SEVEN_MIG,
        Self::A100,
        Self::GB200,
        Self::B200,
        Self::GH200,
        Self::CLAIMED,
        Self::EMPTY,
    ];

    /// The names of all profiles as text: `8xh100, 8xa100 or empty`.
    pub fn names() -> String {
        let names = Self::ALL.map(|profile| profile.name);
        let (last, others) = names.split_last().expect("there are profiles");
        format!("{} or {last}", others.join(", "))
    }
}

impl FromStr for SimulatedProfile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown profile {text:?}; known are {}", Self::names());
        Self::ALL.into_iter().find(|profile| profile.name == text).ok_or_else(unknown)
    }
}

/// A MIG device with its GPU instance.
#[derive(Debug)]
struct Partition {
    name: &'static str,
    /// The driver's number of the GPU instance profile.
    id: u32,
    compute_slices: u32,
    memory_slices: u32,
    memory_bytes: u64,
}

/// The numbers of the chassis and the cluster for `scramble`.
const CHASSIS: u64 = 100_000;
const CLUSTER: u64 = 100_001;
const H100_1G: Partition = partition("1g.10gb", 19, (1, 1), 9_984);
const H100_SEVEN_1G: &[Partition] = &[H100_1G; 7];
const H100_2G: Partition = partition("2g.20gb", 14, (2, 2), 20_224);
const H100_3G: Partition = partition("3g.40gb", 9, (3, 4), 40_704);

const WHOLE: &[Partition] = &[];
/// The partitions of a B200. Names, numbers and slices are NVIDIA's; the sizes are parts of the memory, as on an H100.
const B200_MIXED: &[Partition] = &[
    partition("3g.90gb", 9, (3, 4), 90_624),
    partition("1g.45gb", 15, (1, 2), 45_056),
    partition("1g.23gb+me", 20, (1, 1), 22_400),
    partition("1g.23gb", 19, (1, 1), 22_400),
];

const fn partition(name: &'static str, id: u32, slices: (u32, u32), mebibytes: u64) -> Partition {
    Partition { name, id, compute_slices: slices.0, memory_slices: slices.1, memory_bytes: mebibytes * machine::MIB }
}

/// The node of a profile. The same seed makes the same UUIDs.
pub(super) fn inventory(profile: SimulatedProfile, seed: u64) -> Inventory {
    let SimulatedMachine { positions, software, .. } = *profile.machine;
    let gpus = positions.iter().enumerate().map(|(index, position)| gpu(profile, seed, index, position));
    Inventory {
        driver: Some(DriverInfo {
            driver_version: software.driver.into(),
            cuda_version: Some(software.cuda.into()),
            nvml_version: Some(software.nvml.into()),
        }),
        gpus: gpus.map(|gpu| (gpu.uuid.clone(), gpu)).collect(),
        ..Inventory::default()
    }
}

fn gpu(profile: SimulatedProfile, seed: u64, index: usize, position: &GpuPosition) -> Gpu {
    let machine = profile.machine;
    let partitions = profile.partitions.get(index).copied().unwrap_or_default();
    Gpu {
        minor: Some(position.minor),
        pci_bus_id: Some(position.pci_bus_id.into()),
        model: Some(machine.model.into()),
        architecture: Some(machine.architecture.into()),
        compute_capability: Some(machine.compute_capability.into()),
        vbios_version: machine.vbios_version.map(Into::into),
        serial: Some(serial("16", seed, u64::from(position.board))),
        platform: position.module_id.map(|module_id| platform(machine, seed, module_id)),
        numa_node: Some(position.numa_node),
        memory_bytes: Some(machine.memory_bytes),
        mig_enabled: Some(!partitions.is_empty()),
        mig_devices: mig_devices(seed, index, partitions),
        mig_slices: (!partitions.is_empty()).then_some(7),
        nvlink_peers: Some(nvlink_peers(machine, position)),
        ..Gpu::listed(GpuUuid::new(format!("GPU-{}", uuid(seed, index as u64))), index as u32)
    }
}

fn serial(start: &str, seed: u64, number: u64) -> Arc<str> {
    format!("{start}{:011}", scramble(seed, number) % 100_000_000_000).into()
}

fn platform(machine: &SimulatedMachine, seed: u64, module_id: u8) -> Platform {
    Platform {
        chassis_serial: machine.rack.map(|_| serial("18", seed, CHASSIS)),
        slot: machine.rack.map(|rack| rack.slot),
        tray: machine.rack.map(|rack| rack.tray),
        host: Some(1),
        module_id: Some(module_id),
        peer_type: Some(if machine.has_switches { "switch" } else { "direct" }),
    }
}

/// The fabric domain of every GPU of the node.
pub(super) fn fabric_domain(profile: SimulatedProfile, seed: u64) -> Option<FabricDomain> {
    let clique_id = profile.machine.rack?.clique_id;
    Some(FabricDomain { cluster_uuid: uuid(seed, CLUSTER).into(), clique_id })
}

fn nvlink_peers(machine: &SimulatedMachine, position: &GpuPosition) -> NvLinkPeers {
    if machine.has_switches {
        return NvLinkPeers { switch_links: machine.nvlinks, ..NvLinkPeers::default() };
    }
    let others = machine.positions.iter().map(|other| other.pci_bus_id).filter(|other| *other != position.pci_bus_id);
    let each = machine.nvlinks / (machine.positions.len() as u32 - 1).max(1);
    NvLinkPeers { by_bus_id: others.map(|other| (other.into(), each)).collect(), switch_links: 0 }
}

fn mig_devices(seed: u64, index: usize, partitions: &[Partition]) -> Vec<MigDevice> {
    let mut placement = 0;
    let device = |(partition, number): (&Partition, u32)| {
        let start = placement;
        placement += partition.memory_slices;
        MigDevice {
            uuid: MigUuid::new(format!("MIG-{}", uuid(seed, 1_000 * (index as u64 + 1) + u64::from(number)))),
            index: number,
            // The driver numbers the largest profiles from 1 and the smallest from 7.
            gpu_instance: number + if partition.compute_slices == 1 { 7 } else { 1 },
            compute_instance: 0,
            profile: partition.name.into(),
            profile_id: Some(partition.id),
            placement_start: Some(start),
            slices: partition.compute_slices,
            memory_bytes: Some(partition.memory_bytes),
        }
    };
    partitions.iter().zip(0..).map(device).collect()
}

fn uuid(seed: u64, number: u64) -> String {
    let (high, low) = (scramble(seed, 2 * number), scramble(seed, 2 * number + 1));
    let (time, variant, node) = (high >> 32, 0x8000 | ((low >> 48) & 0x3fff), low & 0xffff_ffff_ffff);
    format!("{time:08x}-{:04x}-4{:03x}-{variant:04x}-{node:012x}", (high >> 16) & 0xffff, high & 0xfff)
}

/// A well-mixed number from a seed and a number; the same on every machine. GPUs and boards have the numbers from 0 on,
/// MIG devices from 1,000, constant loads from 50,000, and the chassis and the cluster from 100,000. A UUID uses two
/// numbers, so that its number is doubled.
pub(super) fn scramble(seed: u64, number: u64) -> u64 {
    let mut mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for multiplier in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(multiplier);
        mixed ^= mixed >> 27;
    }
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        for profile in SimulatedProfile::ALL {
            assert_eq!(profile.name.parse::<SimulatedProfile>().unwrap().name, profile.name);
        }
        assert!("4xb100".parse::<SimulatedProfile>().unwrap_err().contains("8xh100-mig"));
    }

    #[test]
    fn every_device_has_its_own_name() {
        let node = inventory(SimulatedProfile::H100_MIG, 7);
        let gpus: BTreeSet<_> = node.gpus.keys().collect();
        let migs: BTreeSet<_> = node.gpus.values().flat_map(|gpu| &gpu.mig_devices).map(|mig| &mig.uuid).collect();
        assert_eq!((gpus.len(), migs.len()), (8, 7 + 7 + 3 + 2));
        assert!(node.gpus.values().any(|gpu| gpu.minor != gpu.index));
        assert_eq!(node, inventory(SimulatedProfile::H100_MIG, 7));
        assert_ne!(node, inventory(SimulatedProfile::H100_MIG, 8));
    }

    #[test]
    fn every_link_goes_to_a_switch_or_to_another_gpu_of_the_node() {
        for (profile, ends, links) in
            [(SimulatedProfile::H100, 0, 18), (SimulatedProfile::A100, 0, 12), (SimulatedProfile::GB200, 0, 18)]
        {
            for gpu in inventory(profile, 1).gpus.values() {
                let peers = gpu.nvlink_peers.clone().unwrap();
                assert_eq!((peers.by_bus_id.len(), peers.switch_links), (ends, links), "{profile:?}");
            }
        }
        let pair = inventory(SimulatedProfile::GH200, 1).gpus;
        for gpu in pair.values() {
            let peers = gpu.nvlink_peers.clone().unwrap();
            let (end, links) = peers.by_bus_id.first_key_value().unwrap();
            assert!(pair.values().any(|other| other.pci_bus_id.as_ref() == Some(end) && other.uuid != gpu.uuid));
            assert_eq!((peers.by_bus_id.len(), *links, peers.switch_links), (1, 18, 0));
        }
    }

    #[test]
    fn the_gpus_of_a_superchip_have_its_serial_number() {
        let serials = |profile| {
            let mut gpus: Vec<_> = inventory(profile, 1).gpus.into_values().collect();
            gpus.sort_by_key(|gpu| gpu.index);
            gpus.into_iter().map(|gpu| gpu.serial.unwrap()).collect::<Vec<_>>()
        };
        let tray = serials(SimulatedProfile::GB200);
        assert!(tray[0] == tray[1] && tray[2] == tray[3] && tray[1] != tray[2], "{tray:?}");
        for profile in [SimulatedProfile::H100, SimulatedProfile::B200, SimulatedProfile::GH200] {
            let own: BTreeSet<_> = serials(profile).into_iter().collect();
            assert_eq!(own.len(), profile.machine.positions.len(), "{profile:?}");
        }
    }

    #[test]
    fn instances_fit_into_the_gpu() {
        assert!(SimulatedProfile::ALL.iter().all(|profile| profile.partitions.is_empty() || profile.machine.has_gpm));
        let gpus = SimulatedProfile::ALL.map(|profile| inventory(profile, 1).gpus);
        for gpu in gpus.iter().flat_map(|gpus| gpus.values()) {
            assert!(gpu.mig_devices.iter().map(|mig| mig.slices).sum::<u32>() <= 7);
            let parts: u64 = gpu.mig_devices.iter().filter_map(|mig| mig.memory_bytes).sum();
            assert!(parts < gpu.memory_bytes.unwrap());
            let instances: BTreeSet<_> = gpu.mig_devices.iter().map(|mig| mig.gpu_instance).collect();
            assert_eq!(instances.len(), gpu.mig_devices.len());
        }
    }
}
