//! Memory of the node, by the blocks of the kubelet's memory manager.

use std::collections::BTreeMap;

use super::family::Family;
use super::labels::Labels;
use super::resources::{allocatable, allocations, numa_nodes};
use crate::domain::model::{Allocations, MemoryBlock, Snapshot};

/// Adds allocatable and reserved bytes. `reserved` is absent where the kubelet lists more than it can have reserved.
pub fn node_memory(snapshot: &Snapshot, family: &mut Family) {
    let Some(allocatable) = allocatable(snapshot) else { return };
    let total = by_type_and_numa(&allocatable.memory);
    for (kind, bytes) in &total {
        family.push(kind.labels().and("state", "allocatable"), *bytes);
    }
    let excess = memory_excess(snapshot);
    for allocations in allocations(snapshot) {
        let mut reserved = by_type_and_numa(reserved_blocks(allocations));
        for kind in total.keys().cloned() {
            reserved.entry(kind).or_default();
        }
        for (kind, bytes) in
            reserved.iter().filter(|(kind, _)| excess.get(kind.memory_type).is_none_or(|bytes| *bytes == 0))
        {
            family.push(kind.labels().and("state", "reserved"), *bytes);
        }
    }
}

/// The reserved blocks. Where a pod has blocks, those of its containers are part of them and are skipped.
fn reserved_blocks(allocations: &Allocations) -> impl Iterator<Item = &MemoryBlock> {
    allocations.pods.iter().flat_map(|pod| {
        let of_containers = pod.containers.iter().flat_map(|container| &container.memory);
        let of_containers = of_containers.filter(|_| pod.memory.is_empty());
        pod.memory.iter().chain(of_containers)
    })
}

/// How much more is listed as reserved than is allocatable, of each type: on the same NUMA nodes or in all.
pub fn memory_excess(snapshot: &Snapshot) -> BTreeMap<&str, u64> {
    let (Some(allocatable), Some(allocations)) = (allocatable(snapshot), allocations(snapshot).next()) else {
        return BTreeMap::new();
    };
    let (total, reserved) = (by_type_and_numa(&allocatable.memory), by_type_and_numa(reserved_blocks(allocations)));
    let of_type = |sums: &BTreeMap<MemoryKind<'_>, u64>, memory_type: &str| {
        let its = sums.iter().filter(|(kind, _)| kind.memory_type == memory_type);
        its.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
    };
    let mut excess = BTreeMap::new();
    for MemoryKind { memory_type, .. } in total.keys() {
        let on_nodes = reserved.iter().filter(|(kind, _)| kind.memory_type == *memory_type);
        let on_nodes = on_nodes.filter_map(|(kind, bytes)| Some(bytes.saturating_sub(*total.get(kind)?))).max();
        let in_all = of_type(&reserved, memory_type).saturating_sub(of_type(&total, memory_type));
        excess.insert(*memory_type, in_all.max(on_nodes.unwrap_or(0)));
    }
    excess
}

/// What the blocks of one series have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryKind<'a> {
    memory_type: &'a str,
    numa_nodes: Option<String>,
}

impl MemoryKind<'_> {
    pub fn labels(&self) -> Labels {
        Labels::new("memory_type", self.memory_type).and_known("numa_node", self.numa_nodes.as_ref())
    }
}

pub fn by_type_and_numa<'b>(blocks: impl IntoIterator<Item = &'b MemoryBlock>) -> BTreeMap<MemoryKind<'b>, u64> {
    let mut sums = BTreeMap::new();
    for block in blocks {
        let kind = MemoryKind { memory_type: &block.memory_type, numa_nodes: numa_nodes(&block.numa_nodes) };
        let sum: &mut u64 = sums.entry(kind).or_default();
        *sum = sum.saturating_add(block.bytes);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::resources::tests::with;
    use crate::serve::metrics::tests::value;

    #[test]
    fn memory_of_a_pod_covers_that_of_its_containers() {
        let page = with(|allocations, _| {
            let pod = allocations.pods.last_mut().unwrap();
            pod.containers[0].memory = pod.memory.clone();
        });
        let labels = [("memory_type", "memory"), ("numa_node", "1"), ("state", "reserved")];
        assert_eq!(value(&page, "podmeter_node_memory_bytes", &labels), Some(f64::from(1 << 30)));
    }

    #[test]
    fn more_reserved_than_allocatable_memory_is_absent_and_counted() {
        let state = |page: &[Family], memory_type, state| {
            value(
                page,
                "podmeter_node_memory_bytes",
                &[("memory_type", memory_type), ("numa_node", "1"), ("state", state)],
            )
        };
        let excess = |page: &[Family]| value(page, "podmeter_node_memory_excess_bytes", &[("memory_type", "memory")]);
        let page = with(|_, _| {});
        assert_eq!((state(&page, "memory", "reserved").is_some(), excess(&page)), (true, Some(0.0)));
        let allocatable = state(&page, "memory", "allocatable");
        let ended = |nodes: &'static [i64]| {
            with(move |allocations, allocatable| {
                let all: u64 = allocatable
                    .memory
                    .iter()
                    .filter(|block| &*block.memory_type == "memory")
                    .map(|block| block.bytes)
                    .sum();
                let pod = allocations.pods.last_mut().unwrap();
                let numa_nodes = nodes.iter().copied().collect();
                pod.memory = vec![MemoryBlock { memory_type: "memory".into(), numa_nodes, bytes: all + 7 }];
            })
        };
        for page in [ended(&[1]), ended(&[0, 1])] {
            assert_eq!(
                (state(&page, "memory", "reserved"), state(&page, "memory", "allocatable")),
                (None, allocatable)
            );
            assert!(excess(&page) >= Some(7.0));
            let labels = [("memory_type", "hugepages-2Mi"), ("state", "reserved")];
            assert!(value(&page, "podmeter_node_memory_bytes", &labels).is_some(), "of another type");
        }
        let page = with(|_, allocatable| allocatable.memory.clear());
        assert_eq!(excess(&page), None, "a kubelet without the memory manager");
    }
}
