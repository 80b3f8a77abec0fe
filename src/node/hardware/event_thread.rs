//! The thread that waits for the driver's events, one for each session.
//!
//! In: an event source. Out: XIDs into the mailbox, and notices for the supervisor. Does not use: what an event means
//! for health.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::mailbox::Mailbox;
use super::messages::{Notice, SupervisorEvent};
use super::source::{DriverEventKind, DriverSession, EventSource, PassStatus, RawEvent};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{Collector, Moment, Monotonic, XidEvent};

const STACK_BYTES: usize = 512 * 1024;
/// The longest wait; an ending session is released within it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The wait for the next of several events. Not zero: the driver's behaviour for zero is not documented.
const NEXT: Duration = Duration::from_millis(1);
/// Events taken before they are sent.
const BATCH: usize = 1_000;
/// First and longest pause after a wait that returned at once without an event.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Problems kept while the supervisor's queue is full.
const PROBLEMS: usize = 64;

/// A running event thread. Dropping it lets the thread end once its wait has returned.
pub struct EventThread {
    pub number: u64,
    changes: Option<SyncSender<()>>,
    handle: JoinHandle<()>,
    state: Arc<Mutex<WaitState>>,
    /// Longer than any wait that is not stuck.
    limit: Duration,
}

/// The state of the wait, shared with the supervisor.
#[derive(Default)]
struct WaitState {
    waiting_since: Option<Monotonic>,
    /// `None`: the driver has no events.
    collector: Option<Collector>,
}

impl EventThread {
    pub fn spawn(
        number: u64,
        session: Arc<dyn DriverSession>,
        clock: Clock,
        mailbox: Mailbox,
        events: SyncSender<SupervisorEvent>,
        watchdog: Duration,
    ) -> std::io::Result<Self> {
        let (changes, changed) = sync_channel(1);
        let state = Arc::<Mutex<WaitState>>::default();
        let patience = PATIENCE.min(watchdog / 4);
        let event_wait = EventWait {
            clock,
            mailbox,
            events,
            changed,
            state: Arc::clone(&state),
            patience,
            notice: Notice { event_thread: number, ..Notice::default() },
        };
        let body = move || event_wait.run(number, session);
        let handle = Builder::new().name("events".to_owned()).stack_size(STACK_BYTES).spawn(body)?;
        Ok(Self { number, changes: Some(changes), handle, state, limit: patience + watchdog })
    }

    /// The driver's list of GPUs has changed.
    pub fn gpus_changed(&self) {
        if let Some(changes) = &self.changes {
            // Full: an earlier change is still to be handled.
            let _ = changes.try_send(());
        }
    }

    /// Requests that the thread release the session, which it reports with [`SupervisorEvent::WaitEnded`].
    pub fn stop(&mut self) {
        self.changes = None;
    }

    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    pub fn is_stuck(&self, now: Monotonic) -> bool {
        !self.has_ended() && self.state.lock().waiting_since.is_some_and(|since| now.since(since) >= self.limit)
    }

    /// `None` for a driver without events.
    pub fn collector(&self, now: Monotonic) -> Option<Collector> {
        let stuck = self.is_stuck(now);
        let collector = self.state.lock().collector.clone()?;
        Some(Collector { success: collector.success && !stuck, stuck, ..collector })
    }
}

struct EventWait {
    clock: Clock,
    mailbox: Mailbox,
    events: SyncSender<SupervisorEvent>,
    changed: Receiver<()>,
    state: Arc<Mutex<WaitState>>,
    patience: Duration,
    notice: Notice,
}

impl EventWait {
    fn run(mut self, number: u64, session: Arc<dyn DriverSession>) {
        self.state.lock().waiting_since = Some(self.clock.now().monotonic);
        let source = session.events();
        self.state.lock().collector = source.as_ref().map(|_| Collector::default());
        if let Some(mut source) = source {
            self.wait_repeatedly(&mut *source);
        }
        self.set_waiting_since(None);
        // Released before it is reported.
        drop(session);
        let _ = self.events.send(SupervisorEvent::WaitEnded(number));
    }

    fn wait_repeatedly(&mut self, source: &mut dyn EventSource) {
        let mut pauses = Backoff::new(PAUSES);
        loop {
            match self.changed.try_recv() {
                Ok(()) => source.gpus_changed(),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            let needs_pause = self.wait(source);
            self.mailbox.send();
            self.notice.problems.extend(source.problems());
            self.send_notice();
            if self.notice.session_over {
                return;
            }
            if !needs_pause {
                pauses.reset();
                continue;
            }
            match self.changed.recv_timeout(pauses.pause()) {
                Ok(()) => source.gpus_changed(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Waits for an event and takes those that follow at once. True when the wait returned at once, so that a pause is
    /// needed.
    fn wait(&mut self, source: &mut dyn EventSource) -> bool {
        let mut patience = self.patience;
        for number in 0..BATCH {
            let began = self.clock.now();
            self.set_waiting_since(Some(began.monotonic));
            let outcome = source.wait(patience, began.monotonic);
            let now = self.clock.now();
            self.set_waiting_since(None);
            match outcome {
                Ok(Some(event)) => {
                    self.record_success(now);
                    self.apply_event(event, now);
                    if number == 0 {
                        self.mailbox.send();
                        self.send_notice();
                    }
                    patience = NEXT;
                }
                Ok(None) => {
                    self.record_success(now);
                    return number == 0 && now.monotonic.since(began.monotonic) < self.patience / 10;
                }
                Err(failure) => {
                    self.state.lock().collector.get_or_insert_default().success = false;
                    self.notice.problems.push(failure.problem);
                    self.notice.session_over = failure.status == PassStatus::SessionOver;
                    return true;
                }
            }
        }
        false
    }

    fn apply_event(&mut self, event: RawEvent, at: Moment) {
        let RawEvent { gpu, instance, kind } = event;
        match kind {
            DriverEventKind::MigChange => self.notice.layout_may_have_changed = true,
            DriverEventKind::Condition | DriverEventKind::Xid(_) => {
                if !self.notice.slow_due.contains(&gpu) {
                    self.notice.slow_due.insert(gpu.clone());
                }
            }
        }
        if let DriverEventKind::Xid(code) = kind {
            self.mailbox.put(XidEvent { at, gpu, instance, code, count: 1 });
        }
    }

    /// Never blocks: with a full queue the notice is sent with the next one.
    fn send_notice(&mut self) {
        self.notice.problems.truncate(PROBLEMS);
        let Notice { slow_due, layout_may_have_changed, problems, session_over, .. } = &self.notice;
        if slow_due.is_empty() && !layout_may_have_changed && problems.is_empty() && !session_over {
            return;
        }
        let fresh = Notice { event_thread: self.notice.event_thread, session_over: *session_over, ..Notice::default() };
        let notice = std::mem::replace(&mut self.notice, fresh);
        if let Err(TrySendError::Full(SupervisorEvent::Notice(kept))) =
            self.events.try_send(SupervisorEvent::Notice(Box::new(notice)))
        {
            self.notice = *kept;
        }
    }

    fn record_success(&self, now: Moment) {
        let mut state = self.state.lock();
        let collector = state.collector.get_or_insert_default();
        (collector.success, collector.last_success) = (true, Some(now));
    }

    fn set_waiting_since(&self, waiting_since: Option<Monotonic>) {
        self.state.lock().waiting_since = waiting_since;
    }
}
