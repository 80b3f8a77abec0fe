//! The resources with a running lifecycle, which `task` starts and ends.
//!
//! In: the offers of configured entries, and the host's facts. Out: both to a lifecycle for each resource; a count of
//! each change of health, and log lines of new devices and of the plugin's reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::allocate::ServiceInputs;
use super::config::EntryConfig;
use super::host::HostFacts;
use super::inputs::PluginInputs;
use super::offer::{Offer, OfferedDevice, OfferedHealth};
use super::registration::{Deadlines, EndedLifecycle, Lifecycle};
use super::status::ResourceStatus;
use crate::clock::Clock;
use crate::domain::model::{DeviceId, PluginState, ResourceName};

/// The most IDs in one line of the log.
const LOGGED_IDS: usize = 8;

/// The resources with a running lifecycle, and the inputs with which each lifecycle starts.
pub struct ServedResources {
    pub directory: PathBuf,
    /// Counts the changes of the directory.
    pub directory_changes: watch::Receiver<u64>,
    pub inputs: PluginInputs,
    pub clock: Clock,
    pub publish: watch::Sender<Arc<PluginState>>,
    pub running: BTreeMap<ResourceName, ServedResource>,
    pub lifecycles: JoinSet<EndedLifecycle>,
    /// The devices of each resource that ended lifecycles sent to the kubelet.
    pub advertised: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
}

/// A resource with a running lifecycle.
pub struct ServedResource {
    /// The number of the configured entry that offers it.
    pub entry_number: u64,
    offer: watch::Sender<Arc<Offer>>,
    facts: watch::Sender<Arc<HostFacts>>,
    status: ResourceStatus,
    /// Sends the reason to end.
    stop: watch::Sender<Option<&'static str>>,
}

impl ServedResources {
    pub fn begin(&mut self, entry_number: u64, config: &Arc<EntryConfig>, offer: Offer, facts: Arc<HostFacts>) {
        let resource = offer.resource.clone();
        let status = ResourceStatus::begin(resource.clone(), config, self.clock, self.publish.clone());
        status.offered(&offer);
        // The registration logs the number of devices; this logs those that are unhealthy for a reason of the plugin.
        log_changes(None, &offer);
        let (publish_offer, offer) = watch::channel(Arc::new(offer));
        let (publish_facts, facts) = watch::channel(facts);
        let (stop, stopped) = watch::channel(None);
        let lifecycle = Lifecycle {
            directory: self.directory.clone(),
            service: ServiceInputs {
                config: Arc::clone(config),
                offer,
                facts,
                plugin: self.inputs.clone(),
                status: status.clone(),
                clock: self.clock,
            },
            directory_changes: self.directory_changes.clone(),
            stop: stopped,
            advertised: self.advertised.get(&resource).cloned().unwrap_or_default(),
            deadlines: Deadlines::default(),
            other_has_it: false,
            kubelet_seen: None,
        };
        self.lifecycles.spawn(lifecycle.run());
        let served = ServedResource { entry_number, offer: publish_offer, facts: publish_facts, status, stop };
        self.running.insert(resource, served);
    }

    /// Removes a lifecycle that has ended on request. If the resource `is_offered` still, the next update restarts it.
    pub fn remove(&mut self, ended: EndedLifecycle, is_offered: bool) {
        let EndedLifecycle { resource, advertised } = ended;
        if let Some(served) = self.running.remove(&resource).filter(|_| !is_offered) {
            let reason = served.stop.borrow().unwrap_or_default();
            tracing::info!(%resource, reason, "no longer served: nothing of it is offered");
            served.status.ended(reason);
        }
        self.advertised.insert(resource, advertised);
    }
}

impl ServedResource {
    /// `offer`: where it was made again.
    pub fn update(&self, offer: Option<&Offer>, facts: &Arc<HostFacts>) {
        // Its last list stays valid until its server is closed.
        if self.is_ending() {
            return;
        }
        if !Arc::ptr_eq(&self.facts.borrow(), facts) {
            self.facts.send_replace(Arc::clone(facts));
        }
        if let Some(offer) = offer.filter(|offer| **self.offer.borrow() != **offer) {
            log_changes(Some(&self.offer.borrow()), offer);
            self.count_transitions(offer);
            self.status.offered(offer);
            self.offer.send_replace(Arc::new(offer.clone()));
        }
    }

    pub fn is_ending(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Requests that the lifecycle end; the first reason is kept.
    pub fn end(&self, reason: &'static str) {
        if !self.is_ending() {
            self.stop.send_replace(Some(reason));
        }
    }

    /// Counts the changes of health; that of a device that becomes healthy under its former reason.
    fn count_transitions(&self, now: &Offer) {
        for (device, before) in paired(Some(&self.offer.borrow()), now) {
            match (before, &device.health) {
                (Some(Ok(())), Err(unhealthy)) => self.status.transition("unhealthy", unhealthy.reason),
                (Some(Err(unhealthy)), Ok(())) if unhealthy.known => {
                    self.status.transition("healthy", unhealthy.reason);
                }
                _ => {}
            }
        }
    }
}

/// Each device, with its earlier health; without an earlier offer it was healthy.
fn paired<'o>(
    before: Option<&'o Offer>,
    now: &'o Offer,
) -> impl Iterator<Item = (&'o OfferedDevice, Option<&'o OfferedHealth>)> {
    let earlier = move |device| before.map_or(Some(&Ok(())), |before| Some(&before.device(device)?.health));
    now.devices.iter().map(move |device| (device, earlier(&device.id)))
}

/// Logs changes of the devices, one line for all devices of one reason. `agent::health` logs device health.
fn log_changes(before: Option<&Offer>, now: &Offer) {
    let resource = &now.resource;
    let (mut new, mut changed) = (vec![], BTreeMap::new());
    for (device, before) in paired(before, now) {
        if before.is_none() {
            new.push(&device.id);
        }
        let [was, is] = [before, Some(&device.health)]
            .map(|health| health.and_then(|health| health.as_ref().err()).filter(|unhealthy| unhealthy.is_own()));
        match (was, is) {
            (was, Some(is)) if was.map(|was| was.reason) != Some(is.reason) => {
                changed.entry((false, is.reason, &*is.detail)).or_insert_with(Vec::new).push(&device.id);
            }
            (Some(was), None) if device.health.is_ok() => {
                changed.entry((true, was.reason, &*was.detail)).or_insert_with(Vec::new).push(&device.id);
            }
            _ => {}
        }
    }
    if !new.is_empty() {
        tracing::info!(%resource, devices = first_ids(&new), "new devices");
    }
    for ((is_healthy, reason, detail), ids) in changed {
        let (devices, reason) = (first_ids(&ids), <&str>::from(reason));
        match is_healthy {
            false => tracing::warn!(%resource, devices, reason, detail, "unhealthy"),
            true => tracing::info!(%resource, devices, reason, was = detail, "healthy"),
        }
    }
}

/// The first IDs, and the number of the others.
fn first_ids(ids: &[&DeviceId]) -> String {
    let first: Vec<&str> = ids.iter().take(LOGGED_IDS).map(|id| id.as_str()).collect();
    let more = ids.len() - first.len();
    if more == 0 { first.join(", ") } else { format!("{} and {more} more", first.join(", ")) }
}
