use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tracing::{info, warn};

use super::gpu_state::{GpuState, Staleness};
use super::rounds::tiers;
use super::settings::Settings;
use super::source::{Due, PassStatus, Session};
use super::worker::{Event, ReaderCommand, Report, Thread, spawn_worker};
use crate::clock::Clock;
use crate::model::{DeviceReadings, Gpu, GpuUuid, Inventory, Monotonic};

/// How a driver says that it has no such GPU.
const UNLISTED: [&str; 2] = ["not_found", "gpu_not_found"];

/// The GPUs ever seen, with their threads and records. One GPU's trouble stays in its member.
pub struct Fleet {
    clock: Clock,
    events: SyncSender<Event>,
    sample_interval: Duration,
    medium_interval: Duration,
    slow_interval: Duration,
    watchdog: Duration,
    lost_retry: (Duration, Duration),
    staleness: Staleness,
    generation: u64,
    inventory: Arc<Inventory>,
    members: BTreeMap<GpuUuid, Member>,
}

struct Member {
    state: GpuState,
    worker: Option<Thread<ReaderCommand>>,
    /// The system had no thread for it, which has been logged.
    no_thread: bool,
    /// The order being carried out.
    busy: Option<(Monotonic, Due)>,
    /// Readers of an older generation hold handles that are no longer good.
    generation: u64,
    /// The session's inventory names it.
    listed: bool,
    /// It is lost because the driver does not list it, as far as is known.
    unlisted: bool,
    /// The generation in which it was last found lost.
    lost_in: Option<u64>,
    next_medium: Monotonic,
    next_slow: Monotonic,
    /// Before this a slow pass that is asked for waits for the next round.
    request_after: Monotonic,
    retry: Monotonic,
    retry_wait: Duration,
}

impl Fleet {
    pub fn new(settings: &Settings, clock: Clock, events: SyncSender<Event>) -> Self {
        let staleness = Staleness {
            fast: settings.sample_interval * 5,
            medium: settings.medium_interval * 3,
            slow: settings.slow_interval * 3,
        };
        Self {
            clock,
            events,
            sample_interval: settings.sample_interval,
            medium_interval: settings.medium_interval,
            slow_interval: settings.slow_interval,
            watchdog: settings.watchdog,
            lost_retry: settings.lost_retry,
            staleness,
            generation: 0,
            inventory: Arc::default(),
            members: BTreeMap::new(),
        }
    }

    pub fn inventory(&self) -> Arc<Inventory> {
        Arc::clone(&self.inventory)
    }

    /// Takes over what the driver lists. In a new session every reader is made anew, else only those whose GPU changed.
    pub fn adopt(&mut self, mut found: Inventory, new_session: bool, now: Monotonic) {
        self.generation += 1;
        found.generation = self.generation;
        for (uuid, gpu) in &mut found.gpus {
            let retry_wait = self.lost_retry.0;
            let member = self.members.entry(uuid.clone()).or_insert_with(|| Member::new(retry_wait));
            let is_whole = gpu.present;
            if !is_whole && let Some(known) = self.inventory.gpus.get(uuid) {
                *gpu = Gpu { index: gpu.index, ..known.clone() };
            }
            // What was lost is present again once a pass has answered, not because it is listed.
            gpu.present = is_whole && !member.state.lost;
            let changed = new_session || !member.listed || self.inventory.gpus.get(uuid) != Some(gpu);
            if changed {
                member.generation = self.generation;
                (member.next_medium, member.next_slow, member.retry) = (now, now, now);
            }
            (member.listed, member.unlisted) = (true, false);
        }
        for (uuid, member) in &mut self.members {
            if found.gpus.contains_key(uuid) {
                continue;
            }
            if let Some(known) = self.inventory.gpus.get(uuid) {
                let mut gone = known.clone();
                gone.present = false;
                found.gpus.insert(uuid.clone(), gone);
            }
            if member.listed {
                if !member.state.lost {
                    warn!(gpu = %uuid, "the driver no longer lists this GPU, or gets no answer from it");
                }
                member.unlisted = !member.state.lost;
                (member.generation, member.retry) = (self.generation, now + member.retry_wait);
            }
            member.listed = false;
            member.state.lost = true;
            member.state.withdraw();
        }
        self.inventory = Arc::new(found);
    }

