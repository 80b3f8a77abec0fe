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
    /// Of a plugin. A hanging one is not validated yet.
    Register,
    /// The kubelet's, to a plugin; within its Register.
    GetDevicePluginOptions,
    /// The kubelet's, to a plugin. A hanging one is not made; one that fails is made, and its stream breaks at once.
    ListAndWatch,
    /// The kubelet's, to a plugin. A hanging one is in progress.
    Allocate,
    /// No call: between two containers of a pod that is being admitted. What the first was given is listed meanwhile.
    NextContainer,
    /// The same between two resources of a container. The checkpoint does not have the first yet.
    NextResource,
}

/// What goes wrong on request.
#[derive(Debug, Default)]
pub struct InjectedFaults {
    pub hanging: BTreeSet<Method>,
    pub failing: BTreeMap<Method, Status>,
    /// Blow List's answer up by about this size.
    pub answer_bytes: Option<usize>,
}

/// A pod with a claim whose devices take about this much of an answer: what a driver did that made the kubelet append
/// a claim's devices at every retry.
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
