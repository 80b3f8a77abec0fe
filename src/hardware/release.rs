//! Letting go of the driver on request, and taking it up again.

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::source::Session;
use super::worker::Event;
use crate::model::{Moment, Monotonic, Released};

/// Between two tries to give an order to a supervisor that has much to do, and how many there are.
const TRY_AGAIN: Duration = Duration::from_millis(10);
const TRIES: u32 = 100;

/// Answered once the driver is closed, or when that takes too long.
pub type Reply = oneshot::Sender<Result<Released, ReleaseError>>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    #[error(
        "the driver is still open after {seconds} s, held by {holders}; no new call is made, and the driver closes \
         when these come back: look for Xid and NVRM lines in the kernel log, or end podmeter"
    )]
    Held { seconds: u64, holders: String },
    #[error("somebody asked to take the driver up again before it was closed")]
    Resumed,
    #[error("the hardware threads have ended or are busy; see podmeter's log")]
    Unavailable,
}

/// Gives the two orders from async code. Clones act on the same room.
#[derive(Clone, Debug)]
pub struct DriverLease {
    events: SyncSender<Event>,
}

impl DriverLease {
    pub(super) fn new(events: SyncSender<Event>) -> Self {
        Self { events }
    }

    /// Closes the driver for at most `duration`. Comes back when it is closed, or with who holds it.
    ///
    /// # Errors
    ///
    /// When a thread is stuck inside the driver; the room stays released all the same.
    pub async fn release(&self, duration: Duration) -> Result<Released, ReleaseError> {
        let (reply, replied) = oneshot::channel();
        self.order(Event::Release(duration, reply)).await?;
        replied.await.unwrap_or(Err(ReleaseError::Unavailable))
    }

    /// Opens the driver again. Comes back when that is under way.
    ///
    /// # Errors
    ///
    /// When the room has ended.
    pub async fn resume(&self) -> Result<(), ReleaseError> {
        let (reply, replied) = oneshot::channel();
        self.order(Event::Resume(reply)).await?;
        replied.await.map_err(|_| ReleaseError::Unavailable)
    }

    async fn order(&self, mut order: Event) -> Result<(), ReleaseError> {
        for _ in 0..TRIES {
            match self.events.try_send(order) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) => order = back,
                Err(TrySendError::Disconnected(_)) => return Err(ReleaseError::Unavailable),
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
        Err(ReleaseError::Unavailable)
    }
}

/// What was asked for, and what still has the driver open.
#[derive(Default)]
pub struct Releases {
    released: Option<Released>,
    waiting: Vec<(Reply, Monotonic)>,
    /// One for each session that was opened: whether it has not been closed.
    open: Vec<Box<dyn Fn() -> bool + Send>>,
}

impl Releases {
    pub fn watch(&mut self, session: &std::sync::Arc<dyn Session>) {
        self.open.retain(|is_open| is_open());
        let is_open: Box<dyn Fn() -> bool + Send> = match session.open_marker() {
            Some(open_marker) => Box::new(move || open_marker.strong_count() > 0),
            None => {
                let session = std::sync::Arc::downgrade(session);
                Box::new(move || session.strong_count() > 0)
            }
        };
        self.open.push(is_open);
    }

    pub fn released(&self) -> Option<Released> {
        self.released
    }

    /// Until when the driver stays closed.
    pub fn until(&self) -> Option<Monotonic> {
        self.released.map(|released| released.until.monotonic)
    }

    pub fn release(&mut self, duration: Duration, reply: Reply, now: Moment, limit: Duration) {
        let since = self.released.map_or(now, |released| released.since);
        let mut until = now;
        until.monotonic = until.monotonic + duration;
        until.unix.0 += duration.as_secs_f64();
        self.released = Some(Released { since, until });
        self.waiting.push((reply, now.monotonic + limit));
    }

    /// True when it was released.
    pub fn resume(&mut self) -> bool {
        for (reply, _) in self.waiting.drain(..) {
            let _ = reply.send(Err(ReleaseError::Resumed));
        }
        self.released.take().is_some()
    }

    /// Tells whoever waits, once the driver is closed or the time is up.
    pub fn answer(&mut self, is_closed: bool, now: Monotonic, limit: Duration, holders: impl Fn() -> String) {
        let Some(released) = self.released.filter(|_| !self.waiting.is_empty()) else { return };
        if is_closed && !self.open.iter().any(|is_open| is_open()) {
            for (reply, _) in self.waiting.drain(..) {
                // Whoever asked has gone: it is closed all the same.
                let _ = reply.send(Ok(released));
            }
            return;
        }
        for (reply, _) in self.waiting.extract_if(.., |(_, until)| now >= *until) {
            let _ = reply.send(Err(ReleaseError::Held { seconds: limit.as_secs(), holders: holders() }));
        }
    }

    /// While somebody waits, what comes back is looked for often.
    pub fn deadline(&self, now: Monotonic) -> Option<Monotonic> {
        let look = (!self.waiting.is_empty()).then(|| now + TRY_AGAIN);
        look.into_iter().chain(self.until()).min()
    }
}
