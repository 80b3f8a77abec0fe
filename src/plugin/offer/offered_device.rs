//! What a resource offers: its devices, the hardware behind each, and why it is unhealthy.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::domain::model::{
    DeviceId, DeviceRef, Gpu, GpuUuid, MigDevice, MigUuid, PluginUnhealthyReason, ResourceName, UnhealthyReason,
};
use crate::wire::v1beta1::DeviceSpec;

/// A resource and its devices, sorted by ID. A device that was offered stays until the registration ends: it becomes
/// unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub resource: ResourceName,
    pub devices: Vec<OfferedDevice>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedDevice {
    pub id: DeviceId,
    /// The NUMA nodes; empty where they are unknown, and then the list has no topology.
    pub numa_nodes: BTreeSet<i64>,
    pub health: OfferedHealth,
    pub hardware: OfferedHardware,
}

/// The health of a device in the list, and the reason.
pub type OfferedHealth = Result<(), PluginUnhealthy>;

/// Why a device is offered as unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginUnhealthy {
    pub reason: PluginUnhealthyReason,
    /// The reason in words, for operators: a refused allocation quotes it.
    pub detail: Arc<str>,
    /// Whether the device was ever checked: the first healthy check is no transition.
    pub known: bool,
}

impl PluginUnhealthy {
    pub fn new(reason: PluginUnhealthyReason, detail: impl Into<Arc<str>>) -> Self {
        Self { reason, detail: detail.into(), known: true }
    }

    pub fn device(reason: UnhealthyReason, detail: impl Into<Arc<str>>) -> Self {
        Self::new(PluginUnhealthyReason::Device(reason), detail)
    }

    /// Whether the health is unknown: not checked yet, or the driver is refused or released for too long.
    pub fn is_unchecked(&self) -> bool {
        self.reason == PluginUnhealthyReason::Device(UnhealthyReason::Unknown)
    }

    /// Whether the reason is the plugin's: it logs only these, `agent::health` logs the health of devices.
    pub fn is_own(&self) -> bool {
        !matches!(self.reason, PluginUnhealthyReason::Device(_))
    }
}

impl Offer {
    pub fn device(&self, id: &DeviceId) -> Option<&OfferedDevice> {
        let position = self.devices.binary_search_by(|device| device.id.cmp(id)).ok()?;
        Some(&self.devices[position])
    }
}

impl OfferedDevice {
    /// A healthy device without a known NUMA node.
    pub fn new(id: impl Into<DeviceId>, hardware: OfferedHardware) -> Self {
        Self { id: id.into(), numa_nodes: BTreeSet::new(), health: Ok(()), hardware }
    }

    /// Whether its hardware is missing, or its GPU no longer has it.
    pub fn is_absent(&self) -> bool {
        use PluginUnhealthyReason::{Device, Layout, Unplugged};
        let reason = self.health.as_ref().err().map(|unhealthy| unhealthy.reason);
        matches!(reason, Some(Layout | Unplugged | Device(UnhealthyReason::Lost)))
    }

    /// Whether it is one of several slots of the same hardware. For the IDs of any plugin: `DeviceId::is_slot`.
    pub fn is_slot(&self) -> bool {
        self.id.as_str().contains("::")
    }
}

/// The hardware of a device ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferedHardware {
    Gpu {
        uuid: GpuUuid,
        index: u32,
        minor: Option<u32>,
    },
    Mig {
        uuid: MigUuid,
        gpu: GpuUuid,
        gpu_index: u32,
        /// The driver's index of the MIG device on its GPU, which `nvidia-ctk` uses too.
        index: u32,
        minor: Option<u32>,
        gpu_instance: u32,
        compute_instance: u32,
    },
    /// A GPU that the driver does not enumerate, or a MIG device or slot on it: only the kubelet's ID is known.
    Missing(GpuUuid),
    Nodes(Arc<[DeviceSpec]>),
    /// No hardware: a simulated device.
    Nothing,
}

impl OfferedHardware {
    /// A whole GPU with this index of the driver.
    pub fn of_gpu(gpu: &Gpu, index: u32) -> Self {
        Self::Gpu { uuid: gpu.uuid.clone(), index, minor: gpu.minor }
    }

    /// A MIG device of the GPU with this index.
    pub fn of_mig(gpu: &Gpu, gpu_index: u32, mig: &MigDevice) -> Self {
        Self::Mig {
            uuid: mig.uuid.clone(),
            gpu: gpu.uuid.clone(),
            gpu_index,
            index: mig.index,
            minor: gpu.minor,
            gpu_instance: mig.gpu_instance,
            compute_instance: mig.compute_instance,
        }
    }

    /// The UUID and the index, which the two device ID strategies use.
    pub fn names(&self) -> Option<[String; 2]> {
        match self {
            Self::Gpu { uuid, index, .. } => Some([uuid.to_string(), index.to_string()]),
            Self::Mig { uuid, gpu_index, index, .. } => Some([uuid.to_string(), format!("{gpu_index}:{index}")]),
            Self::Missing(_) | Self::Nodes(_) | Self::Nothing => None,
        }
    }

    /// The GPU or MIG device; `None` for what the driver does not list.
    pub fn device(&self) -> Option<DeviceRef> {
        match self {
            Self::Gpu { uuid, .. } => Some(DeviceRef { gpu: uuid.clone(), mig: None }),
            Self::Mig { uuid, gpu, .. } => Some(DeviceRef { gpu: gpu.clone(), mig: Some(uuid.clone()) }),
            Self::Missing(_) | Self::Nodes(_) | Self::Nothing => None,
        }
    }

    /// The GPU that it is, or is part of.
    pub fn gpu(&self) -> Option<&GpuUuid> {
        match self {
            Self::Gpu { uuid: gpu, .. } | Self::Mig { gpu, .. } | Self::Missing(gpu) => Some(gpu),
            Self::Nodes(_) | Self::Nothing => None,
        }
    }
}
