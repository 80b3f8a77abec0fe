//! The places of GPUs. In: index, NUMA node, PCI path, NVLinks. Out: the score of the link between each two.

use std::collections::BTreeMap;

use crate::domain::model::GpuUuid;

/// The place of each GPU, and the score of the link between each two of them: higher is closer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    locations: BTreeMap<GpuUuid, GpuLocation>,
    /// The score that each end reports, by the reporter, then by the other end.
    reported: BTreeMap<GpuUuid, BTreeMap<GpuUuid, u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLocation {
    pub index: u32,
    pub numa_node: Option<i64>,
}

/// How two GPUs are connected over PCIe, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciRelation {
    SameBoard,
    SingleSwitch,
    MultiSwitch,
    HostBridge,
    SameCpu,
    CrossCpu,
}

/// A GPU in the PCI tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciGpu {
    pub uuid: GpuUuid,
    pub location: GpuLocation,
    /// The real path of its sysfs directory, from `pci0000:00` on (any prefix is ignored):
    /// `pci0000:00/0000:00:01.0/0000:01:00.0`.
    pub path: String,
}

/// The score of one NVLink between two GPUs.
const NVLINK: u32 = 100;
/// More links than any GPU has, so that sums of wrong counts do not overflow.
const MOST_NVLINKS: u32 = 1000;

impl PciRelation {
    /// The scores of NVIDIA's allocator.
    #[must_use]
    pub const fn score(self) -> u32 {
        match self {
            Self::SameBoard => 60,
            Self::SingleSwitch => 50,
            Self::MultiSwitch => 40,
            Self::HostBridge => 30,
            Self::SameCpu => 20,
            Self::CrossCpu => 10,
        }
    }

    /// How two GPUs are connected; `None` when the paths cannot be two devices of one machine.
    fn between(left: &PciGpu, right: &PciGpu) -> Option<Self> {
        let (left_path, right_path) = (components(&left.path)?, components(&right.path)?);
        let common = left_path.iter().zip(&right_path).take_while(|(left, right)| left == right).count();
        let below = (left_path.len() - common).max(right_path.len() - common);
        if left_path.len() == common || right_path.len() == common {
            return None;
        }
        Some(match common {
            // GPUs without a NUMA node belong to the only one.
            0 if left.location.numa_node == right.location.numa_node => Self::SameCpu,
            0 => Self::CrossCpu,
            1 => Self::HostBridge,
            // The shared bridge is a switch's upstream port; below it are a downstream port and the device.
            _ if same_slot(left_path[common], right_path[common]) && below == 1 => Self::SameBoard,
            _ if below <= 2 => Self::SingleSwitch,
            _ => Self::MultiSwitch,
        })
    }
}

/// The root and the functions below it; `None` when there is no root or nothing below.
fn components(path: &str) -> Option<Vec<&str>> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let root = parts.iter().position(|part| part.starts_with("pci") && part.contains(':'))?;
    (parts.len() > root + 1).then(|| parts[root..].to_vec())
}

/// Whether both are functions of one device, such as `0000:03:00.0` and `0000:03:00.1`.
fn same_slot(left: &str, right: &str) -> bool {
    matches!((left.rsplit_once('.'), right.rsplit_once('.')), (Some((left, _)), Some((right, _))) if left == right)
}

impl Topology {
    /// A topology without known links.
    pub fn new(locations: BTreeMap<GpuUuid, GpuLocation>) -> Self {
        Self { locations, reported: BTreeMap::new() }
    }

