//! Opens, drains and closes sessions, by commands to the driver thread.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::{SessionPhase, Supervisor};
use crate::domain::model::Monotonic;
use crate::hardware::messages::{DriverCommand, ListedGpus, OpenedSession};
use crate::hardware::source::Failure;
use crate::words::counted;

/// How long the threads have to drop a session. Then the driver thread drops it, and it closes once the last stuck
/// thread drops it, too.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

impl Supervisor {
    pub(super) fn resume(&mut self, now: Monotonic) {
        if !self.releases.resume() {
            return;
        }
        info!("the driver is opened again after its release");
        self.reopen.reset();
        if let SessionPhase::Closed { retry } = &mut self.phase {
            *retry = now;
        }
        self.is_publication_due = true;
    }

    /// Opens the driver, unless it is released, a stop is requested, or the driver thread runs another command.
    pub(super) fn open(&mut self, now: Monotonic) {
        let may_open = self.stopping.is_none() && self.releases.released().is_none();
        if may_open && self.send(DriverCommand::Open, now) {
            self.phase = SessionPhase::Opening;
        }
    }

    pub(super) fn begin_session(&mut self, (session, (inventory, problems)): OpenedSession, now: Monotonic) {
        let (source, gpus) = (self.state.source.into_str(), inventory.gpus.len());
        // While no GPU answers, each attempt opens it.
        if self.awaits_an_answer {
            debug!(source, gpus, "the driver is open again");
        } else {
            info!(source, gpus, "the driver is open");
        }
        self.count(&problems);
        self.state.sessions += 1;
        self.loads.listed(inventory.driver.as_ref());
        self.gpus.apply_inventory(inventory, true, now);
        self.update_inventory_problem();
        self.rounds.clear();
        self.releases.track(&session);
        self.events.start(&session);
        self.phase = SessionPhase::Open(session);
        self.next_inspection = now + self.settings.medium_interval;
        if self.stopping.is_some() || self.releases.released().is_some() {
            self.drain(now);
        }
        // Before the first pass: the plugin needs the list alone.
        self.is_publication_due = true;
    }

    pub(super) fn opening_failed(&mut self, failure: &Failure, now: Monotonic) {
        self.loads.refused(failure.cause);
        self.fail(failure);
        self.set_closed(now);
        self.is_publication_due = true;
    }

    /// Ends the phase: no session is open, or the driver thread closes it later. The driver is opened again after a
    /// pause, once that thread runs no other command.
    pub(super) fn set_closed(&mut self, now: Monotonic) {
        self.phase = SessionPhase::Closed { retry: now + self.reopen.pause() };
    }

    /// Applies a changed layout. `listed`: the new list, or why there is none.
    pub(super) fn apply_changed_layout(&mut self, listed: Result<ListedGpus, Failure>, now: Monotonic) {
        match listed {
            Ok((inventory, problems)) if self.is_open() => {
                info!(gpus = inventory.gpus.len(), "the layout of the GPUs has changed");
                self.count(&problems);
                self.loads.listed(inventory.driver.as_ref());
                self.gpus.apply_inventory(inventory, false, now);
                self.update_inventory_problem();
                self.events.gpus_changed();
            }
            Ok(_) => {}
            Err(failure) => {
                self.fail(&failure);
                self.drain(now);
            }
        }
    }

    /// Sets the problem of the list (duplicate UUIDs, or no GPU of the bus was ever listed), or clears the one before. A
    /// problem that awaits an answer stays, unless no GPU was ever listed.
    pub(super) fn update_inventory_problem(&mut self) {
        let inventory = self.gpus.inventory();
        let never_listed_any = inventory.gpus.is_empty();
        if self.awaits_an_answer && !never_listed_any {
            return;
        }
        if let Some((uuid, indices)) = inventory.duplicate_uuids.iter().next() {
            self.set_problem(format!(
                "the GPUs with the indices {indices:?} have the same UUID, {uuid}: they cannot be distinguished, and none of \
                 them is read or offered; compare nvidia-smi -L, and update their firmware or the hypervisor that \
                 assigns UUIDs"
            ));
            return;
        }
        let expected = self.state.node_devices.as_ref().map_or(0, |devices| devices.expected);
        if expected > 0 && never_listed_any {
            self.set_problem(format!(
                "the driver lists no GPU, and the PCI bus has {}; check whether nvidia-smi works on the node, and look for \
                 Xid and NVRM lines in the kernel log",
                counted(expected, "GPU")
            ));
        } else {
            self.clear_problem();
        }
    }

