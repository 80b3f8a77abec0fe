use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::model::{DeviceId, GpuUuid, PluginResource, PluginState, ResourceName, Timestamp};

/// What the bundled device plugin offers to the kubelet.
#[derive(Debug, Serialize)]
pub struct Offered<'a> {
    /// The protocol spoken with the kubelet.
    pub api: &'static str,
    pub kubelet_restarts: u64,
    pub problems: &'a [Arc<str>],
    pub resources: Vec<Resource<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Resource<'a> {
    pub name: &'a ResourceName,
    pub registered: bool,
    pub registrations: u64,
    /// When it was first offered.
    pub since: Timestamp,
    /// Why it is not registered, is no longer served, or conflicts.
    pub problem: Option<&'a str>,
    pub ended: Option<&'a str>,
    pub conflict: Option<&'a str>,
    pub sharing_by_mps: bool,
    pub devices: Vec<Device<'a>>,
    /// Allocate responses by result.
    pub allocations: &'a BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
pub struct Device<'a> {
    pub id: &'a DeviceId,
    pub gpu: Option<&'a GpuUuid>,
    pub healthy: bool,
    /// As reported to the kubelet; `None` for a healthy one.
    pub reason: Option<&'a str>,
}

pub fn offered(plugin: &PluginState) -> Offered<'_> {
    Offered {
        api: "v1beta1",
        kubelet_restarts: plugin.kubelet_restarts,
        problems: &plugin.problems,
        resources: plugin.resources.iter().map(|(name, state)| resource(name, state)).collect(),
    }
}

fn resource<'a>(name: &'a ResourceName, state: &'a PluginResource) -> Resource<'a> {
    let device = |(id, reason): (&'a DeviceId, &'a Option<Arc<str>>)| Device {
        id,
        gpu: state.gpus.get(id),
        healthy: reason.is_none(),
        reason: reason.as_deref(),
    };
    Resource {
        name,
        registered: state.registered,
        registrations: state.registrations,
        since: state.created.into(),
        problem: state.problem.as_deref(),
        ended: state.ended.as_deref(),
        conflict: state.conflict.as_deref(),
        sharing_by_mps: state.mps,
        devices: state.devices.iter().map(device).collect(),
        allocations: &state.allocations,
    }
}
