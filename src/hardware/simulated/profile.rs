//! The simulated nodes: models, GPUs and MIG layouts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::model::{DriverInfo, Gpu, GpuUuid, Inventory, MigDevice, MigUuid, NvLinkPeers, PciBusId};

/// The simulated hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    #[default]
    H100,
    /// The same GPUs, shared by the plugin.
    H100TimeSliced,
    /// GPUs 0 to 3 are partitioned, the others whole.
    H100Mig,
    /// All GPUs are partitioned into seven MIG devices.
    H100SevenMig,
    A100,
    Empty,
}

impl Profile {
    pub const ALL: [Self; 6] =
        [Self::H100, Self::H100TimeSliced, Self::H100Mig, Self::H100SevenMig, Self::A100, Self::Empty];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::H100 => "8xh100",
            Self::H100TimeSliced => "8xh100-timesliced",
            Self::H100Mig => "8xh100-mig",
            Self::H100SevenMig => "8xh100-mig-1g",
            Self::A100 => "8xa100",
            Self::Empty => "empty",
        }
    }

    pub(super) const fn model(self) -> &'static Model {
        match self {
            Self::A100 => &A100,
            _ => &H100,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == text).ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown profile {0:?}; known are 8xh100, 8xh100-timesliced, 8xh100-mig, 8xh100-mig-1g, 8xa100, empty")]
pub struct UnknownProfile(String);

/// The constants of one model.
#[derive(Debug)]
pub(super) struct Model {
    name: &'static str,
    architecture: &'static str,
    compute_capability: &'static str,
    vbios_version: &'static str,
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

const GIB: u64 = 1 << 30;

static H100: Model = Model {
    name: "NVIDIA H100 80GB HBM3",
    architecture: "hopper",
    compute_capability: "9.0",
    vbios_version: "96.00.A5.00.01",
    memory_bytes: 81_559 * (1 << 20),
    idle_watts: 70.0,
    limit_watts: 700.0,
    sm_hertz: (345e6, 1_980e6),
    memory_hertz: 2_619e6,
    has_gpm: true,
    has_fabric: true,
    nvlinks: 18,
    pcie_generation: 5,
};

static A100: Model = Model {
    name: "NVIDIA A100-SXM4-80GB",
    architecture: "ampere",
    compute_capability: "8.0",
    vbios_version: "92.00.45.00.03",
    memory_bytes: 81_920 * (1 << 20),
    idle_watts: 60.0,
    limit_watts: 400.0,
    sm_hertz: (210e6, 1_410e6),
    memory_hertz: 1_593e6,
    has_gpm: false,
    has_fabric: false,
    nvlinks: 12,
    pcie_generation: 4,
};

/// PCI buses of an eight-GPU board: four on each socket.
const BUSES: [u8; 8] = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];
/// On this board the fourth and fifth device node are swapped: a minor number is not an index.
const MINORS: [u32; 8] = [0, 1, 2, 4, 3, 5, 6, 7];

