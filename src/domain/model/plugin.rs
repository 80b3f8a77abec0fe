//! The state of the device plugin: registrations, offers, and the health that it reports to the kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use strum::{IntoEnumIterator, IntoStaticStr};

use super::{DeviceId, DurationHistogram, GpuUuid, Monotonic, ResourceName, UnhealthyReason, UnixSeconds};

/// The state of the device plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginState {
    /// Whether `resources` has all that is offered: the driver was read, or has a problem, and the host was scanned.
    pub resources_complete: bool,
    /// The number of kubelets that replaced another one since the start.
    pub kubelet_restarts: u64,
    /// What is not offered as configured, each as a sentence with its remedy. Sorted.
    pub problems: Vec<Arc<str>>,
    /// The number of devices for which a vendor's CDI specification is not used, by file and reason; `problems` has the
    /// sentences.
    pub unused_cdi_files: BTreeMap<(Arc<str>, &'static str), usize>,
    /// The profile of the configuration that applies; `None` where it has none.
    pub profile: Option<AppliedProfile>,
    pub resources: BTreeMap<ResourceName, PluginResource>,
    /// The control daemons of the GPUs that MPS shares: each daemon's process ID in its PID namespace.
    pub mps_daemons: MpsDaemons,
    /// Why pods get a GPU only when there is no other one.
    pub avoided: BTreeMap<GpuUuid, &'static str>,
}

pub type MpsDaemons = BTreeMap<GpuUuid, BTreeSet<u32>>;

/// The profile of the configuration that applies to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedProfile {
    /// `profile`, `common` where none matches, or `undecided` while it depends on unknown GPUs.
    pub decision: &'static str,
    pub name: Option<Arc<str>>,
}

/// One resource that the plugin serves, or tries to serve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginResource {
    /// When its counters began.
    pub created: UnixSeconds,
    pub registered: bool,
    pub registrations: u64,
    /// Why the last attempt failed or the registration was lost; `None` while registered.
    pub problem: Option<Arc<str>>,
    /// Why it is no longer served; `None` while it is served or about to be.
    pub ended: Option<Arc<str>>,
    pub ended_at: Option<Monotonic>,
    /// The other plugin that serves this resource, or offers its hardware under another, in words with a remedy.
    pub conflict: Option<Arc<str>>,
    /// Whether it waits for a plugin that listens, although the kubelet lists no device of the resource.
    pub unserved: bool,
    /// The time without a registration, up to `unregistered_since`.
    pub unregistered: Duration,
    /// The start of the present time without a registration; `None` while registered, and once it has ended.
    pub unregistered_since: Option<Monotonic>,
    /// The list for the kubelet: why each device is unhealthy, or `None` for a healthy one.
    pub devices: Arc<BTreeMap<DeviceId, Option<Arc<str>>>>,
    /// The GPU of each device that has one; for a MIG device the GPU that it is a part of.
    pub gpus: Arc<BTreeMap<DeviceId, GpuUuid>>,
    /// The Allocate calls by result: ok, unknown_device, unhealthy, held, not_allowed.
    pub allocations: BTreeMap<&'static str, u64>,
    pub allocate_durations: DurationHistogram,
    /// Whether NVIDIA's MPS control daemon shares its devices, and not time slices.
    pub mps: bool,
    /// Whether the plugin serves GetPreferredAllocation.
    pub prefers: bool,
    pub preferred_durations: DurationHistogram,
    /// The preferences that were not the best possible, by reason.
    pub preferred_fallbacks: BTreeMap<&'static str, u64>,
    /// The transitions of its devices' health, by `healthy` or `unhealthy`, then by reason.
    pub health_transitions: BTreeMap<&'static str, BTreeMap<PluginUnhealthyReason, u64>>,
    /// The PreStartContainer calls by result; empty where the check before a start is off.
    pub pre_starts: BTreeMap<&'static str, u64>,
}

/// Why the plugin reports a device as unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PluginUnhealthyReason {
    /// Its GPU or MIG device is unhealthy.
    #[strum(transparent)]
    Device(UnhealthyReason),
    /// NVIDIA's MPS control daemon does not serve its resource.
    Mps,
    /// A change of MIG layout or of the offers removed it.
    Layout,
    /// Its device nodes no longer exist, or another kernel driver has its GPU.
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
    /// The time without a registration until `now`.
    pub fn unregistered_until(&self, now: Monotonic) -> Duration {
        self.unregistered + self.unregistered_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// The number of IDs by health: (healthy, unhealthy).
    pub fn count(&self) -> (usize, usize) {
        let healthy = self.devices.values().filter(|reason| reason.is_none()).count();
        (healthy, self.devices.len() - healthy)
    }
}
