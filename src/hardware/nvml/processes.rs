use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::calls::{Caller, Refusal, call};
use super::inventory::Mig;
use super::library::Handle;
use crate::model::DeviceProcess;

const CAPACITY: usize = 64;
/// More contexts than a GPU has room for.
const LARGEST: usize = 4096;
const ATTEMPTS: usize = 4;
/// The driver's way to write that it does not know, and that there is no instance.
const NO_MEMORY: u64 = u64::MAX;
const NO_INSTANCE: u32 = u32::MAX;

const BLANK_INFO: nvmlProcessInfo_t =
    nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
/// The lists of those who have contexts.
pub struct ProcessLists {
    buffer: Vec<nvmlProcessInfo_t>,
    /// Some list of the whole GPU may not be read: then none is complete.
    refused: bool,
    /// Reads version 2 of the lists. Versions 2 and 3 share one structure, except in a few drivers: see `has_other_v3`.
    second_version: bool,
}

#[derive(Clone, Copy)]
enum List {
    Compute,
    Graphics,
    Mps,
}

impl ProcessLists {
    pub fn new(driver_version: Option<&str>) -> Self {
        let second_version = driver_version.is_some_and(has_other_v3);
        Self { buffer: vec![BLANK_INFO; CAPACITY], refused: false, second_version }
    }

    /// All processes of the GPU, each once per MIG device, sorted. `None` unless every list that the driver has was
    /// read: half a list would pass for a whole one.
    pub fn read(&mut self, caller: &mut Caller, handle: Handle, migs: &[Mig]) -> Option<Vec<DeviceProcess>> {
        let mut found = BTreeMap::new();
        let of_whole = if self.refused { None } else { self.of_whole(caller, handle, &mut found) };
        if of_whole.is_none() {
            // Unprivileged, a partitioned GPU tells nothing and its MIG devices tell their own.
            found.clear();
            if migs.is_empty() {
                return None;
            }
            for mig in migs {
                self.of_instance(caller, mig, &mut found)?;
            }
        }
        Some(found.into_values().collect())
    }

    fn of_whole(&mut self, caller: &mut Caller, handle: Handle, found: &mut Found) -> Option<()> {
        for list in [List::Compute, List::Graphics, List::Mps] {
            match self.fill(caller, handle, list, 0) {
                Ok(count) => self.take(count, None, found),
                // Not every board has graphics, nor every driver MPS.
                Err(Refusal::Unsupported) if !matches!(list, List::Compute) => {}
                Err(_) => {
                    // Refused for good, and counted once.
                    self.refused = caller.is_unsupported(list.name(self.second_version), 0);
                    return None;
                }
            }
        }
        Some(())
    }

    fn of_instance(&mut self, caller: &mut Caller, mig: &Mig, found: &mut Found) -> Option<()> {
        let count = self.fill(caller, mig.handle, List::Compute, mig.index + 1).ok()?;
        self.take(count, Some((mig.gpu_instance, mig.compute_instance)), found);
        Some(())
    }

    fn fill(&mut self, caller: &mut Caller, handle: Handle, list: List, variant: u32) -> Result<usize, Refusal> {
        for _ in 0..ATTEMPTS {
            let mut count = u32::try_from(self.buffer.len()).expect("the buffer is bounded");
            let infos = self.buffer.as_mut_ptr();
            let outcome = match (list, self.second_version) {
                (List::Compute, false) => {
                    call!(caller, nvmlDeviceGetComputeRunningProcesses_v3[variant](handle.0, &raw mut count, infos))
                }
                (List::Graphics, false) => {
                    call!(caller, nvmlDeviceGetGraphicsRunningProcesses_v3[variant](handle.0, &raw mut count, infos))
                }
                (List::Mps, false) => {
                    call!(caller, nvmlDeviceGetMPSComputeRunningProcesses_v3[variant](handle.0, &raw mut count, infos))
                }
                (List::Compute, true) => {
                    call!(caller, nvmlDeviceGetComputeRunningProcesses_v2[variant](handle.0, &raw mut count, infos))
                }
                (List::Graphics, true) => {
                    call!(caller, nvmlDeviceGetGraphicsRunningProcesses_v2[variant](handle.0, &raw mut count, infos))
                }
                (List::Mps, true) => {
                    call!(caller, nvmlDeviceGetMPSComputeRunningProcesses_v2[variant](handle.0, &raw mut count, infos))
                }
            };
            match outcome {
                Ok(()) => return Ok((count as usize).min(self.buffer.len())),
                Err(Refusal::Empty) => return Ok(0),
                Err(Refusal::TooSmall) if self.buffer.len() < LARGEST => {
                    // More may come until it is asked again.
                    let wanted = (count as usize + 16).max(self.buffer.len() * 2).min(LARGEST);
                    self.buffer.resize(wanted, BLANK_INFO);
                }
                // Drivers before 510, and 535.98, have no version 3 of any list.
                Err(Refusal::Unsupported) if matches!(list, List::Compute) && !self.second_version => {
                    self.second_version = true;
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::TooSmall)
    }

    fn take(&self, count: usize, instance: Option<(u32, u32)>, found: &mut Found) {
        for info in &self.buffer[..count] {
            let known = |number: u32| (number != NO_INSTANCE).then_some(number);
            let gpu_instance = instance.map(|instance| instance.0).or_else(|| known(info.gpuInstanceId));
            let compute_instance = instance.map(|instance| instance.1).or_else(|| known(info.computeInstanceId));
            let memory_bytes = (info.usedGpuMemory != NO_MEMORY).then_some(info.usedGpuMemory);
            let process = DeviceProcess { pid: info.pid, gpu_instance, compute_instance, memory_bytes };
            found
                .entry((info.pid, gpu_instance, compute_instance))
                // In two lists it has one memory: where they differ, the fuller figure.
                .and_modify(|known: &mut DeviceProcess| known.memory_bytes = known.memory_bytes.max(memory_bytes))
                .or_insert(process);
        }
    }
}

type Found = BTreeMap<(u32, Option<u32>, Option<u32>), DeviceProcess>;

impl List {
    fn name(self, second_version: bool) -> &'static str {
        match (self, second_version) {
            (Self::Compute, false) => "nvmlDeviceGetComputeRunningProcesses_v3",
            (Self::Graphics, false) => "nvmlDeviceGetGraphicsRunningProcesses_v3",
            (Self::Mps, false) => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            (Self::Compute, true) => "nvmlDeviceGetComputeRunningProcesses_v2",
            (Self::Graphics, true) => "nvmlDeviceGetGraphicsRunningProcesses_v2",
            (Self::Mps, true) => "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        }
    }
}

/// True for drivers 535.43 to 535.86: their version 3 writes a longer structure, beyond the end of our array.
fn has_other_v3(driver_version: &str) -> bool {
    let mut numbers = driver_version.split('.').map(|number| number.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    matches!(version, (Some(535), Some(43..98)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_with_a_longer_structure_are_asked_for_the_second_version() {
        let versions = ["530.41.03", "535.43.02", "535.86.10", "535.98", "535.104.05", "580.95.05", "535", "x"];
        let expected = [false, true, true, false, false, false, false, false];
        assert_eq!(versions.map(has_other_v3), expected);
    }
}
