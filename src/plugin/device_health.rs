//! The health of a device's hardware in the form that the plugin offers. The health module decides it.

use super::{Hardware, PluginUnhealthy};
use crate::model::{HealthState, UnhealthyReason};

/// `Err` with the causes, under the most important reason. A device that has not been checked yet is unhealthy; one
/// without a GPU is healthy.
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
