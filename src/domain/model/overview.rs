//! The values of devices, resources and the node that page, `top` and metrics share: a part of each snapshot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{GpuUuid, MigUuid, ResourceName};

/// The values that the page and `top` show of a snapshot, computed once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overview {
    /// Each GPU, followed by its MIG devices.
    pub devices: Vec<DeviceOverview>,
    pub resources: BTreeMap<ResourceName, ResourceCount>,
    pub node: NodeOverview,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DeviceOverview {
    pub gpu: GpuUuid,
    pub mig: Option<MigUuid>,
    /// Whether it can be allocated; `None` until the kubelet has answered.
    pub state: Option<DeviceState>,
    /// How busy it is now: `summary::busy_ratio`.
    pub busy_ratio: Option<f64>,
    /// The number of slots of a shared device.
    pub slots: Option<usize>,
    /// The number of slots that a container can get; 0 for a device that is not healthy or not present.
    pub free_slots: Option<usize>,
}

/// Whether a device can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// No container holds it, and it is healthy and present.
    Free,
    Held,
    /// A GPU with MIG devices: these are free or held.
    Partitioned,
    /// No container holds it, and the NVIDIA driver is not expected to serve it.
    Unserved,
    /// No container holds it, and it is not healthy or not present.
    Unavailable,
}

/// The numbers of devices of one extended resource, of any vendor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceCount {
    /// The healthy devices in the kubelet's list.
    pub allocatable: usize,
    /// The allocated devices; `None` until the kubelet has answered.
    pub allocated: Option<usize>,
    /// The devices that pods can still get: allocatable minus allocated, at least 0, without those whose hardware is
    /// held under another name.
    pub free: Option<usize>,
    /// The devices that are allocated, but not allocatable. The scheduler subtracts them twice, until their pods end.
    pub held_unhealthy: Option<usize>,
    /// The unhealthy devices; `None` where the bundled plugin does not serve the resource.
    pub unhealthy: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeOverview {
    pub gpus: usize,
    /// The sum of the fractions of GPUs that are held; `None` where one is unknown.
    pub allocated_gpus: Option<f64>,
    pub free_gpus: usize,
    pub mig_devices: usize,
    pub free_mig_devices: usize,
    /// The mean of the GPUs whose `busy_ratio` is known.
    pub busy_ratio: Option<f64>,
    /// The number of these GPUs.
    pub busy_known: usize,
}

impl Overview {
    pub fn device(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Option<&DeviceOverview> {
        self.devices.iter().find(|device| device.gpu == *gpu && device.mig.as_ref() == mig)
    }

    /// The number of its free slots or MIG devices, and of all of them.
    pub fn free_parts(&self, device: &DeviceOverview) -> Option<(usize, usize)> {
        if let Some(slots) = device.slots {
            return Some((device.free_slots?, slots));
        }
        let parts = || self.devices.iter().filter(|part| part.gpu == device.gpu && part.mig.is_some());
        let free = parts().filter(|part| part.state == Some(DeviceState::Free)).count();
        (device.state == Some(DeviceState::Partitioned)).then(|| (free, parts().count()))
    }
}
