//! The signals that the agent handles, as requests to end or to reload.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals that the agent handles.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
}

pub enum SignalRequest {
    End,
    Reload,
}

impl Signals {
    pub fn receive() -> io::Result<Self> {
        // The default action of these ends the process. With SIGXFSZ handled, a write to a file at its size limit fails
        // as on a full disk. An installed handler stays.
        for survived in [Signal::USR1, Signal::USR2, Signal::XFSZ] {
            drop(signal(SignalKind::from_raw(survived.as_raw()))?);
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::End,
            _ = self.interrupt.recv() => SignalRequest::End,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }

    /// Returns with the next signal that ends the process.
    pub async fn end(&mut self) {
        while !matches!(self.next().await, SignalRequest::End) {}
    }
}
