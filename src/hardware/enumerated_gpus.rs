//! The GPUs ever listed, each with its thread and state.
//!
//! In: inventories, passes and the time. Out: commands to the workers, and the readings of each GPU. A failure of one
//! GPU stays with that GPU. Does not use: sessions' phases, publication.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{info, warn};

use super::gpu_state::GpuState;
use super::messages::{PassReport, SupervisorSender, WorkerCommand};
use super::module_energy::ModuleEnergy;
use super::settings::HardwareSettings;
use super::source::{DriverSession, PassStatus};
use super::tiers::{Demand, Due, Schedule, Tier};
use super::worker::{Thread, spawn_worker};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{DeviceReadings, Gpu, GpuUuid, Inventory, Monotonic, PciBusId};

pub struct EnumeratedGpus {
    clock: Clock,
    to_supervisor: SupervisorSender,
    settings: HardwareSettings,
    /// The number of the last list.
    generation: u64,
    /// The last list, with every GPU that was listed before as not present.
    inventory: Arc<Inventory>,
    members: BTreeMap<GpuUuid, EnumeratedGpu>,
    modules: ModuleEnergy,
    /// The GPUs that containers hold.
    held: BTreeSet<GpuUuid>,
    watched: BTreeSet<GpuUuid>,
}

#[derive(Default)]
struct EnumeratedGpu {
    state: GpuState,
    worker: Option<Thread<WorkerCommand>>,
    /// Why its thread could not be started, which has been logged.
    no_thread: Option<Arc<str>>,
    /// When the pass began, and the tiers that it reads.
    pass_under_way: Option<(Monotonic, Due)>,
    /// The tier that this pass reads for the first time.
    reads_first: Option<Tier>,
    /// The number of the last list that replaced or ended its reader: a pass by handles of an older one does not count.
    generation: u64,
    /// Whether the session's inventory has it.
    listed: bool,
    /// Whether it was found lost because the driver did not list it any more.
    lost_because_not_enumerated: bool,
    /// The generation in which it was last found lost: a loss found with older handles does not count for `all_lost`.
    lost_in: Option<u64>,
    schedule: Schedule,
    /// Whether its totals are integrated from present values.
    reads_present_values: bool,
    /// The earliest time of the next pass, for a GPU that is lost or has no thread.
    retry: Monotonic,
    retries: Backoff,
}

impl EnumeratedGpus {
    pub fn new(settings: HardwareSettings, clock: Clock, to_supervisor: SupervisorSender) -> Self {
        Self {
            clock,
            to_supervisor,
            settings,
            generation: 0,
            inventory: Arc::default(),
            members: BTreeMap::new(),
            modules: ModuleEnergy::default(),
            held: BTreeSet::new(),
            watched: BTreeSet::new(),
        }
    }

    pub fn inventory(&self) -> Arc<Inventory> {
        Arc::clone(&self.inventory)
    }

    /// Applies the driver's list. In a new session every reader is replaced, otherwise those whose GPU changed.
    pub fn apply_inventory(&mut self, mut found: Inventory, new_session: bool, now: Monotonic) {
        self.generation += 1;
        found.generation = self.generation;
        for (uuid, gpu) in &mut found.gpus {
            let retries = Backoff::new(self.settings.lost_retry);
            let member = self
                .members
                .entry(uuid.clone())
                .or_insert_with(|| EnumeratedGpu { retries, ..EnumeratedGpu::default() });
            let was_fully_read = gpu.present;
            if !was_fully_read && let Some(known) = self.inventory.gpus.get(uuid) {
                *gpu = Gpu { index: gpu.index, ..known.clone() };
            }
            // A lost GPU becomes present when a pass answers, not because it is listed.
            gpu.present = was_fully_read && !member.state.lost;
            let changed = new_session || !member.listed || self.inventory.gpus.get(uuid) != Some(gpu);
            if changed {
                member.generation = self.generation;
                member.schedule.restart();
                member.retry = now;
            }
            (member.listed, member.lost_because_not_enumerated) = (true, false);
        }
        for (uuid, member) in &mut self.members {
            if found.gpus.contains_key(uuid) {
                continue;
            }
            if let Some(known) = self.inventory.gpus.get(uuid) {
                found.gpus.insert(uuid.clone(), Gpu { present: false, ..known.clone() });
            }
            if new_session || member.listed {
                member.generation = self.generation;
            }
            if member.listed {
                // A GPU that was lost before keeps its cause until its next pass: the list may lack it for that cause.
                if !member.state.lost {
                    warn!(gpu = %uuid, "the driver no longer lists this GPU, or gets no answer from it");
                    member.lost_because_not_enumerated = true;
                }
                member.retry = now + member.retries.pause();
            }
            member.listed = false;
            member.state.lost = true;
            member.state.withdraw();
        }
        self.inventory = Arc::new(found);
        self.change_demand(now);
    }

