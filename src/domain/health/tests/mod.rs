//! Tests of device health on a node of two GPUs, by topic; `random_histories` has random histories and a reference model.

mod events;
mod faults;
mod operators;
mod random_histories;
mod reasons;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::domain::model::{
    DeviceReadings, EccLocation, FabricState, Fast, Gpu, HardwareSource, MigDevice, Platform, Released, RowRemap, Slow,
    Stamped, UnhealthyReason, XidClass, XidInstance,
};
use crate::test_data::{self, at_second as moment};

const GPU: &str = "GPU-0";
const OTHER: &str = "GPU-1";
const SLICE: &str = "MIG-7";
const OTHER_SLICE: &str = "MIG-8";

fn gpu(uuid: &str, index: u32) -> Gpu {
    Gpu { minor: Some(index), ..Gpu::listed(uuid.into(), index) }
}

fn mig(uuid: &str, gpu_instance: u32) -> MigDevice {
    test_data::mig(uuid, gpu_instance, "1g.10gb", 1)
}

/// A node of two GPUs over time. Both respond to every pass and report no fault, unless changed.
struct TwoGpuNode {
    health: Health,
    hardware: HardwareState,
    slow: BTreeMap<GpuUuid, Slow>,
    unresponsive: BTreeSet<GpuUuid>,
    /// The energy counter of every GPU.
    energy_counter: u64,
    now: u64,
}

impl TwoGpuNode {
    fn new(config: HealthConfig) -> Self {
        let inventory = Arc::new(test_data::inventory([gpu(GPU, 0), gpu(OTHER, 1)]));
        let source = HardwareSource::Nvml;
        let hardware = HardwareState { source, driver_loads: 1, inventory, ..HardwareState::default() };
        let well = Slow { recovery_action: Some(0), ..Slow::default() };
        let slow = [GPU, OTHER].map(|uuid| (uuid.into(), well.clone())).into();
        let health = Health::new(config);
        Self { health, hardware, slow, unresponsive: BTreeSet::new(), energy_counter: 1_000_000, now: 0 }
    }

    /// Both GPUs were found healthy at 1.
    fn checked() -> Self {
        let mut node = Self::new(HealthConfig::default());
        node.at(1);
        node
    }

    /// A node with a driver that reports no recovery action.
    fn without_recovery_action(config: HealthConfig) -> Self {
        let mut node = Self::new(config);
        node.slow.values_mut().for_each(|slow| slow.recovery_action = None);
        node
    }

    fn partitioned(config: HealthConfig) -> Self {
        let mut node = Self::new(config);
        node.gpu(|gpu| gpu.mig_devices = vec![mig(SLICE, 7), mig(OTHER_SLICE, 8)]);
        node
    }

    fn gpu(&mut self, change: impl FnOnce(&mut Gpu)) {
        change(Arc::make_mut(&mut self.hardware.inventory).gpus.get_mut(&GPU.into()).unwrap());
    }

    fn slow(&mut self, change: impl FnOnce(&mut Slow)) {
        change(self.slow.get_mut(&GPU.into()).unwrap());
    }

    /// From now on the first GPU has these readings, and no pass.
    fn stop_responding(&mut self, change: impl FnOnce(&mut DeviceReadings)) {
        let mut readings = DeviceReadings::default();
        change(&mut readings);
        self.unresponsive.insert(GPU.into());
        self.hardware.readings.insert(GPU.into(), Arc::new(readings));
    }

    fn respond(&mut self) {
        self.unresponsive.clear();
        self.gpu(|gpu| gpu.present = true);
    }

    fn release(&mut self) {
        let (since, until) = (moment(self.now), moment(self.now + 3_600));
        self.hardware.released = Some(Released { since, until });
    }

    /// Advances to this second, with a pass of every GPU that responds.
    fn at(&mut self, seconds: u64) -> Arc<HealthState> {
        self.with(seconds, &[])
    }

    fn with(&mut self, seconds: u64, events: &[XidEvent]) -> Arc<HealthState> {
        self.now = seconds;
        let at = Monotonic::from_secs(seconds);
        for (uuid, slow) in self.slow.iter().filter(|(uuid, _)| !self.unresponsive.contains(*uuid)) {
            let fast = Some(Stamped { at, value: Fast::default() });
            let slow = Some(Stamped { at, value: slow.clone() });
            let readings =
                DeviceReadings { fast, slow, energy_counter: Some(self.energy_counter), ..DeviceReadings::default() };
            self.hardware.readings.insert(uuid.clone(), Arc::new(readings));
        }
        self.health.advance(moment(seconds), &self.hardware, events)
    }

    fn reasons(&self) -> Vec<&'static str> {
        reasons(&self.health.state(), None)
    }

    fn order(&mut self, order: &OperatorOrder) -> OrderOutcome {
        self.health.execute(moment(self.now), order).unwrap()
    }
}

fn reasons(state: &HealthState, mig: Option<&str>) -> Vec<&'static str> {
    let mig = mig.map(Into::into);
    let device = state.device(&GPU.into(), mig.as_ref()).expect("it has a health state");
    assert_eq!(device.healthy, device.causes.is_empty());
    assert!(state.device(&OTHER.into(), None).unwrap().healthy, "the other GPU is independent");
    device.causes.iter().map(|cause| cause.reason.into_str()).collect()
}

fn xid(code: u32, seconds: u64) -> XidEvent {
    test_data::xid(moment(seconds), GPU, code)
}

fn in_instance(code: u32, seconds: u64, gpu_instance: u32, compute_instance: Option<u32>) -> XidEvent {
    XidEvent { instance: Some(XidInstance { gpu_instance, compute_instance }), ..xid(code, seconds) }
}

fn mark(device: &str, lasts: Option<u64>) -> OperatorOrder {
    let action = OrderAction::Mark { reason: "smells".into(), lasts: lasts.map(Duration::from_secs) };
    OperatorOrder { device: device.to_owned(), action }
}

fn unmark(device: &str) -> OperatorOrder {
    OperatorOrder { device: device.to_owned(), action: OrderAction::Unmark }
}

fn clear_faults(device: &str) -> OperatorOrder {
    OperatorOrder { device: device.to_owned(), action: OrderAction::ClearFaults }
}

fn unknown() -> Vec<&'static str> {
    vec!["unknown"]
}

const WELL: Vec<&str> = vec![];
