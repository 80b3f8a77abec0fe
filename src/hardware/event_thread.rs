//! The thread that waits for the driver's events, one for each session, and makes XIDs of them.
//!
//! In: an event source. Out: XIDs with their time for each subscriber, and notices for the supervisor. Does not use: what an
//! event means for health.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::messages::{Notice, SupervisorMessage, SupervisorSender};
use super::source::{DriverEventKind, DriverSession, EventSource, RawEvent};
use super::worker;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{GpuUuid, Moment, Monotonic, SourceStatus, XidEvent, XidInstance};

/// The longest wait for an event; an ending session is released within it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The wait for the next of several events. Not zero: the driver's behaviour for zero is not documented.
const NEXT_PATIENCE: Duration = Duration::from_millis(1);
/// The most events that are read before their XIDs and the notice are sent.
const EVENTS_PER_NOTICE: usize = 1_000;
/// The first and the longest pause after a wait that failed, or returned at once without an event.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The most batches of XIDs that wait for one subscriber.
const QUEUED_BATCHES: usize = 16;

/// Batches of XIDs, each ordered by the time of receipt. Equal XIDs of a batch are counted together.
pub type XidBatches = mpsc::Receiver<Vec<XidEvent>>;

/// Sends every XID to every subscriber once; shared by the event threads of all sessions. While a subscriber's channel is
/// full, its XIDs are counted by kind for its next batch, and no other subscriber waits.
#[derive(Clone, Debug)]
pub struct XidSender(Arc<Mutex<Vec<XidSubscriber>>>);

#[derive(Debug)]
struct XidSubscriber {
    /// The XIDs not sent yet: the time of the last of each kind, and how many there are.
    pending: BTreeMap<(GpuUuid, Option<XidInstance>, u32), (Moment, u64)>,
    batches: mpsc::Sender<Vec<XidEvent>>,
}

impl XidSender {
    pub fn new<const SUBSCRIBERS: usize>() -> (Self, [XidBatches; SUBSCRIBERS]) {
        let mut subscribers = vec![];
        let receivers = [(); SUBSCRIBERS].map(|()| {
            let (batches, received) = mpsc::channel(QUEUED_BATCHES);
            subscribers.push(XidSubscriber { pending: BTreeMap::new(), batches });
            received
        });
        (Self(Arc::new(Mutex::new(subscribers))), receivers)
    }

    fn add(&self, event: &XidEvent) {
        for subscriber in self.0.lock().iter_mut() {
            let kind = (event.gpu.clone(), event.instance, event.code);
            let (at, count) = subscriber.pending.entry(kind).or_default();
            (*at, *count) = (event.at, count.saturating_add(event.count));
        }
    }

    /// Sends the pending XIDs to each subscriber whose channel is not full.
    pub fn send(&self) {
        for subscriber in self.0.lock().iter_mut().filter(|subscriber| !subscriber.pending.is_empty()) {
            // The XIDs of a subscriber that has ended stay pending.
            let Ok(permit) = subscriber.batches.try_reserve() else { continue };
            let kinds = std::mem::take(&mut subscriber.pending).into_iter();
            let mut batch: Vec<_> =
                kinds.map(|((gpu, instance, code), (at, count))| XidEvent { at, gpu, instance, code, count }).collect();
            batch.sort_by_key(|event| event.at.monotonic);
            permit.send(batch);
        }
    }
}

/// A running event thread. Dropping it lets the thread end once its wait has returned.
pub struct EventThread {
    pub number: u64,
    /// Reports changes of the list of GPUs; dropping it ends the thread.
    changes: Option<SyncSender<()>>,
    handle: JoinHandle<()>,
    state: Arc<Mutex<WaitState>>,
    /// A wait that lasts longer than this is stuck.
    limit: Duration,
}

/// The state of the wait, shared with the supervisor.
#[derive(Default)]
struct WaitState {
    waiting_since: Option<Monotonic>,
    /// The status of the wait; `None`: the driver has no events.
    collector: Option<SourceStatus>,
}

impl EventThread {
    pub fn spawn(
        number: u64,
        session: Arc<dyn DriverSession>,
        clock: Clock,
        xids: XidSender,
        to_supervisor: SupervisorSender,
        watchdog: Duration,
    ) -> std::io::Result<Self> {
        let (changes, changed) = sync_channel(1);
        let state = Arc::<Mutex<WaitState>>::default();
        let patience = PATIENCE.min(watchdog / 4);
        let event_wait = EventWait {
            clock,
            xids,
            to_supervisor: to_supervisor.clone(),
            changed,
            state: Arc::clone(&state),
            patience,
            notice: Notice { event_thread: number, ..Notice::default() },
        };
        let handle = worker::spawn("events", move || {
            let has_panicked = catch_unwind(AssertUnwindSafe(|| event_wait.run(&*session))).is_err();
            // The session is released before that is reported.
            drop(session);
            let _ = to_supervisor.send(SupervisorMessage::EventThreadEnded(number, has_panicked));
        })?;
        Ok(Self { number, changes: Some(changes), handle, state, limit: patience + watchdog })
    }

    /// Reports that the driver's list of GPUs has changed.
    pub fn gpus_changed(&self) {
        if let Some(changes) = &self.changes {
            // The channel is full while an earlier change waits.
            let _ = changes.try_send(());
        }
    }