    /// Starts a pass on each GPU for which a tier is due, unless one is under way; returns these GPUs.
    pub fn start_passes(&mut self, session: &Arc<dyn DriverSession>, now: Monotonic) -> BTreeSet<GpuUuid> {
        let mut started = BTreeSet::new();
        let common = self.common_first_tier(now);
        let (settings, held, watched) = (&self.settings, &self.held, &self.watched);
        for (uuid, member) in &mut self.members {
            if member.next_pass(common).is_none_or(|at| now < at) {
                continue;
            }
            let reads_first = member.schedule.first_unread();
            member.ensure_thread(uuid, self.clock, &self.to_supervisor);
            let due = member.schedule.due(now);
            if !member.read(session, &due, now) {
                member.retry = now + settings.shortest_interval();
                continue;
            }
            let watched = watched.contains(uuid) || member.reads_present_values;
            member.schedule.begin(&due, now, settings, Demand { held: held.contains(uuid), watched });
            member.reads_first = reads_first;
            started.insert(uuid.clone());
        }
        started
    }

    /// When the next pass is due on a GPU without one under way.
    pub fn next_pass(&self, now: Monotonic) -> Option<Monotonic> {
        let common = self.common_first_tier(now);
        self.members.values().filter_map(|member| member.next_pass(common)).min()
    }

    /// The tier that all new readers read before any reads the next: the health of every GPU comes before the use of
    /// one. A GPU that takes long, is lost or has no thread delays no other.
    fn common_first_tier(&self, now: Monotonic) -> Option<Tier> {
        let answers = |member: &&EnumeratedGpu| {
            let since = member.pass_under_way.as_ref().map(|(since, _)| *since);
            let is_late = since.is_some_and(|since| now.since(since) >= self.settings.shortest_interval() / 2);
            member.listed && !member.state.lost && !is_late && now >= member.retry
        };
        self.members
            .values()
            .filter(answers)
            .filter_map(|member| member.reads_first.or(member.schedule.first_unread()))
            .min()
    }

    /// Reads the slow and the fast tier of one GPU as soon as possible: an event may have changed them.
    pub fn request_after_event(&mut self, gpu: &GpuUuid) {
        if let Some(member) = self.members.get_mut(gpu) {
            member.schedule.request([Tier::Slow, Tier::Fast]);
        }
    }

    /// Sets the GPUs that containers hold. Reads the fast tier of those whose holders have changed, so that the use
    /// before is that of the earlier holders.
    pub fn set_held(&mut self, held: BTreeSet<GpuUuid>, changed: &BTreeSet<GpuUuid>, now: Monotonic) {
        for gpu in changed {
            if let Some(member) = self.members.get_mut(gpu) {
                member.schedule.request([Tier::Fast]);
            }
        }
        self.held = held;
        self.change_demand(now);
    }

    /// Sets the GPUs that a page or `top` shows.
    pub fn set_watched(&mut self, watched: BTreeSet<GpuUuid>, now: Monotonic) {
        self.watched = watched;
        self.change_demand(now);
    }

    fn change_demand(&mut self, now: Monotonic) {
        for (uuid, member) in &mut self.members {
            let watched = self.watched.contains(uuid) || member.reads_present_values;
            member.schedule.change_demand(now, &self.settings, Demand { held: self.held.contains(uuid), watched });
        }
    }

    /// Whether the pass used valid handles.
    pub fn is_current(&self, report: &PassReport) -> bool {
        self.members.get(&report.gpu).is_some_and(|member| member.generation == report.generation)
    }

    /// Whether the pass is to be published: not one that read the list of processes alone and found no new process.
    pub fn is_news(&self, report: &PassReport) -> bool {
        let known = self.members.get(&report.gpu).map(|member| &member.state);
        report.pass.status != PassStatus::Answers
            || report.due.iter().any(|tier| *tier != Tier::Processes)
            || known.is_none_or(|state| report.pass.pids.iter().flatten().any(|pid| !state.has_process(*pid)))
    }

