//! The resources that plugins and DRA drivers offer of simulated hardware.
//!
//! In: an inventory, or an allocated device of a claim. Out: devices with their IDs.

use std::collections::BTreeMap;

use crate::domain::model::{GpuUuid, Inventory};
use crate::simulation::dra_driver::AllocatedDevice;

/// A resource and its devices.
#[derive(Clone, Debug)]
pub struct SimulatedResource {
    pub name: String,
    pub devices: Vec<SimulatedDevice>,
}

#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    pub id: String,
    pub gpu: GpuUuid,
    /// The GPU instance; `None`: the whole GPU, or one slot of it.
    pub gpu_instance: Option<u32>,
}

/// How many slots a vendor's plugin makes of each whole GPU; `None`: it offers whole GPUs.
pub type Replicas = Option<usize>;

/// The resources that a vendor's plugin with the `mixed` strategy would offer of this hardware.
pub fn resources(inventory: &Inventory, replicas: Replicas) -> Vec<SimulatedResource> {
    let mut resources: BTreeMap<String, Vec<SimulatedDevice>> = BTreeMap::new();
    for gpu in inventory.gpus.values() {
        let device = |id, gpu_instance| SimulatedDevice { id, gpu: gpu.uuid.clone(), gpu_instance };
        if gpu.mig_enabled == Some(true) {
            for mig in &gpu.mig_devices {
                let name = format!("nvidia.com/mig-{}", mig.profile.replace('+', "."));
                resources.entry(name).or_default().push(device(mig.uuid.to_string(), Some(mig.gpu_instance)));
            }
        } else {
            let ids: Vec<String> = match replicas {
                Some(replicas) => (0..replicas).map(|slot| format!("{}::{slot}", gpu.uuid)).collect(),
                None => vec![gpu.uuid.to_string()],
            };
            let devices = ids.into_iter().map(|id| device(id, None));
            resources.entry("nvidia.com/gpu".to_owned()).or_default().extend(devices);
        }
    }
    resources.into_iter().map(|(name, devices)| SimulatedResource { name, devices }).collect()
}

pub fn device_of_claim(device: &AllocatedDevice) -> SimulatedDevice {
    SimulatedDevice {
        id: format!("claim/{}", device.name),
        gpu: device.gpu.clone(),
        gpu_instance: device.mig.as_ref().map(|mig| mig.gpu_instance),
    }
}
