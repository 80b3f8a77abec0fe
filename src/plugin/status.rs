//! The published state of one resource: registration, devices, counts of the kubelet's calls.
//!
//! In: what the lifecycle and the service report. Out: the resource's part of the `PluginState`. Does not use: gRPC.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use strum::IntoStaticStr;
use tokio::sync::watch;

use super::config::{EntryConfig, NvidiaConfig};
use super::offer::Offer;
use crate::clock::Clock;
use crate::domain::model::{
    Moment, Monotonic, PluginResource, PluginState, PluginUnhealthyReason, ResourceName, UnixSeconds,
};
use crate::domain::periods::LIST_SHOWN;

/// The result of Allocate or PreStartContainer; the `result` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CallResult {
    Ok,
    UnknownDevice,
    Unhealthy,
    Held,
    NotAllowed,
    MemoryInUse,
    ProcessesLeft,
}

impl CallResult {
    /// The results of Allocate; each has a counter from the beginning.
    pub const ALLOCATE: [Self; 5] = [Self::Ok, Self::UnknownDevice, Self::Unhealthy, Self::Held, Self::NotAllowed];
    /// The results of PreStartContainer; each has a counter from the beginning.
    pub const PRE_START: [Self; 5] =
        [Self::Ok, Self::UnknownDevice, Self::Unhealthy, Self::MemoryInUse, Self::ProcessesLeft];
}

/// Publishes what happens to one resource.
#[derive(Clone, Debug)]
pub struct ResourceStatus {
    resource: ResourceName,
    clock: Clock,
    publish: watch::Sender<Arc<PluginState>>,
}

impl ResourceStatus {
    /// Publishes the resource as one without a registration.
    pub fn begin(
        resource: ResourceName,
        config: &EntryConfig,
        clock: Clock,
        publish: watch::Sender<Arc<PluginState>>,
    ) -> Self {
        let zero = |results: &[CallResult]| results.iter().map(|result| (result.into_str(), 0)).collect();
        let status = Self { resource, clock, publish };
        status.change(|state, now| {
            // The counters of a resource that is served again continue.
            if state.created == UnixSeconds::default() {
                state.created = now.unix;
                state.allocations = zero(&CallResult::ALLOCATE);
                let none = || PluginUnhealthyReason::all().map(|reason| (reason, 0)).collect::<BTreeMap<_, _>>();
                state.health_transitions = [("healthy", none()), ("unhealthy", none())].into();
            }
            state.unregistered_since.get_or_insert(now.monotonic);
            state.ended = None;
            state.prefers = config.nvidia().is_some();
            state.mps = config.nvidia().is_some_and(NvidiaConfig::shares_through_mps);
            if config.pre_start_check().is_some() && state.pre_starts.is_empty() {
                state.pre_starts = zero(&CallResult::PRE_START);
            }
        });
        status
    }

    pub fn offered(&self, offer: &Offer) {
        let devices = offer.devices.iter().map(|device| {
            let reason = device.health.as_ref().err().map(|unhealthy| Arc::clone(&unhealthy.detail));
            (device.id.clone(), reason)
        });
        let devices: Arc<BTreeMap<_, _>> = Arc::new(devices.collect());
        let gpus = offer.devices.iter().filter_map(|device| Some((device.id.clone(), device.hardware.gpu()?.clone())));
        let gpus: Arc<BTreeMap<_, _>> = Arc::new(gpus.collect());
        self.change(|state, _| (state.devices, state.gpus) = (devices, gpus));
    }

    /// Counts a change of a device's health. `to` is `healthy` or `unhealthy`.
    pub fn transition(&self, to: &'static str, reason: PluginUnhealthyReason) {
        self.count(|state| *state.health_transitions.entry(to).or_default().entry(reason).or_default() += 1);
    }

    pub fn registered(&self) {
        self.change(|state, now| {
            serve(state, now, None);
            (state.registrations, state.problem) = (state.registrations + 1, None);
        });
    }

