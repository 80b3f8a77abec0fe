//! Why an allocation or the start of a container is refused.

use crate::domain::model::DeviceId;
use crate::plugin::status::CallResult;

/// A refused call. The kubelet shows the message in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AllocationRefusal {
    pub result: CallResult,
    pub message: String,
}

impl AllocationRefusal {
    pub fn held(id: &DeviceId, holder: &str) -> Self {
        Self { result: CallResult::Held, message: format!("device {id} is {holder}") }
    }

    pub fn unhealthy(id: &DeviceId, reason: &str) -> Self {
        Self { result: CallResult::Unhealthy, message: format!("device {id} is unhealthy: {reason}") }
    }
}
