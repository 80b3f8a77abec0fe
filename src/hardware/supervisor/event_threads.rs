//! The event thread of the open session, and those whose wait hangs since an earlier one.
//!
//! In: sessions and the time. Out: the status of the wait for events. Does not use: events.

use std::sync::Arc;

use tracing::{error, warn};

use crate::clock::Clock;
use crate::domain::model::{Monotonic, SourceStatus};
use crate::hardware::event_thread::{EventThread, XidSender};
use crate::hardware::messages::SupervisorSender;
use crate::hardware::settings::HardwareSettings;
use crate::hardware::source::DriverSession;

/// The number of abandoned threads at which no further one is started until one of them ends: a driver whose waits hang
/// does so in each session.
const ABANDONED_LIMIT: usize = 4;

pub struct EventThreads {
    clock: Clock,
    settings: HardwareSettings,
    to_supervisor: SupervisorSender,
    pub xids: XidSender,
    /// The thread of the open session, or of the one being drained.
    pub current: Option<EventThread>,
    /// Whether the open session lacks its thread: it could not be started, has panicked, or too many are abandoned.
    is_missing: bool,
    /// The threads that did not end with their session.
    pub abandoned: Vec<EventThread>,
    last_number: u64,
    /// The last status; `None` until a driver with events has been opened, or its thread is missing.
    status: Option<SourceStatus>,
}

impl EventThreads {
    pub fn new(clock: Clock, settings: HardwareSettings, to_supervisor: SupervisorSender, xids: XidSender) -> Self {
        let (current, abandoned, status) = (None, vec![], None);
        Self { clock, settings, to_supervisor, xids, current, is_missing: false, abandoned, last_number: 0, status }
    }

    /// Starts the thread of a new session.
    pub fn start(&mut self, session: &Arc<dyn DriverSession>) {
        let was_missing = std::mem::replace(&mut self.is_missing, true);
        if self.abandoned.len() >= ABANDONED_LIMIT {
            if !was_missing {
                warn!("too many waits for events have not returned: there are no events until one of them returns");
            }
            return;
        }
        self.last_number += 1;
        let (xids, to_supervisor, watchdog) = (self.xids.clone(), self.to_supervisor.clone(), self.settings.watchdog);
        let session = Arc::clone(session);
        match EventThread::spawn(self.last_number, session, self.clock, xids, to_supervisor, watchdog) {
            Ok(thread) => (self.current, self.is_missing) = (Some(thread), false),
            Err(problem) if !was_missing => {
                warn!(%problem, "cannot start a thread for the driver's events; trying again");
            }
            Err(_) => {}
        }
    }

    /// Tries again to start a missing thread.
    pub fn start_missing(&mut self, session: &Arc<dyn DriverSession>) {
        if self.is_missing {
            self.start(session);
        }
    }

    /// Applies the end of a thread; one that has panicked is missing.
    pub fn apply_end(&mut self, number: u64, has_panicked: bool) {
        if self.current.take_if(|thread| thread.number == number).is_some() && has_panicked {
            error!("the thread that waits for the driver's events has panicked; it is started again");
            self.is_missing = true;
        }
    }

    pub fn is_current(&self, number: u64) -> bool {
        self.current.as_ref().is_some_and(|thread| thread.number == number)
    }

    pub fn gpus_changed(&self) {
        self.current.iter().for_each(EventThread::gpus_changed);
    }

    /// Requests that the thread release its session.
    pub fn stop(&mut self) {
        self.current.iter_mut().for_each(EventThread::stop);
    }

    /// Goes on without the thread of the session that is being drained.
    pub fn abandon(&mut self) {
        if let Some(thread) = self.current.take() {
            warn!("the wait for events has not returned and is abandoned");
            self.abandoned.push(thread);
        }
    }

