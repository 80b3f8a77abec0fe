use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::entry::{Entry, Facts, Surroundings};
use super::lifecycle::{Deadlines, Life};
use super::record::Record;
use super::server::Desk;
use super::sockets::{self, Identity};
use super::{Offer, OfferedDevice, ResourceConfig};
use crate::clock::Clock;
use crate::model::{DeviceId, HardwareState, KubeletState, PluginState, ResourceName};

/// Device nodes, and other daemons, come and go without telling anybody.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
        let looks = self.entries.iter().any(Entry::needs_looking);
        loop {
            let hardware = Arc::clone(&self.neighbours.hardware.borrow_and_update());
            for life in self.update(&hardware) {
                lives.spawn(life.run());
            }
            let is_known = hardware.source == "none" || hardware.inventory.generation > 0 || hardware.problem.is_some();
            if is_known && !self.publish.borrow().checked {
                self.publish.send_modify(|state| Arc::make_mut(state).checked = true);
            }
            tokio::select! {
                changed = self.neighbours.hardware.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK_INTERVAL), if looks => {}
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
    fn update(&mut self, hardware: &HardwareState) -> Vec<Life> {
        let mut begun = vec![];
        for (number, entry) in self.entries.iter_mut().enumerate() {
            entry.update(hardware, &self.settings.surroundings);
            for offer in entry.offers() {
                match self.served.get(&(number, offer.resource.clone())) {
                    Some(served) => served.update(offer, &entry.facts),
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
            kubelet: self.neighbours.kubelet.clone(),
            record: record.clone(),
            clock: self.clock,
            allocated: Arc::clone(&self.neighbours.allocated),
            look: Arc::clone(&self.neighbours.look),
        };
        record.begin(desk.prefers(), desk.pre_start_check().is_some(), desk.shares_through_mps());
        record.offered(&desk.offer.borrow());
        let life = Life {
            directory: self.settings.directory.clone(),
            desk,
            kubelet: self.neighbours.kubelet.clone(),
            changes: self.changed.clone(),
            stop: self.stop.clone(),
            deadlines: Deadlines::default(),
        };
        self.served.insert((number, resource), Served { offer: tell_offer, facts: tell_facts, record });
        Some(life)
    }
}

/// A resource that is served for as long as the room lives.
struct Served {
    offer: watch::Sender<Arc<Offer>>,
    facts: watch::Sender<Arc<Facts>>,
    record: Record,
}

impl Served {
    fn update(&self, offer: &Offer, facts: &Arc<Facts>) {
        if !Arc::ptr_eq(&self.facts.borrow(), facts) {
            self.facts.send_replace(Arc::clone(facts));
        }
        let changed = **self.offer.borrow() != *offer;
        if changed {
            tell(&self.offer.borrow(), offer);
            self.record.offered(offer);
            self.offer.send_replace(Arc::new(offer.clone()));
        }
    }
}

fn tell(before: &Offer, now: &Offer) {
    let known: BTreeMap<&DeviceId, &OfferedDevice> = before.devices.iter().map(|device| (&device.id, device)).collect();
    for device in &now.devices {
        let resource = &now.resource;
        match (known.get(&device.id).map(|before| &before.health), &device.health) {
            (Some(Ok(())), Err(reason)) => tracing::warn!(%resource, device = %device.id, reason, "unhealthy"),
            (Some(Err(reason)), Ok(())) => {
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
