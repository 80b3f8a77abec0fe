//! The thread that controls all others and publishes: it sends commands, keeps deadlines and merges results.
//!
//! In: messages of the other threads and of the handle. Out: `HardwareState`. It never calls the driver.
//!
//! The session's transitions; the tests are in `tests/it/hardware_supervisor.rs` and `hardware_release.rs`.
//!
//! | from | when | to | test |
//! |---|---|---|---|
//! | Closed | the pause is over, and the driver is not released | Opening | `a_driver_loaded_later_is_found_and_the_wait_is_explained` |
//! | Opening | the opening fails | Closed | `a_driver_loaded_later_is_found_and_the_wait_is_explained` |
//! | Opening | the opening hangs | Opening, with a problem | `a_library_that_hangs_while_it_is_loaded_is_reported_and_fails_the_liveness_check_in_the_end` |
//! | Opening | the driver is open, and a release or the end was requested meanwhile | Draining | `a_driver_that_opens_while_it_is_released_is_closed_unread` |
//! | Opening | the driver is open | Open | `every_tier_is_read_at_once_health_first` |
//! | Open | the layout has changed | Open | `a_gpu_that_is_added_or_removed_changes_the_inventory` |
//! | Open | the layout cannot be listed | Draining | `a_driver_that_no_longer_lists_its_gpus_is_opened_again` |
//! | Open | the driver ended the session | Draining | `a_session_that_is_over_is_opened_again_and_no_counter_falls` |
//! | Open | every GPU is lost | Draining | `all_gpus_lost_means_a_new_session` |
//! | Open | a release is requested | Draining | `a_released_driver_is_closed_unloaded_and_left_alone_until_the_release_ends` |
//! | Open | the handle is dropped | Draining | `stopping_closes_the_driver_and_waits_for_no_stuck_call` |
//! | Draining | every thread has dropped the session | Closing | `a_session_that_is_over_is_opened_again_and_no_counter_falls` |
//! | Draining | a call has not returned within `DRAIN_LIMIT` | Closing, without its thread | `a_stuck_call_is_named_and_the_driver_closes_when_it_returns` |
//! | Draining | the wait for events has not returned within `DRAIN_LIMIT` | Closing, without its thread | `a_wait_for_events_that_hangs_is_named` |
//! | Draining | the driver thread is stuck | Closed; the session closes when the call returns | `a_session_over_while_the_driver_thread_is_stuck_is_closed_when_its_call_returns` |
//! | Closing | the driver is closed, or does not close in time | Closed | `a_released_driver_is_closed_unloaded_and_left_alone_until_the_release_ends` |
//! | Closed | the driver is resumed, or its release expires | Closed, without a pause | `a_release_ends_by_itself` |

mod loads;
mod publication;
mod session;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::info;

use self::loads::DriverLoads;
use super::enumerated_gpus::EnumeratedGpus;
use super::event_thread::{EventThread, XidSender};
use super::messages::{DriverCommand, Notice, PassReport, SupervisorMessage, SupervisorSender};
use super::plausible;
use super::release::Releases;
use super::rounds::Rounds;
use super::settings::HardwareSettings;
use super::source::{DriverSession, PassStatus};
use super::worker::{Loading, Thread};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{DriverInfo, GpuUuid, HardwareState, Monotonic, SourceStatus};
use crate::words;

/// How long a stopping supervisor waits for the driver to be closed.
const STOP: Duration = Duration::from_secs(2);
/// The number of wake-ups in the time after which a call is stuck.
const WAKE_UPS: u32 = 10;
const SESSION_OVER: &str = "the driver ended the session, as it does when it is unloaded or replaced; \
                            it is opened again until it answers";
const ALL_LOST: &str = "every GPU is lost; the driver is opened again until one answers; \
                        look for Xid lines in the kernel log";

