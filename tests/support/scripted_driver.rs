//! A driver that does what a test has it do: it is absent, hangs, loses GPUs or changes the MIG layout.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use podmeter::domain::model::{
    EccLocation, Fast, Gpu, GpuUuid, HardwareSource, Inventory, Medium, Moment, NodeDevices, Slow,
};
use podmeter::hardware::{
    CallProblem, Driver, DriverSession, Due, Failure, FailureCause, GpuReader, Integrals, Pass, PassStatus, Tier,
};

use super::hardware::gpu;
use super::test_data;

/// What the test has the driver do. Shared by all its parts.
#[derive(Clone, Default)]
pub struct Script(Arc<(Mutex<Acts>, Condvar)>);

#[derive(Default)]
pub struct Acts {
    pub absent: bool,
    pub loading_hangs: bool,
    pub gpus: Vec<GpuUuid>,
    /// The number of GPUs on the bus.
    pub expected: usize,
    pub statuses: BTreeMap<GpuUuid, PassStatus>,
    pub stuck: Option<GpuUuid>,
    /// The result of the call that was stuck.
    pub late: Option<PassStatus>,
    pub sessions: u64,
    pub open_sessions: i64,
    pub corrected: u64,
    pub layout_changed: bool,
    pub inspection_hangs: bool,
    pub is_inspecting: bool,
    pub listing_fails: bool,
    pub reads: BTreeMap<GpuUuid, u64>,
    /// What each pass read, in their order.
    pub tiers: Vec<(GpuUuid, Due)>,
}

impl Script {
    pub fn new(gpus: usize) -> Self {
        let script = Self::default();
        script.set(|acts| (acts.gpus, acts.expected) = ((0..gpus).map(gpu).collect(), 8));
        script
    }

    pub fn set<T>(&self, change: impl FnOnce(&mut Acts) -> T) -> T {
        let changed = change(&mut self.0.0.lock());
        self.0.1.notify_all();
        changed
    }
}

impl Driver for Script {
    fn source(&self) -> HardwareSource {
        HardwareSource::Simulated
    }

    fn load(&mut self) -> Result<(), Failure> {
        let (acts, changed) = &*self.0;
        changed.wait_while(&mut acts.lock(), |acts| acts.loading_hangs);
        Ok(())
    }

    fn open(&mut self) -> Result<Box<dyn DriverSession>, Failure> {
        let script = self.clone();
        self.set(|acts| {
            if acts.absent {
                return Err(Failure {
                    problem: CallProblem { call: "open", code: "driver_not_loaded" },
                    cause: FailureCause::DriverNotLoaded,
                    reason: "there is no driver".to_owned(),
                    remedy: "install one",
                });
            }
            acts.sessions += 1;
            acts.open_sessions += 1;
            Ok(Box::new(ScriptedSession(script)) as Box<dyn DriverSession>)
        })
    }
}

struct ScriptedSession(Script);

impl DriverSession for ScriptedSession {
    fn inventory(&self) -> Result<(Inventory, Vec<CallProblem>), Failure> {
        let describe = |(index, uuid): (u32, &GpuUuid)| Gpu::listed(uuid.clone(), index);
        if self.0.set(|acts| std::mem::take(&mut acts.listing_fails)) {
            return Err(Failure {
                problem: CallProblem { call: "list", code: "unknown" },
                cause: FailureCause::Other,
                reason: "the driver does not list its GPUs".to_owned(),
                remedy: "wait",
            });
        }
        let inventory = self.0.set(|acts| {
            acts.layout_changed = false;
            test_data::inventory((0..).zip(&acts.gpus).map(describe))
        });
        Ok((inventory, Vec::new()))
    }

    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure> {
        Ok(Box::new(ScriptedReader { script: self.0.clone(), gpu: gpu.clone(), last: None }))
    }

    fn layout_changed(&self) -> Result<bool, CallProblem> {
        let (acts, changed) = &*self.0.0;
        let mut acts = acts.lock();
        acts.is_inspecting = true;
        changed.wait_while(&mut acts, |acts| acts.inspection_hangs);
        acts.is_inspecting = false;
        Ok(acts.layout_changed)
    }

    fn node_devices(&self) -> Option<NodeDevices> {
        Some(NodeDevices { expected: self.0.set(|acts| acts.expected), ..NodeDevices::default() })
    }
}

impl Drop for ScriptedSession {
    fn drop(&mut self) {
        self.0.set(|acts| acts.open_sessions -= 1);
    }
}

struct ScriptedReader {
    script: Script,
    gpu: GpuUuid,
    last: Option<Moment>,
}

impl GpuReader for ScriptedReader {
    fn read(&mut self, due: &Due, now: Moment) -> Pass {
        let (acts, changed) = &*self.script.0;
        let mut acts = acts.lock();
        *acts.reads.entry(self.gpu.clone()).or_default() += 1;
        let was_stuck = acts.stuck.as_ref() == Some(&self.gpu);
        while acts.stuck.as_ref() == Some(&self.gpu) {
            changed.wait(&mut acts);
        }
        let late = if was_stuck { acts.late.take() } else { None };
        let status = late.or_else(|| acts.statuses.get(&self.gpu).copied()).unwrap_or_default();
        if status != PassStatus::Answers {
            let problems = vec![CallProblem { call: "read", code: "gpu_is_lost" }];
            return Pass { status, problems, ..Pass::default() };
        }
        let corrected = Some(acts.corrected);
        let mut pass = Pass {
            medium: due.contains(&Tier::Medium).then(Medium::default),
            slow: due.contains(&Tier::Slow).then(|| Slow {
                ecc: vec![EccLocation { location: "dram", corrected, uncorrected: None }],
                ..Slow::default()
            }),
            ..Pass::default()
        };
        if due.contains(&Tier::Fast) {
            let elapsed = self.last.replace(now).map_or(0.0, |last| now.monotonic.since(last.monotonic).as_secs_f64());
            pass.integrals = Integrals { busy_seconds: Some(elapsed), ..Integrals::default() };
            pass.fast = Some(Fast { utilization_ratio: Some(1.0), power_watts: Some(100.0), ..Fast::default() });
        }
        acts.tiers.push((self.gpu.clone(), due.clone()));
        pass
    }
}
