//! The plugin's main task: which resources are served.
//!
//! In: the configuration, the inventory, device health, the kubelet's state, host scans. Out: a lifecycle for each
//! resource, and problems. Does not use: gRPC.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::allocate::{ResourceStatus, ServiceState};
use super::config::{NodeView, NvidiaConfig, PluginPlan, ProfileChoice, ResourceConfig};
use super::configured_resource::ConfiguredResource;
use super::host::{HostPaths, HostScans, ScanResult, sockets};
use super::offer::Offer;
use super::registration::{Deadlines, EndedLifecycle, Lifecycle};
use super::served_resource::{self, ServedResource};
use crate::clock::Clock;
use crate::domain::model::{
    AppliedProfile, DeviceId, HardwareSource, HardwareState, HealthState, KubeletState, Monotonic, PluginState,
    ResourceName,
};
use crate::tasks::Tasks;

#[derive(Clone, Debug)]
pub struct PluginSettings {
    pub directory: PathBuf,
    /// What to offer, validated.
    pub plan: PluginPlan,
    /// For the plan's profiles.
    pub node_name: String,
    pub host: HostPaths,
}

/// What the plugin reads of other modules, and what it notifies them of.
#[derive(Debug)]
pub struct PluginInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// Of each GPU and MIG device.
    pub health: watch::Receiver<Arc<HealthState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// Notified of each allocation that was granted.
    pub allocated: Arc<Notify>,
    /// Notified when a fresh answer on allocatable devices is needed.
    pub refresh_allocatable: Arc<Notify>,
}

/// The running plugin.
#[derive(Debug)]
pub struct PluginHandle {
    plan: watch::Sender<PluginPlan>,
    pub states: watch::Receiver<Arc<PluginState>>,
}

impl PluginHandle {
    /// Changes what is offered. An entry that was offered before continues unchanged.
    pub fn configure(&self, plan: &PluginPlan) {
        self.plan.send_if_modified(|configured| {
            let changed = configured != plan;
            *configured = plan.clone();
            changed
        });
    }
}

/// Serves every resource until `tasks` are stopped, and ends when the last socket is removed. Ends early only after a
/// panic.
pub fn start(settings: PluginSettings, inputs: PluginInputs, clock: Clock, tasks: &mut Tasks) -> PluginHandle {
    let (plan, plans) = watch::channel(settings.plan.clone());
    let (publish, states) = watch::channel(Arc::default());
    tasks.spawn("device plugin", run(settings, plans, clock, inputs, publish, tasks.stopping()));
    PluginHandle { plan, states }
}

async fn run(
    settings: PluginSettings,
    plans: watch::Receiver<PluginPlan>,
    clock: Clock,
    inputs: PluginInputs,
    publish: watch::Sender<Arc<PluginState>>,
    stop: watch::Receiver<bool>,
) {
    sockets::remove_stale(&settings.directory).await;
    let (changes, changed) = watch::channel(0);
    let directory_watch = sockets::watch_directory(
        settings.directory.clone(),
        changes,
        Arc::clone(&inputs.refresh_allocatable),
        publish.clone(),
    );
    let mut task = PluginTask {
        directory: settings.directory,
        node_name: settings.node_name,
        plan: settings.plan,
        choice: None,
        host_scans: HostScans::new(settings.host),
        clock,
        inputs,
        publish,
        changed,
        entries: BTreeMap::new(),
        entries_made: 0,
        served: BTreeMap::new(),
        lifecycles: JoinSet::new(),
        advertised: BTreeMap::new(),
    };
    tokio::select! {
        () = task.serve(plans, stop) => {}
        () = directory_watch => {}
    }
    task.host_scans.end().await;
}

struct PluginTask {
    directory: PathBuf,
    node_name: String,
    plan: PluginPlan,
    /// What applies of the plan; `None` before it was chosen.
    choice: Option<ProfileChoice>,
    host_scans: HostScans,
    clock: Clock,
    inputs: PluginInputs,
    publish: watch::Sender<Arc<PluginState>>,
    changed: watch::Receiver<u64>,
    /// In the order they came; a number is not used again.
    entries: BTreeMap<u64, ConfiguredResource>,
    entries_made: u64,
    served: BTreeMap<ResourceName, ServedResource>,
    lifecycles: JoinSet<EndedLifecycle>,
    /// The devices of each resource that ended lifecycles sent to the kubelet.
    advertised: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
}

