//! SM use by process, from whichever of the driver's two calls answers.
//!
//! In: NVML's samples by process. Out: SM-seconds by pid for each pass. Does not use: owners of processes.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlProcessesUtilizationInfo_v1_t;

use super::calls::{CallRefusal, Caller, call, fill, version};
use super::library::DeviceHandle;
use super::processes::LARGEST;
use crate::hardware::integrate::SILENT_SECONDS;
use crate::hardware::plausible;

use UtilizationCall::{Newer, Older};

/// At first: a driver requires more than 64 entries even with one process.
const CAPACITY: usize = 512;
/// The longest sample period of the driver.
const SAMPLE_SECONDS: f64 = 1.0;
/// The largest time between samples of processes that run at the same time, in microseconds.
const SPREAD: u64 = 2_000_000;
/// In microseconds: no ring has an older sample.
const RING: u64 = SILENT_SECONDS as u64 * 1_000_000;
/// From this utilization on, some process must have a sample.
const BUSY: f64 = 0.05;
/// After this many seconds without a sample on a busy GPU, or of failures after samples, and two passes, the other call is tried;
/// without samples in both, use by process is unknown.
const EMPTY_SECONDS: f64 = 5.0;

const OLDER: &str = "nvmlDeviceGetProcessUtilization";

/// The driver's two calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UtilizationCall {
    #[default]
    Older,
    /// On some GPUs the only one that lists anything.
    Newer,
}

/// Whether the source lists processes, and what an empty list of it means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CallState {
    /// No sample so far: on an idle GPU no process is active; on a busy one use by process is unknown.
    #[default]
    Untested,
    /// It has listed a process: none is active.
    Answers,
    /// The GPU was busy, and neither call listed a process, or both fail now: use by process is unknown.
    ListsNothing,
}

pub struct ProcessUse {
    source: UtilizationCall,
    state: CallState,
    /// Time without a sample while the GPU was busy, or in which the call failed.
    empty_seconds: f64,
    cursors: Cursors,
    capacity: usize,
}

impl Default for ProcessUse {
    fn default() -> Self {
        Self {
            source: UtilizationCall::default(),
            state: CallState::default(),
            empty_seconds: 0.0,
            cursors: Cursors::default(),
            capacity: CAPACITY,
        }
    }
}

/// One process in one of the driver's periods.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessSample {
    pid: u32,
    /// Microseconds of a clock of the driver's own.
    at: u64,
    ratio: f64,
}

/// Up to when the use of each process is counted, by the driver's clock.
///
/// A cursor is the time of the newest sample of one process. The driver takes one time for all, `last_seen`, and returns for each
/// process the mean since then, with a timestamp of its own: those of processes that take turns differ. A sample counts if it is newer
/// than its process's cursor, so none counts twice. `last_seen` is not after the cursor of any process that is active, so none is left
/// out. Cursors move to the samples of each pass. Without a new sample for `SILENT_SECONDS` they stay and all samples are requested,
/// because the driver's clock may have stepped back, and later samples would not be after `last_seen`. The cursors then move to
/// whatever is listed, even back; what is not after the old ones was counted already, or is the use of a moment.
///
/// | `last_seen` | `newest` | |
/// |---|---|---|
/// | `None` | `None` | no sample so far |
/// | `Some` | `Some` | newer samples are requested |
/// | `None` | `Some` | all samples are requested again |
#[derive(Default)]
struct Cursors {
    of_pid: BTreeMap<u32, u64>,
    /// The driver's argument; `None` requests the mean over its whole buffer.
    last_seen: Option<u64>,
    /// The newest timestamp.
    newest: Option<u64>,
    /// Time without a new sample.
    silent_seconds: f64,
}

impl ProcessUse {
    /// SM-seconds by pid since the reading before, `elapsed` seconds ago, while the GPU's own utilization was `busy`.
    /// `None`: unknown.
    pub fn advance(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        elapsed: f64,
        busy: Option<f64>,
    ) -> Option<Vec<(u32, f64)>> {
        let mut read = self.read(caller, handle);
        if read.is_err() && self.source == Older && caller.is_refused(OLDER, 0) {
            self.source = Newer;
            read = self.read(caller, handle);
        }
        let Ok(samples) = read else {
            // What a source that answered before has counted stays for some failures, and is then unknown.
            if self.state == CallState::Answers {
                self.count_empty(elapsed);
            }
            return None;
        };
        let is_busy = busy.is_some_and(|busy| busy >= BUSY);
        if !samples.is_empty() {
            (self.state, self.empty_seconds) = (CallState::Answers, 0.0);
        } else if is_busy {
            self.count_empty(elapsed);
        }
        let work = self.cursors.advance(&samples, elapsed);
        match self.state {
            CallState::Answers => Some(work),
            CallState::Untested => Some(work).filter(|_| !is_busy),
            CallState::ListsNothing => None,
        }
    }