    /// Requests that the thread release the session, which it reports with [`SupervisorMessage::EventThreadEnded`].
    pub fn stop(&mut self) {
        self.changes = None;
    }

    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    pub fn is_stuck(&self, now: Monotonic) -> bool {
        !self.has_ended() && self.state.lock().waiting_since.is_some_and(|since| now.since(since) >= self.limit)
    }

    /// `None` for a driver without events. The supervisor sets `stuck`: it has earlier threads, too.
    pub fn collector(&self, now: Monotonic) -> Option<SourceStatus> {
        let collector = self.state.lock().collector.clone()?;
        Some(SourceStatus { success: collector.success && !self.is_stuck(now), ..collector })
    }
}

struct EventWait {
    clock: Clock,
    xids: XidSender,
    to_supervisor: SupervisorSender,
    changed: Receiver<()>,
    state: Arc<Mutex<WaitState>>,
    patience: Duration,
    notice: Notice,
}

impl EventWait {
    fn run(mut self, session: &dyn DriverSession) {
        self.state.lock().waiting_since = Some(self.clock.now().monotonic);
        let source = session.events();
        self.state.lock().collector = source.as_ref().map(|_| SourceStatus::default());
        if let Some(mut source) = source {
            self.wait_repeatedly(&mut *source);
        }
        self.set_waiting_since(None);
    }

    fn wait_repeatedly(&mut self, source: &mut dyn EventSource) {
        let (mut pauses, mut pause) = (Backoff::new(PAUSES), Duration::ZERO);
        loop {
            match self.changed.recv_timeout(pause) {
                Ok(()) => source.gpus_changed(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let needs_pause = self.wait(source);
            self.xids.send();
            self.notice.problems.extend(source.problems());
            let session_over = self.notice.session_over;
            self.send_notice();
            if session_over {
                return;
            }
            if !needs_pause {
                pauses.reset();
            }
            pause = if needs_pause { pauses.pause() } else { Duration::ZERO };
        }
    }

    /// Waits for an event and reads those that follow at once. Returns true where a pause is needed, as the wait failed
    /// or returned at once.
    fn wait(&mut self, source: &mut dyn EventSource) -> bool {
        let mut patience = self.patience;
        for number in 0..EVENTS_PER_NOTICE {
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
                        self.xids.send();
                        self.send_notice();
                    }
                    patience = NEXT_PATIENCE;
                }
                Ok(None) => {
                    self.record_success(now);
                    return number == 0 && now.monotonic.since(began.monotonic) < self.patience / 10;
                }
                Err(failure) => {
                    self.state.lock().collector.get_or_insert_default().success = false;
                    self.notice.problems.push(failure.problem);
                    self.notice.session_over = failure.session_over;
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
            DriverEventKind::Condition => {
                self.notice.slow_due.insert(gpu);
            }
            DriverEventKind::Xid(code) => {
                self.notice.slow_due.insert(gpu.clone());
                self.xids.add(&XidEvent { at, gpu, instance, code, count: 1 });
            }
        }
    }

    /// Blocks while the queue of the supervisor is full, as the threads of the GPUs do.
    fn send_notice(&mut self) {
        let empty = Notice { event_thread: self.notice.event_thread, ..Notice::default() };
        if self.notice != empty {
            let notice = std::mem::replace(&mut self.notice, empty);
            // An error means that the supervisor has ended.
            let _ = self.to_supervisor.send(SupervisorMessage::Notice(Box::new(notice)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data;

    fn event(code: u32, second: u64) -> XidEvent {
        test_data::xid(test_data::at_second(second), "GPU-a", code)
    }

    #[test]
    fn a_late_subscriber_gets_every_xid_once_and_delays_no_other() {
        let (xids, [mut late, mut prompt]) = XidSender::new();
        for second in 0..100_000 {
            xids.add(&event(31, second));
            xids.send();
            assert_eq!(prompt.try_recv().unwrap(), [event(31, second)]);
        }
        let (mut batches, mut count) = (0, 0);
        for _ in 0..2 {
            while let Ok(batch) = late.try_recv() {
                batches += 1;
                count += batch.iter().map(|event| event.count).sum::<u64>();
            }
            xids.send();
        }
        assert_eq!((batches, count), (QUEUED_BATCHES + 1, 100_000));
        assert!(prompt.try_recv().is_err());
    }

    #[test]
    fn a_batch_is_in_the_order_of_time() {
        let (xids, [mut received]) = XidSender::new();
        for (code, second) in [(94, 1), (13, 2), (63, 3), (13, 4)] {
            xids.add(&event(code, second));
        }
        xids.send();
        let batch = received.try_recv().unwrap();
        let kinds: Vec<_> = batch.iter().map(|event| (event.code, event.count)).collect();
        assert_eq!(kinds, [(94, 1), (63, 1), (13, 2)]);
    }

    #[test]
    fn a_subscriber_that_has_ended_is_no_failure() {
        let (xids, [ended, mut received]) = XidSender::new();
        drop(ended);
        xids.add(&event(79, 0));
        xids.send();
        assert_eq!(received.try_recv().unwrap(), [event(79, 0)]);
    }
}