    /// A topology with the scores of the PCI tree, plus 100 for each NVLink. `nv_links`: the number that each end
    /// reports, (reporter, other) → links; a pair that neither end reports has none. The pairs of an invalid path have
    /// no link.
    pub fn from_pci(gpus: &[PciGpu], nv_links: &BTreeMap<(GpuUuid, GpuUuid), u32>) -> Self {
        let mut topology = Self::new(gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.location)).collect());
        for left in gpus {
            for right in gpus.iter().filter(|right| right.uuid != left.uuid) {
                let Some(relation) = PciRelation::between(left, right) else { continue };
                let pair = (left.uuid.clone(), right.uuid.clone());
                let links = nv_links.get(&pair).copied().unwrap_or(0).min(MOST_NVLINKS);
                topology.link_as_reported(&pair.0, &pair.1, relation.score() + NVLINK * links);
            }
        }
        topology
    }

    /// Sets the score that one end reports, which counts if the other one reports it too.
    pub fn link_as_reported(&mut self, reporter: &GpuUuid, other: &GpuUuid, score: u32) {
        let score = score.min(PciRelation::SameBoard.score() + NVLINK * MOST_NVLINKS);
        self.reported.entry(reporter.clone()).or_default().insert(other.clone(), score);
    }

    pub fn location(&self, gpu: &GpuUuid) -> Option<GpuLocation> {
        self.locations.get(gpu).copied()
    }

    pub(super) fn reported(&self, reporter: &GpuUuid, other: &GpuUuid) -> Option<u32> {
        self.reported.get(reporter)?.get(other).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(path: &str, numa_node: Option<i64>) -> PciGpu {
        PciGpu { uuid: path.into(), location: GpuLocation { index: 0, numa_node }, path: path.to_owned() }
    }

    #[test]
    fn paths_show_the_link_of_two_gpus() {
        let switch = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let cases = [
            (
                format!("{switch}/0000:02:00.0/0000:03:00.0"),
                format!("{switch}/0000:02:01.0/0000:04:00.0"),
                "SingleSwitch",
            ),
            (
                format!("{switch}/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0"),
                format!("{switch}/0000:02:01.0/0000:06:00.0"),
                "MultiSwitch",
            ),
            (
                format!("{switch}/0000:02:00.0/0000:03:00.0"),
                "pci0000:00/0000:00:02.0/0000:09:00.0".into(),
                "HostBridge",
            ),
            ("pci0000:00/0000:00:05.0".into(), "pci0000:00/0000:00:06.0".into(), "HostBridge"),
            (format!("{switch}/0000:02:00.0/0000:03:00.0"), "pci0000:40/0000:40:02.0/0000:41:00.0".into(), "SameCpu"),
            ("pci0000:00/0000:00:01.0/0000:01:00.0".into(), "pci0000:00/0000:00:01.0/0000:01:00.1".into(), "SameBoard"),
        ];
        for (left, right, expected) in cases {
            let (left, right) = (gpu(&left, Some(0)), gpu(&right, Some(0)));
            for (left, right) in [(&left, &right), (&right, &left)] {
                assert_eq!(format!("{:?}", PciRelation::between(left, right).unwrap()), expected, "{left:?} {right:?}");
            }
        }
        let (near, far) = ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0");
        let relation = |left, right| PciRelation::between(&gpu(near, left), &gpu(far, right));
        assert_eq!(relation(Some(0), Some(1)), Some(PciRelation::CrossCpu));
        assert_eq!(relation(Some(0), None), Some(PciRelation::CrossCpu));
        assert_eq!(relation(None, None), Some(PciRelation::SameCpu));
    }

    #[test]
    fn paths_that_make_no_sense_are_no_links() {
        let sane = "pci0000:00/0000:00:01.0/0000:01:00.0";
        for odd in ["", "/", "pci0000:00", "0000:01:00.0", sane, "pci0000:00/0000:00:01.0", "\u{fffd}//.."] {
            assert_eq!(PciRelation::between(&gpu(sane, None), &gpu(odd, None)), None, "{odd}");
        }
    }

    #[test]
    fn nvlinks_add_to_the_pci_score_as_each_end_reports_them() {
        let gpus =
            [gpu("pci0000:00/0000:00:01.0/0000:01:00.0", None), gpu("pci0000:00/0000:00:02.0/0000:02:00.0", None)];
        let [left, right] = [gpus[0].uuid.clone(), gpus[1].uuid.clone()];
        let topology = Topology::from_pci(&gpus, &BTreeMap::from([((left.clone(), right.clone()), 18)]));
        assert_eq!(topology.reported(&left, &right), Some(1830));
        assert_eq!(topology.reported(&right, &left), Some(30));
    }
}
