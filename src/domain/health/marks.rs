//! An operator's orders about devices, and the rules of a mark.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::faults::MarkFault;
use crate::domain::model::{HealthCause, Moment};

/// In characters.
const LONGEST_REASON: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorOrder {
    /// A UUID (`GPU-…`, `MIG-…`) or, for a whole GPU that is present, its index.
    pub device: String,
    pub action: OrderAction,
}

/// What is removed of a GPU is also removed of its MIG devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderAction {
    /// Unhealthy until it is unmarked or this time has passed. A new mark replaces the old one.
    Mark { reason: String, lasts: Option<Duration> },
    /// Removes the mark only.
    Unmark,
    /// The operator confirms that the device is good: removes every XID and every cause that has ended, or is of an
    /// earlier agent and was not read. Marks and current signals stay.
    ClearFaults,
}

/// What an order has changed, as the admin socket returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderOutcome {
    /// A UUID.
    pub device: String,
    /// Whether it has a mark now; for clients of the socket.
    pub marked: bool,
    pub removed: Vec<DeviceCause>,
    /// Why the device is still unhealthy; of a GPU also why its MIG devices are.
    pub remaining: Vec<DeviceCause>,
}

/// A cause with the UUID of the GPU or MIG device that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCause {
    pub device: String,
    #[serde(flatten)]
    pub cause: HealthCause,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    #[error("no device {0} is known; name a GPU or MIG device by its UUID, or a GPU that is present by its index")]
    UnknownDevice(String),
    #[error("several devices are named {0}; name the GPU or MIG device by its UUID")]
    Ambiguous(String),
    #[error("the reason is blank or too long ({0} characters); give one of 1 to {LONGEST_REASON}")]
    Reason(usize),
    #[error("the reason has a control character, such as a line break, at character {0}; write it in one line")]
    ControlCharacter(usize),
    #[error("the mark would expire at once; give a duration above zero, or none")]
    AlreadyEnded,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    pub reason: Arc<str>,
    /// On both clocks: a later agent has another monotonic one.
    pub until: Option<Moment>,
}

impl OrderAction {
    pub fn check(&self) -> Result<(), MarkError> {
        match self {
            Self::Mark { lasts: Some(Duration::ZERO), .. } => Err(MarkError::AlreadyEnded),
            Self::Mark { reason, .. } => check_reason(reason),
            Self::Unmark | Self::ClearFaults => Ok(()),
        }
    }
}

/// A reason goes into logs and texts for operators as it is.
fn check_reason(reason: &str) -> Result<(), MarkError> {
    let length = reason.chars().count();
    if reason.trim().is_empty() || length > LONGEST_REASON {
        return Err(MarkError::Reason(length));
    }
    match reason.chars().position(char::is_control) {
        Some(position) => Err(MarkError::ControlCharacter(position + 1)),
        None => Ok(()),
    }
}

/// `None`: it has ended. A reason that no operator can give is made into one.
pub fn restored_mark(mark: &MarkFault, now: Moment) -> Option<Mark> {
    let until = match mark.until {
        None => None,
        Some(unix) if unix <= now.unix => return None,
        Some(unix) => {
            // One too far for a duration has no end.
            let left = Duration::try_from_secs_f64(unix.0 - now.unix.0).ok();
            left.map(|left| Moment { monotonic: now.monotonic + left, unix })
        }
    };
    let reason = if check_reason(&mark.reason).is_ok() { Arc::clone(&mark.reason) } else { permitted(&mark.reason) };
    Some(Mark { reason, until })
}

fn permitted(reason: &str) -> Arc<str> {
    let printable = reason.chars().map(|character| if character.is_control() { ' ' } else { character });
    let reason: String = printable.take(LONGEST_REASON).collect();
    if reason.trim().is_empty() { "no readable reason".into() } else { reason.into() }
}
