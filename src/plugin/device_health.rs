//! The verdict on what is behind a device, as the kubelet is told it. It is made elsewhere.

use super::{Hardware, PluginUnhealthy};
use crate::model::{HealthState, UnhealthyReason};

/// `Err` with the causes, under the reason that goes first. What nobody has judged yet is unhealthy; what is no GPU is not
/// judged.
pub fn of(hardware: &Hardware, health: &HealthState) -> Result<(), PluginUnhealthy> {
    let judged = match hardware {
        Hardware::Gpu { uuid, .. } | Hardware::Missing(uuid) => health.of(uuid, None),
        Hardware::Mig { gpu, uuid, .. } => health.of(gpu, Some(uuid)),
        Hardware::Nodes(_) | Hardware::Nothing => return Ok(()),
    };
    let Some(judged) = judged else {
        return Err(PluginUnhealthy::device(UnhealthyReason::Unknown, "it has not been checked yet"));
    };
    let reason = || judged.reason().unwrap_or(UnhealthyReason::Unknown);
    judged.verdict().map_err(|detail| PluginUnhealthy::device(reason(), detail))
}
