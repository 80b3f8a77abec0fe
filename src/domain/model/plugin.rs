//! The state of the device plugin: registrations, offers, health as the kubelet gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::{IntoEnumIterator, IntoStaticStr};

use super::{DeviceId, DurationHistogram, GpuUuid, Monotonic, ResourceName, UnhealthyReason, UnixSeconds};

/// The state of the device plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PluginState {
    /// Whether `resources` has all that is offered: the driver was read, or has a problem, and the host was scanned.
    #[serde(rename = "checked")]
    pub resources_complete: bool,
    /// Kubelets that replaced another one since the start.
    pub kubelet_restarts: u64,
    /// What is not offered as configured, each a sentence with its remedy. Sorted.
    pub problems: Vec<Arc<str>>,
    /// For how many devices a vendor's CDI specification is not used, by file and reason; `problems` has the sentences.
    #[serde(skip)]
    pub unused_cdi_files: BTreeMap<(Arc<str>, &'static str), usize>,
    /// Which profile of the configuration applies; `None` where it has none.
    #[serde(skip_deserializing)]
    pub profile: Option<AppliedProfile>,
    pub resources: BTreeMap<ResourceName, PluginResource>,
    /// The control daemons of the GPUs that are shared through MPS, by their process IDs in their own namespaces.
    #[serde(skip)]
    pub mps_daemons: MpsDaemons,
    /// Why pods get a GPU only when there is no other.
    #[serde(skip_deserializing)]
    pub avoided: BTreeMap<GpuUuid, &'static str>,
}

pub type MpsDaemons = BTreeMap<GpuUuid, BTreeSet<u32>>;

/// Which of the configuration's profiles applies to this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppliedProfile {
    /// `profile`, `common` where none matches, `undecided` until the GPUs are known as far as it depends on them.
    pub decision: &'static str,
    pub name: Option<Arc<str>>,
}

/// One resource that the plugin serves, or would.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PluginResource {
    /// When its counters began.
    pub created: UnixSeconds,
    pub registered: bool,
    pub registrations: u64,
    /// Why the last attempt failed or the registration was lost; `None` while registered.
    pub problem: Option<Arc<str>>,
    /// Why it is no longer served; `None` while it is served or about to be.
    pub ended: Option<Arc<str>>,
    #[serde(skip)]
    pub ended_at: Option<Monotonic>,
    /// The other plugin that serves this resource, or offers its hardware under another, in words with a remedy.
    pub conflict: Option<Arc<str>>,
    /// It waits for a plugin that listens, although the kubelet lists no device of the resource.
    pub unserved: bool,
    /// Time without a registration, up to `unregistered_since`.
    pub unregistered: Duration,
    /// `None` while registered, and once it has ended.
    pub unregistered_since: Option<Monotonic>,
    /// What the kubelet is sent: by device, why it is unhealthy, or `None` for a healthy one.
    pub devices: Arc<BTreeMap<DeviceId, Option<Arc<str>>>>,
    /// The GPU behind each of the devices that have one; a MIG device's is the one that it is part of.
    pub gpus: Arc<BTreeMap<DeviceId, GpuUuid>>,
    /// Allocate calls by result: ok, unknown_device, unhealthy, held, not_allowed.
    #[serde(skip_deserializing)]
    pub allocations: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    pub allocate_durations: DurationHistogram,
    /// Whether its shared devices are shared through NVIDIA's MPS control daemon, and not in time slices.
    pub mps: bool,
    /// Whether the plugin serves GetPreferredAllocation.
    pub prefers: bool,
    #[serde(skip)]
    pub preferred_durations: DurationHistogram,
    /// Preferences that were not the best possible, by reason.
    #[serde(skip)]
    pub preferred_fallbacks: BTreeMap<&'static str, u64>,
    /// Transitions of its devices' health, by `healthy` or `unhealthy`, then by reason.
    #[serde(skip)]
    pub health_transitions: BTreeMap<&'static str, BTreeMap<PluginUnhealthyReason, u64>>,
    /// PreStartContainer calls by result; empty where the check before a start is off.
    #[serde(skip)]
    pub pre_starts: BTreeMap<&'static str, u64>,
}

/// Why the plugin reports a device as unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PluginUnhealthyReason {
    /// The health of its GPU or MIG device.
    #[strum(transparent)]
    Device(UnhealthyReason),
    /// NVIDIA's MPS control daemon does not serve its resource.
    Mps,
    /// A change of MIG layout or of the offers removed it.
    Layout,
    /// Its device nodes are no longer there, or another kernel driver has its GPU.
    Unplugged,
    /// A container holds its hardware under another name.
    Held,
}

impl PluginUnhealthyReason {
    pub fn all() -> impl Iterator<Item = Self> {
        let own = [Self::Mps, Self::Layout, Self::Unplugged, Self::Held];
        UnhealthyReason::iter().map(Self::Device).chain(own)
    }
}

impl PluginResource {
    /// Time without a registration until `now`.
    pub fn unregistered_until(&self, now: Monotonic) -> Duration {
        self.unregistered + self.unregistered_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Ids by health: (healthy, unhealthy).
    pub fn count(&self) -> (usize, usize) {
        let healthy = self.devices.values().filter(|reason| reason.is_none()).count();
        (healthy, self.devices.len() - healthy)
    }
}
