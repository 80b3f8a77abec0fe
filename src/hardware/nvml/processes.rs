use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};

use super::calls::{Caller, Refusal, call};
use super::inventory::Mig;
use super::library::Handle;
use crate::model::DeviceProcess;

const CAPACITY: usize = 64;
/// More contexts than a GPU has room for.
const LARGEST: usize = 4096;
const ATTEMPTS: usize = 4;
/// The longest that the driver takes for one of its samples.
const SAMPLE_SECONDS: f64 = 1.0;
/// The driver's way to write that it does not know, and that there is no instance.
const NO_MEMORY: u64 = u64::MAX;
const NO_INSTANCE: u32 = u32::MAX;

const BLANK_INFO: nvmlProcessInfo_t =
    nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
const BLANK_SAMPLE: nvmlProcessUtilizationSample_t =
    nvmlProcessUtilizationSample_t { pid: 0, timeStamp: 0, smUtil: 0, memUtil: 0, encUtil: 0, decUtil: 0 };

/// The lists of those who have contexts.
pub struct ProcessLists {
    buffer: Vec<nvmlProcessInfo_t>,
    /// Some list of the whole GPU may not be read: then none is complete.
    refused: bool,
}

#[derive(Clone, Copy)]
enum List {
    Compute,
    Graphics,
    Mps,
}

/// Who works, and how much: read from where the last reading ended.
pub struct ProcessUse {
    buffer: Vec<nvmlProcessUtilizationSample_t>,
    /// The newest time stamp that the driver has given, in microseconds of a clock of its own. 0: none yet.
    cursor: u64,
}

impl Default for ProcessLists {
    fn default() -> Self {
        Self { buffer: vec![BLANK_INFO; CAPACITY], refused: false }
    }
}

impl Default for ProcessUse {
    fn default() -> Self {
        Self { buffer: vec![BLANK_SAMPLE; CAPACITY], cursor: 0 }
    }
}

impl ProcessLists {
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
                    self.refused = caller.is_unsupported(list.name(), 0);
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
            let outcome = match list {
                List::Compute => {
                    call!(caller, nvmlDeviceGetComputeRunningProcesses_v3[variant](handle.0, &raw mut count, infos))
                }
                List::Graphics => {
                    call!(caller, nvmlDeviceGetGraphicsRunningProcesses_v3[variant](handle.0, &raw mut count, infos))
                }
                List::Mps => {
                    call!(caller, nvmlDeviceGetMPSComputeRunningProcesses_v3[variant](handle.0, &raw mut count, infos))
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
    fn name(self) -> &'static str {
        match self {
            Self::Compute => "nvmlDeviceGetComputeRunningProcesses_v3",
            Self::Graphics => "nvmlDeviceGetGraphicsRunningProcesses_v3",
            Self::Mps => "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        }
    }
}

impl ProcessUse {
    /// SM-seconds by pid since the reading before, `elapsed` seconds ago; `None` where the driver does not say.
    ///
    /// What the driver gives is each process's mean since the time stamp it is shown. The first reading has none to
    /// show, gets a mean over some seconds past, and only finds out where to begin.
    pub fn advance(&mut self, caller: &mut Caller, handle: Handle, elapsed: f64) -> Option<Vec<(u32, f64)>> {
        let count = match self.fill(caller, handle) {
            Ok(count) => count,
            // Nobody worked.
            Err(Refusal::Empty) => return Some(Vec::new()),
            Err(_) => return None,
        };
        let begin = self.cursor;
        let samples = &self.buffer[..count];
        self.cursor = samples.iter().map(|sample| sample.timeStamp).max().unwrap_or(0).max(begin);
        if begin == 0 {
            return Some(Vec::new());
        }
        // Drivers with zombies on the GPU give entries full of nonsense.
        let sane = samples.iter().filter(|sample| sample.pid != 0 && sample.smUtil <= 100 && sample.timeStamp > begin);
        let ratio = |sample: &nvmlProcessUtilizationSample_t| f64::from(sample.smUtil) / 100.0;
        // Together they have one device.
        let scale = 1.0 / sane.clone().map(ratio).sum::<f64>().max(1.0);
        // After an idle time the stretch is no longer than since it was last known that nobody worked.
        let seconds = |sample: &nvmlProcessUtilizationSample_t| {
            ((sample.timeStamp - begin) as f64 / 1e6).min(elapsed + SAMPLE_SECONDS)
        };
        Some(sane.map(|sample| (sample.pid, ratio(sample) * scale * seconds(sample))).collect())
    }

    fn fill(&mut self, caller: &mut Caller, handle: Handle) -> Result<usize, Refusal> {
        for _ in 0..ATTEMPTS {
            let mut count = u32::try_from(self.buffer.len()).expect("the buffer is bounded");
            let (samples, cursor) = (self.buffer.as_mut_ptr(), self.cursor);
            match call!(caller, nvmlDeviceGetProcessUtilization(handle.0, samples, &raw mut count, cursor)) {
                Ok(()) => return Ok((count as usize).min(self.buffer.len())),
                Err(Refusal::TooSmall) if self.buffer.len() < LARGEST => {
                    let wanted = (count as usize + 16).max(self.buffer.len() * 2).min(LARGEST);
                    self.buffer.resize(wanted, BLANK_SAMPLE);
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::TooSmall)
    }
}
