//! The processes on a GPU, as the driver lists them.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::calls::{CallRefusal, Caller, call, fill};
use super::inventory::Mig;
use super::library::DeviceHandle;
use super::medium::major_and_minor;
use crate::domain::model::DeviceProcess;
use crate::hardware::plausible;

use ContextKind::{Compute, Graphics, Mps};

const CAPACITY: usize = 64;
/// More contexts than a GPU can have.
pub const LARGEST: usize = 4096;
/// The values that the driver writes for an unknown size, and for no instance.
const NO_MEMORY: u64 = u64::MAX;
const NO_INSTANCE: u32 = u32::MAX;

/// Reads the driver's lists of processes that have contexts on a GPU.
pub struct ProcessLists {
    /// Whether version 2 of the lists is read. Versions 2 and 3 share one structure, except in a few drivers: see
    /// `has_other_v3`.
    second_version: bool,
    capacity: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ContextKind {
    Compute,
    Graphics,
    Mps,
}

impl ProcessLists {
    pub fn new(driver_version: Option<&str>) -> Self {
        Self { second_version: driver_version.is_some_and(has_other_v3), capacity: CAPACITY }
    }

    /// All processes of the GPU, each once per MIG device, sorted. `None` unless every list that the driver has was
    /// read: a part of them would look complete.
    pub fn read(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        migs: &[Mig],
        memory_bytes: Option<u64>,
    ) -> Option<Vec<DeviceProcess>> {
        let mut found = BTreeMap::new();
        if self.read_lists(caller, handle, &[Compute, Graphics, Mps], None, &mut found).is_none() {
            // An agent without privileges can read only the lists of the MIG devices on a partitioned GPU.
            found.clear();
            if migs.is_empty() {
                return None;
            }
            for mig in migs {
                self.read_lists(caller, mig.handle, &[Compute], Some(mig), &mut found)?;
            }
        }
        let most = memory_bytes.unwrap_or(plausible::PROCESS_MEMORY.most() as u64);
        for process in found.values_mut().filter(|process| process.memory_bytes.is_some_and(|bytes| bytes > most)) {
            caller.count_implausible(&plausible::PROCESS_MEMORY);
            process.memory_bytes = None;
        }
        Some(found.into_values().collect())
    }

    /// Reads these lists of the GPU, or of a MIG device.
    fn read_lists(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        kinds: &[ContextKind],
        mig: Option<&Mig>,
        found: &mut ProcessesByInstance,
    ) -> Option<()> {
        for kind in kinds {
            match self.fill(caller, handle, *kind, mig.map_or(0, |mig| mig.index + 1)) {
                Ok(infos) => add_processes(infos, mig, found),
                // Not every board has graphics, nor every driver MPS.
                Err(CallRefusal::Unsupported) if *kind != Compute => {}
                Err(_) => return None,
            }
        }
        Some(())
    }

    fn fill(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        kind: ContextKind,
        variant: u32,
    ) -> Result<Vec<nvmlProcessInfo_t>, CallRefusal> {
        let device = handle.0;
        let second_version = self.second_version;
        let filled = fill(&mut self.capacity, LARGEST, |infos, count| match (kind, second_version) {
            (Compute, false) => call!(caller, nvmlDeviceGetComputeRunningProcesses_v3[variant](device, count, infos)),
            (Compute, true) => call!(caller, nvmlDeviceGetComputeRunningProcesses_v2[variant](device, count, infos)),
            (Graphics, false) => call!(caller, nvmlDeviceGetGraphicsRunningProcesses_v3[variant](device, count, infos)),
            (Graphics, true) => call!(caller, nvmlDeviceGetGraphicsRunningProcesses_v2[variant](device, count, infos)),
            (Mps, false) => call!(caller, nvmlDeviceGetMPSComputeRunningProcesses_v3[variant](device, count, infos)),
            (Mps, true) => call!(caller, nvmlDeviceGetMPSComputeRunningProcesses_v2[variant](device, count, infos)),
        });
        match filled {
            Err(CallRefusal::Empty) => Ok(vec![]),
            // Drivers before 510, and 535.98, have no version 3 of any list.
            Err(CallRefusal::Unsupported) if kind == Compute && !self.second_version => {
                self.second_version = true;
                self.fill(caller, handle, kind, variant)
            }
            filled => filled,
        }
    }
}

fn add_processes(infos: Vec<nvmlProcessInfo_t>, mig: Option<&Mig>, found: &mut ProcessesByInstance) {
    for info in infos {
        let known = |number: u32| (number != NO_INSTANCE).then_some(number);
        let gpu_instance = mig.map(|mig| mig.gpu_instance).or_else(|| known(info.gpuInstanceId));
        let compute_instance = mig.map(|mig| mig.compute_instance).or_else(|| known(info.computeInstanceId));
        let memory_bytes = (info.usedGpuMemory != NO_MEMORY).then_some(info.usedGpuMemory);
        let process = DeviceProcess { pid: info.pid, gpu_instance, compute_instance, memory_bytes };
        found
            .entry((info.pid, gpu_instance, compute_instance))
            // The two figures of a process in two lists are of the same memory: the larger one counts.
            .and_modify(|known: &mut DeviceProcess| known.memory_bytes = known.memory_bytes.max(memory_bytes))
            .or_insert(process);
    }
}

type ProcessesByInstance = BTreeMap<(u32, Option<u32>, Option<u32>), DeviceProcess>;

/// Whether the driver is one of 535.43 to 535.86, whose version 3 writes a longer structure, beyond our array's end.
fn has_other_v3(driver_version: &str) -> bool {
    matches!(major_and_minor(driver_version), Some((535, 43..98)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_with_a_longer_structure_get_the_second_version() {
        let versions = ["530.41.03", "535.43.02", "535.86.10", "535.98", "535.104.05", "580.95.05", "535", "x"];
        let expected = [false, true, true, false, false, false, false, false];
        assert_eq!(versions.map(has_other_v3), expected);
    }
}
