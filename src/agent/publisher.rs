use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::settings::Reloadable;
use super::{owners, self_use, xids};
use crate::attribution::{self, ClassedXid, ContainerXids, Join, Ledger, Observation, Slots, XidObservation};
use crate::clock::Clock;
use crate::hardware::CallDurations;
use crate::health;
use crate::journal::Reader;
use crate::metrics::SeriesBudget;
use crate::model::{
    Allocatable, Allocations, ConfigReload, HardwareState, HealthState, Inventory, KubeletState, Monotonic,
    PluginState, ProcessState, Snapshot, UnixSeconds, XidEvent,
};

/// A new snapshot at least this often, so that the ages on the page grow while nothing answers.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A device whose readings are this late, or three sample intervals, is held but not known to be busy.
const READINGS_LATE: Duration = Duration::from_secs(5);
/// Some files of each are read; a process that hangs in the kernel is not waited for.
const OWNERS_WAIT: Duration = Duration::from_millis(50);
/// The publisher only computes; if it has not published for this long, something holds it up.
const LIVENESS_LIMIT: Duration = Duration::from_secs(15);

/// The one writer: joins what the rooms publish into snapshots.
pub struct Publisher {
    pub clock: Clock,
    pub node_name: Arc<str>,
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    pub health: watch::Receiver<Arc<HealthState>>,
    pub sample_interval: Duration,
    /// `None` while the bundled device plugin is off.
    pub plugin: Option<watch::Receiver<Arc<PluginState>>>,
    /// The processes whose owners are wanted.
    pub wanted: watch::Sender<Arc<BTreeSet<u32>>>,
    pub processes: watch::Receiver<Arc<ProcessState>>,
    /// `None` where there is no driver to hear any from.
    pub xids: Option<mpsc::Receiver<Vec<XidEvent>>>,
    /// Which XIDs count.
    pub health_config: health::Config,
    /// How long the driver's calls take, where that was asked for.
    pub call_durations: Option<CallDurations>,
    pub dropped_lines: super::DroppedLogLines,
    pub reloadable: watch::Receiver<Reloadable>,
    pub config_reload: watch::Receiver<Option<ConfigReload>>,
    pub web_config: Option<crate::web::LiveConfig>,
    /// `None` without a journal.
    pub journal: Option<Reader>,
    pub scrapes: crate::web::ScrapeDurations,
    pub publish: watch::Sender<Arc<Snapshot>>,
    pub pulse: Pulse,
}

/// Of both files; the one that is bad tells since when.
fn of_both(config: ConfigReload, web: ConfigReload) -> ConfigReload {
    match (config.successful, web.successful) {
        (false, true) => config,
        (true, false) => web,
        _ if config.last_success > web.last_success => config,
        _ => web,
    }
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

/// What the publisher remembers from one snapshot to the next.
struct Books {
    ledger: Ledger,
    budget: SeriesBudget,
    cache: JoinCache,
    xids: ContainerXids,
    /// Since the last snapshot.
    heard: Vec<ClassedXid>,
}

impl Books {
    fn hear(&mut self, batch: Vec<XidEvent>, config: &health::Config) {
        let counted = |event: XidEvent| Some(ClassedXid { class: config.counted_class(event.code)?, event });
        self.heard.extend(batch.into_iter().filter_map(counted));
    }

    /// The processes that XIDs name, by the host's numbers.
    fn wanted(&self) -> impl Iterator<Item = u32> + '_ {
        let heard = self.heard.iter().filter_map(|xid| xid.event.process.as_ref());
        self.xids.wanted().chain(heard.map(|process| process.pid))
    }
}

/// A join and what it was made from: it is made again only when one of them is another.
#[derive(Default)]
struct JoinCache {
    slots: Slots,
    allocations: Arc<Allocations>,
    allocatable: Arc<Allocatable>,
    inventory: Arc<Inventory>,
    settled: bool,
    join: Join,
}

