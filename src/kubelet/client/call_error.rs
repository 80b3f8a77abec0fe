//! Why a call to the kubelet failed.
//!
//! In: a status of gRPC. Out: an error with a remedy, and its label. What is done about it is decided by the caller.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use strum::{IntoStaticStr, VariantNames};
use tonic::{Code, Status};

use super::MESSAGE_LIMIT;
use crate::words;

/// Characters of a foreign error message.
const LONGEST_REASON: usize = 500;

/// Why a call failed. The message has the remedy; as a static string it is the `code` label.
#[derive(Debug, thiserror::Error, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CallError {
    #[error("there is no socket {0}: is the kubelet running, and is its directory mounted here (see --kubelet-root)?")]
    #[strum(serialize = "unavailable")]
    SocketMissing(PathBuf),
    #[error("{0} is not a socket: point --pod-resources-socket or --kubelet-root at the kubelet's")]
    NotASocket(PathBuf),
    #[error("no permission to connect to {0}: its directory belongs to root (0750), so run as uid 0")]
    PermissionDenied(PathBuf),
    #[error("no process listens on {0}: the kubelet is down or restarting; retrying")]
    #[strum(serialize = "unavailable")]
    Refused(PathBuf),
    #[error("the connection to {socket} broke ({reason}); retrying")]
    Unavailable { socket: PathBuf, reason: String },
    #[error("{socket} did not answer {method} within {}: the kubelet hangs; retrying", words::duration(*deadline))]
    DeadlineExceeded { socket: PathBuf, method: &'static str, deadline: Duration },
    #[error("the kubelet's rate limit refused {0}: another client of the socket asks too often; retrying later")]
    RateLimited(&'static str),
    #[error("this kubelet does not implement {0}: upgrade it")]
    Unimplemented(&'static str),
    #[error(
        "the answer of {socket} to {method} is over {} MiB, so the last allocations stay in use: delete the pod whose DRA \
         claim is listed many times over",
        MESSAGE_LIMIT >> 20
    )]
    TooLarge { socket: PathBuf, method: &'static str },
    #[error("{socket} does not serve PodResources ({reason}): is it the kubelet's socket?")]
    Malformed { socket: PathBuf, reason: String },
    #[error("{method} failed: {code:?}, {message}")]
    Other { method: &'static str, code: Code, message: String },
}

impl CallError {
    /// The failure of `method`, by the status with which it ended.
    pub(super) fn of_status(status: &Status, method: &'static str, socket: PathBuf) -> Self {
        let reason = || explain(status);
        match status.code() {
            Code::OutOfRange => Self::TooLarge { socket, method },
            Code::ResourceExhausted => Self::RateLimited(method),
            Code::Unimplemented => Self::Unimplemented(method),
            Code::Unavailable | Code::Cancelled => Self::Unavailable { socket, reason: reason() },
            Code::Internal => Self::Malformed { socket, reason: reason() },
            // The kubelet's own errors come as Unknown with a text; a broken transport does too, but with a cause.
            Code::Unknown if status.source().is_some() => {
                if reason().contains("protocol") || reason().contains("frame") {
                    Self::Malformed { socket, reason: reason() }
                } else {
                    Self::Unavailable { socket, reason: reason() }
                }
            }
            code => Self::Other { method, code, message: reason() },
        }
    }

    /// Whether what answers next may be another kubelet than the one before.
    #[must_use]
    pub fn lost_connection(&self) -> bool {
        !matches!(self, Self::TooLarge { .. } | Self::RateLimited(_) | Self::Unimplemented(_) | Self::Other { .. })
    }
}

/// A failure's message and its causes in one line, without the dump of the causes that `Status` displays.
pub fn explain(status: &Status) -> String {
    shortened(with_causes(status.message().to_owned(), status.source()))
}

/// An error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    shortened(with_causes(error.to_string(), error.source()))
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_REASON) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn with_causes(mut text: String, mut cause: Option<&dyn Error>) -> String {
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}
