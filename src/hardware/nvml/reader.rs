//! Reads one GPU with NVML: the tiers of a pass.

use std::sync::Arc;

use super::calls::Caller;
use super::codes;
use super::fast::FastReader;
use super::gpm::{Gpm, InstanceUse};
use super::inventory::{self, Mig, mig_enabled, mig_handles};
use super::library::{DeviceHandle, Library};
use super::medium::MediumReader;
use super::processes::ProcessLists;
use super::slow::SlowReader;
use crate::domain::model::{DeviceProcess, Fast, GpuUuid, Medium, Moment, Monotonic};
use crate::hardware::plausible::Work;
use crate::hardware::source::{CallProblem, Failure, FailureCause, GpuReader, Integrals, Pass, PassStatus};
use crate::hardware::tiers::{Due, Tier};

const BY_INDEX: &str = "nvmlDeviceGetHandleByIndex_v2";

/// The state to read one GPU, made for each generation of handles.
pub struct NvmlReader {
    caller: Caller,
    handle: DeviceHandle,
    migs: Vec<Mig>,
    fast: FastReader,
    instances: Option<InstanceUse>,
    medium: MediumReader,
    slow: SlowReader,
    processes: ProcessLists,
    work: Work,
    power_limit_watts: Option<f64>,
    memory_bytes: Option<u64>,
    /// The time of the last pass of the fast tier.
    last: Option<Monotonic>,
}

impl NvmlReader {
    /// A reader of the GPU at this index of the inventory. It is never searched by its UUID: the driver may initialise
    /// other GPUs for that, and hang in one of them.
    pub fn new(library: &Arc<Library>, gpu: &GpuUuid, index: u32) -> Result<Self, Failure> {
        let mut caller = Caller::new(Arc::clone(library));
        let handle = inventory::handle(&mut caller, index);
        let found = handle.and_then(|handle| Some((handle, inventory::uuid(&mut caller, handle)?)));
        let Some((handle, uuid)) = found else {
            let not_found = CallProblem { call: BY_INDEX, code: "not_found" };
            let problem = caller.finish().problems.first().copied().unwrap_or(not_found);
            return Err(codes::failure(problem, format!("{gpu} does not answer"), codes::SEE_KERNEL_LOG));
        };
        if *uuid != *gpu.as_str() {
            return Err(Failure {
                problem: CallProblem { call: BY_INDEX, code: "other_gpu_at_index" },
                cause: FailureCause::OtherGpuAtIndex,
                reason: format!("the driver's order of GPUs has changed: index {index} was {gpu} and is {uuid}"),
                remedy: "the driver is opened again and its GPUs are listed again",
            });
        }
        let is_partitioned = mig_enabled(&mut caller, handle) == Some(true);
        let migs = if is_partitioned { mig_handles(&mut caller, handle) } else { Vec::new() };
        let version = inventory::driver_version(&mut caller);
        let gpm = Gpm::new(&mut caller, handle, &migs);
        let instances = InstanceUse::new(&mut caller, handle, &migs);
        caller.forget_success();
        Ok(Self {
            fast: FastReader::default(),
            instances,
            medium: MediumReader::new(version.as_deref(), gpm),
            slow: SlowReader::default(),
            processes: ProcessLists::new(version.as_deref()),
            work: Work::default(),
            power_limit_watts: None,
            memory_bytes: None,
            caller,
            handle,
            migs,
            last: None,
        })
    }
}

impl GpuReader for NvmlReader {
    fn read(&mut self, due: &Due, now: Moment) -> Pass {
        let mut pass = Pass::default();
        if due.contains(&Tier::Slow) {
            pass.slow = Some(self.slow.read(&mut self.caller, self.handle));
        }
        if due.contains(&Tier::Fast) {
            pass.fast = Some(self.read_fast(now.monotonic, &mut pass));
        }
        if due.contains(&Tier::Medium) {
            pass.medium = Some(self.read_medium(now.monotonic, &mut pass.integrals));
        }
        let listed = match &mut pass.medium {
            Some(medium) => {
                medium.processes = self.processes();
                medium.processes.clone()
            }
            None if due.contains(&Tier::Processes) => self.processes(),
            None => None,
        };
        pass.pids = listed.map(|listed| listed.iter().map(|process| process.pid).collect());
        if pass.slow.is_none() && pass.fast.is_none() && pass.medium.is_none() {
            // A list of processes alone may fail: that does not show that the GPU is lost.
            self.caller.forget_success();
        }
        let outcome = self.caller.finish();
        if outcome.status != PassStatus::Answers {
            return outcome;
        }
        if pass.fast.is_some() {
            self.last = Some(now.monotonic);
        }
        let Pass { problems, implausible, .. } = outcome;
        Pass { problems, implausible, ..pass }
    }
}

impl NvmlReader {
    fn read_fast(&mut self, now: Monotonic, pass: &mut Pass) -> Fast {
        let elapsed = self.last.map_or(0.0, |last| now.since(last).as_secs_f64());
        let mut fast = self.fast.read(&mut self.caller, self.handle, elapsed, pass);
        if let Some(instances) = &mut self.instances {
            let power = [fast.power_watts, self.power_limit_watts];
            pass.integrals.instance_busy_seconds = instances.advance(&mut self.caller, self.handle, now, power);
            fast.instance_utilization_ratios = instances.ratios.clone();
        }
        self.work.add(pass.integrals.busy_seconds, elapsed);
        fast
    }

    fn read_medium(&mut self, now: Monotonic, integrals: &mut Integrals) -> Medium {
        let is_busy = self.work.is_busy();
        let works = self.instances.as_ref().map_or(is_busy, |instances| instances.is_contradicted);
        let mut medium = self.medium.read(&mut self.caller, self.handle, &self.migs, now, works, integrals);
        self.power_limit_watts = medium.power_limit_watts;
        self.memory_bytes = medium.memory.map(|memory| memory.total);
        medium.rates.memory_utilization_ratio = self.fast.memory_utilization_ratio;
        medium.process_utilization_source = self.fast.processes.source().map(Into::into);
        medium
    }

    fn processes(&mut self) -> Option<Vec<DeviceProcess>> {
        self.processes.read(&mut self.caller, self.handle, &self.migs, self.memory_bytes)
    }
}
