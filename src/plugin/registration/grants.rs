//! Decides whether this registration granted the devices that containers hold. Pure.
//!
//! In: answers of the kubelet, and how often this registration granted each device. Out: a device that another plugin granted.

use std::collections::{BTreeMap, BTreeSet};

use super::conflict::{Observed, REMEDY};
use crate::domain::model::{DeviceId, ResourceName};
use crate::plugin::host::sockets;

/// The held devices of a resource, compared with the grants of this registration.
#[derive(Debug, Default)]
pub struct Grants {
    /// The devices held in the last answer; `None` before the first.
    held: Option<BTreeSet<DeviceId>>,
    /// The devices held in the kubelet's checkpoint that are not listed yet.
    checkpoint: BTreeSet<DeviceId>,
    /// The number of grants of each device when it was last listed.
    seen: BTreeMap<DeviceId, u64>,
    /// A device that another plugin granted, as the text of a conflict.
    pub other: Option<String>,
}

impl Grants {
    pub fn compare(&mut self, resource: &ResourceName, now: &Observed<'_>) {
        if !now.kubelet.settled {
            return;
        }
        let devices = now.kubelet.holding_containers().flat_map(|container| &container.devices);
        let held: BTreeSet<DeviceId> =
            devices.filter(|device| device.resource == *resource).map(|device| device.id.clone()).collect();
        let rolling_update = now.live.iter().any(|name| sockets::is_a_podmeters(name, resource));
        let before = self.held.replace(held);
        let held = self.held.iter().flatten();
        let Some(before) = before.filter(|_| !rolling_update) else {
            // An earlier plugin granted these devices, or another podmeter.
            let checkpoint =
                now.kubelet.held_in_checkpoint.iter().filter(|(held, _)| held == resource).map(|(_, id)| id);
            let is_held = |id: &&DeviceId| self.held.as_ref().is_some_and(|held| held.contains(*id));
            self.checkpoint = checkpoint.filter(|id| !is_held(id)).cloned().collect();
            let granted = now.granted.iter().filter(|(id, _)| is_held(id));
            self.seen = granted.map(|(id, count)| (id.clone(), *count)).collect();
            return;
        };
        for id in held.filter(|id| !before.contains(*id)) {
            let granted = now.granted.get(id).copied().unwrap_or(0);
            let is_ours = self.seen.insert(id.clone(), granted).unwrap_or(0) < granted;
            if !self.checkpoint.remove(id) && !is_ours {
                self.other = Some(format!(
                    "the kubelet gave {id} to a container without a call to this plugin: another device plugin serves {resource}; \
                     {REMEDY}"
                ));
            }
        }
    }
}
