//! The verdict on what is behind a device, as the kubelet is told it. It is made elsewhere.

use super::Hardware;
use crate::model::{HealthState, UnhealthyReason};

/// `Err` with the reasons. What nobody has judged yet is unhealthy; what is no GPU is not judged.
pub fn verdict(hardware: &Hardware, health: &HealthState) -> Result<(), String> {
    let judged = match hardware {
        Hardware::Gpu { uuid, .. } => health.of(uuid, None),
        Hardware::Mig { gpu, uuid, .. } => health.of(gpu, Some(uuid)),
        Hardware::Nodes(_) | Hardware::Nothing => return Ok(()),
    };
    judged.map_or_else(|| Err("it has not been checked yet".to_owned()), crate::model::DeviceHealth::verdict)
}

/// The first of the reasons why `hardware` is unhealthy. What has no verdict is gone: it was offered before.
pub fn reason(hardware: &Hardware, health: &HealthState) -> UnhealthyReason {
    let judged = match hardware {
        Hardware::Gpu { uuid, .. } => health.of(uuid, None),
        Hardware::Mig { gpu, uuid, .. } => health.of(gpu, Some(uuid)),
        Hardware::Nodes(_) | Hardware::Nothing => None,
    };
    judged.and_then(crate::model::DeviceHealth::reason).unwrap_or(UnhealthyReason::Lost)
}
