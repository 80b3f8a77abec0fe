use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::self_use;
use super::settings::Reloadable;
use crate::attribution::{self, Join, Ledger, Observation, Slots};
use crate::clock::Clock;
use crate::metrics::SeriesBudget;
use crate::model::{
    Allocatable, ConfigReload, HardwareState, Inventory, KubeletState, Monotonic, PluginState, Relation, Snapshot,
    UnixSeconds,
};

/// A new snapshot at least this often, so that the ages on the page grow while nothing answers.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A device whose readings are this late, or three sample intervals, is held but not known to be busy.
const READINGS_LATE: Duration = Duration::from_secs(5);
/// The publisher only computes; if it has not published for this long, something holds it up.
const LIVENESS_LIMIT: Duration = Duration::from_secs(15);

/// The one writer: joins what the rooms publish into snapshots.
pub struct Publisher {
    pub clock: Clock,
    pub node_name: Arc<str>,
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    pub sample_interval: Duration,
    /// `None` while the bundled device plugin is off.
    pub plugin: Option<watch::Receiver<Arc<PluginState>>>,
    pub reloadable: watch::Receiver<Reloadable>,
    pub config_reload: watch::Receiver<Option<ConfigReload>>,
    pub scrapes: crate::web::ScrapeDurations,
    pub publish: watch::Sender<Arc<Snapshot>>,
    pub pulse: Pulse,
}

/// When the publisher last published; `/-/healthy` feels it.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    fn beat(&self, now: Monotonic) {
        let milliseconds = u64::try_from(now.as_duration().as_millis()).unwrap_or(u64::MAX);
        self.0.store(milliseconds, Ordering::Relaxed);
    }

    /// The reason when it has stopped.
    pub fn feel(&self, now: Monotonic) -> Result<(), String> {
        let silent = now.since(Monotonic::from_millis(self.0.load(Ordering::Relaxed)));
        if silent <= LIVENESS_LIMIT {
            Ok(())
        } else {
            Err(format!("no snapshot has been published for {} s", silent.as_secs()))
        }
    }
}

/// A join and what it was made from: it is made again only when one of them is another.
#[derive(Default)]
struct JoinCache {
    slots: Slots,
    relation: Arc<Relation>,
    allocatable: Arc<Allocatable>,
    inventory: Arc<Inventory>,
    join: Join,
}

impl Publisher {
    /// Publishes for ever. Ends only by being dropped, or when a room has ended.
    pub async fn run(mut self) {
        let started = self.clock.now().unix;
        let mut ledger = Ledger::new(self.reloadable.borrow().retention, READINGS_LATE.max(self.sample_interval * 3));
        let (mut budget, mut cache) = (SeriesBudget::default(), JoinCache::default());
        let (mut sequence, mut hardware_lives) = (0, true);
        loop {
            sequence += 1;
            let snapshot = self.snapshot(&mut ledger, &mut budget, &mut cache, sequence, started);
            self.pulse.beat(snapshot.at.monotonic);
            self.publish.send_replace(Arc::new(snapshot));
            let changed = tokio::select! {
                changed = self.hardware.changed(), if hardware_lives => {
                    if changed.is_err() {
                        tracing::error!("the hardware threads have ended: device readings grow old");
                        hardware_lives = false;
                    }
                    Ok(())
                }
                changed = self.kubelet.changed() => changed,
                changed = changed(&mut self.plugin) => changed,
                changed = self.reloadable.changed() => {
                    ledger.set_retention(self.reloadable.borrow_and_update().retention);
                    changed
                }
                () = tokio::time::sleep(HEARTBEAT) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn snapshot(
        &mut self,
        ledger: &mut Ledger,
        budget: &mut SeriesBudget,
        cache: &mut JoinCache,
        sequence: u64,
        started: UnixSeconds,
    ) -> Snapshot {
        let hardware = Arc::clone(&self.hardware.borrow_and_update());
        let kubelet = Arc::clone(&self.kubelet.borrow_and_update());
        let plugin = self.plugin.as_mut().map(|plugin| Arc::clone(&plugin.borrow_and_update()));
        let (now, scrape_durations) = (self.clock.now(), self.scrapes.snapshot());
        cache.update(&hardware, &kubelet);
        let mut statement = ledger.advance(&Observation {
            now,
            join: &cache.join,
            inventory: &hardware.inventory,
            readings: &hardware.readings,
            processes: &BTreeMap::new(),
            scrapes: self.scrapes.pages(),
        });
        budget.mark(&mut statement.accounts, self.reloadable.borrow().series_limit);
        let join = &cache.join;
        Snapshot {
            sequence,
            at: now,
            started,
            node_name: Arc::clone(&self.node_name),
            accounts: statement.accounts,
            remainders: statement.remainders,
            unallocated_uses: statement.unallocated_uses,
            violations: statement.violations,
            series_dropped: budget.dropped().clone(),
            unresolved: join.unresolved.clone(),
            claim_gpus: join.claims.clone(),
            drift: join.drift.clone(),
            scrape_durations,
            process: self_use::read(),
            config_reload: *self.config_reload.borrow(),
            hardware,
            kubelet,
            plugin,
        }
    }
}

/// Never, where there is nothing to change.
async fn changed<T>(state: &mut Option<watch::Receiver<T>>) -> Result<(), watch::error::RecvError> {
    match state {
        Some(state) => state.changed().await,
        None => std::future::pending().await,
    }
}

impl JoinCache {
    fn update(&mut self, hardware: &HardwareState, kubelet: &KubeletState) {
        let relation = kubelet.relation.clone().unwrap_or_default();
        let allocatable = kubelet.allocatable.clone().unwrap_or_default();
        let same = Arc::ptr_eq(&self.relation, &relation)
            && Arc::ptr_eq(&self.allocatable, &allocatable)
            && Arc::ptr_eq(&self.inventory, &hardware.inventory);
        if !same {
            self.slots.learn(&relation, &allocatable, &hardware.inventory);
            self.join = attribution::join(&relation, &allocatable, &hardware.inventory, &self.slots);
            (self.relation, self.allocatable) = (relation, allocatable);
            self.inventory = Arc::clone(&hardware.inventory);
        }
    }
}
