//! The plugin's main task, which decides which resources are served.
//!
//! In: the configuration, the inventory, device health, the kubelet's state, host scans. Out: a lifecycle for each
//! resource, and problems. Does not use: gRPC.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::config::{EntryConfig, NodeView, PluginPlan, ProfileCandidates};
use super::configured_entry::ConfiguredEntry;
use super::host::{HostPaths, HostScans, ScanResult, sockets};
use super::inputs::PluginInputs;
use super::served_resource::ServedResources;
use crate::clock::Clock;
use crate::domain::holders::{HeldHardware, HoldersState};
use crate::domain::model::{
    AppliedProfile, DeviceReadings, GpuUuid, HardwareSource, HardwareState, HealthState, KubeletState, Monotonic,
    MpsDaemons, PluginState,
};
use crate::domain::preference::GpuDrawbacks;
use crate::tasks::{Tasks, changed};

/// The longest wait for the kubelet's first list.
const FIRST_LIST: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct PluginSettings {
    pub directory: PathBuf,
    /// The node's name, which the plan's profiles match.
    pub node_name: String,
    pub host_paths: HostPaths,
}

/// The running plugin.
#[derive(Debug)]
pub struct PluginHandle {
    plans: watch::Sender<PluginPlan>,
    pub states: watch::Receiver<Arc<PluginState>>,
}

impl PluginHandle {
    /// Changes what is offered. An entry that is in the new plan too continues unchanged.
    pub fn configure(&self, plan: &PluginPlan) {
        self.plans.send_if_modified(|configured| std::mem::replace(configured, plan.clone()) != *plan);
    }
}

/// Serves every resource until `tasks` are stopped, and ends when the last socket is removed. It ends early where the
/// directory was removed, an input has ended, or after a panic.
pub fn start(
    settings: PluginSettings,
    plan: PluginPlan,
    inputs: PluginInputs,
    publish: watch::Sender<Arc<PluginState>>,
    clock: Clock,
    tasks: &mut Tasks,
) -> PluginHandle {
    let (plans, changed_plans) = watch::channel(plan.clone());
    let states = publish.subscribe();
    let (publish_directory_changes, directory_changes) = watch::channel(0);
    let host_scans = HostScans::new(settings.host_paths, settings.directory.clone());
    let served = ServedResources {
        directory: settings.directory,
        directory_changes,
        inputs: inputs.clone(),
        clock,
        publish: publish.clone(),
        running: BTreeMap::new(),
        lifecycles: JoinSet::new(),
        advertised: BTreeMap::new(),
    };
    let task = PluginTask {
        node_name: settings.node_name,
        plan,
        candidates: None,
        planned: vec![],
        host_scans,
        clock,
        inputs,
        publish,
        entries: BTreeMap::new(),
        next_number: 0,
        served,
        started: clock.now().monotonic,
        has_settled: false,
    };
    tasks.spawn("device plugin", task.run(changed_plans, publish_directory_changes, tasks.stopping()));
    PluginHandle { plans, states }
}

struct PluginTask {
    node_name: String,
    plan: PluginPlan,
    /// The profiles of the plan that may apply; `None` for a plan of which no entry is configured yet.
    candidates: Option<ProfileCandidates>,
    /// The plan's entries for this node.
    planned: Vec<EntryConfig>,
    host_scans: HostScans,
    clock: Clock,
    inputs: PluginInputs,
    publish: watch::Sender<Arc<PluginState>>,
    /// The entries by number, in the order in which they were added: those that are planned, and those that continue until another
    /// one replaces them. No number is used again.
    entries: BTreeMap<u64, ConfiguredEntry>,
    next_number: u64,
    served: ServedResources,
    started: Monotonic,
    /// Whether an answer of the kubelet has settled since the start.
    has_settled: bool,
}

impl PluginTask {
    async fn run(
        mut self,
        plans: watch::Receiver<PluginPlan>,
        directory_changes: watch::Sender<u64>,
        stop: watch::Receiver<bool>,
    ) {
        let directory = self.served.directory.clone();
        sockets::remove_stale(&directory).await;
        let refresh_allocatable = Arc::clone(&self.inputs.refresh_allocatable);
        let publish = self.publish.clone();
        let directory_watch = sockets::watch_directory(directory, directory_changes, refresh_allocatable, publish);
        tokio::select! {
            () = self.serve(plans, stop) => {}
            () = directory_watch => {}
        }
    }

