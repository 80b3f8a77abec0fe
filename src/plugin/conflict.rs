//! Two plugins for one resource: the later registration replaces the earlier one without a notice. Pure.

use std::collections::BTreeSet;

use super::sockets;
use crate::model::{DeviceId, ResourceName};

pub(super) const REMEDY: &str = "remove the other plugin, switch this one off with --device-plugin=off, or set onConflict: takeover for the resource";

/// Which other plugin serves the resource, with a remedy. `None`: none, or another podmeter that is about to end.
///
/// `allocatable` are the kubelet's devices of the resource, `advertised` what podmeter sent it, and `live` the names of
/// the sockets that accept connections.
pub fn conflict(
    resource: &ResourceName,
    allocatable: &BTreeSet<DeviceId>,
    advertised: &BTreeSet<DeviceId>,
    live: &[String],
) -> Option<String> {
    if let Some(socket) = live.iter().find(|name| is_known_plugin(name, resource)) {
        return Some(format!("another device plugin serves {resource} on {socket}; {REMEDY}"));
    }
    let others = allocatable.difference(advertised).count();
    let rolling_update = live.iter().any(|name| sockets::is_ours(name, resource));
    (others > 0 && !rolling_update).then(|| {
        format!("the kubelet lists {others} devices of {resource} that another device plugin advertised; {REMEDY}")
    })
}

pub(super) fn is_known_plugin(socket: &str, resource: &ResourceName) -> bool {
    known_resource(socket).as_ref() == Some(resource)
}

/// The resource behind a socket that another vendor's plugin is known to listen on.
#[must_use]
pub fn known_resource(socket: &str) -> Option<ResourceName> {
    let name = socket.strip_suffix(".sock")?;
    // Google Kubernetes Engine's: one, with the time of its start. NVIDIA's own: one per resource.
    let name = if name.starts_with("nvidiaGPU-") { "gpu" } else { name.strip_prefix("nvidia-")? };
    Some(ResourceName::new(format!("nvidia.com/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(allocatable: &[&str], advertised: &[&str], live: &[&str]) -> Option<String> {
        let ids = |ids: &[&str]| ids.iter().map(|id| DeviceId::new(*id)).collect();
        let live: Vec<String> = live.iter().map(|name| (*name).to_owned()).collect();
        conflict(&"nvidia.com/gpu".into(), &ids(allocatable), &ids(advertised), &live)
    }

    #[test]
    fn devices_that_podmeter_did_not_advertise_are_another_plugins() {
        assert_eq!(found(&[], &[], &[]), None);
        assert_eq!(found(&["GPU-a"], &["GPU-a", "GPU-b"], &[]), None, "our own of a moment ago");
        let text = found(&["GPU-a", "GPU-c"], &["GPU-a"], &["other.sock"]).unwrap();
        assert!(text.contains("1 devices of nvidia.com/gpu") && text.contains("takeover"), "{text}");
    }

    #[test]
    fn another_podmeter_is_a_rolling_update() {
        assert_eq!(found(&["GPU-a"], &[], &["podmeter-nvidia.com_gpu-0123456789ab.sock"]), None);
        assert!(found(&["GPU-a"], &[], &["podmeter-nvidia.com_mig-1g-0123456789ab.sock"]).is_some());
    }

    #[test]
    fn a_known_plugins_live_socket_is_a_conflict_before_the_kubelet_lists_anything() {
        assert!(found(&[], &[], &["nvidia-gpu.sock"]).is_some_and(|text| text.contains("nvidia-gpu.sock")));
        assert!(found(&[], &[], &["nvidiaGPU-1700000000.sock"]).is_some());
        assert_eq!(found(&[], &[], &["nvidia-mig-1g.10gb.sock", "intel.sock"]), None);
    }
}