impl Publisher {
    /// Publishes for ever. Ends only by being dropped, or when a room has ended.
    pub async fn run(mut self) {
        let started = self.clock.now().unix;
        let ledger = Ledger::new(self.reloadable.borrow().retention, READINGS_LATE.max(self.sample_interval * 3));
        let mut books = Books {
            ledger,
            budget: SeriesBudget::default(),
            cache: JoinCache::default(),
            xids: ContainerXids::new(self.health_config.kmsg),
            heard: vec![],
        };
        let (mut sequence, mut hardware_lives) = (0, true);
        loop {
            sequence += 1;
            self.ask_for_owners(&books).await;
            let snapshot = self.snapshot(&mut books, sequence, started);
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
                changed = self.health.changed() => changed,
                changed = changed(&mut self.plugin) => changed,
                batch = xids::next(&mut self.xids) => {
                    match batch {
                        Some(batch) => books.hear(batch, &self.health_config),
                        None => self.xids = None,
                    }
                    Ok(())
                }
                changed = self.reloadable.changed() => {
                    books.ledger.set_retention(self.reloadable.borrow_and_update().retention);
                    changed
                }
                () = tokio::time::sleep(HEARTBEAT) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// New processes are looked at before what they did is divided; whoever is not known in time goes without.
    async fn ask_for_owners(&mut self, books: &Books) {
        let mut wanted = owners::wanted(&self.hardware.borrow());
        wanted.extend(books.wanted());
        if owners::are_known(&wanted, &self.processes.borrow()) && **self.wanted.borrow() == wanted {
            return;
        }
        self.wanted.send_replace(Arc::new(wanted.clone()));
        let known = self.processes.wait_for(|state| owners::are_known(&wanted, state));
        // An error is the room ending, which the agent sees.
        let _ = tokio::time::timeout(OWNERS_WAIT, known).await;
    }

    fn snapshot(&mut self, books: &mut Books, sequence: u64, started: UnixSeconds) -> Snapshot {
        let Books { ledger, budget, cache, xids, heard } = books;
        let hardware = Arc::clone(&self.hardware.borrow_and_update());
        let kubelet = Arc::clone(&self.kubelet.borrow_and_update());
        let health = Arc::clone(&self.health.borrow_and_update());
        let plugin = self.plugin.as_mut().map(|plugin| Arc::clone(&plugin.borrow_and_update()));
        let processes = Arc::clone(&self.processes.borrow_and_update());
        let processes_by_device = owners::by_device(&hardware, &processes);
        let (now, scrape_durations) = (self.clock.now(), self.scrapes.snapshot());
        cache.update(&hardware, &kubelet, plugin.as_deref());
        let mut statement = ledger.advance(&Observation {
            now,
            join: &cache.join,
            inventory: &hardware.inventory,
            readings: &hardware.readings,
            processes: &processes_by_device,
            scrapes: self.scrapes.pages(),
        });
        budget.mark(&mut statement.accounts, self.reloadable.borrow().series_limit);
        let join = &cache.join;
        let retention = self.reloadable.borrow().retention;
        let container_xids = xids.advance(XidObservation {
            now,
            events: std::mem::take(heard),
            join,
            inventory: &hardware.inventory,
            accounts: &statement.accounts,
            processes: &processes,
            retention,
            scrapes: self.scrapes.pages(),
        });
        Snapshot {
            sequence,
            at: now,
            started,
            node_name: Arc::clone(&self.node_name),
            accounts: statement.accounts,
            unattributed: statement.unattributed,
            unallocated_uses: statement.unallocated_uses,
            container_xids,
            violations: statement.violations,
            series_dropped: budget.dropped().clone(),
            unresolved: join.unresolved.clone(),
            claim_gpus: join.claims.clone(),
            drift: join.drift.clone(),
            scrape_durations,
            nvml_call_durations: self.call_durations.as_ref().map(|read| read()).unwrap_or_default(),
            process: self_use::read(),
            log_lines_dropped: (self.dropped_lines)(),
            journal: self.journal.as_ref().map(Reader::state),
            config_reload: match (*self.config_reload.borrow(), &self.web_config) {
                (Some(config), Some(web)) => Some(of_both(config, web.reload())),
                (config, _) => config,
            },
            hardware,
            kubelet,
            health,
            plugin,
            processes: Some(processes),
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
    fn update(&mut self, hardware: &HardwareState, kubelet: &KubeletState, plugin: Option<&PluginState>) {
        let allocations = kubelet.allocations.clone().unwrap_or_default();
        let allocatable = kubelet.allocatable.clone().unwrap_or_default();
        let resources = plugin.into_iter().flat_map(|plugin| &plugin.resources);
        let by_mps = resources.filter(|(_, served)| served.mps && served.conflict.is_none());
        let other_mps = self.slots.set_mps(by_mps.map(|(resource, _)| resource.clone()).collect());
        let same = !other_mps
            && Arc::ptr_eq(&self.allocations, &allocations)
            && Arc::ptr_eq(&self.allocatable, &allocatable)
            && Arc::ptr_eq(&self.inventory, &hardware.inventory)
            && self.settled == kubelet.settled;
        if !same {
            self.slots.learn(&allocations, &allocatable, &hardware.inventory, kubelet.settled);
            self.join = attribution::join(&allocations, &allocatable, &hardware.inventory, &self.slots);
            (self.allocations, self.allocatable, self.settled) = (allocations, allocatable, kubelet.settled);
            self.inventory = Arc::clone(&hardware.inventory);
        }
    }
}
