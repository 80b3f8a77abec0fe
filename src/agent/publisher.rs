//! The publisher of snapshots.
//!
//! In: the states of all modules. Out: one immutable snapshot on each change, and at least every 6 s. Reads no
//! file outside `/proc`.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::settings::{AgentSettings, Reloadable};
use super::{DroppedLogLines, self_use};
use crate::clock::Clock;
use crate::domain::attribution::{
    ClassedXid, ContainerXids, Ledger, LedgerOutput, Observation, OwnersState, Retention, processes_by_device,
};
use crate::domain::health::HealthConfig;
use crate::domain::holders::HoldersState;
use crate::domain::model::{
    ConfigReload, ContainerXid, HealthState, Moment, Overview, PluginState, ProcessState, Snapshot, UnixSeconds,
    XidEvent,
};
use crate::domain::periods::HEARTBEAT;
use crate::hardware::{CallDurations, XidBatches};
use crate::journal::JournalReader;
use crate::serve::metrics::SeriesBudget;
use crate::serve::web::{Scrapes, WatchedConfig};
use crate::tasks::{self, Tasks};

/// What the other modules publish.
pub struct PublisherInputs {
    /// The readings come with the owners of their processes.
    pub owners: watch::Receiver<OwnersState>,
    pub health: watch::Receiver<Arc<HealthState>>,
    /// Never changes while the bundled device plugin is off.
    pub plugin: watch::Receiver<Arc<PluginState>>,
    pub xids: XidBatches,
    pub reloadable: watch::Receiver<Reloadable>,
    /// How long the driver's calls take, when that is measured.
    pub call_durations: Option<CallDurations>,
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
        ledger: Ledger::new(settings.devices.readings_late()),
        budget: SeriesBudget::default(),
        xids: ContainerXids::default(),
        new_xids: vec![],
    };
    tasks.spawn("publisher", publisher.run(publish))
}

impl PublisherInputs {
    /// The last reload of the configuration files: that of the one with an error, or the latest.
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
    xids: ContainerXids,
    /// Since the last snapshot.
    new_xids: Vec<ClassedXid>,
}

impl Publisher {
    /// Never returns: it is aborted.
    async fn run(mut self, publish: watch::Sender<Arc<Snapshot>>) {
        let started = self.clock.now().unix;
        for sequence in 1.. {
            let snapshot = self.snapshot(sequence, started);
            publish.send_replace(Arc::new(snapshot));
            self.wait_until_due().await;
        }
    }

    /// Returns when the next snapshot is due.
    async fn wait_until_due(&mut self) {
        let PublisherInputs { owners, health, plugin, xids, reloadable, .. } = &mut self.inputs;
        tokio::select! {
            () = tasks::changed(owners) => {}
            () = tasks::changed(health) => {}
            () = tasks::changed(plugin) => {}
            Some(batch) = xids.recv() => {
                let counted = |event: XidEvent| Some(ClassedXid { class: self.health.counted_class(event.code)?, event });
                self.new_xids.extend(batch.into_iter().filter_map(counted));
            }
            () = tasks::changed(reloadable) => {}
            () = tokio::time::sleep(HEARTBEAT) => {}
        }
    }

    fn snapshot(&mut self, sequence: u64, started: UnixSeconds) -> Snapshot {
        let (inputs, now) = (&mut self.inputs, self.clock.now());
        let OwnersState { holders, processes } = inputs.owners.borrow_and_update().clone();
        let health = Arc::clone(&inputs.health.borrow_and_update());
        let settings = inputs.reloadable.borrow_and_update().clone();
        let plugin_state = Arc::clone(&inputs.plugin.borrow_and_update());
        let plugin = settings.device_plugin.is_some().then_some(plugin_state);
        let (output, container_xids) = self.account(now, &holders, &processes, plugin.as_deref(), &settings);
        let HoldersState { hardware, kubelet, holdings } = (*holders).clone();
        let inputs = &self.inputs;
        let snapshot = Snapshot {
            sequence,
            at: now,
            started,
            node_name: Arc::clone(&self.node_name),
            accounts: output.accounts,
            unattributed: output.unattributed,
            unallocated_uses: output.unallocated_uses,
            container_xids,
            violations: output.violations,
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
        Snapshot { overview: Overview::summarize(&snapshot, &holdings.slots), ..snapshot }
    }

    /// Advances the ledger and the XIDs of containers to `now`.
    fn account(
        &mut self,
        now: Moment,
        HoldersState { hardware, holdings, .. }: &HoldersState,
        processes: &ProcessState,
        plugin: Option<&PluginState>,
        settings: &Reloadable,
    ) -> (LedgerOutput, Vec<ContainerXid>) {
        let retention = Retention { time: settings.retention, scrapes: self.inputs.scrapes.count() };
        let observation = Observation {
            now,
            holdings,
            inventory: &hardware.inventory,
            readings: &hardware.readings,
            processes: &processes_by_device(hardware, processes, plugin),
            retention,
        };
        let mut output = self.ledger.advance(&observation);
        self.budget.mark(&mut output.accounts, settings.series_limit);
        let received = std::mem::take(&mut self.new_xids);
        let xids = self.xids.advance(&received, &output.accounts, &observation);
        (output, xids)
    }
}
