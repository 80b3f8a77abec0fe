//! Publishes problems, counts and all readings as one state.
//!
//! | what | published |
//! |---|---|
//! | a session is open, ends, or cannot be opened; a release or a resume | at once |
//! | a problem appears, changes or ends; a call hangs, or the driver thread's returns | at once |
//! | the event thread has panicked | at once |
//! | an inspection that finds another layout or other GPUs on the bus, or that ends outside a round, as where no GPU is read | at once |
//! | the first pass of a reader: it waits for no other GPU | at once |
//! | a pass with news after its round has ended | at once |
//! | other passes with news, those of lost GPUs too | at the end of the round: all its GPUs have answered, or half of the shortest interval has passed |
//! | a list of processes alone without a new process; a pass by handles of an earlier list | with the next publication |
//! | failed calls, implausible readings, stale readings, the wait for events | with the next publication |
//! | the close of the driver | never: the end of the session has been |
//!
//! "At once" sets `is_publication_due`; `Supervisor::act`, which follows each message, is the only place that publishes.

use std::sync::Arc;

use tracing::warn;

use super::Supervisor;
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
            self.is_publication_due = true;
        }
    }

    pub(super) fn clear_problem(&mut self) {
        self.awaits_an_answer = false;
        self.is_publication_due |= self.state.problem.take().is_some();
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

    pub(super) fn publish_if_due(&mut self, now: Monotonic) {
        if !std::mem::take(&mut self.is_publication_due) {
            return;
        }
        let is_open = self.is_open();
        let mut collectors = self.rounds.collectors(is_open, &self.gpus.stuck_tiers());
        collectors.extend(self.events.status(is_open, now).map(|status| ("events", status)));
        let success = self.inventory_status.success && is_open;
        let inventory = SourceStatus { success, stuck: self.driver_stuck, ..self.inventory_status.clone() };
        collectors.insert("inventory", inventory);
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
}