    /// Ends a session that gives no readings. The reason is the problem until a GPU answers in another one.
    pub(super) fn end_session(&mut self, reason: &str, now: Monotonic) {
        self.set_problem(reason.to_owned());
        self.awaits_an_answer = true;
        self.drain(now);
    }

    /// Ends the session: withdraws all readings and requests that the threads drop it.
    pub(super) fn drain(&mut self, now: Monotonic) {
        let SessionPhase::Open(session) = &self.phase else { return };
        let session = Arc::clone(session);
        let pending = self.gpus.drop_readers();
        self.events.stop();
        self.rounds.clear();
        self.phase = SessionPhase::Draining { session, pending, until: now + DRAIN_LIMIT.min(self.settings.watchdog) };
        self.is_publication_due = true;
    }

    pub(super) fn close_session(&mut self, now: Monotonic) {
        let SessionPhase::Draining { session, .. } = &self.phase else { return };
        let session = Arc::clone(session);
        self.events.abandon();
        self.phase = SessionPhase::Closing { until: now + self.settings.watchdog };
        if !self.send(DriverCommand::Close(session), now) {
            self.set_closed(now);
        }
    }

    /// Sends a command to the driver thread. Returns false while it runs another one; a session to close then waits for
    /// its end.
    pub(super) fn send(&mut self, command: DriverCommand, now: Monotonic) -> bool {
        let refused =
            if self.driver_call_since.is_some() { Some(command) } else { self.driver_thread.send(command).err() };
        let is_sent = refused.is_none();
        if is_sent {
            self.driver_call_since = Some(now);
        }
        if let Some(DriverCommand::Close(session)) = refused {
            self.unclosed.push(session);
        }
        is_sent
    }

    pub(super) fn watch_driver_thread(&mut self, now: Monotonic) {
        if self.driver_call_since.is_none_or(|since| now.since(since) < self.settings.watchdog) {
            return;
        }
        if !std::mem::replace(&mut self.driver_stuck, true) {
            warn!("a driver call that concerns the whole node has not come back");
            self.is_publication_due = true;
        }
        // The phase may have changed since. The readings of an open session go on: the collector's status shows the call.
        if self.is_open() {
            return;
        }
        let seconds = self.settings.watchdog.as_secs_f64();
        let problem = if self.loading.is_under_way() {
            format!(
                "loading the driver library has not returned for {seconds} s; check its file and disk: after five minutes \
                 /-/healthy fails"
            )
        } else {
            format!(
                "a driver call that concerns the whole node has not come back for {seconds} s; look for Xid or NVRM \
                 lines in the kernel log, the node may need a reboot"
            )
        };
        self.set_problem(problem);
    }

    pub(super) fn driver_returned(&mut self, now: Monotonic) {
        self.driver_call_since = None;
        if std::mem::take(&mut self.driver_stuck) {
            info!("the overdue driver call has returned");
            self.is_publication_due = true;
        }
        if let Some(session) = self.unclosed.pop() {
            self.send(DriverCommand::Close(session), now);
        }
    }
}

