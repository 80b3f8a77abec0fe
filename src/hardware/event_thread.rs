//! The thread that waits for the driver's events, for one session.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::mailbox::Mailbox;
use super::source::{EventKind, EventSource, PassStatus, Problem, RawEvent, Session};
use super::worker::Event;
use crate::clock::Clock;
use crate::model::{Collector, GpuUuid, Moment, Monotonic, XidEvent, XidSource};

const STACK_BYTES: usize = 512 * 1024;
/// One wait; a session that ends is let go of within it.
const PATIENCE: Duration = Duration::from_secs(1);
/// While events come one after the other. Not zero: what the driver makes of zero is nowhere written.
const NEXT: Duration = Duration::from_millis(1);
/// Events taken before they are told of.
const BATCH: usize = 1_000;
/// First and longest pause after a wait that came back at once with nothing.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Problems kept until the supervisor has room for them.
const PROBLEMS: usize = 64;

/// What the events mean for the supervisor.
#[derive(Debug, Default)]
pub struct Notice {
    /// The event_thread's number; `None` from the kernel's log.
    pub event_thread: Option<u64>,
    /// GPUs whose slow tier is due at once.
    pub look: BTreeSet<GpuUuid>,
    /// The layout may have changed.
    pub inspect: bool,
    pub problems: Vec<Problem>,
    pub session_over: bool,
}

/// A running event_thread. Dropping it lets the thread end once its wait has come back.
pub struct EventThread {
    pub number: u64,
    calls: Option<SyncSender<()>>,
    handle: JoinHandle<()>,
    hearing: Arc<Mutex<WaitState>>,
    /// Longer than any wait that is not stuck.
    limit: Duration,
}

/// How the waiting goes. Shared with the supervisor.
#[derive(Default)]
struct WaitState {
    /// The driver tells of events.
    has_source: bool,
    waiting_since: Option<Monotonic>,
    success: bool,
    last_success: Option<Moment>,
}

impl EventThread {
    pub fn spawn(
        number: u64,
        session: Arc<dyn Session>,
        clock: Clock,
        mailbox: Mailbox,
        events: SyncSender<Event>,
        watchdog: Duration,
    ) -> std::io::Result<Self> {
        let (calls, called) = sync_channel(1);
        let hearing = Arc::<Mutex<WaitState>>::default();
        let patience = PATIENCE.min(watchdog / 4);
        let ear = EventWait {
            clock,
            mailbox,
            events,
            called,
            hearing: Arc::clone(&hearing),
            patience,
            notice: Notice { event_thread: Some(number), ..Notice::default() },
        };
        let body = move || ear.listen(number, session);
        let handle = Builder::new().name("events".to_owned()).stack_size(STACK_BYTES).spawn(body)?;
        Ok(Self { number, calls: Some(calls), handle, hearing, limit: patience + watchdog })
    }

    /// The driver lists other GPUs.
    pub fn gpus_changed(&self) {
        if let Some(calls) = &self.calls {
            // Full: it has not looked since it was last told to.
            let _ = calls.try_send(());
        }
    }

    /// Asks the thread to let go of the session; it says so with [`Event::EventThreadEnded`].
    pub fn stop(&mut self) {
        self.calls = None;
    }

    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    pub fn is_stuck(&self, now: Monotonic) -> bool {
        !self.has_ended() && self.hearing.lock().waiting_since.is_some_and(|since| now.since(since) >= self.limit)
    }

    /// `None` where the driver tells of no events.
    pub fn collector(&self, now: Monotonic) -> Option<Collector> {
        let stuck = self.is_stuck(now);
        let hearing = self.hearing.lock();
        hearing.has_source.then(|| Collector {
            success: hearing.success && !stuck,
            stuck,
            last_success: hearing.last_success,
            duration: None,
        })
    }
}

struct EventWait {
    clock: Clock,
    mailbox: Mailbox,
    events: SyncSender<Event>,
    called: Receiver<()>,
    hearing: Arc<Mutex<WaitState>>,
    patience: Duration,
    notice: Notice,
}

impl EventWait {
    fn listen(mut self, number: u64, session: Arc<dyn Session>) {
        self.hearing.lock().waiting_since = Some(self.clock.now().monotonic);
        let source = session.events();
        self.hearing.lock().has_source = source.is_some();
        if let Some(mut source) = source {
            self.attend(&mut *source);
        }
        self.note(None);
        // Gone before it is said.
        drop(session);
        let _ = self.events.send(Event::EventThreadEnded(number));
    }

    fn attend(&mut self, source: &mut dyn EventSource) {
        let mut pause = PAUSES.0;
        loop {
            match self.called.try_recv() {
                Ok(()) => source.gpus_changed(),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return,
            }
            let rests = self.hear(source);
            self.mailbox.send();
            self.notice.problems.extend(source.problems());
            self.tell();
            if self.notice.session_over {
                return;
            }
            if !rests {
                pause = PAUSES.0;
                continue;
            }
            match self.called.recv_timeout(pause) {
                Ok(()) => source.gpus_changed(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Waits for an event and takes those that follow at once. True when the wait was none: it needs a pause.
    fn hear(&mut self, source: &mut dyn EventSource) -> bool {
        let mut patience = self.patience;
        for number in 0..BATCH {
            let began = self.clock.now();
            self.note(Some(began.monotonic));
            let heard = source.wait(patience, began.monotonic);
            let now = self.clock.now();
            self.note(None);
            match heard {
                Ok(Some(event)) => {
                    self.succeed(now);
                    self.take(event, now);
                    if number == 0 {
                        self.mailbox.send();
                        self.tell();
                    }
                    patience = NEXT;
                }
                Ok(None) => {
                    self.succeed(now);
                    return number == 0 && now.monotonic.since(began.monotonic) < self.patience / 10;
                }
                Err(failure) => {
                    self.hearing.lock().success = false;
                    self.notice.problems.push(failure.problem);
                    self.notice.session_over = failure.status == PassStatus::SessionOver;
                    return true;
                }
            }
        }
        false
    }

    fn take(&mut self, event: RawEvent, at: Moment) {
        let RawEvent { gpu, instance, kind } = event;
        match kind {
            EventKind::MigChange => self.notice.inspect = true,
            EventKind::Condition | EventKind::Xid(_) => {
                if !self.notice.look.contains(&gpu) {
                    self.notice.look.insert(gpu.clone());
                }
            }
        }
        if let EventKind::Xid(code) = kind {
            let (source, process, count) = (XidSource::Nvml, None, 1);
            self.mailbox.put(XidEvent { at, gpu, instance, code, source, process, count });
        }
    }

    /// Never waits: what the supervisor has no room for is told with the next.
    fn tell(&mut self) {
        self.notice.problems.truncate(PROBLEMS);
        let Notice { look, inspect, problems, session_over, .. } = &self.notice;
        if look.is_empty() && !inspect && problems.is_empty() && !session_over {
            return;
        }
        let fresh = Notice { event_thread: self.notice.event_thread, session_over: *session_over, ..Notice::default() };
        let told = std::mem::replace(&mut self.notice, fresh);
        if let Err(TrySendError::Full(Event::Notice(kept))) = self.events.try_send(Event::Notice(Box::new(told))) {
            self.notice = *kept;
        }
    }

    fn succeed(&self, now: Moment) {
        let mut hearing = self.hearing.lock();
        (hearing.success, hearing.last_success) = (true, Some(now));
    }

    fn note(&self, waiting_since: Option<Monotonic>) {
        self.hearing.lock().waiting_since = waiting_since;
    }
}