/// (profile, the driver's number of it, compute slices, memory in GiB, memory slices)
type Partition = (&'static str, u32, u32, u64, u32);
const ONE: Partition = ("1g.10gb", 19, 1, 10, 1);
const TWO: Partition = ("2g.20gb", 14, 2, 20, 2);
const THREE: Partition = ("3g.40gb", 9, 3, 40, 4);

/// The node of a profile. The same seed makes the same UUIDs.
pub(super) fn inventory(profile: Profile, seed: u64) -> Inventory {
    let count = if profile == Profile::Empty { 0 } else { BUSES.len() };
    let gpus = (0..count).map(|index| gpu(profile, seed, index)).map(|gpu| (gpu.uuid.clone(), gpu));
    Inventory {
        missing: BTreeMap::new(),
        generation: 0,
        driver: Some(DriverInfo {
            driver_version: "570.124.06".into(),
            cuda_version: Some("12.8".into()),
            nvml_version: Some("12.570.124.06".into()),
        }),
        gpus: gpus.collect::<BTreeMap<_, _>>(),
        duplicate_uuids: BTreeMap::new(),
    }
}

fn gpu(profile: Profile, seed: u64, index: usize) -> Gpu {
    let model = profile.model();
    let partitions: &[Partition] = match (profile, index) {
        (Profile::H100Mig, 0 | 1) | (Profile::H100SevenMig, _) => &[ONE; 7],
        (Profile::H100Mig, 2) => &[THREE, TWO, ONE],
        (Profile::H100Mig, 3) => &[THREE, THREE],
        _ => &[],
    };
    Gpu {
        minor: Some(MINORS[index]),
        pci_bus_id: Some(PciBusId::new(format!("0000:{:02x}:00.0", BUSES[index]))),
        model: Some(model.name.into()),
        architecture: Some(model.architecture.into()),
        compute_capability: Some(model.compute_capability.into()),
        vbios_version: Some(model.vbios_version.into()),
        serial: Some(format!("16{:011}", scramble(seed, index as u64) % 100_000_000_000).into()),
        numa_node: Some(u32::from(index >= 4)),
        memory_bytes: Some(model.memory_bytes),
        mig_enabled: Some(!partitions.is_empty()),
        mig_devices: mig_devices(seed, index, partitions),
        mig_slices: (!partitions.is_empty()).then_some(7),
        // As on HGX and DGX boards of both models, every link goes to a switch.
        nvlink_peers: Some(NvLinkPeers { by_bus_id: BTreeMap::new(), switch_links: model.nvlinks }),
        ..Gpu::listed(GpuUuid::new(format!("GPU-{}", uuid(seed, index as u64))), index as u32)
    }
}

fn mig_devices(seed: u64, index: usize, partitions: &[Partition]) -> Vec<MigDevice> {
    let mut placement = 0;
    let numbered = partitions.iter().zip(0_u32..);
    let device = |(&(profile, profile_id, slices, gib, memory_slices), number): (&Partition, u32)| {
        let start = placement;
        placement += memory_slices;
        MigDevice {
            uuid: MigUuid::new(format!("MIG-{}", uuid(seed, 1_000 * (index as u64 + 1) + u64::from(number)))),
            index: number,
            // The driver numbers the largest profiles from 1 and the smallest from 7.
            gpu_instance: number + if slices == 1 { 7 } else { 1 },
            compute_instance: 0,
            profile: profile.into(),
            profile_id: Some(profile_id),
            placement_start: Some(start),
            slices,
            memory_bytes: Some(gib * GIB - GIB / 4),
        }
    };
    numbered.map(device).collect()
}

fn uuid(seed: u64, number: u64) -> String {
    let (high, low) = (scramble(seed, 2 * number), scramble(seed, 2 * number + 1));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff
    )
}

/// A well-mixed number from two; the same on every machine.
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
        for profile in Profile::ALL {
            assert_eq!(profile.as_str().parse(), Ok(profile));
        }
        assert!("4xb200".parse::<Profile>().unwrap_err().to_string().contains("8xh100-mig"));
    }

    #[test]
    fn every_device_has_its_own_name() {
        let node = inventory(Profile::H100Mig, 7);
        let gpus: BTreeSet<_> = node.gpus.keys().collect();
        let migs: BTreeSet<_> = node.gpus.values().flat_map(|gpu| &gpu.mig_devices).map(|mig| &mig.uuid).collect();
        assert_eq!((gpus.len(), migs.len()), (8, 7 + 7 + 3 + 2));
        assert!(node.gpus.values().any(|gpu| gpu.minor != gpu.index));
        assert_eq!(node, inventory(Profile::H100Mig, 7));
        assert_ne!(node, inventory(Profile::H100Mig, 8));
    }

    #[test]
    fn every_link_goes_to_a_switch() {
        for (profile, links) in [(Profile::H100, 18), (Profile::A100, 12)] {
            for gpu in inventory(profile, 1).gpus.values() {
                let peers = gpu.nvlink_peers.clone().unwrap();
                assert_eq!((peers.by_bus_id.len(), peers.switch_links), (0, links));
            }
        }
    }

    #[test]
    fn instances_fit_into_the_gpu() {
        let gpus = [Profile::H100Mig, Profile::H100SevenMig].map(|profile| inventory(profile, 1).gpus);
        for gpu in gpus.iter().flat_map(|gpus| gpus.values()) {
            assert!(gpu.mig_devices.iter().map(|mig| mig.slices).sum::<u32>() <= 7);
            let instances: BTreeSet<_> = gpu.mig_devices.iter().map(|mig| mig.gpu_instance).collect();
            assert_eq!(instances.len(), gpu.mig_devices.len());
        }
    }
}
