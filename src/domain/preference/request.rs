//! A request for devices, its check, and the answer.

use std::collections::{BTreeMap, BTreeSet};

use strum::IntoStaticStr;

use super::topology::Topology;
use crate::domain::model::{DeviceId, GpuUuid};

/// A free device and its GPU (for a MIG device or a shared slot: the GPU it is a part of).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FreeDevice {
    pub id: DeviceId,
    pub gpu: GpuUuid,
}

/// The kubelet's request for one container. The order of devices does not matter; repeating one does not either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreferenceRequest {
    pub available: Vec<FreeDevice>,
    /// The devices that must be in the answer, a part of `available`.
    pub must_include: Vec<DeviceId>,
    /// The number of devices, including `must_include`.
    pub size: usize,
}

/// The answer: `size` devices in the order of the GPU indexes, or none, which leaves the choice to the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreferredDevices {
    pub ids: Vec<DeviceId>,
    pub fallback: Option<FallbackReason>,
}

/// Why the answer is empty, or was not made from the links; the `reason` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum FallbackReason {
    /// Answered by NUMA node, then index: some pair of the GPUs has no known link.
    LinksUnknown,
    /// Answered by NUMA node, then index: the two ends of some pair report different scores.
    LinksAsymmetric,
    /// Empty: too many free GPUs to compare every set.
    ManyGpus,
    /// Empty: fewer devices are available than requested.
    TooFewAvailable,
    /// Empty: more devices must be included than are requested.
    TooManyRequired,
    /// Empty: a device that must be in is not available.
    RequiredNotAvailable,
    /// Empty: a device belongs to a GPU that the topology does not have.
    UnknownGpu,
    /// Empty: a device belongs to two GPUs, or, among whole GPUs, two devices belong to one.
    Ambiguous,
}

impl PreferredDevices {
    pub(super) const fn empty(reason: FallbackReason) -> Self {
        Self { ids: vec![], fallback: Some(reason) }
    }
}

/// A request that can be met.
pub(super) struct CheckedRequest<'a> {
    pub available: BTreeMap<&'a DeviceId, &'a GpuUuid>,
    pub required: BTreeSet<&'a DeviceId>,
    pub size: usize,
}

impl<'a> CheckedRequest<'a> {
    pub(super) fn new(request: &'a PreferenceRequest, topology: &Topology) -> Result<Self, FallbackReason> {
        let mut available = BTreeMap::new();
        for FreeDevice { id, gpu } in &request.available {
            if topology.location(gpu).is_none() {
                return Err(FallbackReason::UnknownGpu);
            }
            if available.insert(id, gpu).is_some_and(|before| before != gpu) {
                return Err(FallbackReason::Ambiguous);
            }
        }
        let required: BTreeSet<&DeviceId> = request.must_include.iter().collect();
        if required.iter().any(|id| !available.contains_key(*id)) {
            return Err(FallbackReason::RequiredNotAvailable);
        }
        if required.len() > request.size {
            return Err(FallbackReason::TooManyRequired);
        }
        if request.size > available.len() {
            return Err(FallbackReason::TooFewAvailable);
        }
        Ok(Self { available, required, size: request.size })
    }
}
