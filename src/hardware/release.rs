//! Releases the driver on request, and resumes.
//!
//! In: requests with a duration, and the state of the sessions. Out: what is released until when, and the answers. Does
//! not use: driver calls.

use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::messages::{ReleaseError, ReleaseReply, SupervisorMessage, SupervisorSender};
use super::source::DriverSession;
use crate::domain::model::{Moment, Monotonic, Released};

/// The pause between two attempts to reach a busy supervisor, and their number.
const RETRY: Duration = Duration::from_millis(10);
const ATTEMPTS: u32 = 100;

/// Requests a release or a resume from async code.
#[derive(Clone, Debug)]
pub struct DriverLease {
    pub(super) to_supervisor: SupervisorSender,
}

impl DriverLease {
    /// Closes the driver for at most `duration`. Returns when it is closed.
    ///
    /// # Errors
    ///
    /// When a thread is stuck inside the driver, which stays released all the same; when it was resumed meanwhile, or the
    /// hardware threads are busy or have ended.
    pub async fn release(&self, duration: Duration) -> Result<Released, ReleaseError> {
        let (reply, replied) = oneshot::channel();
        self.send(SupervisorMessage::Release(duration, reply)).await;
        replied.await.unwrap_or(Err(ReleaseError::Unavailable))
    }

    /// Opens the driver again. Returns when that has begun.
    ///
    /// # Errors
    ///
    /// When the hardware threads are busy or have ended.
    pub async fn resume(&self) -> Result<(), ReleaseError> {
        let (reply, replied) = oneshot::channel();
        self.send(SupervisorMessage::Resume(reply)).await;
        replied.await.map_err(|_| ReleaseError::Unavailable)
    }

    async fn send(&self, mut message: SupervisorMessage) {
        for _ in 0..ATTEMPTS {
            match self.to_supervisor.try_send(message) {
                Err(TrySendError::Full(back)) => message = back,
                // A message that is dropped drops its reply, which the requester then gets as `Unavailable`.
                _ => return,
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// A session, and the marker of the open driver, which may outlast the session.
type OpenSession = (Weak<dyn DriverSession>, Option<Weak<()>>);

fn is_open((session, marker): &OpenSession) -> bool {
    session.strong_count() > 0 || marker.as_ref().is_some_and(|marker| marker.strong_count() > 0)
}

/// The release in force, the requests to answer, and the sessions that may keep the driver open.
#[derive(Default)]
pub struct Releases {
    released: Option<Released>,
    waiting: Vec<(ReleaseReply, Monotonic)>,
    sessions: Vec<OpenSession>,
}

impl Releases {
    pub fn track(&mut self, session: &Arc<dyn DriverSession>) {
        self.sessions.retain(is_open);
        self.sessions.push((Arc::downgrade(session), session.open_marker()));
    }

    pub fn released(&self) -> Option<Released> {
        self.released
    }

    pub fn release(&mut self, duration: Duration, reply: ReleaseReply, now: Moment, limit: Duration) {
        let since = self.released.map_or(now, |released| released.since);
        let mut until = now;
        until.monotonic = until.monotonic + duration;
        until.unix.0 += duration.as_secs_f64();
        self.released = Some(Released { since, until });
        self.waiting.push((reply, now.monotonic + limit));
    }

    /// Ends the release. Returns whether the driver was released.
    pub fn resume(&mut self) -> bool {
        for (reply, _) in self.waiting.drain(..) {
            let _ = reply.send(Err(ReleaseError::Resumed));
        }
        self.released.take().is_some()
    }

    /// Answers the requests once the driver is closed or their time limit has passed.
    pub fn answer(&mut self, is_closed: bool, now: Monotonic, limit: Duration, holders: impl Fn() -> String) {
        let Some(released) = self.released.filter(|_| !self.waiting.is_empty()) else { return };
        if is_closed && !self.sessions.iter().any(is_open) {
            for (reply, _) in self.waiting.drain(..) {
                // A requester that has disconnected needs no answer.
                let _ = reply.send(Ok(released));
            }
            return;
        }
        for (reply, _) in self.waiting.extract_if(.., |(_, until)| now >= *until) {
            let _ = reply.send(Err(ReleaseError::Held { seconds: limit.as_secs(), holders: holders() }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_a_second_for_a_busy_supervisor() {
        let (to_supervisor, messages) = sync_channel(1);
        to_supervisor.send(SupervisorMessage::Stop).unwrap();
        let lease = DriverLease { to_supervisor };
        assert_eq!(lease.resume().await, Err(ReleaseError::Unavailable));
        let supervisor = async {
            tokio::time::sleep(RETRY * 5).await;
            assert!(matches!(messages.try_recv(), Ok(SupervisorMessage::Stop)));
            tokio::time::sleep(RETRY * 5).await;
            let Ok(SupervisorMessage::Resume(reply)) = messages.try_recv() else { panic!("no second attempt") };
            reply.send(()).unwrap();
        };
        assert_eq!(tokio::join!(lease.resume(), supervisor), (Ok(()), ()));
    }
}