    /// The status of the wait; `None` for a driver without events.
    pub fn status(&mut self, is_open: bool, now: Monotonic) -> Option<SourceStatus> {
        let current = self.current.as_ref().and_then(|thread| thread.collector(now));
        let success = current.as_ref().is_some_and(|status| status.success) && is_open;
        let missing = self.is_missing.then(SourceStatus::default);
        let stuck = self.current.iter().chain(&self.abandoned).any(|thread| thread.is_stuck(now));
        let last = current.or(self.status.take()).or(missing);
        self.status = last.map(|status| SourceStatus { success, stuck, ..status });
        self.status.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

    use parking_lot::Mutex;

    use super::*;
    use crate::domain::model::GpuUuid;
    use crate::hardware::messages::{ListedGpus, SupervisorMessage};
    use crate::hardware::source::{CallProblem, EventSource, Failure, GpuReader};

    /// A session whose wait for events begins with a message and hangs until there is an answer: whether it then panics.
    struct HangingSession {
        begins: Sender<()>,
        panics: Mutex<Receiver<bool>>,
    }

    impl DriverSession for HangingSession {
        fn inventory(&self) -> Result<ListedGpus, Failure> {
            panic!("only its events are used")
        }

        fn reader(&self, _gpu: &GpuUuid) -> Result<Box<dyn GpuReader>, Failure> {
            panic!("only its events are used")
        }

        fn layout_changed(&self) -> Result<bool, CallProblem> {
            panic!("only its events are used")
        }

        fn events(&self) -> Option<Box<dyn EventSource>> {
            self.begins.send(()).unwrap();
            assert!(!self.panics.lock().recv().unwrap_or(false), "this thread is to panic");
            None
        }
    }

    struct Waits {
        threads: EventThreads,
        begun: Receiver<()>,
        begins: Sender<()>,
        messages: Receiver<SupervisorMessage>,
    }

    impl Waits {
        fn new() -> Self {
            let (begins, begun) = channel();
            let (to_supervisor, messages) = sync_channel(16);
            let xids = XidSender::new::<0>().0;
            let threads = EventThreads::new(Clock::start(), HardwareSettings::default(), to_supervisor, xids);
            Self { threads, begun, begins, messages }
        }

        fn session(&self) -> (Arc<dyn DriverSession>, Sender<bool>) {
            let (answers, panics) = channel();
            (Arc::new(HangingSession { begins: self.begins.clone(), panics: Mutex::new(panics) }), answers)
        }

        fn success(&mut self) -> Option<bool> {
            Some(self.threads.status(true, Monotonic::default())?.success)
        }
    }

    #[test]
    fn a_session_gets_events_again_once_a_wait_that_hung_returns() {
        let mut waits = Waits::new();
        let mut hanging = vec![];
        for _ in 0..ABANDONED_LIMIT {
            let (session, answers) = waits.session();
            waits.threads.start(&session);
            waits.begun.recv().unwrap();
            waits.threads.stop();
            waits.threads.abandon();
            hanging.push(answers);
        }
        let (session, _answers) = waits.session();
        waits.threads.start(&session);
        waits.threads.start_missing(&session);
        assert!(waits.threads.current.is_none(), "too many hang");
        assert_eq!(waits.success(), Some(false));
        drop(hanging.pop());
        while waits.threads.abandoned.len() == ABANDONED_LIMIT {
            waits.threads.abandoned.retain(|thread| !thread.has_ended());
            std::thread::yield_now();
        }
        waits.threads.start_missing(&session);
        waits.begun.recv().unwrap();
    }

    #[test]
    fn a_thread_that_panics_is_reported_and_started_again() {
        let mut waits = Waits::new();
        let (session, answers) = waits.session();
        waits.threads.start(&session);
        answers.send(true).unwrap();
        let Ok(SupervisorMessage::EventThreadEnded(number, has_panicked)) = waits.messages.recv() else { panic!() };
        waits.threads.apply_end(number, has_panicked);
        assert_eq!(waits.success(), Some(false));
        waits.begun.recv().unwrap();
        waits.threads.start_missing(&session);
        waits.begun.recv().unwrap();
    }
}
