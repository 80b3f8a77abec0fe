//! An operator's marks on devices.

use std::sync::Arc;

use super::Health;
use super::device::TrackedGpu;
use crate::domain::model::{MigUuid, Moment, Monotonic, UnixSeconds};

/// Characters of a reason; it goes into logs and refusals.
const LONGEST_REASON: usize = 256;

/// Devices are named by UUID (`GPU-…`, `MIG-…`) or, for a whole GPU that is present, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Unhealthy until it is unmarked or `until` has passed. A new mark replaces the old one.
    Mark { device: String, reason: String, until: Option<Monotonic> },
    /// Removes the mark, every XID and every cause that has already ended: the operator confirms that the device is
    /// good. Current signals stay. Of a GPU, its MIG devices too.
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
    Over,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    pub reason: Arc<str>,
    /// On both clocks: a later agent has another monotonic one.
    pub until: Option<Moment>,
}

/// A reason goes into logs as it is.
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

impl Health {
    /// Carries out an operator's order at once. Returns the UUID of the device.
    pub fn order(&mut self, now: Moment, order: &Order) -> Result<String, MarkError> {
        let uuid = match order {
            Order::Mark { device, reason, until } => {
                check_reason(reason)?;
                if until.is_some_and(|until| until <= now.monotonic) {
                    return Err(MarkError::Over);
                }
                let (uuid, device, mig) = self.find(device)?;
                let until = until.map(|until| Moment {
                    monotonic: until,
                    unix: UnixSeconds(now.unix.0 + until.since(now.monotonic).as_secs_f64()),
                });
                device.marks.insert(mig, Mark { reason: reason.as_str().into(), until });
                uuid
            }
            Order::Unmark { device } => {
                let (uuid, device, mig) = self.find(device)?;
                device.unmark(mig.as_ref());
                uuid
            }
        };
        self.evaluate(now);
        Ok(uuid)
    }

    /// The UUID, the GPU, and the MIG device if it is one.
    fn find(&mut self, name: &str) -> Result<(String, &mut TrackedGpu, Option<MigUuid>), MarkError> {
        let known = self.devices.iter_mut().filter(|(_, device)| device.is_known());
        let named = known.filter_map(|(uuid, device)| {
            if uuid.as_str() == name || device.index.is_some_and(|index| index.to_string() == name) {
                return Some((uuid.to_string(), device, None));
            }
            let mig = device.migs.iter().find(|mig| mig.as_str() == name).cloned()?;
            Some((mig.to_string(), device, Some(mig)))
        });
        let mut found: Vec<_> = named.collect();
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => Err(MarkError::UnknownDevice(name.to_owned())),
            (Some(_), false) => Err(MarkError::Ambiguous(name.to_owned())),
        }
    }
}