    async fn serve(&mut self, mut plans: watch::Receiver<PluginPlan>, mut stop: watch::Receiver<bool>) {
        let mut inputs = self.inputs.clone();
        loop {
            let holders = Arc::clone(&inputs.holders.borrow_and_update());
            let HoldersState { hardware, kubelet, .. } = &*holders;
            let health = Arc::clone(&inputs.health.borrow_and_update());
            let now = self.clock.now().monotonic;
            self.apply_plan(hardware);
            let needs_polling = self.entries.values().any(ConfiguredEntry::depends_on_host);
            let request = self.entries.iter().map(|(number, entry)| (*number, Arc::clone(&entry.config))).collect();
            self.host_scans.begin(request, &hardware.inventory, needs_polling, now);
            self.update(&holders, &health, now);
            let driver_is_known = hardware.source == HardwareSource::None
                || hardware.inventory.generation > 0
                || hardware.problem.is_some();
            let holders_known_in = self.until_holders_known(kubelet, now);
            let may_begin =
                holders_known_in.is_zero() && self.entries.values().all(|entry| entry.may_begin(hardware, now));
            // Readiness uses this.
            if driver_is_known && may_begin && !self.publish.borrow().resources_complete {
                self.publish.send_modify(|state| Arc::make_mut(state).resources_complete = true);
            }
            let scan_in = self.host_scans.next_check(needs_polling, now);
            tokio::select! {
                changed = inputs.holders.changed() => if changed.is_err() { return },
                changed = inputs.health.changed() => if changed.is_err() { return },
                () = changed(&mut plans) => (self.plan, self.candidates) = (plans.borrow_and_update().clone(), None),
                results = self.host_scans.done() => self.apply_scan(results.expect("a scan does not panic")),
                () = tokio::time::sleep(scan_in.unwrap_or_default()), if scan_in.is_some() => {}
                () = tokio::time::sleep(holders_known_in), if !holders_known_in.is_zero() => {}
                Some(ended) = self.served.lifecycles.join_next() => {
                    let ended = ended.expect("a lifecycle does not panic");
                    let mut offers = self.entries.values().flat_map(|entry| &entry.offers);
                    let is_offered = offers.any(|offer| offer.resource == ended.resource);
                    self.served.remove(ended, is_offered);
                }
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        self.served.running.values().for_each(|served| served.end("podmeter is ending"));
        while self.served.lifecycles.join_next().await.is_some() {}
    }

    /// Configures the plan's entries for the node as it is now.
    fn apply_plan(&mut self, hardware: &HardwareState) {
        let node = NodeView::new(&self.node_name, hardware);
        let candidates = self.plan.candidates(&node);
        if self.candidates.as_ref() == Some(&candidates) {
            return;
        }
        let applied = self.plan.applied(&candidates);
        if self.publish.borrow().profile != applied {
            applied.iter().for_each(|applied| log_profile(applied, &node));
            self.publish.send_modify(|state| Arc::make_mut(state).profile = applied);
        }
        self.planned = self.plan.entries(&candidates);
        self.candidates = Some(candidates);
        let now = self.clock.now().monotonic;
        for config in &self.planned {
            if self.entries.values().all(|entry| *entry.config != *config) {
                self.entries.insert(self.next_number, ConfiguredEntry::new(config.clone(), now));
                self.next_number += 1;
            }
        }
    }

    /// Removes the entries that are no longer planned. Returns those that serve until the one that replaces them may begin: while a
    /// host scan hangs, a resource would have no plugin.
    fn remove_unplanned(&mut self, may_begin: impl Fn(&ConfiguredEntry) -> bool) -> BTreeSet<u64> {
        let is_planned = |entry: &&ConfiguredEntry| self.planned.contains(&entry.config);
        let mut replaced_later = BTreeSet::new();
        for (number, entry) in self.entries.iter().filter(|(_, entry)| !is_planned(entry)) {
            let mut planned = self.entries.values().filter(is_planned);
            let replacement = planned.find(|other| other.config.replaces(&entry.config));
            let mut served = self.served.running.values().filter(|served| served.entry_number == *number).peekable();
            if served.peek().is_some() && replacement.is_some_and(|replacement| !may_begin(replacement)) {
                replaced_later.insert(*number);
                continue;
            }
            let is_changed = replacement.is_some();
            let reason =
                if is_changed { "its configuration was changed" } else { "it was removed from the configuration" };
            served.for_each(|served| served.end(reason));
        }
        let planned = &self.planned;
        self.entries.retain(|number, entry| planned.contains(&entry.config) || replaced_later.contains(number));
        replaced_later
    }

    /// Applies scan results, except those of entries that were removed meanwhile.
    fn apply_scan(&mut self, results: BTreeMap<u64, ScanResult>) {
        for (number, result) in results {
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.apply_scan(result);
            }
        }
    }

    /// Updates the offers, ends lifecycles that must restart, and starts those that are missing.
    fn update(&mut self, holders: &HoldersState, health: &HealthState, now: Monotonic) {
        let HoldersState { hardware, kubelet, .. } = holders;
        let mut problems = BTreeSet::from_iter(self.host_scans.problem(now));
        let mut mps_daemons = MpsDaemons::new();
        let held = self.held(holders);
        let holders_known = self.until_holders_known(kubelet, now).is_zero();
        let replaced_later = self.remove_unplanned(|entry| holders_known && entry.may_begin(hardware, now));
        for (number, entry) in &mut self.entries {
            let is_made = entry.update(hardware, health, &held, now);
            let may_begin = holders_known && !replaced_later.contains(number) && entry.may_begin(hardware, now);
            // Only another registration may omit them: `offer::layout`.
            for resource in entry.drop_vanished(kubelet, may_begin) {
                if let Some(served) = self.served.running.get(&resource).filter(|served| served.entry_number == *number)
                {
                    served.end("the layout of its GPUs was changed");
                }
            }
            for (gpu, pid) in entry.mps_daemons() {
                mps_daemons.entry(gpu).or_default().insert(pid);
            }
            problems.extend(entry.problems.iter().map(|problem| format!("{}: {problem}", entry.config.name())));
            let facts = entry.facts();
            for offer in &entry.offers {
                match self.served.running.get(&offer.resource) {
                    Some(served) if served.entry_number == *number => {
                        served.update(is_made.then_some(offer), &facts);
                    }
                    // The new one waits until that one has closed its server.
                    Some(served) if served.is_ending() || replaced_later.contains(&served.entry_number) => {}
                    // Two lifecycles of one resource would replace each other.
                    Some(_) => drop(problems.insert(format!(
                        "{}: two entries of devicePlugin.resources offer it and the first to serve it keeps it; the devices \
                         of the other are not offered: give one of them another name",
                        offer.resource
                    ))),
                    None if may_begin => {
                        self.served.begin(*number, &entry.config, offer.clone(), Arc::clone(&facts));
                    }
                    None => {}
                }
            }
        }
        self.publish_problems(problems);
        if self.publish.borrow().mps_daemons != mps_daemons {
            self.publish.send_modify(|state| Arc::make_mut(state).mps_daemons = mps_daemons);
        }
        self.publish_unused_cdi_files();
        self.publish_avoided(hardware, kubelet.allocations.is_some().then_some(&held));
    }

    fn publish_unused_cdi_files(&self) {
        let mut unused = BTreeMap::new();
        for (file, devices) in self.entries.values().flat_map(ConfiguredEntry::unused_cdi_files) {
            *unused.entry(file).or_default() += devices;
        }
        if self.publish.borrow().unused_cdi_files != unused {
            self.publish.send_modify(|state| Arc::make_mut(state).unused_cdi_files = unused);
        }
    }

    /// How long no device is offered yet: until the kubelet's first answer on allocations, at most `FIRST_LIST`.
    fn until_holders_known(&self, kubelet: &KubeletState, now: Monotonic) -> Duration {
        if kubelet.allocations.is_some() { Duration::ZERO } else { FIRST_LIST.saturating_sub(now.since(self.started)) }
    }

    /// The hardware that containers hold; until the first settled answer, as the kubelet may have just started, also
    /// that of the devices in its checkpoint.
    fn held<'a>(&mut self, HoldersState { hardware, kubelet, holdings }: &'a HoldersState) -> Cow<'a, HeldHardware> {
        self.has_settled |= kubelet.settled;
        if self.has_settled {
            return Cow::Borrowed(&holdings.held);
        }
        Cow::Owned(holdings.held.clone().with_checkpoint(&kubelet.held_in_checkpoint, &hardware.inventory))
    }

    fn publish_avoided(&self, hardware: &HardwareState, held: Option<&HeldHardware>) {
        let reason = |(gpu, readings): (&GpuUuid, &Arc<DeviceReadings>)| {
            let by_mps = self.publish.borrow().mps_daemons.contains_key(gpu);
            Some((gpu.clone(), GpuDrawbacks::new(gpu, readings, held, by_mps).reason()?))
        };
        let prefers = self.entries.values().any(|entry| entry.config.nvidia().is_some());
        let avoided: BTreeMap<_, _> = hardware.readings.iter().filter(|_| prefers).filter_map(reason).collect();
        if self.publish.borrow().avoided != avoided {
            self.publish.send_modify(|state| Arc::make_mut(state).avoided = avoided);
        }
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