    /// Orders a pass from each GPU that is idle and due; gives back which.
    pub fn ask(&mut self, session: &Arc<dyn Session>, now: Monotonic) -> BTreeSet<GpuUuid> {
        let mut asked = BTreeSet::new();
        for (uuid, member) in &mut self.members {
            member.revive(uuid, self.clock, &self.events);
            if member.busy.is_some() || (member.state.lost && now < member.retry) {
                continue;
            }
            let due = Due { medium: now >= member.next_medium, slow: now >= member.next_slow };
            if !member.order(session, due, now) {
                continue;
            }
            if due.medium {
                member.next_medium = now + self.medium_interval;
            }
            if due.slow {
                member.next_slow = now + self.slow_interval;
            }
            asked.insert(uuid.clone());
        }
        asked
    }

    /// Orders the slow tier of one GPU out of turn. False when it comes with its next pass: it is at work, or lost, or
    /// was asked out of turn a moment ago.
    pub fn request_slow(&mut self, session: &Arc<dyn Session>, gpu: &GpuUuid, now: Monotonic) -> bool {
        let Some(member) = self.members.get_mut(gpu) else { return false };
        member.next_slow = now;
        let due = Due { medium: false, slow: true };
        let can = member.busy.is_none() && !member.state.lost && now >= member.request_after;
        if !can || !member.order(session, due, now) {
            return false;
        }
        member.next_slow = now + self.slow_interval;
        member.request_after = now + self.sample_interval;
        true
    }

    /// True for a pass whose handles are of today.
    pub fn is_current(&self, report: &Report) -> bool {
        self.members.get(&report.gpu).is_some_and(|member| member.generation == report.generation)
    }