    /// The driver's name of the call in use, or `none` where a busy GPU has no process in either. `None`: not known
    /// yet.
    pub fn source(&self) -> Option<&'static str> {
        match (self.state, self.source) {
            (CallState::Untested, _) => None,
            (CallState::ListsNothing, _) => Some("none"),
            (CallState::Answers, Older) => Some(OLDER),
            (CallState::Answers, Newer) => Some("nvmlDeviceGetProcessesUtilizationInfo"),
        }
    }

    pub fn lists_no_processes(&self) -> bool {
        self.state == CallState::ListsNothing
    }

    /// No process was listed on a busy GPU, or the call failed. The two calls are tried in turns while neither lists any.
    fn count_empty(&mut self, elapsed: f64) {
        self.empty_seconds += elapsed.min(EMPTY_SECONDS / 2.0);
        if self.empty_seconds >= EMPTY_SECONDS {
            self.empty_seconds = 0.0;
            (self.source, self.state) = match self.source {
                Older => (Newer, self.state),
                Newer => (Older, CallState::ListsNothing),
            };
        }
    }

    fn read(&mut self, caller: &mut Caller, handle: DeviceHandle) -> Result<Vec<ProcessSample>, CallRefusal> {
        let last_seen = self.cursors.last_seen.unwrap_or(0);
        let read: Result<Vec<_>, _> = match self.source {
            Older => fill(&mut self.capacity, LARGEST, |samples, count| {
                call!(caller, nvmlDeviceGetProcessUtilization(handle.0, samples, count, last_seen))
            })
            .map(|samples| samples.iter().map(|one| sample(one.pid, one.timeStamp, one.smUtil)).collect()),
            Newer => fill(&mut self.capacity, LARGEST, |infos, count| {
                let mut list = nvmlProcessesUtilizationInfo_v1_t {
                    version: version::<nvmlProcessesUtilizationInfo_v1_t>(1),
                    processSamplesCount: *count,
                    lastSeenTimeStamp: last_seen,
                    procUtilArray: infos,
                };
                let outcome = call!(caller, nvmlDeviceGetProcessesUtilizationInfo(handle.0, &raw mut list));
                *count = list.processSamplesCount;
                outcome
            })
            .map(|infos| infos.iter().map(|one| sample(one.pid, one.timeStamp, one.smUtil)).collect()),
        };
        let samples = match read {
            Err(CallRefusal::Empty) => Vec::new(),
            read => read?,
        };
        // Drivers return invalid samples for zombies.
        let plausible = |sample: &ProcessSample| {
            sample.pid != 0
                && sample.at != 0
                && caller.plausible(&plausible::PROCESS_UTILIZATION, sample.ratio).is_some()
        };
        Ok(samples.into_iter().filter(plausible).collect())
    }
}

fn sample(pid: u32, at: u64, percent: u32) -> ProcessSample {
    ProcessSample { pid, at, ratio: f64::from(percent) / 100.0 }
}

impl Cursors {
    /// Up to when the use of this process is counted: without a cursor, as far as anything was requested.
    fn of(&self, pid: u32) -> u64 {
        self.of_pid.get(&pid).copied().or(self.last_seen).or(self.newest).unwrap_or(0)
    }

    /// SM-seconds by pid of the samples that are newer than their process's cursor. The cursors move to the samples.
    fn advance(&mut self, samples: &[ProcessSample], elapsed: f64) -> Vec<(u32, f64)> {
        let new: Vec<&ProcessSample> = samples.iter().filter(|sample| sample.at > self.of(sample.pid)).collect();
        let work = self.work(&new, elapsed);
        // All samples were requested, and some are listed.
        let restarts = self.last_seen.is_none() && !samples.is_empty();
        let is_silent = new.is_empty() && !restarts;
        self.silent_seconds = if is_silent { self.silent_seconds + elapsed } else { 0.0 };
        if self.silent_seconds >= SILENT_SECONDS {
            (self.last_seen, self.silent_seconds) = (None, 0.0);
        } else {
            self.move_to(samples);
        }
        work
    }

    fn work(&self, new: &[&ProcessSample], elapsed: f64) -> Vec<(u32, f64)> {
        let mut work: BTreeMap<u32, f64> = BTreeMap::new();
        let mut longest = 0.0_f64;
        for sample in new {
            let seconds = match self.last_seen {
                // A mean over more than the elapsed time: rather too low.
                None => elapsed,
                // A process that was idle worked at most since the last pass, and a sample may be a second old.
                Some(_) => ((sample.at - self.of(sample.pid)) as f64 / 1e6).min(elapsed + SAMPLE_SECONDS),
            };
            longest = longest.max(seconds);
            *work.entry(sample.pid).or_default() += sample.ratio * seconds;
        }
        // All processes share one device.
        let sum: f64 = work.values().sum();
        let scale = if sum > longest { longest / sum } else { 1.0 };
        let work = work.into_iter().map(|(pid, seconds)| (pid, seconds * scale));
        work.filter(|(_, seconds)| *seconds > 0.0).collect()
    }

