//! The publisher of snapshots.
//!
//! In: the states of all modules. Out: one immutable snapshot on each change, and at least every 6 s. Reads no
//! file outside `/proc`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::settings::{AgentSettings, Reloadable};
use super::{DroppedLogLines, self_use};
use crate::clock::Clock;
use crate::domain::attribution::{
    ClassedXid, ContainerXids, Ledger, LedgerOutput, Observation, XidObservation, are_scanned, processes_by_device,
    wanted_processes,
};
use crate::domain::health::HealthConfig;
use crate::domain::holders::{self, Holdings, Slots};
use crate::domain::model::{
    Allocatable, Allocations, ConfigReload, ContainerXid, GpuUuid, HardwareState, HealthState, Inventory, KubeletState,
    Moment, Overview, PluginState, ProcessState, Snapshot, UnixSeconds, XidEvent,
};
use crate::hardware::{CallDurations, DemandSender, XidBatches};
use crate::journal::JournalReader;
use crate::serve::metrics::SeriesBudget;
use crate::serve::web::{Scrapes, WatchedConfig};
use crate::tasks::{self, Tasks};

/// The longest time between two snapshots: the ages on the page grow while nothing else changes. Not five seconds: else there is a
/// snapshot more, just before the readings.
const HEARTBEAT: Duration = Duration::from_secs(6);
/// Readings that are later than the longer of this and three sample intervals make the time uncovered.
const READINGS_LATE: Duration = Duration::from_secs(5);
/// Some files of each process are read. A process that hangs in the kernel delays a snapshot no longer than this.
const OWNERS_WAIT: Duration = Duration::from_millis(50);

/// What the other modules publish, and where to send requests to them.
pub struct PublisherInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    pub health: watch::Receiver<Arc<HealthState>>,
    /// `None` while the bundled device plugin is off.
    pub plugin: Option<watch::Receiver<Arc<PluginState>>>,
    pub processes: watch::Receiver<Arc<ProcessState>>,
    /// The processes to resolve.
    pub wanted: watch::Sender<Arc<BTreeSet<u32>>>,
    pub xids: XidBatches,
    pub reloadable: watch::Receiver<Reloadable>,
    /// How long the driver's calls take, when that is measured.
    pub call_durations: Option<CallDurations>,
    /// `None` without a driver.
    pub demand: Option<DemandSender>,
    pub dropped_lines: DroppedLogLines,
    pub config_reload: watch::Receiver<ConfigReload>,
    pub web_config: Option<WatchedConfig>,
    /// `None` without a journal.
    pub journal: Option<JournalReader>,
    pub scrapes: Scrapes,
}

/// Publishes a snapshot with each change, and at least every 6 s.
pub fn start(
    settings: &AgentSettings,
    inputs: PublisherInputs,
    publish: watch::Sender<Arc<Snapshot>>,
    clock: Clock,
    tasks: &mut Tasks,
) -> AbortHandle {
    let publisher = Publisher {
        node_name: settings.node_name.as_str().into(),
        health: settings.health.clone(),
        inputs,
        clock,
        ledger: Ledger::new(READINGS_LATE.max(settings.devices.sample_interval * 3)),
        budget: SeriesBudget::default(),
        cache: JoinCache::default(),
        xids: ContainerXids::default(),
        new_xids: vec![],
    };
    tasks.spawn("publisher", publisher.run(publish))
}

impl PublisherInputs {
    /// Of both configuration files: that of the one with an error, or the latest.
    fn config_reload(&self) -> ConfigReload {
        let config = *self.config_reload.borrow();
        let Some(web) = self.web_config.as_ref().map(WatchedConfig::last_reload) else { return config };
        match (config.successful, web.successful) {
            (false, true) => config,
            (true, false) => web,
            _ if config.last_success > web.last_success => config,
            _ => web,
        }
    }
}