    /// Applies a finished pass; one that is not current adds no readings.
    pub fn apply_pass(&mut self, report: PassReport, is_current: bool, now: Monotonic) {
        let Some(member) = self.members.get_mut(&report.gpu) else { return };
        (member.pass_under_way, member.reads_first) = (None, None);
        let hung = std::mem::take(&mut member.state.stuck);
        if hung {
            info!(gpu = %report.gpu, "the stuck call has returned");
        }
        if !is_current {
            return;
        }
        let gpu = report.gpu;
        let of_present_values = report.pass.integrals.of_present_values;
        if report.pass.fast.is_some() && member.reads_present_values != of_present_values {
            member.reads_present_values = of_present_values;
            let watched = self.watched.contains(&gpu) || of_present_values;
            member.schedule.change_demand(now, &self.settings, Demand { held: self.held.contains(&gpu), watched });
        }
        match report.pass.status {
            PassStatus::Answers => {
                if member.state.lost {
                    info!(gpu = %gpu, "the GPU answers again");
                }
                member.state.lost = false;
                member.lost_in = None;
                member.retries.reset();
                if hung {
                    member.state.add_late_pass(report.at.monotonic, report.pass);
                } else {
                    let has_fast = report.pass.fast.is_some();
                    member.state.add_pass(report.at.monotonic, report.fresh, report.pass);
                    if has_fast && member.state.needs_second_reading() {
                        member.schedule.repeat(Tier::Fast, now, &self.settings);
                    }
                }
                if let Some((module, _)) = self.inventory.module_of(&gpu) {
                    self.modules.add_totals(module, &gpu, member.state.totals());
                }
                self.mark_present(&gpu, true);
            }
            status @ (PassStatus::Lost | PassStatus::Unlisted) => {
                if !member.state.lost {
                    warn!(gpu = %gpu, "the GPU is lost or requires a reset");
                }
                member.state.lost = true;
                member.lost_because_not_enumerated = status == PassStatus::Unlisted;
                member.lost_in = Some(member.generation);
                member.state.withdraw();
                member.retry = now + member.retries.pause();
                member.schedule.restart();
                self.mark_present(&gpu, false);
            }
            PassStatus::SessionOver => {}
        }
    }

    fn mark_present(&mut self, gpu: &GpuUuid, present: bool) {
        if self.inventory.gpus.get(gpu).is_some_and(|gpu| gpu.present != present)
            && let Some(gpu) = Arc::make_mut(&mut self.inventory).gpus.get_mut(gpu)
        {
            gpu.present = present;
        }
    }

    /// Whether every listed GPU, or every known one where none is listed, was found lost in its present generation.
    /// Stuck GPUs do not count.
    pub fn all_lost(&self) -> bool {
        let any_listed = self.members.values().any(|member| member.listed);
        let queried = self.members.values().filter(|member| member.listed || !any_listed);
        let mut queried = queried.filter(|member| !member.state.stuck).peekable();
        queried.peek().is_some() && queried.all(|member| member.lost_in == Some(member.generation))
    }

    /// Marks GPUs whose pass is overdue and withdraws their readings; returns these GPUs.
    pub fn mark_stuck(&mut self, now: Monotonic) -> Vec<GpuUuid> {
        let mut marked = Vec::new();
        for (uuid, member) in &mut self.members {
            let since = member.pass_under_way.as_ref().map(|(since, _)| *since);
            let overdue = since.is_some_and(|since| now.since(since) >= self.settings.watchdog);
            if overdue && !member.state.stuck {
                warn!(gpu = %uuid, "a driver call on this GPU has not come back");
                member.state.stuck = true;
                member.state.withdraw();
                member.schedule.restart();
                marked.push(uuid.clone());
            }
        }
        marked
    }

    /// The tiers of stuck passes.
    pub fn stuck_tiers(&self) -> Due {
        let stuck = self.members.values().filter(|member| member.state.stuck);
        stuck.filter_map(|member| member.pass_under_way.as_ref()).flat_map(|(_, due)| due).copied().collect()
    }

    /// The GPUs with a stuck call.
    pub fn stuck(&self) -> impl Iterator<Item = &GpuUuid> {
        self.members.iter().filter(|(_, member)| member.state.stuck).map(|(uuid, _)| uuid)
    }

    /// Withdraws all readings and requests that the workers drop their readers. Returns the GPUs whose workers will report
    /// that they have: all but stuck ones.
    pub fn drop_readers(&mut self) -> BTreeSet<GpuUuid> {
        let mut pending = BTreeSet::new();
        for (uuid, member) in &mut self.members {
            member.state.withdraw();
            if let Some(worker) = &member.worker
                && worker.send(WorkerCommand::DropReader).is_ok()
                && !member.state.stuck
            {
                pending.insert(uuid.clone());
            }
        }
        pending
    }

