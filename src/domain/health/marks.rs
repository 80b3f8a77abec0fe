//! An operator's marks on devices: the orders, and the rules of a mark.

use std::sync::Arc;
use std::time::Duration;

use super::faults::MarkFault;
use crate::domain::model::{Moment, Monotonic};

/// In characters.
const LONGEST_REASON: usize = 256;

/// Devices are named by UUID (`GPU-…`, `MIG-…`) or, for a whole GPU that is present, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorOrder {
    /// Unhealthy until it is unmarked or `until` has passed. A new mark replaces the old one.
    Mark { device: String, reason: String, until: Option<Monotonic> },
    /// Removes the mark, every XID and every cause that has already ended, or is of an earlier agent and was not read:
    /// the operator confirms that the device is good. Current signals stay. Of a GPU, its MIG devices too.
    Unmark { device: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    #[error("no device {0} is known; name a GPU or MIG device by its UUID, or a GPU that is present by its index")]
    UnknownDevice(String),
    #[error("several devices are named {0}; name the GPU or MIG device by its UUID")]
    Ambiguous(String),
    #[error("the reason has {0} characters; give one of 1 to {LONGEST_REASON}")]
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

/// A reason goes into logs and texts for operators as it is.
pub fn check_reason(reason: &str) -> Result<(), MarkError> {
    let length = reason.chars().count();
    if length == 0 || length > LONGEST_REASON {
        return Err(MarkError::Reason(length));
    }
    match reason.chars().position(char::is_control) {
        Some(position) => Err(MarkError::ControlCharacter(position + 1)),
        None => Ok(()),
    }
}

/// `None`: it has ended, or has a reason that no operator can give.
pub fn restored_mark(mark: &MarkFault, now: Moment) -> Option<Mark> {
    check_reason(&mark.reason).ok()?;
    let until = match mark.until {
        None => None,
        Some(unix) if unix <= now.unix => return None,
        Some(unix) => {
            // One too far for a duration has no end.
            let left = Duration::try_from_secs_f64(unix.0 - now.unix.0).ok();
            left.map(|left| Moment { monotonic: now.monotonic + left, unix })
        }
    };
    Some(Mark { reason: Arc::clone(&mark.reason), until })
}
