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
/// After so many readings without news all is asked for again: the driver's clock may have stepped back.
const EMPTY_PASSES: u32 = 10;
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
    cursor: Cursor,
}

/// How far the driver's samples have been read, in microseconds of a clock of its own.
#[derive(Default)]
struct Cursor {
    /// What the driver is shown: it gives each process's mean since then. 0 asks for the mean over all it still has.
    shown: u64,
    /// The newest time stamp that it has given.
    newest: u64,
    empty_passes: u32,
}

impl Default for ProcessLists {
    fn default() -> Self {
        Self { buffer: vec![BLANK_INFO; CAPACITY], refused: false }
    }
}

impl Default for ProcessUse {
    fn default() -> Self {
        Self { buffer: vec![BLANK_SAMPLE; CAPACITY], cursor: Cursor::default() }
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
    pub fn advance(&mut self, caller: &mut Caller, handle: Handle, elapsed: f64) -> Option<Vec<(u32, f64)>> {
        let count = match self.fill(caller, handle) {
            Ok(count) => count,
            // Nobody worked.
            Err(Refusal::Empty) => 0,
            Err(_) => return None,
        };
        Some(self.cursor.work(&self.buffer[..count], elapsed))
    }

    fn fill(&mut self, caller: &mut Caller, handle: Handle) -> Result<usize, Refusal> {
        for _ in 0..ATTEMPTS {
            let mut count = u32::try_from(self.buffer.len()).expect("the buffer is bounded");
            let (samples, cursor) = (self.buffer.as_mut_ptr(), self.cursor.shown);
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

impl Cursor {
    fn work(&mut self, samples: &[nvmlProcessUtilizationSample_t], elapsed: f64) -> Vec<(u32, f64)> {
        let (shown, known) = (self.shown, self.newest);
        let newest = samples.iter().map(|sample| sample.timeStamp).max().unwrap_or(0);
        if newest > known || (shown == 0 && newest > 0) {
            *self = Self { shown: newest, newest, empty_passes: 0 };
        } else {
            self.empty_passes += 1;
            if self.empty_passes >= EMPTY_PASSES {
                (self.shown, self.empty_passes) = (0, 0);
            }
        }
        // Drivers with zombies on the GPU give entries full of nonsense.
        let news = samples.iter().filter(|sample| sample.pid != 0 && sample.smUtil <= 100 && sample.timeStamp > known);
        let ratio = |sample: &nvmlProcessUtilizationSample_t| f64::from(sample.smUtil) / 100.0;
        // Together they have one device.
        let scale = 1.0 / news.clone().map(ratio).sum::<f64>().max(1.0);
        let seconds = |sample: &nvmlProcessUtilizationSample_t| match shown {
            // A mean over longer than has passed, and so rather too low.
            0 => elapsed,
            // After an idle time the stretch is no longer than since it was last known that nobody worked.
            shown => (sample.timeStamp.saturating_sub(shown) as f64 / 1e6).min(elapsed + SAMPLE_SECONDS),
        };
        let work = news.map(|sample| (sample.pid, ratio(sample) * scale * seconds(sample)));
        work.filter(|(_, seconds)| *seconds > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (pid, seconds, percent)
    fn samples(of: &[(u32, f64, u32)]) -> Vec<nvmlProcessUtilizationSample_t> {
        let sample = |&(pid, seconds, percent): &(u32, f64, u32)| nvmlProcessUtilizationSample_t {
            pid,
            timeStamp: (seconds * 1e6) as u64,
            smUtil: percent,
            ..BLANK_SAMPLE
        };
        of.iter().map(sample).collect()
    }

    #[test]
    fn each_stretch_counts_once() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.work(&samples(&[(1, 100.0, 50)]), 0.0), [], "what was before the first reading is not ours");
        assert_eq!(cursor.work(&samples(&[(1, 101.0, 50), (2, 101.0, 25)]), 1.0), [(1, 0.5), (2, 0.25)]);
        assert_eq!(cursor.work(&samples(&[(1, 101.0, 50)]), 1.0), [], "an entry that was read already");
        assert_eq!(cursor.work(&[], 1.0), []);
        let late = cursor.work(&samples(&[(1, 104.0, 100)]), 1.0);
        assert_eq!(late, [(1, 2.0)], "no more than since it was known to be idle, and a sample's length");
    }

    #[test]
    fn nonsense_is_left_out_and_together_they_have_one_device() {
        let mut cursor = Cursor::default();
        cursor.work(&samples(&[(1, 1.0, 1)]), 0.0);
        let crowd = samples(&[(1, 2.0, 100), (2, 2.0, 60), (3, 2.0, 101), (4, 2.0, u32::MAX), (0, 2.0, 50)]);
        assert_eq!(cursor.work(&crowd, 1.0), [(1, 0.625), (2, 0.375)]);
    }

    #[test]
    fn a_clock_that_steps_back_is_followed_and_old_work_does_not_count_again() {
        let mut cursor = Cursor::default();
        cursor.work(&samples(&[(1, 100.0, 50)]), 0.0);
        for _ in 0..EMPTY_PASSES {
            assert_eq!(cursor.work(&[], 1.0), []);
        }
        assert_eq!(cursor.shown, 0);
        assert_eq!(cursor.work(&samples(&[(1, 100.0, 50)]), 1.0), [], "still in the driver's buffer");
        for _ in 0..EMPTY_PASSES {
            cursor.work(&[], 1.0);
        }
        assert_eq!(cursor.work(&samples(&[(1, 5.0, 50)]), 1.0), [], "a new clock");
        assert_eq!(cursor.work(&samples(&[(1, 6.0, 50)]), 1.0), [(1, 0.5)]);
        for _ in 0..EMPTY_PASSES {
            cursor.work(&[], 1.0);
        }
        assert_eq!(cursor.work(&samples(&[(1, 40.0, 30)]), 1.0), [(1, 0.3)], "work again after idle times");
    }
}