    pub fn readings(&self, now: Monotonic) -> BTreeMap<GpuUuid, Arc<DeviceReadings>> {
        let staleness = self.settings.staleness();
        let readings = |member: &EnumeratedGpu| {
            let pass_began = member.pass_under_way.as_ref().map(|(since, _)| *since);
            let not_enumerated = member.state.lost && member.lost_because_not_enumerated;
            let problem = member.no_thread.clone();
            Arc::new(DeviceReadings { pass_began, not_enumerated, problem, ..member.state.readings(now, staleness) })
        };
        self.members.iter().map(|(uuid, member)| (uuid.clone(), readings(member))).collect()
    }

    pub fn module_energy_joules(&self) -> BTreeMap<PciBusId, f64> {
        self.modules.joules()
    }
}

impl EnumeratedGpu {
    /// When a pass is due; `None` while one is under way, or while others have to read the `common` tier first.
    fn next_pass(&self, common: Option<Tier>) -> Option<Monotonic> {
        let has_thread = self.worker.as_ref().is_some_and(|worker| !worker.has_ended());
        let waits_for_others = common.zip(self.schedule.first_unread()).is_some_and(|(common, own)| common < own);
        if self.pass_under_way.is_some() && has_thread || waits_for_others {
            return None;
        }
        Some(self.schedule.earliest()?.max(self.retry))
    }

    fn read(&mut self, session: &Arc<dyn DriverSession>, due: &Due, now: Monotonic) -> bool {
        let command =
            WorkerCommand::Read { session: Arc::clone(session), generation: self.generation, due: due.clone() };
        let sent = self.worker.as_ref().is_some_and(|worker| worker.send(command).is_ok());
        if sent {
            self.pass_under_way = Some((now, due.clone()));
        }
        sent
    }

    /// Starts the GPU's first thread, and another one for a thread that a panic has ended. A stuck thread stays.
    fn ensure_thread(&mut self, uuid: &GpuUuid, clock: Clock, to_supervisor: &SupervisorSender) {
        if self.worker.as_ref().is_some_and(|worker| !worker.has_ended()) {
            return;
        }
        if self.pass_under_way.take().is_some() {
            // A panic ended the pass.
            self.reads_first = None;
            self.schedule.restart();
        }
        let spawned = spawn_worker(uuid.clone(), clock, to_supervisor.clone());
        let problem = spawned.as_ref().err().map(|problem| {
            format!("podmeter cannot start a thread that reads it: {problem}; raise its limit of threads (pids.max)")
                .into()
        });
        let before = std::mem::replace(&mut self.no_thread, problem);
        if let (Some(problem), None) = (&self.no_thread, before) {
            warn!(gpu = %uuid, %problem, "no readings");
        }
        self.worker = spawned.ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;
    use crate::domain::model::Moment;
    use crate::hardware::source::Pass;

    #[test]
    fn a_loss_in_an_earlier_session_does_not_end_one_that_lists_no_gpu() {
        let (now, to_supervisor) = (Monotonic::from_secs(1), sync_channel(1).0);
        let mut gpus = EnumeratedGpus::new(HardwareSettings::default(), Clock::start(), to_supervisor);
        let listed = ["GPU-a", "GPU-b"].map(|uuid| (uuid.into(), Gpu::listed(uuid.into(), 0))).into();
        gpus.apply_inventory(Inventory { gpus: listed, ..Inventory::default() }, true, now);
        gpus.apply_inventory(Inventory::default(), false, now);
        let lose = |gpus: &mut EnumeratedGpus, gpu: &str, generation| {
            let (due, at, pass) = (Due::new(), Moment::default(), Pass { status: PassStatus::Lost, ..Pass::default() });
            let report =
                PassReport { gpu: gpu.into(), generation, due, at, duration: Duration::ZERO, fresh: true, pass };
            let is_current = gpus.is_current(&report);
            gpus.apply_pass(report, is_current, now);
            (is_current, gpus.all_lost())
        };
        assert_eq!([lose(&mut gpus, "GPU-a", 2), lose(&mut gpus, "GPU-b", 2)], [(true, false), (true, true)]);
        gpus.apply_inventory(Inventory::default(), true, now);
        assert_eq!(lose(&mut gpus, "GPU-a", 2), (false, false), "it returned late");
        assert_eq!([lose(&mut gpus, "GPU-a", 3), lose(&mut gpus, "GPU-b", 3)], [(true, false), (true, true)]);
    }
}
