//! The pods with devices that a simulated node starts with.
//!
//! In: the resources and claims of the node. Out: the pods to start.

use super::resources::SimulatedResource;
use crate::simulation::dra_driver::AllocatedClaim;
use crate::simulation::workload::WorkloadKind;

/// A pod to start.
#[derive(Clone, Debug)]
pub struct PodStart {
    pub namespace: &'static str,
    pub name: &'static str,
    pub kind: WorkloadKind,
    pub devices: DeviceRequest,
}

#[derive(Clone, Debug)]
pub enum DeviceRequest {
    /// One device of the resource.
    Resource(String),
    Claim(AllocatedClaim),
}

/// Namespace, name and kind of the pods with devices.
const DEVICE_PODS: [(&str, &str, WorkloadKind); 8] = [
    ("team-vision", "trainer", WorkloadKind::Training),
    ("team-vision", "notebook", WorkloadKind::Notebook),
    ("team-language", "llm-serve", WorkloadKind::Inference),
    ("team-language", "finetune", WorkloadKind::Batch),
    ("team-language", "trainer", WorkloadKind::Training),
    ("research", "sweep", WorkloadKind::Batch),
    ("research", "notebook", WorkloadKind::Notebook),
    ("team-vision", "render", WorkloadKind::Batch),
];

/// The pods of each resource: up to eight, more where its devices are shared or many; a few devices stay free.
pub fn pods_with_devices(resources: &[SimulatedResource]) -> Vec<PodStart> {
    let mut starts = vec![];
    for resource in resources {
        let start = |(namespace, name, kind)| PodStart {
            namespace,
            name,
            kind,
            devices: DeviceRequest::Resource(resource.name.clone()),
        };
        let slots = resource.devices.len();
        let is_shared = resource.devices.iter().any(|device| device.id.contains("::"));
        let count = match slots {
            // There are more pods than GPUs, and devices stay free.
            _ if is_shared || slots > 4 * DEVICE_PODS.len() => slots * 5 / 8,
            0 | 1 => slots,
            // One device stays free, so that the page shows a free one.
            _ => (slots - 1).min(DEVICE_PODS.len()),
        };
        starts.extend(DEVICE_PODS.into_iter().cycle().take(count).map(start));
    }
    starts
}

/// The pods of the claims: one for each claim, and two for one that replicas share.
pub fn pods_with_claims(claims: Vec<AllocatedClaim>) -> Vec<PodStart> {
    let starts = |claim: AllocatedClaim| {
        let (name, kind, count) = match claim.name {
            "replicas" => ("llm-serve", WorkloadKind::Inference, 2),
            "notebook" => ("notebook", WorkloadKind::Notebook, 1),
            "all-gpus" => ("gpu-health", WorkloadKind::Notebook, 1),
            "slice" | "some-memory" => ("render", WorkloadKind::Inference, 1),
            _ => ("trainer", WorkloadKind::Training, 1),
        };
        let start = PodStart { namespace: claim.namespace, name, kind, devices: DeviceRequest::Claim(claim) };
        std::iter::repeat_n(start, count)
    };
    claims.into_iter().flat_map(starts).collect()
}
