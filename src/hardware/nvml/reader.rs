use std::sync::Arc;

use super::calls::{Caller, call, text, value};
use super::fast::FastReader;
use super::fields::FieldScheme;
use super::gpm::{Gpm, InstanceUse};
use super::inventory::{Mig, mig_enabled, mig_handles};
use super::library::{Handle, Library};
use super::medium::MediumReader;
use super::samples::SampleBuffer;
use super::slow::SlowReader;
use crate::hardware::source::{Due, Failure, Integrals, Pass, Reader, Verdict};
use crate::model::{GpuUuid, Moment, Monotonic};

/// Everything that reading one GPU needs, made anew with each generation of handles.
pub struct NvmlReader {
    caller: Caller,
    handle: Handle,
    migs: Vec<Mig>,
    buffer: SampleBuffer,
    fast: FastReader,
    instances: Option<InstanceUse>,
    medium: MediumReader,
    slow: SlowReader,
    last: Option<Monotonic>,
}

impl NvmlReader {
    pub fn new(library: &Arc<Library>, gpu: &GpuUuid) -> Result<Self, Failure> {
        let mut caller = Caller::new(Arc::clone(library));
        let Some(handle) = handle_of(&mut caller, gpu) else {
            let problem = caller.finish().problems.first().copied();
            return Err(Failure {
                call: problem.map_or("nvmlDeviceGetHandleByUUID", |problem| problem.call),
                code: problem.map_or("not_found", |problem| problem.code),
                reason: format!("{gpu} does not answer"),
                remedy: "look for Xid lines in the kernel log",
            });
        };
        let migs = match mig_enabled(&mut caller, handle) {
            Some(true) => mig_handles(&mut caller, handle),
            _ => Vec::new(),
        };
        let version = text!(caller, nvmlSystemGetDriverVersion());
        let gpm = Gpm::new(&mut caller, handle, &migs);
        Ok(Self {
            fast: FastReader::default(),
            instances: InstanceUse::new(&mut caller, handle, &migs),
            medium: MediumReader::new(FieldScheme::of_driver(version.as_deref()), gpm),
            slow: SlowReader::default(),
            caller,
            handle,
            migs,
            buffer: SampleBuffer::default(),
            last: None,
        })
    }
}

fn handle_of(caller: &mut Caller, gpu: &GpuUuid) -> Option<Handle> {
    let uuid = std::ffi::CString::new(gpu.as_str()).ok()?;
    let mut device = std::ptr::null_mut();
    call!(caller, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut device)).ok()?;
    let handle = Handle(device);
    // A handle alone proves nothing about a GPU that fell off the bus.
    let _: Option<u32> = value!(caller, nvmlDeviceGetMinorNumber(handle.0));
    caller.answers().then_some(handle)
}

impl Reader for NvmlReader {
    fn read(&mut self, due: Due, now: Moment) -> Pass {
        let elapsed = self.last.map_or(0.0, |last| now.monotonic.since(last).as_secs_f64());
        let mut integrals = Integrals::default();
        let fast = self.fast.read(&mut self.caller, self.handle, &mut self.buffer, elapsed, &mut integrals);
        let instances = self.instances.as_mut();
        integrals.instance_busy_seconds =
            instances.and_then(|all| all.advance(&mut self.caller, self.handle, now.monotonic));
        let medium = due.medium.then(|| {
            let migs = &self.migs;
            let (caller, buffer) = (&mut self.caller, &mut self.buffer);
            let mut medium = self.medium.read(caller, self.handle, migs, buffer, now.monotonic, &mut integrals);
            medium.rates.memory_utilization_ratio = self.fast.memory_utilization_ratio;
            medium
        });
        let slow = due.slow.then(|| self.slow.read(&mut self.caller, self.handle));
        let outcome = self.caller.finish();
        if outcome.verdict != Verdict::Answers {
            return Pass { verdict: outcome.verdict, problems: outcome.problems, ..Pass::default() };
        }
        self.last = Some(now.monotonic);
        Pass {
            verdict: Verdict::Answers,
            integrals,
            energy_counter: self.fast.energy_counter(),
            fast: Some(fast),
            medium,
            slow,
            problems: outcome.problems,
        }
    }
}
