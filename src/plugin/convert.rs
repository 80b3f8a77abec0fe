//! The plugin's types as the kubelet's messages. Only this file and the server use wire types.

use tonic::Status;

use super::{Answer, Offer, OfferedDevice, Refusal};
use crate::model::DeviceId;
use crate::wire::v1beta1::{
    CdiDevice, ContainerAllocateResponse, Device, DeviceSpec, ListAndWatchResponse, Mount, NumaNode, TopologyInfo,
};

/// Every device, in the offer's order.
pub fn list(offer: &Offer) -> ListAndWatchResponse {
    ListAndWatchResponse { devices: offer.devices.iter().map(device).collect() }
}

fn device(device: &OfferedDevice) -> Device {
    let health = if device.health.is_ok() { "Healthy" } else { "Unhealthy" };
    let nodes: Vec<NumaNode> = device.numa_nodes.iter().map(|id| NumaNode { id: *id }).collect();
    // An empty topology would hide the device from GetAllocatableResources.
    let topology = (!nodes.is_empty()).then_some(TopologyInfo { nodes });
    Device { id: device.id.as_str().to_owned(), health: health.to_owned(), topology }
}

pub fn answer(answer: Answer) -> ContainerAllocateResponse {
    let mount = |mount: super::Mount| Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        read_only: mount.read_only,
    };
    let node = |node: super::DeviceNode| DeviceSpec {
        container_path: node.container_path,
        host_path: node.host_path,
        permissions: node.permissions,
    };
    ContainerAllocateResponse {
        envs: answer.environment.into_iter().collect(),
        mounts: answer.mounts.into_iter().map(mount).collect(),
        devices: answer.device_nodes.into_iter().map(node).collect(),
        annotations: answer.annotations.into_iter().collect(),
        cdi_devices: answer.cdi_devices.into_iter().map(|name| CdiDevice { name }).collect(),
    }
}

/// The `result` label and the gRPC status of a refusal.
pub fn refusal(refusal: &Refusal) -> (&'static str, Status) {
    let text = message(&refusal.to_string());
    match refusal {
        Refusal::Unknown(_) => ("unknown_device", Status::invalid_argument(text)),
        Refusal::Unhealthy { .. } => ("unhealthy", Status::failed_precondition(text)),
        Refusal::NotAllowed(_) => ("not_allowed", Status::failed_precondition(text)),
    }
}

/// Both ends of a long text: a status travels in a header, and one that does not fit becomes an internal error.
pub fn message(text: &str) -> String {
    const HALF: usize = 200;
    if text.len() <= 2 * HALF {
        return text.to_owned();
    }
    let (first, last) = (text.floor_char_boundary(HALF), text.ceil_char_boundary(text.len() - HALF));
    format!("{}…{}", &text[..first], &text[last..])
}

pub fn ids(ids: &[String]) -> Vec<DeviceId> {
    ids.iter().map(|id| DeviceId::new(id.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::UnhealthyReason;
    use crate::plugin::{DeviceNode, Hardware, PluginUnhealthy};

    #[test]
    fn an_unknown_topology_is_left_out_and_a_known_one_is_sent() {
        let device = |id: &str, nodes: &[i64], health| OfferedDevice {
            id: id.into(),
            numa_nodes: nodes.iter().copied().collect::<BTreeSet<_>>(),
            health,
            hardware: Hardware::Nothing,
        };
        let devices = vec![
            device("a", &[], Ok(())),
            device("b", &[0, 1], Err(PluginUnhealthy::device(UnhealthyReason::Lost, "lost"))),
        ];
        let list = list(&Offer { resource: "example.com/x".into(), devices });
        assert_eq!((list.devices[0].health.as_str(), list.devices[0].topology.clone()), ("Healthy", None));
        assert_eq!(list.devices[1].health, "Unhealthy");
        let nodes = &list.devices[1].topology.as_ref().unwrap().nodes;
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn an_answer_keeps_its_paths_apart() {
        let node = DeviceNode { host_path: "/h".into(), container_path: "/c".into(), permissions: "rw".into() };
        let wire = answer(Answer { device_nodes: vec![node], cdi_devices: vec!["v/c=1".into()], ..Answer::default() });
        assert_eq!((wire.devices[0].host_path.as_str(), wire.devices[0].container_path.as_str()), ("/h", "/c"));
        assert_eq!(wire.cdi_devices[0].name, "v/c=1");
    }

    #[test]
    fn refusals_have_the_codes_of_the_contract() {
        let (_, unknown) = refusal(&Refusal::Unknown("GPU-x".into()));
        assert_eq!(unknown.code(), tonic::Code::InvalidArgument);
        assert!(unknown.message().contains("GPU-x"));
        let (_, unhealthy) = refusal(&Refusal::Unhealthy { id: "GPU-x".into(), reason: "lost".into() });
        assert_eq!(unhealthy.code(), tonic::Code::FailedPrecondition);
        assert!(unhealthy.message().contains("lost"));
    }
}