    pub fn take(&mut self, report: Report, is_open: bool, now: Monotonic) {
        let Some(member) = self.members.get_mut(&report.gpu) else { return };
        member.busy = None;
        let hung = std::mem::take(&mut member.state.stuck);
        if hung {
            info!(gpu = %report.gpu, "the stuck call has come back");
        }
        if !is_open || member.generation != report.generation {
            return;
        }
        let gpu = report.gpu;
        match report.pass.status {
            PassStatus::Answers => {
                if member.state.lost {
                    info!(gpu = %gpu, "the GPU answers again");
                }
                member.state.lost = false;
                member.lost_in = None;
                member.retry_wait = self.lost_retry.0;
                if hung {
                    member.state.take_late(report.at.monotonic, report.pass);
                } else {
                    member.state.take(report.at.monotonic, report.fresh, report.pass);
                }
                self.mark_present(&gpu, true);
            }
            PassStatus::Lost => {
                if !member.state.lost {
                    warn!(gpu = %gpu, "the GPU is lost or asks for a reset");
                }
                member.state.lost = true;
                member.unlisted = report.pass.problems.iter().any(|problem| UNLISTED.contains(&problem.code));
                member.lost_in = Some(member.generation);
                member.state.withdraw();
                member.retry = now + member.retry_wait;
                member.retry_wait = (member.retry_wait * 2).min(self.lost_retry.1);
                (member.next_medium, member.next_slow) = (now, now);
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

    /// Every GPU was asked since its handles were read, and is lost; those inside a call have no say.
    pub fn all_lost(&self) -> bool {
        let any_listed = self.members.values().any(|member| member.listed);
        let asked = self.members.values().filter(|member| member.listed || !any_listed);
        let mut asked = asked.filter(|member| !member.state.stuck).peekable();
        asked.peek().is_some() && asked.all(|member| member.lost_in == Some(member.generation))
    }

    /// Marks GPUs whose call is overdue and withdraws their readings; gives back the newly found.
    pub fn find_stuck(&mut self, now: Monotonic) -> Vec<GpuUuid> {
        let mut found = Vec::new();
        for (uuid, member) in &mut self.members {
            let overdue = member.busy.is_some_and(|(since, _)| now.since(since) >= self.watchdog);
            if overdue && !member.state.stuck {
                warn!(gpu = %uuid, "a driver call on this GPU has not come back");
                member.state.stuck = true;
                member.state.withdraw();
                found.push(uuid.clone());
            }
        }
        found
    }

    /// Tiers that a stuck call belongs to.
    pub fn stuck_tiers(&self) -> BTreeSet<&'static str> {
        let stuck = self.members.values().filter(|member| member.state.stuck);
        stuck.filter_map(|member| member.busy).flat_map(|(_, due)| tiers(due)).collect()
    }

    /// Whose reader is inside a call that has not come back.
    pub fn stuck(&self) -> impl Iterator<Item = &GpuUuid> {
        self.members.iter().filter(|(_, member)| member.state.stuck).map(|(uuid, _)| uuid)
    }

    /// Withdraws everything and asks the workers to let go of the session; gives back who still holds it.
    pub fn release(&mut self) -> BTreeSet<GpuUuid> {
        let mut holders = BTreeSet::new();
        for (uuid, member) in &mut self.members {
            member.state.withdraw();
            if let Some(worker) = &member.worker
                && worker.give(ReaderCommand::Release).is_ok()
                && !member.state.stuck
            {
                holders.insert(uuid.clone());
            }
        }
        holders
    }

    pub fn readings(&self, now: Monotonic) -> BTreeMap<GpuUuid, Arc<DeviceReadings>> {
        let readings = |member: &Member| {
            let asked = member.busy.map(|(since, _)| since);
            let unlisted = member.state.lost && member.unlisted;
            Arc::new(DeviceReadings { asked, unlisted, ..member.state.readings(now, self.staleness) })
        };
        self.members.iter().map(|(uuid, member)| (uuid.clone(), readings(member))).collect()
    }

    /// When the next call becomes overdue.
    pub fn deadline(&self) -> Option<Monotonic> {
        let waiting = self.members.values().filter(|member| !member.state.stuck);
        waiting.filter_map(|member| Some(member.busy?.0 + self.watchdog)).min()
    }
}

impl Member {
    fn new(retry_wait: Duration) -> Self {
        Self {
            state: GpuState::default(),
            worker: None,
            no_thread: false,
            busy: None,
            generation: 0,
            listed: false,
            unlisted: false,
            lost_in: None,
            next_medium: Monotonic::default(),
            next_slow: Monotonic::default(),
            request_after: Monotonic::default(),
            retry: Monotonic::default(),
            retry_wait,
        }
    }

    fn order(&mut self, session: &Arc<dyn Session>, due: Due, now: Monotonic) -> bool {
        let order = ReaderCommand::Read { session: Arc::clone(session), generation: self.generation, due };
        let given = self.worker.as_ref().is_some_and(|worker| worker.give(order).is_ok());
        if given {
            self.busy = Some((now, due));
        }
        given
    }

    /// A thread that has ended (it can only have panicked) is replaced; one that is stuck is not.
    fn revive(&mut self, uuid: &GpuUuid, clock: Clock, events: &SyncSender<Event>) {
        if self.worker.as_ref().is_some_and(|worker| !worker.has_ended()) {
            return;
        }
        self.busy = None;
        let spawned = spawn_worker(uuid.clone(), clock, events.clone());
        let was_logged = std::mem::replace(&mut self.no_thread, spawned.is_err());
        if let (Err(problem), false) = (&spawned, was_logged) {
            warn!(gpu = %uuid, %problem, "no thread for this GPU");
        }
        self.worker = spawned.ok();
    }
}
