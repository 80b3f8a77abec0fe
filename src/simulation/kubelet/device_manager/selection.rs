//! Which devices a container gets.
//!
//! In: the healthy and assigned devices of a resource, the number requested, and the plugin's preference. Out: the
//! devices, or the kubelet's error. Does not use: plugins.

use std::collections::BTreeSet;

use super::{AssignmentKey, DeviceManager};
use crate::simulation::random::Random;

/// What to allocate to one container of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelection {
    /// Nothing to do: no plugin serves the resource, or the container has its devices already.
    Nothing,
    /// Take these; there is no choice.
    Take(Vec<String>),
    /// Choose among `available`, with all of `must`.
    Choose { available: Vec<String>, must: Vec<String> },
}

impl DeviceManager {
    /// The devices that a container could be given. `reusable`: those of the pod's earlier init containers.
    pub fn select(
        &self,
        key: &AssignmentKey,
        wanted: usize,
        reusable: &BTreeSet<String>,
        random: &mut Random,
    ) -> Result<DeviceSelection, String> {
        let name = &key.2;
        let Some(resource) = self.resources.get(name) else {
            return match self.assignments.keys().any(|(_, _, assigned)| assigned == name) {
                true => Err(format!("cannot allocate unregistered device {name}")),
                false => Ok(DeviceSelection::Nothing),
            };
        };
        if wanted == 0 {
            return Ok(DeviceSelection::Nothing);
        }
        if resource.healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {name}"));
        }
        // Only a pod that is admitted again, after a restart of the kubelet or the machine, holds devices already.
        if let Some(held) = self.assignments.get(key) {
            return match held.by_node.values().flatten().all(|id| resource.healthy.contains(id)) {
                true => Ok(DeviceSelection::Nothing),
                false => Err(format!(
                    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {name}"
                )),
            };
        }
        let mut must: Vec<String> = reusable.intersection(&resource.healthy).take(wanted).cloned().collect();
        let held = self.held(name);
        let mut free: Vec<String> = resource.healthy.difference(&held).cloned().collect();
        let needed = wanted - must.len();
        if free.len() < needed {
            let available = free.len();
            return Err(format!(
                "requested number of devices unavailable for {name}. Requested: {needed}, Available: {available}"
            ));
        }
        if needed == 0 {
            return Ok(DeviceSelection::Take(must));
        }
        random.shuffle(&mut free);
        if free.len() == needed {
            must.append(&mut free);
            return Ok(DeviceSelection::Take(must));
        }
        free.extend(must.iter().cloned());
        Ok(DeviceSelection::Choose { available: free, must })
    }

    /// The final choice: the preferred devices that are available, then the others.
    pub fn choose(available: &[String], must: &[String], preferred: &[String], wanted: usize) -> Vec<String> {
        let mut chosen = must.to_vec();
        for id in preferred.iter().chain(available) {
            if chosen.len() < wanted && available.contains(id) && !chosen.contains(id) {
                chosen.push(id.clone());
            }
        }
        chosen
    }

    fn held(&self, resource: &str) -> BTreeSet<String> {
        let assigned = self.assignments.iter().filter(|((_, _, name), _)| name == resource);
        assigned.flat_map(|(_, assignment)| assignment.by_node.values().flatten().cloned()).collect()
    }
}
