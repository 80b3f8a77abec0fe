//! A GPU in MIG mode, as the ledger models it.

use std::collections::BTreeMap;

use super::division::Part;
use crate::domain::attribution::owners::{DeviceProcesses, OwnedProcess};
use crate::domain::model::{Gpu, InstanceReading, Medium, MigDevice, MigUuid, UnattributedReason};

/// The MIG devices of one GPU, and what their GPU instances report. None while it is unknown which part of
/// the GPU each is: then nothing is divided among them.
pub struct Partitions<'a> {
    mig_devices: &'a [MigDevice],
    pub parts: Vec<Part>,
}

impl<'a> Partitions<'a> {
    /// `None` for a GPU that is not partitioned. `active`: by GPU instance, a mean over all its slices, 0 to 1.
    pub fn of(gpu: Option<&'a Gpu>, active: &BTreeMap<u32, f64>, processes: Option<&DeviceProcesses>) -> Option<Self> {
        let gpu = gpu.filter(|gpu| !gpu.mig_devices.is_empty())?;
        let part = |mig: &'a MigDevice| {
            let active = active.get(&mig.gpu_instance);
            let active = active.map(|active| (active * gpu.slices_of_instance(mig)).clamp(0.0, 1.0));
            let unheld = processes
                .map_or(UnattributedReason::Unknown, |processes| reason_of(&processes.processes, mig.gpu_instance));
            Some(Part { fraction: gpu.slice_fraction(mig.slices)?, active, unheld })
        };
        let Some(mut parts) = gpu.mig_devices.iter().map(part).collect::<Option<Vec<_>>>() else {
            return Some(Self { mig_devices: &[], parts: vec![] });
        };
        // The fractions never exceed the GPU, whatever slices the driver reports.
        let sum: f64 = parts.iter().map(|part| part.fraction).sum();
        parts.iter_mut().for_each(|part| part.fraction /= sum.max(1.0));
        Some(Self { mig_devices: &gpu.mig_devices, parts })
    }

    pub fn place(&self, mig: &MigUuid) -> Option<usize> {
        self.mig_devices.iter().position(|device| device.uuid == *mig)
    }
}

pub fn reading_of<'a>(medium: &'a Medium, mig: &MigUuid) -> Option<&'a InstanceReading> {
    medium.instances.iter().find(|instance| instance.members.contains(mig))
}

/// The reason for the use of an instance that no container holds.
fn reason_of(processes: &[OwnedProcess], gpu_instance: u32) -> UnattributedReason {
    let inside = processes.iter().filter(|process| process.running && process.gpu_instance == Some(gpu_instance));
    inside
        .map(|process| process.owner.unattributed_reason().unwrap_or(UnattributedReason::NotAllocated))
        .min()
        .unwrap_or(UnattributedReason::Unknown)
}