    /// Publishes the lack of a registration, also where there was none. `in_conflict`: another plugin had the resource.
    pub fn unregistered(&self, problem: &str, in_conflict: bool) {
        self.change(|state, now| {
            state.registered = false;
            state.unregistered_since.get_or_insert(now.monotonic);
            state.problem = Some(problem.into());
            state.conflict.take_if(|_| !in_conflict);
            state.unserved = false;
        });
    }

    /// Publishes that another plugin has registered the resource, which ended our registration without a notice.
    pub fn registered_by_another(&self, by: &str) {
        self.change(|state, now| {
            state.registered = false;
            state.unregistered_since.get_or_insert(now.monotonic);
            state.conflict = Some(by.into());
        });
    }

    /// Publishes that the kubelet uses our registration. `other_resource`: another plugin's with the same hardware.
    pub fn served(&self, other_resource: Option<&str>) {
        self.change(|state, now| serve(state, now, other_resource));
    }

    /// Whether this process serves the resource, or may have done so when the kubelet answered. A resource that it only
    /// waits for is another plugin's.
    pub fn serves(&self, resource: &ResourceName, answered: Monotonic) -> bool {
        self.publish.borrow().resources.get(resource).is_some_and(|state| {
            match state.ended_at.filter(|_| state.ended.is_some()) {
                Some(ended) => answered < ended + LIST_SHOWN,
                None => state.registrations > 0 && (state.registered || state.conflict.is_none()),
            }
        })
    }

    /// Publishes that the resource is no longer offered, so that no registration is expected.
    pub fn ended(&self, reason: &str) {
        self.change(|state, now| {
            state.unregistered = state.unregistered_until(now.monotonic);
            state.unregistered_since = None;
            state.registered = false;
            (state.problem, state.conflict, state.unserved) = (None, None, false);
            (state.devices, state.gpus) = Default::default();
            (state.ended, state.ended_at) = (Some(reason.into()), Some(now.monotonic));
        });
    }

    /// Publishes a conflict, or its end. `unserved`: the other plugin listens, but the kubelet lists no device of it.
    pub fn set_conflict(&self, with: Option<&str>, unserved: bool) {
        self.change(|state, _| (state.conflict, state.unserved) = (with.map(Arc::from), unserved));
    }

    pub fn allocated(&self, result: CallResult, duration: Duration) {
        self.count(|state| {
            *state.allocations.entry(result.into_str()).or_default() += 1;
            state.allocate_durations.observe(duration);
        });
    }

    pub fn preferred(&self, fallbacks: &[&'static str], duration: Duration) {
        self.count(|state| {
            for reason in fallbacks {
                *state.preferred_fallbacks.entry(reason).or_default() += 1;
            }
            state.preferred_durations.observe(duration);
        });
    }

    pub fn checked_before_start(&self, result: CallResult) {
        self.count(|state| *state.pre_starts.entry(result.into_str()).or_default() += 1);
    }

    fn change(&self, change: impl FnOnce(&mut PluginResource, Moment)) {
        let now = self.clock.now();
        self.publish.send_modify(|state| change(self.state(state), now));
    }

    /// Changes a count without waking receivers: the next snapshot has it.
    fn count(&self, count: impl FnOnce(&mut PluginResource)) {
        self.publish.send_if_modified(|state| {
            count(self.state(state));
            false
        });
    }

    fn state<'a>(&self, state: &'a mut Arc<PluginState>) -> &'a mut PluginResource {
        Arc::make_mut(state).resources.entry(self.resource.clone()).or_default()
    }
}

fn serve(state: &mut PluginResource, now: Moment, other_resource: Option<&str>) {
    state.unregistered = state.unregistered_until(now.monotonic);
    state.unregistered_since = None;
    state.registered = true;
    (state.conflict, state.unserved) = (other_resource.map(Arc::from), false);
}
