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

mod event_threads;
mod loads;
mod publication;
mod session;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info};

use self::event_threads::EventThreads;
use self::loads::DriverLoads;
use super::enumerated_gpus::EnumeratedGpus;
use super::event_thread::XidSender;
use super::messages::{DriverCommand, Notice, PassReport, SupervisorMessage, SupervisorSender};
use super::plausible;
use super::release::Releases;
use super::rounds::Rounds;
use super::settings::HardwareSettings;
use super::source::{DriverSession, PassStatus};
use super::worker::{Loading, Thread};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{GpuUuid, HardwareState, Moment, Monotonic, SourceStatus};
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
    Open(Arc<dyn DriverSession>),
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
    /// The state to publish; `publish_if_due` adds the readings.
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
    /// The status of the lists of GPUs that openings and inspections read.
    inventory_status: SourceStatus,
    publisher: watch::Sender<Arc<HardwareState>>,
    /// Whether the state has changed in a way that is published at once: see `publication`.
    is_publication_due: bool,
    events: EventThreads,
    releases: Releases,
    phase: SessionPhase,
    loads: DriverLoads,
    /// When an open session is inspected: whether its layout has changed.
    next_inspection: Monotonic,
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
            // With 0: `increase()` does not count the first event of a counter that appears with it.
            state: HardwareState {
                implausible_readings: plausible::ALL.iter().map(|quantity| (quantity.name, 0)).collect(),
                ..state
            },
            reopen: Backoff::new(settings.reopen),
            gpus: EnumeratedGpus::new(settings.clone(), clock, to_supervisor.clone()),
            events: EventThreads::new(clock, settings.clone(), to_supervisor, xids),
            settings,
            clock,
            driver_thread,
            loading,
            driver_call_since: None,
            driver_stuck: false,
            unclosed: Vec::new(),
            inventory_status: SourceStatus::default(),
            publisher,
            is_publication_due: false,
            releases: Releases::default(),
            phase: SessionPhase::Closed { retry: Monotonic::default() },
            loads: DriverLoads::default(),
            next_inspection: Monotonic::default(),
            rounds: Rounds::default(),
            awaits_an_answer: false,
            stopping: None,
        }
    }

    /// Runs until the driver is closed after `SupervisorMessage::Stop`, or `STOP` has passed; or until the driver thread has
    /// panicked, without which no driver can be opened or closed. The end closes the channel of the states.
    pub fn run(mut self, messages: &Receiver<SupervisorMessage>) {
        loop {
            let now = self.clock.now().monotonic;
            self.act(now);
            if self.has_stopped(now) {
                return;
            }
            if self.driver_thread.has_ended() {
                error!("the driver thread has panicked: no GPU can be read any more");
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
        let round = self.rounds.deadline().into_iter().chain(self.gpus.next_pass(now)).filter(|_| self.is_open()).min();
        let latest = now + self.settings.watchdog / WAKE_UPS;
        // The wait is never zero, so that a deadline in the past cannot make the loop spin.
        round.map_or(latest, |round| round.min(latest)).max(now + Duration::from_millis(1))
    }

    fn is_open(&self) -> bool {
        matches!(self.phase, SessionPhase::Open(_))
    }

    fn has_stopped(&self, now: Monotonic) -> bool {
        self.stopping.is_some_and(|until| now >= until || matches!(self.phase, SessionPhase::Closed { .. }))
    }

    /// Does everything that is due at `now`.
    fn act(&mut self, now: Monotonic) {
        self.watch_driver_thread(now);
        self.events.xids.send();
        self.events.abandoned.retain(|thread| !thread.has_ended());
        if self.releases.released().is_some_and(|released| now >= released.until.monotonic) {
            info!("the release has expired");
            self.resume(now);
        }
        let stuck = self.gpus.mark_stuck(now);
        for gpu in &stuck {
            self.rounds.stop_waiting_for(gpu);
            if let SessionPhase::Draining { pending, .. } = &mut self.phase {
                pending.remove(gpu);
            }
        }
        self.is_publication_due |= !stuck.is_empty() | self.rounds.end_if_complete(now);
        // Before the passes that begin now, and before the answers, which are about the published state.
        self.publish_if_due(now);
        match &self.phase {
            SessionPhase::Closed { retry } if now >= *retry => self.open(now),
            SessionPhase::Open(session) => {
                let session = Arc::clone(session);
                if now >= self.next_inspection && self.send(DriverCommand::Inspect(Arc::clone(&session)), now) {
                    self.next_inspection = now + self.settings.medium_interval;
                    self.events.start_missing(&session);
                }
                let started = self.gpus.start_passes(&session, now);
                // Then the round is published without the GPUs that have not answered.
                self.rounds.add(started, now + self.settings.shortest_interval() / 2);
            }
            SessionPhase::Draining { pending, until, .. }
                if (pending.is_empty() && self.events.current.is_none() || now >= *until)
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
        let (gpus, events, has_driver_call) = (&self.gpus, &self.events, self.driver_call_since.is_some());
        self.releases.answer(is_closed, now, self.settings.release_limit, || {
            let mut holders: Vec<String> = gpus.stuck().map(|gpu| format!("a call on {gpu}")).collect();
            holders.extend((!events.abandoned.is_empty()).then(|| "the wait for events".to_owned()));
            holders.extend(has_driver_call.then(|| "a call that opens, lists or closes the driver".to_owned()));
            if holders.is_empty() {
                holders.push("a call that has not returned".to_owned());
            }
            holders.join(", ")
        });
    }

    fn handle(&mut self, message: SupervisorMessage) {
        let moment = self.clock.now();
        let now = moment.monotonic;
        match message {
            SupervisorMessage::Passed(report) => self.apply_pass(*report, now),
            SupervisorMessage::ReaderDropped(gpu) => {
                if let SessionPhase::Draining { pending, .. } = &mut self.phase {
                    pending.remove(&gpu);
                }
            }
            SupervisorMessage::Opened(opened, node_devices) => {
                self.listed(opened.is_ok(), moment);
                self.driver_returned(now);
                self.state.node_devices = node_devices;
                match *opened {
                    Ok(opened) => self.begin_session(opened, now),
                    Err(failure) => self.opening_failed(&failure, now),
                }
            }
            SupervisorMessage::Inspected(inspection, node_devices) => {
                self.count(inspection.as_ref().err().copied().as_slice());
                let is_listed = |list: &Option<Box<Result<_, _>>>| list.as_ref().is_none_or(|list| list.is_ok());
                self.listed(inspection.as_ref().is_ok_and(is_listed), moment);
                self.driver_returned(now);
                let has_changed = !matches!(inspection, Ok(None)) || node_devices != self.state.node_devices;
                self.state.node_devices = node_devices;
                self.is_publication_due |= has_changed || self.rounds.deadline().is_none();
                match inspection {
                    Ok(Some(list)) => self.apply_changed_layout(*list, now),
                    // The problem depends on the bus, too.
                    _ if self.is_open() => self.update_inventory_problem(),
                    _ => {}
                }
            }
            SupervisorMessage::Closed => {
                self.driver_returned(now);
                if matches!(self.phase, SessionPhase::Closing { .. }) {
                    self.set_closed(now);
                }
            }
            SupervisorMessage::Notice(notice) => self.apply_notice(*notice, now),
            SupervisorMessage::EventThreadEnded(number, has_panicked) => {
                self.events.apply_end(number, has_panicked);
                self.is_publication_due |= has_panicked;
            }
            SupervisorMessage::Held { held, changed } => self.gpus.set_held(held, &changed, now),
            SupervisorMessage::Watched(watched) => self.gpus.set_watched(watched, now),
            SupervisorMessage::Release(duration, reply) => {
                info!(duration = words::duration(duration), "the driver is released on request");
                self.releases.release(duration, reply, moment, self.settings.release_limit);
                self.drain(now);
                self.is_publication_due = true;
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

    /// Applies whether an opening or an inspection has read the list of the GPUs, or found it unchanged.
    fn listed(&mut self, success: bool, now: Moment) {
        let last_success = if success { Some(now) } else { self.inventory_status.last_success };
        let duration = self.driver_call_since.map(|since| now.monotonic.since(since));
        self.inventory_status = SourceStatus { success, last_success, duration, stuck: false };
    }

    /// Reads the tiers that an event may have changed.
    fn apply_notice(&mut self, notice: Notice, now: Monotonic) {
        self.count(&notice.problems);
        if !self.is_open() || !self.events.is_current(notice.event_thread) {
            return;
        }
        if notice.layout_may_have_changed {
            self.next_inspection = now;
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
        let is_current = self.is_open() && self.gpus.is_current(&report);
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
        self.is_publication_due |= is_first || is_late;
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
