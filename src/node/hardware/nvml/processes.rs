//! The processes on a GPU, as the driver lists them.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlProcessInfo_t, nvmlReturn_t};

use super::calls::{CallRefusal, Caller, fill};
use super::codes;
use super::inventory::Mig;
use super::library::DeviceHandle;
use crate::domain::model::DeviceProcess;
use crate::node::hardware::plausible;

const CAPACITY: usize = 64;
/// More contexts than a GPU can have.
const LARGEST: usize = 4096;
/// What the driver writes for an unknown size, and for no instance.
const NO_MEMORY: u64 = u64::MAX;
const NO_INSTANCE: u32 = u32::MAX;

const BLANK_INFO: nvmlProcessInfo_t =
    nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };

/// Reads the driver's lists of processes that have contexts on a GPU.
pub struct ProcessLists {
    /// Read version 2 of the lists. Versions 2 and 3 share one structure, except in a few drivers: see `has_other_v3`.
    second_version: bool,
}

type ListFunction = unsafe extern "C" fn(nvmlDevice_t, *mut u32, *mut nvmlProcessInfo_t) -> nvmlReturn_t;
type NamedList = (&'static str, fn(&NvmlLib) -> Option<ListFunction>);

macro_rules! lists {
    ($($symbol:ident),*) => {
        [$((stringify!($symbol), |library: &NvmlLib| library.$symbol.as_ref().ok().copied())),*]
    };
}

/// By version (3, then 2) and kind of context.
const LISTS: [[NamedList; 3]; 2] = [
    lists!(
        nvmlDeviceGetComputeRunningProcesses_v3,
        nvmlDeviceGetGraphicsRunningProcesses_v3,
        nvmlDeviceGetMPSComputeRunningProcesses_v3
    ),
    lists!(
        nvmlDeviceGetComputeRunningProcesses_v2,
        nvmlDeviceGetGraphicsRunningProcesses_v2,
        nvmlDeviceGetMPSComputeRunningProcesses_v2
    ),
];
const COMPUTE: usize = 0;
const GRAPHICS: usize = 1;
const MPS: usize = 2;

impl ProcessLists {
    pub fn new(driver_version: Option<&str>) -> Self {
        Self { second_version: driver_version.is_some_and(has_other_v3) }
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
        if self.of_whole(caller, handle, &mut found).is_none() {
            // Without privileges only the lists of the MIG devices can be read on a partitioned GPU.
            found.clear();
            if migs.is_empty() {
                return None;
            }
            for mig in migs {
                self.of_instance(caller, mig, &mut found)?;
            }
        }
        let most = memory_bytes.unwrap_or(plausible::PROCESS_MEMORY.most() as u64);
        for process in found.values_mut().filter(|process| process.memory_bytes.is_some_and(|bytes| bytes > most)) {
            caller.count_implausible(&plausible::PROCESS_MEMORY);
            process.memory_bytes = None;
        }
        Some(found.into_values().collect())
    }

    fn of_whole(&mut self, caller: &mut Caller, handle: DeviceHandle, found: &mut ProcessesByInstance) -> Option<()> {
        for list in [COMPUTE, GRAPHICS, MPS] {
            match self.fill(caller, handle, list, 0) {
                Ok(infos) => add_processes(infos, None, found),
                // Not every board has graphics, nor every driver MPS.
                Err(CallRefusal::Unsupported) if list != COMPUTE => {}
                Err(_) => return None,
            }
        }
        Some(())
    }

    fn of_instance(&mut self, caller: &mut Caller, mig: &Mig, found: &mut ProcessesByInstance) -> Option<()> {
        let infos = self.fill(caller, mig.handle, COMPUTE, mig.index + 1).ok()?;
        add_processes(infos, Some((mig.gpu_instance, mig.compute_instance)), found);
        Some(())
    }

    fn fill(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        list: usize,
        variant: u32,
    ) -> Result<Vec<nvmlProcessInfo_t>, CallRefusal> {
        let (name, function) = LISTS[usize::from(self.second_version)][list];
        let filled = fill(BLANK_INFO, CAPACITY, LARGEST, |infos, count| {
            caller.call(name, variant, |library| match function(library) {
                // SAFETY: the buffer has `count` entries, and the library stays loaded meanwhile.
                Some(function) => unsafe { function(handle.0, count, infos) },
                None => codes::FUNCTION_NOT_FOUND,
            })
        });
        match filled {
            Err(CallRefusal::Empty) => Ok(vec![]),
            // Drivers before 510, and 535.98, have no version 3 of any list.
            Err(CallRefusal::Unsupported) if list == COMPUTE && !self.second_version => {
                self.second_version = true;
                self.fill(caller, handle, list, variant)
            }
            filled => filled,
        }
    }
}

fn add_processes(infos: Vec<nvmlProcessInfo_t>, instance: Option<(u32, u32)>, found: &mut ProcessesByInstance) {
    for info in infos {
        let known = |number: u32| (number != NO_INSTANCE).then_some(number);
        let gpu_instance = instance.map(|instance| instance.0).or_else(|| known(info.gpuInstanceId));
        let compute_instance = instance.map(|instance| instance.1).or_else(|| known(info.computeInstanceId));
        let memory_bytes = (info.usedGpuMemory != NO_MEMORY).then_some(info.usedGpuMemory);
        let process = DeviceProcess { pid: info.pid, gpu_instance, compute_instance, memory_bytes };
        found
            .entry((info.pid, gpu_instance, compute_instance))
            // A process in two lists has one memory: the larger figure where they differ.
            .and_modify(|known: &mut DeviceProcess| known.memory_bytes = known.memory_bytes.max(memory_bytes))
            .or_insert(process);
    }
}

type ProcessesByInstance = BTreeMap<(u32, Option<u32>, Option<u32>), DeviceProcess>;

/// True for drivers 535.43 to 535.86, whose version 3 writes a longer structure, beyond the end of our array.
fn has_other_v3(driver_version: &str) -> bool {
    let mut numbers = driver_version.split('.').map(|number| number.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    matches!(version, (Some(535), Some(43..98)))
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
