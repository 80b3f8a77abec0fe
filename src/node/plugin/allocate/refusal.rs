//! Why an allocation or the start of a container is refused, and the results by which these calls are counted.

use crate::domain::model::{DeviceId, named};

named! {
    /// The result of Allocate or PreStartContainer; the `result` label.
    pub enum CallResult {
        Ok = "ok",
        UnknownDevice = "unknown_device",
        Unhealthy = "unhealthy",
        NotAllowed = "not_allowed",
        MemoryInUse = "memory_in_use",
        ProcessesLeft = "processes_left",
    }
}

impl CallResult {
    /// Those that the counters of Allocate and of PreStartContainer have from the beginning.
    pub const ALLOCATE: [Self; 4] = [Self::Ok, Self::UnknownDevice, Self::Unhealthy, Self::NotAllowed];
    pub const PRE_START: [Self; 5] =
        [Self::Ok, Self::UnknownDevice, Self::Unhealthy, Self::MemoryInUse, Self::ProcessesLeft];
}

/// The kubelet passes the message on to the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AllocationRefusal {
    pub result: CallResult,
    pub message: String,
}

impl AllocationRefusal {
    pub fn unhealthy(id: &DeviceId, reason: &str) -> Self {
        Self { result: CallResult::Unhealthy, message: format!("device {id} is unhealthy: {reason}") }
    }
}