/// Leaves open sessions to the driver thread: to close one may block without limit.
impl Drop for Supervisor {
    fn drop(&mut self) {
        let phase = std::mem::replace(&mut self.phase, SessionPhase::Opening);
        if let SessionPhase::Open(session) | SessionPhase::Draining { session, .. } = phase {
            self.unclosed.push(session);
        }
        for session in self.unclosed.drain(..) {
            // A full queue refuses it.
            let _ = self.driver_thread.send(DriverCommand::Close(session)).map_err(std::mem::forget);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

    use super::*;
    use crate::clock::Clock;
    use crate::domain::model::{GpuUuid, HardwareSource, Inventory};
    use crate::hardware::event_thread::XidSender;
    use crate::hardware::messages::SupervisorMessage;
    use crate::hardware::pci::Bus;
    use crate::hardware::settings::HardwareSettings;
    use crate::hardware::simulated::{SimulatedDriver, SimulatedProfile};
    use crate::hardware::source::{CallProblem, Driver, DriverSession, GpuReader};
    use crate::hardware::worker::{Loading, spawn_driver_thread};

    /// A supervisor with an open session.
    fn open(driver: impl Driver) -> (Supervisor, Receiver<SupervisorMessage>) {
        let (clock, settings) = (Clock::start(), HardwareSettings::default());
        let (to_supervisor, messages) = sync_channel(16);
        let (loading, bus) =
            (Loading::new(clock), Bus::new("/nonexistent".into(), "/nonexistent".into(), BTreeSet::new()));
        let driver_thread = spawn_driver_thread(Box::new(driver), bus, loading.clone(), to_supervisor.clone()).unwrap();
        let publisher = tokio::sync::watch::Sender::default();
        let xids = XidSender::new::<0>().0;
        let mut supervisor = Supervisor::new(settings, clock, driver_thread, loading, to_supervisor, publisher, xids);
        supervisor.act(Monotonic::default());
        supervisor.handle(messages.recv().unwrap());
        (supervisor, messages)
    }

    #[test]
    fn the_first_pause_after_a_lost_session_is_the_shortest() {
        let (mut supervisor, messages) = open(SimulatedDriver::new(SimulatedProfile::A100, 1));
        supervisor.end_session("it is over", Monotonic::default());
        supervisor.act(Monotonic::default() + DRAIN_LIMIT);
        let retry = loop {
            match supervisor.phase {
                SessionPhase::Closed { retry } => break retry,
                _ => supervisor.handle(messages.recv().unwrap()),
            }
        };
        assert!(retry <= supervisor.clock.now().monotonic + supervisor.settings.reopen.0);
    }

    /// A driver whose sessions send the name of the thread that closes them.
    struct TestDriver(Sender<Option<String>>);

    impl Driver for TestDriver {
        fn source(&self) -> HardwareSource {
            HardwareSource::Simulated
        }

        fn open(&mut self) -> Result<Box<dyn DriverSession>, Failure> {
            Ok(Box::new(TestSession(self.0.clone())))
        }
    }

    struct TestSession(Sender<Option<String>>);

    impl DriverSession for TestSession {
        fn inventory(&self) -> Result<ListedGpus, Failure> {
            Ok((Inventory::default(), vec![]))
        }

        fn reader(&self, _gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure> {
            panic!("it lists no GPU")
        }

        fn layout_changed(&self) -> Result<bool, CallProblem> {
            Ok(false)
        }
    }

    impl Drop for TestSession {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn a_session_is_closed_by_the_driver_thread_when_the_end_comes_before_its_message() {
        let (names, closed_by) = channel();
        let (mut supervisor, messages) = open(TestDriver(names));
        let SessionPhase::Open(session) = &supervisor.phase else { panic!() };
        let session = Arc::clone(session);
        assert!(supervisor.send(DriverCommand::Inspect(session), Monotonic::default()));
        supervisor.drain(Monotonic::default());
        // After `Inspected` and the end of the event thread, both threads have dropped the session.
        let unread = [messages.recv().unwrap(), messages.recv().unwrap()];
        drop((supervisor, unread));
        assert_eq!(closed_by.recv().unwrap().as_deref(), Some("driver"));
    }
}