/// Joins what the modules publish into snapshots.
struct Publisher {
    node_name: Arc<str>,
    inputs: PublisherInputs,
    health: HealthConfig,
    clock: Clock,
    ledger: Ledger,
    budget: SeriesBudget,
    cache: JoinCache,
    xids: ContainerXids,
    /// Since the last snapshot.
    new_xids: Vec<ClassedXid>,
}

/// The join and its inputs: it is computed again when one of the inputs changes.
#[derive(Default)]
struct JoinCache {
    slots: Slots,
    allocations: Arc<Allocations>,
    allocatable: Arc<Allocatable>,
    inventory: Arc<Inventory>,
    settled: bool,
    holdings: Holdings,
    /// GPUs whose holdings have changed since that was last sent.
    changed: BTreeSet<GpuUuid>,
}

impl Publisher {
    /// Never returns: it is aborted.
    async fn run(mut self, publish: watch::Sender<Arc<Snapshot>>) {
        let started = self.clock.now().unix;
        for sequence in 1.. {
            self.request_owners().await;
            let snapshot = self.snapshot(sequence, started);
            publish.send_replace(Arc::new(snapshot));
            self.wait_until_due().await;
        }
    }

    /// Returns when the next snapshot is due.
    async fn wait_until_due(&mut self) {
        let PublisherInputs { hardware, kubelet, health, plugin, xids, reloadable, .. } = &mut self.inputs;
        tokio::select! {
            () = tasks::changed(hardware) => {}
            () = tasks::changed(kubelet) => {}
            () = tasks::changed(health) => {}
            () = changed(plugin) => {}
            Some(batch) = xids.recv() => {
                let counted = |event: XidEvent| Some(ClassedXid { class: self.health.counted_class(event.code)?, event });
                self.new_xids.extend(batch.into_iter().filter_map(counted));
            }
            () = tasks::changed(reloadable) => {}
            () = tokio::time::sleep(HEARTBEAT) => {}
        }
    }

    /// The use of new processes is divided once their owners are known; a process whose owner is not known in time
    /// waits for the next snapshot.
    async fn request_owners(&mut self) {
        let PublisherInputs { hardware, processes, wanted: requested, .. } = &mut self.inputs;
        let wanted = wanted_processes(&hardware.borrow());
        if are_scanned(&wanted, &processes.borrow()) && **requested.borrow() == wanted {
            return;
        }
        requested.send_replace(Arc::new(wanted.clone()));
        let known = processes.wait_for(|state| are_scanned(&wanted, state));
        // An error is the end of the processes task, which the agent observes.
        let _ = tokio::time::timeout(OWNERS_WAIT, known).await;
    }

    fn snapshot(&mut self, sequence: u64, started: UnixSeconds) -> Snapshot {
        let (inputs, now) = (&mut self.inputs, self.clock.now());
        let hardware = Arc::clone(&inputs.hardware.borrow_and_update());
        let kubelet = Arc::clone(&inputs.kubelet.borrow_and_update());
        let health = Arc::clone(&inputs.health.borrow_and_update());
        let plugin = inputs.plugin.as_mut().map(|plugin| Arc::clone(&plugin.borrow_and_update()));
        let processes = Arc::clone(&inputs.processes.borrow_and_update());
        let settings = inputs.reloadable.borrow_and_update().clone();
        self.cache.update(&hardware, &kubelet, plugin.as_deref());
        if let Some(demand) = self.inputs.demand.as_ref().filter(|_| !self.cache.changed.is_empty()) {
            let held = self.cache.holdings.by_key.keys().map(|key| key.gpu.clone()).collect();
            if demand.held(held, self.cache.changed.clone()) {
                self.cache.changed.clear();
            }
        }
        let (statement, container_xids) = self.account(now, &hardware, &processes, plugin.as_deref(), &settings);
        let (inputs, holdings) = (&self.inputs, &self.cache.holdings);
        let snapshot = Snapshot {
            sequence,
            at: now,
            started,
            node_name: Arc::clone(&self.node_name),
            accounts: statement.accounts,
            unattributed: statement.unattributed,
            unallocated_uses: statement.unallocated_uses,
            container_xids,
            violations: statement.violations,
            series_limit: Some(settings.series_limit),
            series_dropped: self.budget.dropped().clone(),
            unresolved: holdings.unresolved.clone(),
            claim_gpus: holdings.claims.clone(),
            drift: holdings.drift.clone(),
            unavailable: holdings.unavailable.clone(),
            scrape_durations: inputs.scrapes.durations(),
            nvml_call_durations: inputs.call_durations.as_ref().map(|read| read()).unwrap_or_default(),
            process: self_use::read(),
            log_lines_dropped: (inputs.dropped_lines)(),
            journal: inputs.journal.as_ref().map(JournalReader::state),
            config_reload: Some(inputs.config_reload()),
            hardware,
            kubelet,
            health,
            plugin,
            processes: Some(processes),
            overview: Overview::default(),
        };
        Snapshot { overview: Overview::summarize(&snapshot, &self.cache.slots.shared_counts()), ..snapshot }
    }