/// The phase of the session.
enum SessionPhase {
    Closed {
        retry: Monotonic,
    },
    Opening,
    Open {
        session: Arc<dyn DriverSession>,
        next_inspection: Monotonic,
    },
    /// The workers drop their readers, then the driver is closed.
    Draining {
        session: Arc<dyn DriverSession>,
        /// The GPUs whose worker has not dropped its reader.
        pending: BTreeSet<GpuUuid>,
        until: Monotonic,
    },
    Closing {
        until: Monotonic,
    },
}

pub struct Supervisor {
    /// The state to publish; `publish` adds the readings.
    state: HardwareState,
    settings: HardwareSettings,
    clock: Clock,
    driver_thread: Thread<DriverCommand>,
    loading: Loading,
    /// Since when the driver thread has been running a command.
    driver_call_since: Option<Monotonic>,
    /// Whether that command is overdue.
    driver_stuck: bool,
    /// The sessions that the driver thread closes after its command; not closed here, as that may block without limit.
    unclosed: Vec<Arc<dyn DriverSession>>,
    publisher: watch::Sender<Arc<HardwareState>>,
    /// Cloned for the threads that it starts.
    to_supervisor: SupervisorSender,
    xids: XidSender,
    /// The event thread of the open session, or of the one being drained.
    event_thread: Option<EventThread>,
    /// Whether no event thread could be started; each inspection tries again.
    lacks_event_thread: bool,
    /// The event threads that did not end in time.
    leaked_waits: Vec<EventThread>,
    last_event_thread_number: u64,
    /// The last state of the event wait.
    event_collector: Option<SourceStatus>,
    releases: Releases,
    phase: SessionPhase,
    loads: DriverLoads,
    /// The driver and the number of GPUs at the last opening.
    last_opened: Option<(Option<DriverInfo>, usize)>,
    reopen: Backoff,
    gpus: EnumeratedGpus,
    rounds: Rounds,
    /// Whether the problem ends when a GPU answers, not with the next list.
    awaits_an_answer: bool,
    /// The latest time of the end, once a stop is requested.
    stopping: Option<Monotonic>,
}

impl Supervisor {
    pub fn new(
        settings: HardwareSettings,
        clock: Clock,
        driver_thread: Thread<DriverCommand>,
        loading: Loading,
        to_supervisor: SupervisorSender,
        publisher: watch::Sender<Arc<HardwareState>>,
        xids: XidSender,
    ) -> Self {
        let state = HardwareState::clone(&publisher.borrow());
        Self {
            state: HardwareState { implausible_readings: plausible::all_zero(), ..state },
            reopen: Backoff::new(settings.reopen),
            gpus: EnumeratedGpus::new(settings.clone(), clock, to_supervisor.clone()),
            settings,
            clock,
            driver_thread,
            loading,
            driver_call_since: None,
            driver_stuck: false,
            unclosed: Vec::new(),
            publisher,
            to_supervisor,
            xids,
            event_thread: None,
            lacks_event_thread: false,
            leaked_waits: Vec::new(),
            last_event_thread_number: 0,
            event_collector: None,
            releases: Releases::default(),
            phase: SessionPhase::Closed { retry: Monotonic::default() },
            loads: DriverLoads::default(),
            last_opened: None,
            rounds: Rounds::default(),
            awaits_an_answer: false,
            stopping: None,
        }
    }

