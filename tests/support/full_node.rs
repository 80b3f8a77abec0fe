//! A node of eight GPUs, each shared by thirty-two slots, and the ledger's input for each second.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use podmeter::domain::attribution::{DeviceProcesses, Ledger, LedgerOutput, Observation, OwnedProcess, Retention};
use podmeter::domain::holders::{HoldingKey, Holdings};
use podmeter::domain::model::{
    ContainerRef, DeviceReadings, DeviceTotals, Fast, GpuUuid, Inventory, Medium, MemoryUse, Moment, Monotonic, Owner,
    Process, SharingForm, Stamped, UnixSeconds,
};
use podmeter::hardware::simulated::{SimulatedDriver, SimulatedProfile};

use super::test_data::{self, LedgerNode};

pub const GPUS: usize = 8;
pub const SLOTS: usize = 32;
pub const PROCESSES_EACH: usize = 2;

pub struct FullNode {
    pub gpus: Vec<GpuUuid>,
    node: LedgerNode,
}

impl Deref for FullNode {
    type Target = LedgerNode;

    fn deref(&self) -> &LedgerNode {
        &self.node
    }
}

impl DerefMut for FullNode {
    fn deref_mut(&mut self) -> &mut LedgerNode {
        &mut self.node
    }
}

impl FullNode {
    pub fn new() -> Self {
        let inventory = SimulatedDriver::new(SimulatedProfile::H100_TIME_SLICED, 1).inventory();
        let gpus = inventory.gpus.keys().cloned().collect();
        Self { gpus, node: LedgerNode::new(inventory, Duration::from_secs(5)) }
    }

    /// Every slot is held.
    pub fn full() -> Self {
        let mut node = Self::new();
        for gpu in 0..GPUS {
            for slot in 0..SLOTS {
                node.hold(gpu, slot, &format!("pod-{gpu}-{slot}"));
            }
        }
        node
    }

    pub fn hold(&mut self, gpu: usize, slot: usize, pod: &str) -> HoldingKey {
        let key = test_data::key(pod, self.gpus[gpu].as_str());
        let slot = format!("{}::{slot}", self.gpus[gpu]);
        let holding = test_data::holding(&slot, SharingForm::TimeSlicing, 1.0 / SLOTS as f64);
        self.holdings.by_key.insert(key.clone(), holding);
        key
    }

    pub fn read(&mut self, second: u64) {
        let at = Monotonic::from_secs(second);
        let memory = MemoryUse { used: 64 << 30, free: 0, reserved: None, total: 80 << 30 };
        for gpu in &self.gpus {
            let medium = Medium { memory: Some(memory), ..Medium::default() };
            let readings = test_data::busy_readings(at, second as f64, 0.9, 500.0, medium);
            self.node.readings.insert(gpu.clone(), Arc::new(readings));
        }
    }

    /// The resolved processes run on the first GPU.
    pub fn work(&mut self, owners: &BTreeMap<u32, Process>, second: u64) {
        let process = |(pid, process): (&u32, &Process)| OwnedProcess {
            memory_bytes: Some(1 << 28),
            ..test_data::process(*pid, process.owner.clone(), second as f64 * 0.01)
        };
        let processes = test_data::processes(owners.iter().map(process));
        self.processes = [(self.gpus[0].clone(), processes)].into();
    }

    pub fn run(&mut self, second: u64) {
        let mut by_gpu: BTreeMap<GpuUuid, Vec<OwnedProcess>> = BTreeMap::new();
        for (number, key) in self.holdings.by_key.keys().enumerate() {
            let processes = by_gpu.entry(key.gpu.clone()).or_default();
            processes.extend((0..PROCESSES_EACH).map(|one| {
                let (pid, owner) = (number * PROCESSES_EACH + one, Owner::Container(key.container.clone()));
                let sm_seconds = second as f64 * 0.01 * (1 + one) as f64;
                OwnedProcess { memory_bytes: Some(1 << 28), ..test_data::process(pid as u32, owner, sm_seconds) }
            }));
        }
        self.processes = by_gpu.into_iter().map(|(gpu, processes)| (gpu, test_data::processes(processes))).collect();
    }

    pub fn advance(&mut self, second: u64, scrapes: u64) -> LedgerOutput {
        self.retention.scrapes = scrapes;
        self.node.advance(test_data::at_second(second))
    }
}