    /// Divides the interval since the last snapshot among the holders, and its XIDs.
    fn account(
        &mut self,
        now: Moment,
        hardware: &HardwareState,
        processes: &ProcessState,
        plugin: Option<&PluginState>,
        settings: &Reloadable,
    ) -> (LedgerOutput, Vec<ContainerXid>) {
        let (holdings, scrapes) = (&self.cache.holdings, self.inputs.scrapes.count());
        let mut statement = self.ledger.advance(&Observation {
            now,
            holdings,
            inventory: &hardware.inventory,
            readings: &hardware.readings,
            processes: &processes_by_device(hardware, processes, plugin),
            retention: settings.retention,
            scrapes,
        });
        self.budget.mark(&mut statement.accounts, settings.series_limit);
        let xids = self.xids.advance(&XidObservation {
            now,
            events: std::mem::take(&mut self.new_xids),
            holdings,
            inventory: &hardware.inventory,
            accounts: &statement.accounts,
            retention: settings.retention,
            scrapes,
        });
        (statement, xids)
    }
}

/// Never returns for `None`.
async fn changed<T>(state: &mut Option<watch::Receiver<T>>) {
    match state {
        Some(state) => tasks::changed(state).await,
        None => std::future::pending().await,
    }
}

impl JoinCache {
    fn update(&mut self, hardware: &HardwareState, kubelet: &KubeletState, plugin: Option<&PluginState>) {
        let allocations = kubelet.allocations.clone().unwrap_or_default();
        let allocatable = kubelet.allocatable.clone().unwrap_or_default();
        let resources = plugin.into_iter().flat_map(|plugin| &plugin.resources);
        let by_mps = resources.filter(|(_, served)| served.mps && (served.registered || served.conflict.is_none()));
        let mps_changed = self.slots.set_mps(by_mps.map(|(resource, _)| resource.clone()).collect());
        let same = !mps_changed
            && Arc::ptr_eq(&self.allocations, &allocations)
            && Arc::ptr_eq(&self.allocatable, &allocatable)
            && Arc::ptr_eq(&self.inventory, &hardware.inventory)
            && self.settled == kubelet.settled;
        if !same {
            self.slots.update_counts(&allocations, &allocatable, &hardware.inventory, kubelet.settled);
            let holdings = holders::join(&allocations, &allocatable, &hardware.inventory, &self.slots);
            let before = std::mem::replace(&mut self.holdings, holdings);
            let differs = |one: &Holdings, other: &Holdings| {
                let differing = one.by_key.iter().filter(|(key, holding)| other.by_key.get(key) != Some(holding));
                differing.map(|(key, _)| key.gpu.clone()).collect::<BTreeSet<_>>()
            };
            self.changed.extend(&differs(&before, &self.holdings) | &differs(&self.holdings, &before));
            (self.allocations, self.allocatable, self.settled) = (allocations, allocatable, kubelet.settled);
            self.inventory = Arc::clone(&hardware.inventory);
        }
    }
}
