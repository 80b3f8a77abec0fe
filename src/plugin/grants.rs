//! What Allocate granted, compared with what containers hold. A device that a container holds and that was not granted
//! here was allocated by another plugin. Pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Allocations, ContainerRef, DeviceId, Monotonic, ResourceName};

#[derive(Debug, Default)]
pub struct Grants {
    /// Granted, and no container has been seen with it since. A pod that is rejected after its Allocate leaves its
    /// devices here until they are granted again.
    pending: BTreeSet<DeviceId>,
    /// The last known containers of each device. They stay when the device is free again: a kubelet that restarts may
    /// list nothing for a moment.
    holders: BTreeMap<DeviceId, BTreeSet<ContainerRef>>,
    granted_at: Option<Monotonic>,
}

/// A device that another plugin allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignAllocation {
    pub device: DeviceId,
    pub container: ContainerRef,
}

impl Grants {
    pub fn grant(&mut self, devices: impl IntoIterator<Item = DeviceId>, now: Monotonic) {
        self.pending.extend(devices);
        self.granted_at = Some(now);
    }

    /// When the kubelet last allocated through this plugin.
    pub fn granted_at(&self) -> Option<Monotonic> {
        self.granted_at
    }

    /// The first device that a container holds without a grant.
    pub fn compare(&mut self, resource: &ResourceName, allocations: &Allocations) -> Option<ForeignAllocation> {
        let mut now: BTreeMap<&DeviceId, BTreeSet<&ContainerRef>> = BTreeMap::new();
        for container in allocations.containers() {
            for held in container.devices.iter().filter(|held| held.resource == *resource) {
                now.entry(&held.id).or_default().insert(&container.reference);
            }
        }
        let mut foreign = None;
        for (device, containers) in now {
            let before = self.holders.get(device);
            let new: Vec<_> = containers
                .iter()
                .filter(|container| before.is_none_or(|before| !before.contains(**container)))
                .collect();
            // One grant is for one container: the kubelet calls Allocate once for each.
            if let (Some(container), false) = (new.first(), self.pending.remove(device)) {
                foreign.get_or_insert_with(|| ForeignAllocation {
                    device: device.clone(),
                    container: (**container).clone(),
                });
            }
            if !new.is_empty() || before.is_some_and(|before| before.len() != containers.len()) {
                self.holders.insert(device.clone(), containers.into_iter().cloned().collect());
            }
        }
        foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Container, CpuSet, HeldDevice, Pod, PodRef};

    const GPU: &str = "nvidia.com/gpu";

    fn allocations(held: &[(&str, &str)]) -> Allocations {
        let pod = |(pod, device): &(&str, &str)| {
            let devices = vec![HeldDevice { resource: GPU.into(), id: (*device).into(), numa_nodes: BTreeSet::new() }];
            let container = Container {
                reference: ContainerRef::new("team", pod, "main"),
                devices,
                claims: vec![],
                exclusive_cpus: CpuSet::default(),
                memory: vec![],
            };
            Pod {
                reference: PodRef::new("team", pod),
                uid: None,
                containers: vec![container],
                exclusive_cpus: CpuSet::default(),
                memory: vec![],
            }
        };
        Allocations { pods: held.iter().map(pod).collect() }
    }

    fn compare(grants: &mut Grants, held: &[(&str, &str)]) -> Option<String> {
        let foreign = grants.compare(&GPU.into(), &allocations(held));
        foreign.map(|foreign| format!("{} of {}", foreign.device, foreign.container.pod))
    }

    #[test]
    fn what_was_not_granted_was_allocated_by_another() {
        let mut grants = Grants::default();
        compare(&mut grants, &[("before", "a")]);
        grants.grant(["b".into()], Monotonic::from_secs(1));
        assert_eq!(compare(&mut grants, &[("before", "a")]), None, "not listed yet");
        assert_eq!(compare(&mut grants, &[("before", "a"), ("ours", "b")]), None);
        let with_theirs = [("before", "a"), ("ours", "b"), ("theirs", "c")];
        assert_eq!(compare(&mut grants, &with_theirs), Some("c of theirs".into()));
        assert_eq!(compare(&mut grants, &with_theirs), None, "reported once");
        assert_eq!(compare(&mut grants, &[("next", "b")]), Some("b of next".into()), "the grant was used");
    }

    #[test]
    fn a_kubelet_that_lists_nothing_for_a_moment_allocates_nothing() {
        let mut grants = Grants::default();
        compare(&mut grants, &[("before", "a")]);
        assert_eq!(compare(&mut grants, &[]), None);
        assert_eq!(compare(&mut grants, &[("before", "a")]), None);
    }

    #[test]
    fn other_resources_do_not_count() {
        let mut grants = Grants::default();
        assert_eq!(grants.compare(&"nvidia.com/mig-1g.10gb".into(), &allocations(&[("theirs", "a")])), None);
    }
}
