use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use tonic::{Code, Status};

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
}

impl Method {
    const fn name_and_service(self) -> (&'static str, &'static str) {
        match self {
            Self::List => ("List", "v1.PodResourcesLister"),
            Self::GetAllocatableResources => ("GetAllocatableResources", "v1.PodResourcesLister"),
            Self::Get => ("Get", "v1.PodResourcesLister"),
            Self::Register => ("Register", "v1beta1.Registration"),
            Self::GetDevicePluginOptions => ("GetDevicePluginOptions", "v1beta1.DevicePlugin"),
            Self::ListAndWatch => ("ListAndWatch", "v1beta1.DevicePlugin"),
            Self::Allocate => ("Allocate", "v1beta1.DevicePlugin"),
            Self::NextContainer => ("none", "none"),
        }
    }
}

/// What goes wrong on request.
#[derive(Debug, Default)]
pub struct Faults {
    pub hanging: BTreeSet<Method>,
    pub failing: BTreeMap<Method, (Code, String)>,
    pub unimplemented: BTreeSet<Method>,
    /// Blow List's answer up to about this size.
    pub answer_bytes: Option<usize>,
}

impl Faults {
    /// The error that a method is to fail with, if any.
    pub fn check(&self, method: Method) -> Result<(), Status> {
        if self.unimplemented.contains(&method) {
            let (name, service) = method.name_and_service();
            return Err(Status::unimplemented(format!("unknown method {name} for service {service}")));
        }
        self.failing.get(&method).map_or(Ok(()), |(code, text)| Err(Status::new(*code, text.clone())))
    }
}

/// Repeats the devices of one container until the answer has about `bytes`: what a driver did that made the kubelet
/// append a claim's devices at every retry.
pub fn inflate(response: &mut v1::ListPodResourcesResponse, bytes: usize) {
    let missing = bytes.saturating_sub(response.encoded_len());
    let containers = response.pod_resources.iter_mut().flat_map(|pod| &mut pod.containers);
    let claims = containers.flat_map(|container| &mut container.dynamic_resources);
    if let Some(claim) = claims.into_iter().next() {
        repeat(&mut claim.claim_resources, missing);
        return;
    }
    let mut containers = response.pod_resources.iter_mut().flat_map(|pod| &mut pod.containers);
    match containers.find(|container| !container.devices.is_empty()) {
        Some(container) => repeat(&mut container.devices, missing),
        None => response.pod_resources.push(stuck_pod(missing)),
    }
}

fn repeat<T: Message + Clone>(entries: &mut Vec<T>, missing: usize) {
    if let Some(entry) = entries.first().cloned() {
        let copies = missing.div_ceil(entry.encoded_len() + 2);
        entries.extend(std::iter::repeat_n(entry, copies));
    }
}

fn stuck_pod(bytes: usize) -> v1::PodResources {
    let mut claim_resources = vec![v1::ClaimResource {
        driver_name: "gpu.example.com".to_owned(),
        pool_name: "node".to_owned(),
        device_name: "gpu-0".to_owned(),
        ..v1::ClaimResource::default()
    }];
    repeat(&mut claim_resources, bytes);
    let claim =
        v1::DynamicResource { claim_name: "stuck".to_owned(), claim_namespace: "default".to_owned(), claim_resources };
    let container =
        v1::ContainerResources { name: "main".to_owned(), dynamic_resources: vec![claim], ..Default::default() };
    v1::PodResources {
        name: "stuck".to_owned(),
        namespace: "default".to_owned(),
        containers: vec![container],
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inflated_answer_has_about_the_size_asked_for() {
        let mut response = v1::ListPodResourcesResponse::default();
        inflate(&mut response, 5_000_000);
        let size = response.encoded_len();
        assert!((5_000_000..5_200_000).contains(&size), "{size}");
    }
}
