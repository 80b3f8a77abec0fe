use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use tonic::Status;

use crate::wire::v1;

/// The calls of the PodResources API and of the device plugin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    List,
    GetAllocatableResources,
    Get,
    /// A plugin's call. A hanging one is not validated yet.
    Register,
    /// The kubelet's call of a plugin, within its Register.
    GetDevicePluginOptions,
    /// The kubelet's call of a plugin. A hanging one is not made; a failing one is made, and its stream breaks at once.
    ListAndWatch,
    /// The kubelet's call of a plugin. A hanging one is in progress.
    Allocate,
    /// No call: the moment between two containers of a pod in admission. The first one's devices are listed meanwhile.
    NextContainer,
    /// No call: the moment between two resources of a container. The checkpoint does not have the first yet.
    NextResource,
}

/// The faults that a test has requested.
#[derive(Debug, Default)]
pub struct InjectedFaults {
    pub hanging: BTreeSet<Method>,
    pub failing: BTreeMap<Method, Status>,
    /// The size by which List's answer grows, approximately.
    pub answer_bytes: Option<usize>,
}

/// A pod with a claim whose devices take about this many bytes of an answer: a driver once made the kubelet append a
/// claim's devices at every retry.
pub fn stuck_pod(bytes: usize) -> v1::PodResources {
    let device = v1::ClaimResource {
        driver_name: "gpu.example.com".to_owned(),
        pool_name: "node".to_owned(),
        device_name: "gpu-0".to_owned(),
        ..v1::ClaimResource::default()
    };
    let copies = bytes.div_ceil(device.encoded_len() + 2);
    let claim = v1::DynamicResource {
        claim_name: "stuck".to_owned(),
        claim_namespace: "default".to_owned(),
        claim_resources: vec![device; copies],
    };
    let container =
        v1::ContainerResources { name: "main".to_owned(), dynamic_resources: vec![claim], ..Default::default() };
    v1::PodResources {
        name: "stuck".to_owned(),
        namespace: "default".to_owned(),
        containers: vec![container],
        ..Default::default()
    }
}
