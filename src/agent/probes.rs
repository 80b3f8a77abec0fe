//! What `/-/healthy` and `/-/ready` answer, from a snapshot. Pure.

use crate::domain::model::{HardwareSource, Monotonic, Snapshot};
use crate::domain::periods::SNAPSHOTS_LATE;

/// Whether snapshots are published.
pub fn is_live(last: &Snapshot, now: Monotonic) -> Result<(), String> {
    let age = now.since(last.at.monotonic);
    if age <= SNAPSHOTS_LATE { Ok(()) } else { Err(format!("no snapshot has been published for {} s", age.as_secs())) }
}

/// Whether every source has answered or failed once. The error names the one that has not.
pub fn is_ready(snapshot: &Snapshot) -> Result<(), String> {
    let kubelet = &snapshot.kubelet;
    if kubelet.allocations.is_none() && kubelet.problem.is_none() {
        return Err("the kubelet has not been called yet".into());
    }
    let devices = &snapshot.hardware;
    if devices.source != HardwareSource::None && devices.inventory.generation == 0 && devices.problem.is_none() {
        return Err("the devices have not been read yet".into());
    }
    let Some(plugin) = &snapshot.plugin else { return Ok(()) };
    if !plugin.resources_complete {
        return Err("the device plugin has not checked the devices yet".into());
    }
    // One registration is enough: a restart of the kubelet does not make the metrics unready.
    let waiting = plugin
        .resources
        .iter()
        .find(|(_, state)| state.registrations == 0 && state.conflict.is_none() && state.ended.is_none());
    match waiting {
        None => Ok(()),
        Some((resource, state)) => {
            let problem = state.problem.as_deref().unwrap_or("the kubelet has not been called yet");
            Err(format!("{resource} is not registered with the kubelet: {problem}"))
        }
    }
}
