use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::entry::{Entry, Facts, Surroundings};
use super::lifecycle::Life;
use super::record::Record;
use super::server::Desk;
use super::sockets::{self, Identity};
use super::{Hardware, Offer, OfferedDevice, ResourceConfig};
use crate::clock::Clock;
use crate::model::{DeviceId, HardwareState, HealthState, KubeletState, PluginState, ResourceName, UnhealthyReason};

/// Device nodes come and go without telling anybody.
const PATHS_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Settings {
    pub directory: PathBuf,
    /// What to offer, validated.
    pub resources: Vec<ResourceConfig>,
    pub surroundings: Surroundings,
}

/// What the room hears, and what it tells others of.
#[derive(Debug)]
pub struct Neighbours {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// The verdict on each GPU and MIG device.
    pub health: watch::Receiver<Arc<HealthState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// An allocation was granted: the kubelet will show it in a moment.
    pub allocated: Arc<Notify>,
    /// A fresh answer on what the kubelet can allocate is wanted.
    pub look: Arc<Notify>,
}

/// Serves every resource until `stop` is true, and then returns when the last socket is gone. Returns early only when
/// something is broken.
pub async fn run(
    settings: Settings,
    clock: Clock,
    neighbours: Neighbours,
    publish: watch::Sender<Arc<PluginState>>,
    stop: watch::Receiver<bool>,
) {
    sockets::remove_stale(&settings.directory).await;
    let (changes, changed) = watch::channel(0);
    let mut beside = JoinSet::new();
    beside.spawn(sockets::watch_directory(settings.directory.clone(), changes));
    beside.spawn(count_kubelets(settings.directory.clone(), changed.clone(), publish.clone()));
    let entries = settings.resources.iter().cloned().map(Entry::new).collect();
    let served = BTreeMap::new();
    let room = Room { settings, clock, neighbours, publish, stop, changed, entries, served };
    tokio::select! {
        () = room.serve() => {}
        _ = beside.join_next() => {}
    }
}

struct Room {
    settings: Settings,
    clock: Clock,
    neighbours: Neighbours,
    publish: watch::Sender<Arc<PluginState>>,
    stop: watch::Receiver<bool>,
    changed: watch::Receiver<u64>,
    entries: Vec<Entry>,
    /// By the entry that brought it, then by resource.
    served: BTreeMap<(usize, ResourceName), Served>,
}

