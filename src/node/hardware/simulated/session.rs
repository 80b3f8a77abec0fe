//! A session of the simulated driver: its GPUs, their readers and its events.

use std::time::Duration;

use super::driver::{SharedGpus, SimulatedSession, UNLOADED};
use super::reader::SimulatedReader;
use crate::domain::model::{GpuUuid, Inventory, Monotonic, NodeDevices};
use crate::node::hardware::source::{
    CallProblem, DriverSession, EventFailure, EventSource, Failure, GpuReader, RawEvent,
};

/// Of a wait for events. Short, so that a session ends soon.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

impl DriverSession for SimulatedSession {
    fn inventory(&self) -> Result<(Inventory, Vec<CallProblem>), Failure> {
        Ok((self.driver.inventory(), Vec::new()))
    }

    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure> {
        Ok(Box::new(SimulatedReader::new(self.clone(), gpu)))
    }

    fn layout_changed(&self) -> bool {
        false
    }

    fn node_devices(&self) -> Option<NodeDevices> {
        Some(self.driver.node_devices())
    }

    /// As with a driver, earlier events are lost.
    fn events(&self) -> Option<Box<dyn EventSource>> {
        self.driver.state.lock().events.clear();
        Some(Box::new(self.clone()))
    }
}

impl EventSource for SimulatedSession {
    fn wait(&mut self, patience: Duration, _now: Monotonic) -> Result<Option<RawEvent>, EventFailure> {
        let quiet = |state: &mut SharedGpus| state.events.is_empty() && !self.is_over(state);
        let mut state = self.driver.state.lock();
        self.driver.changed.wait_while_for(&mut state, quiet, patience.min(LONGEST_WAIT));
        if self.is_over(&state) {
            return Err(EventFailure { problem: UNLOADED, session_over: true });
        }
        Ok(state.events.pop_front())
    }
}