    fn move_to(&mut self, samples: &[ProcessSample]) {
        let newest = samples.iter().map(|sample| sample.at).max();
        // Of all samples, the newest is older than before where the driver's clock has stepped back.
        self.newest = if self.last_seen.is_none() { newest.or(self.newest) } else { self.newest.max(newest) };
        let mut samples = samples.to_vec();
        samples.sort_unstable_by_key(|sample| sample.at);
        self.of_pid.extend(samples.iter().map(|sample| (sample.pid, sample.at)));
        let Some(newest) = self.newest else { return };
        self.of_pid.retain(|_, at| *at <= newest && newest - *at <= RING);
        // The oldest cursor of the active processes.
        let active = self.of_pid.values().filter(|at| newest - **at <= SPREAD);
        self.last_seen = active.min().copied().or(self.newest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (pid, seconds, percent)
    fn samples(of: &[(u32, f64, u32)]) -> Vec<ProcessSample> {
        of.iter().map(|&(pid, seconds, percent)| sample(pid, (seconds * 1e6) as u64, percent)).collect()
    }

    #[test]
    fn each_interval_counts_once() {
        let mut cursors = Cursors::default();
        assert_eq!(
            cursors.advance(&samples(&[(1, 100.0, 50)]), 0.0),
            [],
            "use before the first reading is not counted"
        );
        assert_eq!(cursors.advance(&samples(&[(1, 101.0, 50), (2, 101.0, 25)]), 1.0), [(1, 0.5), (2, 0.25)]);
        assert_eq!(cursors.advance(&samples(&[(1, 101.0, 50)]), 1.0), [], "a sample that was read already");
        assert_eq!(cursors.advance(&[], 1.0), []);
        let late = cursors.advance(&samples(&[(1, 104.0, 100)]), 1.0);
        assert_eq!(late, [(1, 2.0)], "no more than since the GPU was known to be idle, plus a sample period");
    }

    #[test]
    fn processes_share_one_device() {
        let mut cursors = Cursors::default();
        cursors.advance(&samples(&[(1, 1.0, 1)]), 0.0);
        let crowd = samples(&[(1, 2.0, 100), (2, 2.0, 60)]);
        assert_eq!(cursors.advance(&crowd, 1.0), [(1, 0.625), (2, 0.375)]);
    }

    #[test]
    fn the_sample_of_one_process_drops_none_of_another() {
        let mut cursors = Cursors::default();
        cursors.advance(&samples(&[(1, 100.0, 50), (2, 99.5, 50)]), 0.0);
        assert_eq!(cursors.last_seen, Some(99_500_000), "the driver leaves out older samples");
        // Under time slicing the two take turns; the sample of process 2 is always half a second behind.
        let mut sums = [0.0, 0.0];
        for second in 1..=10 {
            let at = 100.0 + f64::from(second);
            for (pid, seconds) in cursors.advance(&samples(&[(1, at, 50), (2, at - 0.5, 50)]), 1.0) {
                sums[pid as usize - 1] += seconds;
            }
        }
        assert_eq!(sums, [5.0, 5.0]);
        // One sample in each pass, in turns.
        for second in 11..=20 {
            let (pid, at) = (1 + second % 2, 100.0 + f64::from(second));
            for (pid, seconds) in cursors.advance(&samples(&[(pid, at, 50)]), 1.0) {
                sums[pid as usize - 1] += seconds;
            }
        }
        assert!((sums[0] - sums[1]).abs() <= 1.0 && sums[0] > 9.0, "{sums:?}");
    }

    #[test]
    fn a_clock_that_steps_back_is_followed_without_counting_twice() {
        let mut cursors = Cursors::default();
        cursors.advance(&samples(&[(1, 100.0, 50)]), 0.0);
        for _ in 0..25 {
            assert_eq!(cursors.advance(&[], 1.0), []);
        }
        assert_eq!(cursors.last_seen, None);
        assert_eq!(cursors.advance(&samples(&[(1, 100.0, 50)]), 1.0), [], "still in the driver's buffer");
        for _ in 0..25 {
            cursors.advance(&[], 1.0);
        }
        assert_eq!(cursors.advance(&samples(&[(1, 5.0, 50)]), 1.0), [], "a new clock");
        assert_eq!(cursors.advance(&samples(&[(1, 6.0, 50)]), 1.0), [(1, 0.5)]);
        for _ in 0..25 {
            cursors.advance(&[], 1.0);
        }
        assert_eq!(cursors.advance(&samples(&[(1, 40.0, 30)]), 1.0), [(1, 0.3)], "active again after idle times");
    }
}