impl PluginTask {
    async fn serve(&mut self, mut plans: watch::Receiver<PluginPlan>, mut stop: watch::Receiver<bool>) {
        let (mut kubelet, mut may_reload) = (self.inputs.kubelet.clone(), true);
        loop {
            let hardware = Arc::clone(&self.inputs.hardware.borrow_and_update());
            self.choose(&hardware);
            let state = Arc::clone(&kubelet.borrow_and_update());
            let health = Arc::clone(&self.inputs.health.borrow_and_update());
            let now = self.clock.now().monotonic;
            let needs_polling = self.entries.values().any(ConfiguredResource::needs_host_scan);
            let request = self.entries.iter().map(|(number, entry)| (*number, Arc::clone(&entry.config))).collect();
            self.host_scans.begin(request, &hardware.inventory, needs_polling, now);
            self.update(&hardware, &health, &state, now);
            let is_known = hardware.source == HardwareSource::None
                || hardware.inventory.generation > 0
                || hardware.problem.is_some();
            let may_begin = self.entries.values().all(|entry| entry.may_begin(&hardware, now));
            if is_known && may_begin && !self.publish.borrow().checked {
                self.publish.send_modify(|state| Arc::make_mut(state).checked = true);
            }
            let scan_in = self.host_scans.next(needs_polling, now);
            let is_draining = self.entries.values().any(ConfiguredResource::is_draining);
            tokio::select! {
                changed = self.inputs.hardware.changed() => if changed.is_err() { return },
                changed = self.inputs.health.changed() => if changed.is_err() { return },
                changed = kubelet.changed(), if is_draining => if changed.is_err() { return },
                changed = plans.changed(), if may_reload => match changed {
                    Ok(()) => (self.plan, self.choice) = (plans.borrow_and_update().clone(), None),
                    Err(_) => may_reload = false,
                },
                results = self.host_scans.done() => self.apply_scan(results.expect("a scan does not panic")),
                () = tokio::time::sleep(scan_in.unwrap_or_default()), if scan_in.is_some() => {}
                Some(ended) = self.lifecycles.join_next() => {
                    self.remove_ended(ended.expect("a lifecycle does not panic"));
                }
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.served.values_mut().for_each(|served| served.end("podmeter is ending"));
        while self.lifecycles.join_next().await.is_some() {}
    }

    /// Configures what the plan has for the node as it is now.
    fn choose(&mut self, hardware: &HardwareState) {
        let node = NodeView::new(&self.node_name, hardware);
        let choice = self.plan.choose(&node);
        if self.choice.as_ref() == Some(&choice) {
            return;
        }
        let applied = self.plan.applied(&choice);
        let is_new = self.publish.send_if_modified(|state| {
            let is_new = state.profile != applied;
            if is_new {
                Arc::make_mut(state).profile = applied.clone();
            }
            is_new
        });
        if let Some(applied) = applied.filter(|_| is_new) {
            log_profile(&applied, &node);
        }
        let entries = self.plan.entries(&choice);
        self.choice = Some(choice);
        self.configure(&entries);
    }

    /// An existing entry continues unchanged.
    fn configure(&mut self, resources: &[ResourceConfig]) {
        let mut before = std::mem::take(&mut self.entries);
        let mut made = vec![];
        for config in resources {
            let same = before.iter().find(|(_, entry)| *entry.config == *config).map(|(number, _)| *number);
            match same.and_then(|number| before.remove_entry(&number)) {
                Some((number, entry)) => drop(self.entries.insert(number, entry)),
                None => made.push(config.clone()),
            }
        }
        let now = self.clock.now().monotonic;
        for config in made {
            self.entries.insert(self.entries_made, ConfiguredResource::new(config, now));
            self.entries_made += 1;
        }
        let remaining: BTreeSet<&ResourceName> = self.entries.values().map(|entry| entry.config.name()).collect();
        for served in self.served.values_mut().filter(|served| !self.entries.contains_key(&served.entry)) {
            let is_named = before.get(&served.entry).is_some_and(|entry| remaining.contains(entry.config.name()));
            served.end(if is_named {
                "its configuration was changed"
            } else {
                "it was removed from the configuration"
            });
        }
    }

    /// An entry that was removed meanwhile needs nothing.
    fn apply_scan(&mut self, results: BTreeMap<u64, ScanResult>) {
        for (number, result) in results {
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.last_scan = Some(result);
            }
        }
    }

    /// Updates the offers, ends lifecycles that must restart, and starts those that are missing.
    fn update(&mut self, hardware: &HardwareState, health: &HealthState, kubelet: &KubeletState, now: Monotonic) {
        let (mut begun, mut problems) = (vec![], BTreeSet::from_iter(self.host_scans.problem(now)));
        for (number, entry) in &mut self.entries {
            entry.update(hardware, health, now);
            for resource in entry.drop_drained(kubelet) {
                // Not a shorter list on the open stream: a kubelet with an allocation under way looks its devices up
                // unchecked and panics. Once our server is closed such an allocation fails, so the next registration
                // may leave them out.
                if let Some(served) = self.served.get_mut(&resource).filter(|served| served.entry == *number) {
                    served.end("the layout of its GPUs was changed");
                }
            }
            problems.extend(entry.problems.iter().map(|problem| format!("{}: {problem}", entry.config.name())));
            let (facts, may_begin) = (entry.facts(), entry.may_begin(hardware, now));
            for offer in &entry.offers {
                match self.served.get_mut(&offer.resource) {
                    Some(served) if served.entry == *number => served.update(offer, &facts),
                    None if may_begin => begun.push((*number, offer.clone())),
                    None => {}
                    // Until that one has closed its server.
                    Some(served) if served.is_ending() => {}
                    Some(_) => drop(problems.insert(collision(&offer.resource))),
                }
            }
        }
        for (number, offer) in begun {
            // Two lifecycles of one resource would replace each other.
            match self.served.contains_key(&offer.resource) {
                true => drop(problems.insert(collision(&offer.resource))),
                false => self.begin(number, offer),
            }
        }
        self.publish_problems(problems);
    }

    fn begin(&mut self, number: u64, offer: Offer) {
        let Some(entry) = self.entries.get(&number) else { return };
        let resource = offer.resource.clone();
        let status = ResourceStatus::new(resource.clone(), self.clock, self.publish.clone());
        let (publish_offer, offers) = watch::channel(Arc::new(offer));
        let (publish_facts, facts) = watch::channel(entry.facts());
        let (stop, stopped) = watch::channel(None);
        let state = ServiceState {
            config: Arc::clone(&entry.config),
            offer: offers,
            facts,
            hardware: self.inputs.hardware.clone(),
            kubelet: self.inputs.kubelet.clone(),
            status: status.clone(),
            clock: self.clock,
            allocated: Arc::clone(&self.inputs.allocated),
            refresh_allocatable: Arc::clone(&self.inputs.refresh_allocatable),
        };
        let mps = state.config.nvidia().is_some_and(NvidiaConfig::shares_through_mps);
        status.begin(state.config.nvidia().is_some(), state.pre_start_check().is_some(), mps);
        status.offered(&state.offer.borrow());
        served_resource::log_first_offer(&state.offer.borrow());
        let lifecycle = Lifecycle {
            directory: self.directory.clone(),
            state,
            changes: self.changed.clone(),
            stop: stopped,
            advertised: self.advertised.get(&resource).cloned().unwrap_or_default(),
            deadlines: Deadlines::default(),
        };
        self.lifecycles.spawn(lifecycle.run());
        self.served.insert(
            resource,
            ServedResource { entry: number, offer: publish_offer, facts: publish_facts, status, stop },
        );
    }

    /// After a lifecycle has ended on request. The next update starts another one where the resource is still offered.
    fn remove_ended(&mut self, ended: EndedLifecycle) {
        let EndedLifecycle { resource, advertised } = ended;
        let offers = || self.entries.values().flat_map(|entry| &entry.offers);
        if let Some(served) = self.served.remove(&resource)
            && !offers().any(|offer| offer.resource == resource)
        {
            let reason = served.stop.borrow().unwrap_or_default();
            tracing::info!(%resource, reason, "no longer served: nothing of it is offered");
            served.status.ended(reason);
        }
        self.advertised.insert(resource, advertised);
    }

    /// Logs each problem once when it appears and once when it disappears.
    fn publish_problems(&self, problems: BTreeSet<String>) {
        let problems: Vec<Arc<str>> = problems.into_iter().map(Arc::from).collect();
        let before = self.publish.borrow().problems.clone();
        if before == problems {
            return;
        }
        for problem in problems.iter().filter(|problem| !before.contains(problem)) {
            tracing::warn!("{problem}");
        }
        for problem in before.iter().filter(|problem| !problems.contains(problem)) {
            tracing::info!("no longer: {problem}");
        }
        self.publish.send_modify(|state| Arc::make_mut(state).problems = problems);
    }
}

fn log_profile(applied: &AppliedProfile, node: &NodeView<'_>) {
    let gpus = node.gpus.as_ref().map(ToString::to_string).unwrap_or_default();
    let node = node.node_name;
    match (applied.decision, &applied.name) {
        (_, Some(profile)) => tracing::info!(%profile, node, gpus, "this profile applies"),
        ("common", None) => tracing::info!(node, gpus, "no profile matches: the common settings apply"),
        (_, None) => tracing::info!(node, gpus, "which profile applies is decided once the driver reports the GPUs"),
    }
}

fn collision(resource: &ResourceName) -> String {
    format!(
        "{resource}: two entries of devicePlugin.resources offer it and the first to serve it keeps it; the devices of the \
         other are not offered: give one of them another name"
    )
}