    /// Runs until the driver is closed after `SupervisorMessage::Stop`, or `STOP` has passed.
    pub fn run(mut self, messages: &Receiver<SupervisorMessage>) {
        loop {
            let now = self.clock.now().monotonic;
            self.act(now);
            if self.has_stopped(now) {
                return;
            }
            match messages.recv_timeout(self.wake_up(now).since(now)) {
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The next time to act: exact for the next round and the end of one, a little late for everything else.
    fn wake_up(&self, now: Monotonic) -> Monotonic {
        let is_open = matches!(self.phase, SessionPhase::Open { .. });
        let round = self.rounds.deadline().into_iter().chain(self.gpus.next_pass(now)).filter(|_| is_open).min();
        let latest = now + self.settings.watchdog / WAKE_UPS;
        // The wait is never zero, so that a deadline in the past cannot make the loop spin.
        round.map_or(latest, |round| round.min(latest)).max(now + Duration::from_millis(1))
    }

    fn has_stopped(&self, now: Monotonic) -> bool {
        self.stopping.is_some_and(|until| now >= until || matches!(self.phase, SessionPhase::Closed { .. }))
    }

    /// Does everything that is due at `now`.
    fn act(&mut self, now: Monotonic) {
        self.watch_driver_thread(now);
        self.xids.send();
        self.leaked_waits.retain(|event_thread| !event_thread.has_ended());
        if self.releases.released().is_some_and(|released| now >= released.until.monotonic) {
            info!("the release has expired");
            self.resume(now);
        }
        let has_event_thread = self.event_thread.as_ref().is_some_and(|event_thread| !event_thread.has_ended());
        let stuck = self.gpus.mark_stuck(now);
        for gpu in &stuck {
            self.rounds.stop_waiting_for(gpu);
            if let SessionPhase::Draining { pending, .. } = &mut self.phase {
                pending.remove(gpu);
            }
        }
        if !stuck.is_empty() {
            self.publish();
        }
        match &self.phase {
            SessionPhase::Closed { retry } if now >= *retry => self.open(now),
            SessionPhase::Open { session, next_inspection } => {
                let session = Arc::clone(session);
                if now >= *next_inspection && self.send(DriverCommand::Inspect(Arc::clone(&session)), now) {
                    let next_inspection = now + self.settings.medium_interval;
                    self.phase = SessionPhase::Open { session: Arc::clone(&session), next_inspection };
                    if self.lacks_event_thread {
                        self.start_event_thread(&session);
                    }
                }
                self.advance_rounds(&session, now);
            }
            SessionPhase::Draining { pending, until, .. }
                if (pending.is_empty() && !has_event_thread || now >= *until)
                    && (self.driver_call_since.is_none() || self.driver_stuck) =>
            {
                self.close_session(now);
            }
            // The driver does not close: a stop no longer waits for it. It is opened again once the close has returned.
            SessionPhase::Closing { until } if now >= *until => self.set_closed(now),
            _ => {}
        }
        self.answer_releases(now);
    }

    fn answer_releases(&mut self, now: Monotonic) {
        let is_closed = matches!(self.phase, SessionPhase::Closed { .. });
        let (gpus, leaked, has_driver_call) = (&self.gpus, &self.leaked_waits, self.driver_call_since.is_some());
        self.releases.answer(is_closed, now, self.settings.release_limit, || {
            let mut holders: Vec<String> = gpus.stuck().map(|gpu| format!("a call on {gpu}")).collect();
            holders.extend((!leaked.is_empty()).then(|| "the wait for events".to_owned()));
            holders.extend(has_driver_call.then(|| "a call that opens, lists or closes the driver".to_owned()));
            if holders.is_empty() {
                holders.push("a call that has not returned".to_owned());
            }
            holders.join(", ")
        });
    }

    fn advance_rounds(&mut self, session: &Arc<dyn DriverSession>, now: Monotonic) {
        if self.rounds.end_if_complete(now) {
            self.publish();
        }
        let started = self.gpus.start_passes(session, now);
        self.rounds.add(started, self.round_deadline(now));
    }

    /// The time at which a round is published without the GPUs that have not answered.
    fn round_deadline(&self, now: Monotonic) -> Monotonic {
        now + self.settings.shortest_interval() / 2
    }

    fn handle(&mut self, message: SupervisorMessage) {
        let now = self.clock.now().monotonic;
        match message {
            SupervisorMessage::Passed(report) => self.apply_pass(*report, now),
            SupervisorMessage::ReaderDropped(gpu) => {
                if let SessionPhase::Draining { pending, .. } = &mut self.phase {
                    pending.remove(&gpu);
                }
            }
            SupervisorMessage::Opened(opened, node_devices) => {
                self.driver_returned(now);
                self.state.node_devices = node_devices;
                match *opened {
                    Ok(opened) => self.begin_session(opened, now),
                    Err(failure) => self.opening_failed(&failure, now),
                }
            }
            SupervisorMessage::Inspected(inventory, node_devices) => {
                self.driver_returned(now);
                self.state.node_devices = node_devices;
                match inventory {
                    Some(inventory) => self.apply_changed_layout(*inventory, now),
                    // The problem depends on the bus, too.
                    None if matches!(self.phase, SessionPhase::Open { .. }) => self.update_inventory_problem(),
                    None => {}
                }
            }
            SupervisorMessage::Closed => {
                self.driver_returned(now);
                if matches!(self.phase, SessionPhase::Closing { .. }) {
                    self.set_closed(now);
                }
            }
            SupervisorMessage::Notice(notice) => self.apply_notice(*notice, now),
            SupervisorMessage::EventThreadEnded(number) => {
                self.event_thread.take_if(|event_thread| event_thread.number == number);
            }
            SupervisorMessage::Held { held, changed } => self.gpus.set_held(held, &changed, now),
            SupervisorMessage::Watched(watched) => self.gpus.set_watched(watched, now),
            SupervisorMessage::Release(duration, reply) => {
                info!(duration = words::duration(duration), "the driver is released on request");
                self.releases.release(duration, reply, self.clock.now(), self.settings.release_limit);
                self.drain(now);
                self.publish();
            }
            SupervisorMessage::Resume(reply) => {
                self.resume(now);
                // The requester may have disconnected.
                let _ = reply.send(());
            }
            SupervisorMessage::Stop => {
                self.stopping.get_or_insert(now + STOP);
                self.drain(now);
            }
        }
    }

    /// Reads the tiers that an event may have changed.
    fn apply_notice(&mut self, notice: Notice, now: Monotonic) {
        self.count(&notice.problems);
        let current = self.event_thread.as_ref().map(|event_thread| event_thread.number);
        let SessionPhase::Open { next_inspection, .. } = &mut self.phase else { return };
        if current != Some(notice.event_thread) {
            return;
        }
        if notice.layout_may_have_changed {
            *next_inspection = now;
        }
        for gpu in notice.slow_due {
            self.gpus.request_after_event(&gpu);
        }
        if notice.session_over {
            self.end_session(SESSION_OVER, now);
        }
    }

    fn apply_pass(&mut self, report: PassReport, now: Monotonic) {
        self.count(&report.pass.problems);
        self.count_implausible(&report.pass.implausible);
        let status = report.pass.status;
        // A call that returns late used handles of an earlier session.
        let is_current = matches!(self.phase, SessionPhase::Open { .. }) && self.gpus.is_current(&report);
        let is_first = report.fresh && is_current && status == PassStatus::Answers;
        // Before `apply_pass`, which adds its processes to the known ones.
        let is_late = self.rounds.count_pass(&report, is_current, self.gpus.is_news(&report));
        self.gpus.apply_pass(report, is_current, now);
        if !is_current {
            return;
        }
        match status {
            PassStatus::Answers => {
                self.reopen.reset();
                if std::mem::take(&mut self.awaits_an_answer) {
                    info!("readings resumed");
                    self.update_inventory_problem();
                }
            }
            PassStatus::SessionOver => self.end_session(SESSION_OVER, now),
            PassStatus::Lost | PassStatus::Unlisted if self.gpus.all_lost() => self.end_session(ALL_LOST, now),
            PassStatus::Lost | PassStatus::Unlisted => {}
        }
        // The first readings of a GPU wait for no other GPU.
        if is_first || is_late {
            self.publish();
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tests_of_the_table_exist() {
        let tests = concat!(
            include_str!("../../tests/it/hardware_supervisor.rs"),
            include_str!("../../tests/it/hardware_release.rs")
        );
        let rows = include_str!("supervisor.rs").lines().filter(|line| line.starts_with("//! | ")).skip(1);
        let named: Vec<&str> = rows.filter_map(|row| row.rsplit('`').nth(1)).collect();
        assert!(named.len() > 10);
        for name in named {
            assert!(tests.contains(&format!("fn {name}()")), "{name}");
        }
    }
}