impl Room {
    async fn serve(mut self) {
        let mut lives = JoinSet::new();
        let mut stop = self.stop.clone();
        let has_paths = self.entries.iter().any(|entry| matches!(*entry.config, ResourceConfig::Path(_)));
        loop {
            let hardware = Arc::clone(&self.neighbours.hardware.borrow_and_update());
            let health = Arc::clone(&self.neighbours.health.borrow_and_update());
            for life in self.update(&hardware, &health) {
                lives.spawn(life.run());
            }
            let is_known = hardware.source == "none" || hardware.inventory.generation > 0 || hardware.problem.is_some();
            if is_known && !self.publish.borrow().checked {
                self.publish.send_modify(|state| Arc::make_mut(state).checked = true);
            }
            tokio::select! {
                changed = self.neighbours.hardware.changed() => if changed.is_err() { return },
                changed = self.neighbours.health.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(PATHS_INTERVAL), if has_paths => {}
                Some(_) = lives.join_next() => break,
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if *self.stop.borrow() {
            while lives.join_next().await.is_some() {}
        }
        self.entries.into_iter().for_each(Entry::end);
    }

    /// Says what is offered now. Returns the resources that are new.
    fn update(&mut self, hardware: &HardwareState, health: &HealthState) -> Vec<Life> {
        let mut begun = vec![];
        for (number, entry) in self.entries.iter_mut().enumerate() {
            entry.update(hardware, health, &self.settings.surroundings);
            for offer in entry.offers() {
                match self.served.get_mut(&(number, offer.resource.clone())) {
                    Some(served) => served.update(offer, &entry.facts, health),
                    None if offer.devices.is_empty() => {}
                    None => begun.push((number, offer.clone(), Arc::clone(&entry.config), Arc::clone(&entry.facts))),
                }
            }
        }
        let begin = |(number, offer, config, facts)| self.begin(number, offer, config, facts);
        begun.into_iter().filter_map(begin).collect()
    }

    /// `None` where another entry has the resource already: two would fight for it.
    fn begin(&mut self, number: usize, offer: Offer, config: Arc<ResourceConfig>, facts: Arc<Facts>) -> Option<Life> {
        let resource = offer.resource.clone();
        if self.served.keys().any(|(_, served)| *served == resource) {
            return None;
        }
        let record = Record::new(resource.clone(), self.clock, self.publish.clone());
        let (tell_offer, offers) = watch::channel(Arc::new(offer));
        let (tell_facts, facts) = watch::channel(facts);
        let desk = Desk {
            config,
            offer: offers,
            facts,
            hardware: self.neighbours.hardware.clone(),
            record: record.clone(),
            clock: self.clock,
            allocated: Arc::clone(&self.neighbours.allocated),
            look: Arc::clone(&self.neighbours.look),
        };
        record.begin(desk.prefers(), desk.pre_start_check().is_some());
        record.offered(&desk.offer.borrow());
        let life = Life {
            directory: self.settings.directory.clone(),
            desk,
            kubelet: self.neighbours.kubelet.clone(),
            changes: self.changed.clone(),
            stop: self.stop.clone(),
        };
        self.served.insert(
            (number, resource),
            Served { offer: tell_offer, facts: tell_facts, record, reasons: BTreeMap::new() },
        );
        Some(life)
    }
}

/// A resource that is served for as long as the room lives.
struct Served {
    offer: watch::Sender<Arc<Offer>>,
    facts: watch::Sender<Arc<Facts>>,
    record: Record,
    /// Why each unhealthy device is; none for those that were so from the beginning.
    reasons: BTreeMap<DeviceId, UnhealthyReason>,
}

impl Served {
    fn update(&mut self, offer: &Offer, facts: &Arc<Facts>, health: &HealthState) {
        if !Arc::ptr_eq(&self.facts.borrow(), facts) {
            self.facts.send_replace(Arc::clone(facts));
        }
        let changed = **self.offer.borrow() != *offer;
        if changed {
            tell(&self.offer.borrow(), offer);
            self.count_turns(offer, health);
            self.record.offered(offer);
            self.offer.send_replace(Arc::new(offer.clone()));
        }
    }

    /// A device that is well again is counted under the reason for which it was not.
    fn count_turns(&mut self, now: &Offer, health: &HealthState) {
        let before = Arc::clone(&self.offer.borrow());
        let known: BTreeMap<&DeviceId, bool> =
            before.devices.iter().map(|device| (&device.id, device.health.is_ok())).collect();
        for device in &now.devices {
            let reason = device.health.is_err().then(|| super::health::reason(&device.hardware, health));
            let was = match reason {
                Some(reason) => self.reasons.insert(device.id.clone(), reason),
                None => self.reasons.remove(&device.id),
            };
            match (known.get(&device.id), reason) {
                (Some(true), Some(reason)) => self.record.turned("unhealthy", reason),
                (Some(false), None) => self.record.turned("healthy", was.unwrap_or(UnhealthyReason::Unknown)),
                _ => {}
            }
        }
    }
}

/// Whoever judges GPUs tells of their verdicts.
fn tell(before: &Offer, now: &Offer) {
    let known: BTreeMap<&DeviceId, &OfferedDevice> = before.devices.iter().map(|device| (&device.id, device)).collect();
    for device in &now.devices {
        let resource = &now.resource;
        let judged_here = matches!(device.hardware, Hardware::Nodes(_) | Hardware::Nothing);
        match (known.get(&device.id).map(|before| &before.health), &device.health) {
            (Some(Ok(())), Err(reason)) if judged_here => {
                tracing::warn!(%resource, device = %device.id, reason, "unhealthy");
            }
            (Some(Err(reason)), Ok(())) if judged_here => {
                tracing::info!(%resource, device = %device.id, was = reason, "healthy again");
            }
            (None, _) => tracing::info!(%resource, device = %device.id, "a new device"),
            _ => {}
        }
    }
}

/// Counts the kubelets that come after the first. Never ends.
async fn count_kubelets(
    directory: PathBuf,
    mut changed: watch::Receiver<u64>,
    publish: watch::Sender<Arc<PluginState>>,
) {
    let socket = sockets::kubelet_socket(&directory);
    let mut last = None;
    loop {
        if let Some(now) = Identity::of(&socket)
            && last.replace(now).is_some_and(|last| last != now)
        {
            publish.send_modify(|state| Arc::make_mut(state).kubelet_restarts += 1);
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}
