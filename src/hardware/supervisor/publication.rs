//! Publishes problems, counts and all readings as one state.

use std::sync::Arc;

use tracing::warn;

use super::{SessionPhase, Supervisor};
use crate::domain::model::{HardwareState, Monotonic, SourceStatus};
use crate::hardware::plausible::Implausible;
use crate::hardware::source::{CallProblem, Failure};

const RELEASED: &str = "the driver was released on request; `podmeter resume` opens it again";

impl Supervisor {
    pub(super) fn fail(&mut self, failure: &Failure) {
        self.count(&[failure.problem]);
        self.set_problem(failure.to_string());
    }

    /// Sets a problem that the next list without a fault clears; after `end_session`, the next GPU that answers.
    pub(super) fn set_problem(&mut self, text: String) {
        self.awaits_an_answer = false;
        if self.state.problem.as_deref() != Some(text.as_str()) {
            warn!(problem = text, "no device readings");
            self.state.problem = Some(text.into());
        }
    }

    pub(super) fn count(&mut self, problems: &[CallProblem]) {
        for problem in problems {
            *self.state.errors.entry(problem.call).or_default().entry(problem.code).or_default() += 1;
        }
    }

    pub(super) fn count_implausible(&mut self, found: &Implausible) {
        for (quantity, count) in found {
            *self.state.implausible_readings.entry(quantity).or_default() += count;
        }
    }

    pub(super) fn publish(&mut self) {
        let now = self.clock.now().monotonic;
        let is_open = matches!(self.phase, SessionPhase::Open { .. });
        let mut collectors = self.rounds.collectors(is_open, &self.gpus.stuck_tiers());
        collectors.extend(self.event_collector(is_open, now).map(|collector| ("events", collector)));
        let released = self.releases.released();
        let problem = if released.is_some() { Some(RELEASED.into()) } else { self.state.problem.clone() };
        self.publisher.send_replace(Arc::new(HardwareState {
            inventory: self.gpus.inventory(),
            readings: self.gpus.readings(now),
            module_energy_joules: self.gpus.module_energy_joules(),
            driver_loads: self.loads.count,
            problem,
            collectors,
            released,
            ..self.state.clone()
        }));
    }

    /// The state of the event wait; `None` until a driver with events has been opened, or its thread has not started.
    fn event_collector(&mut self, is_open: bool, now: Monotonic) -> Option<SourceStatus> {
        let current = self.event_thread.as_ref().and_then(|event_thread| event_thread.collector(now));
        if current.is_some() {
            self.event_collector = current;
        } else if let Some(collector) = &mut self.event_collector {
            collector.success = false;
        }
        let collector = self.event_collector.as_mut()?;
        collector.success &= is_open;
        collector.stuck = self.event_thread.iter().chain(&self.leaked_waits).any(|thread| thread.is_stuck(now));
        Some(collector.clone())
    }
}
