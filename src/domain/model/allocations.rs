//! The kubelet's allocations: which container was given which devices, CPUs and memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use itertools::Itertools as _;
use serde::{Serialize, Serializer};

use super::{ClaimDevice, ContainerRef, DeviceId, PodRef, PodUid, ResourceName};

/// Which container was given which devices, from the kubelet's `List`. Sorted, each device once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    pub pods: Vec<Pod>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub reference: PodRef,
    /// The UID in cgroups and directories. `None` while no source has it: `List` has no UIDs.
    pub uid: Option<PodUid>,
    pub containers: Vec<Container>,
    /// The pod-level exclusive CPUs (kubelet 1.37); those of containers are a subset, not an addition.
    pub exclusive_cpus: CpuSet,
    pub memory: Vec<MemoryBlock>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub reference: ContainerRef,
    pub devices: Vec<HeldDevice>,
    pub claims: Vec<ClaimDevice>,
    pub exclusive_cpus: CpuSet,
    pub memory: Vec<MemoryBlock>,
}

/// One device of an extended resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldDevice {
    pub resource: ResourceName,
    pub id: DeviceId,
    /// The NUMA nodes; empty when the plugin gave no topology.
    pub numa_nodes: BTreeSet<i64>,
}

/// A block of the memory manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryBlock {
    /// The type: `memory` or `hugepages-<size>`.
    pub memory_type: Arc<str>,
    pub numa_nodes: BTreeSet<i64>,
    pub bytes: u64,
}

/// What the kubelet can allocate: healthy devices, allocated or not; CPUs and memory under the static policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    pub devices: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    pub cpus: CpuSet,
    pub memory: Vec<MemoryBlock>,
}

impl Allocations {
    /// The held devices by resource.
    pub fn held_devices(&self) -> BTreeMap<&ResourceName, BTreeSet<&DeviceId>> {
        let mut held: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for device in self.containers().flat_map(|container| &container.devices) {
            held.entry(&device.resource).or_default().insert(&device.id);
        }
        held
    }

    pub fn containers(&self) -> impl Iterator<Item = &Container> {
        self.pods.iter().flat_map(|pod| &pod.containers)
    }

    /// The listed pod of this name.
    pub fn pod(&self, reference: &PodRef) -> Option<&Pod> {
        let position = self.pods.binary_search_by(|pod| pod.reference.cmp(reference)).ok()?;
        self.pods.get(position)
    }

    /// The listed container of these names.
    pub fn container(&self, names: &ContainerRef) -> Option<&Container> {
        self.pod(&names.pod_ref())?.containers.iter().find(|listed| listed.reference.has_names_of(names))
    }
}

impl Pod {
    pub fn has_devices(&self) -> bool {
        self.containers.iter().any(|container| !container.devices.is_empty() || !container.claims.is_empty())
    }
}

/// CPU numbers, in the kernel's list format: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }

    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.iter().map(|cpu| (*cpu, *cpu)).coalesce(|(first, last), next| {
            if last.checked_add(1) == Some(next.0) { Ok((first, next.1)) } else { Err(((first, last), next)) }
        });
        let range = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
        formatter.write_str(&ranges.map(range).join(","))
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_sets_print_as_ranges() {
        for (cpus, expected) in [
            (vec![], ""),
            (vec![3], "3"),
            (vec![0, 1, 2, 3, 8], "0-3,8"),
            (vec![5, 4, 9, 10], "4-5,9-10"),
            (vec![u32::MAX - 1, u32::MAX], "4294967294-4294967295"),
        ] {
            assert_eq!(cpus.into_iter().collect::<CpuSet>().to_string(), expected);
        }
    }
}
