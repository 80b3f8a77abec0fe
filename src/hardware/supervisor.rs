//! One thread that never calls the driver: it gives orders, keeps deadlines, merges and publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{error, info, warn};

use super::fleet::Fleet;
use super::rounds::Rounds;
use super::settings::Settings;
use super::source::{Driver, Failure, Problem, Session, Verdict};
use super::worker::{Errand, Event, Opened, Report, Thread, spawn_keeper};
use crate::clock::Clock;
use crate::model::{GpuUuid, HardwareState, Monotonic, NodeDevices};

/// Events wait here while the supervisor is busy; a full queue holds the workers back, not the memory.
const EVENTS: usize = 128;
const STACK_BYTES: usize = 512 * 1024;
/// How long the first publication waits for the slower GPUs once one has answered.
const FIRST_GRACE: Duration = Duration::from_millis(40);
/// How long workers have to let go of a session before it is left to them.
const RELEASE: Duration = Duration::from_secs(2);
const SESSION_OVER: &str = "the driver ended the session, as it does when it is unloaded or replaced; \
                            it is opened again until it answers";
const ALL_LOST: &str = "every GPU is lost; the driver is opened again until one answers; \
                        look for Xid lines in the kernel log";
const STOP: Duration = Duration::from_secs(1);

/// The running room. Dropping it asks the threads to end and waits for nothing.
#[derive(Debug)]
pub struct Hardware {
    events: SyncSender<Event>,
    ended: Receiver<()>,
    states: watch::Receiver<Arc<HardwareState>>,
}

impl Hardware {
    /// Every publication; the first value says that nothing is known yet.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<HardwareState>> {
        self.states.clone()
    }

    /// Closes the driver and ends the threads; blocks for three seconds at most. A thread inside a call is left behind.
    pub fn stop(self) {
        if self.events.send(Event::Stop).is_ok() && self.ended.recv_timeout(STOP * 3) == Err(RecvTimeoutError::Timeout)
        {
            warn!("the hardware threads did not end in time and are left behind");
        }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // Refused only after `stop`, or by a queue so full that the process is ending anyway.
        let _ = self.events.try_send(Event::Stop);
    }
}

/// Starts the room's threads. A driver that cannot be opened is tried again for ever.
#[must_use]
pub fn start(driver: Box<dyn Driver>, settings: Settings, clock: Clock) -> Hardware {
    let source = driver.name();
    let (events, received) = sync_channel(EVENTS);
    let (ends, ended) = channel();
    let (publisher, states) = watch::channel(Arc::new(HardwareState { source, ..HardwareState::default() }));
    let sender = events.clone();
    let started =
        Builder::new().name("hardware".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            match spawn_keeper(driver, settings.sys_root.clone(), sender.clone()) {
                Ok(keeper) => {
                    Supervisor::new(source, settings, clock, keeper, sender, publisher).run(&received, ends);
                }
                Err(problem) => error!(%problem, "no thread for the driver: there will be no device readings"),
            }
        });
    if let Err(problem) = started {
        error!(%problem, "no thread for the hardware: there will be no device readings");
    }
    Hardware { events, ended, states }
}

/// Where the session's life stands.
enum Phase {
    Closed {
        retry: Monotonic,
    },
    Opening,
    Open {
        session: Arc<dyn Session>,
        inspect: Monotonic,
    },
    /// Workers let go, then the driver is closed.
    Draining {
        session: Arc<dyn Session>,
        holders: BTreeSet<GpuUuid>,
        until: Monotonic,
    },
    Closing {
        until: Monotonic,
    },
}

struct Supervisor {
    source: &'static str,
    settings: Settings,
    clock: Clock,
    keeper: Thread<Errand>,
    /// Since when the keeper is on an errand.
    keeper_busy: Option<Monotonic>,
    keeper_stuck: bool,
    publisher: watch::Sender<Arc<HardwareState>>,
    phase: Phase,
    sessions: u64,
    reopen: Duration,
    fleet: Fleet,
    rounds: Rounds,
    /// When the next round begins.
    next: Monotonic,
    node_devices: Option<NodeDevices>,
    problem: Option<Arc<str>>,
    errors: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    stopping: Option<Monotonic>,
}

impl Supervisor {
    fn new(
        source: &'static str,
        settings: Settings,
        clock: Clock,
        keeper: Thread<Errand>,
        events: SyncSender<Event>,
        publisher: watch::Sender<Arc<HardwareState>>,
    ) -> Self {
        let reopen = settings.reopen.0;
        let fleet = Fleet::new(&settings, clock, events);
        let phase = Phase::Closed { retry: Monotonic::default() };
        Self {
            source,
            settings,
            clock,
            keeper,
            keeper_busy: None,
            keeper_stuck: false,
            publisher,
            phase,
            sessions: 0,
            reopen,
            fleet,
            rounds: Rounds::default(),
            next: Monotonic::default(),
            node_devices: None,
            problem: None,
            errors: BTreeMap::new(),
            stopping: None,
        }
    }

    /// Ends when asked to; dropping `_ends` tells whoever waits.
    fn run(mut self, events: &Receiver<Event>, _ends: Sender<()>) {
        loop {
            let now = self.clock.now().monotonic;
            self.act(now);
            if self.has_stopped(now) {
                return;
            }
            // A deadline that has just passed still waits a moment: nothing here may spin.
            let wait = self.deadline(now).since(now).max(Duration::from_millis(1));
            match events.recv_timeout(wait) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn has_stopped(&self, now: Monotonic) -> bool {
        self.stopping.is_some_and(|until| now >= until || matches!(self.phase, Phase::Closed { .. }))
    }

    /// Does what is due at `now`.
    fn act(&mut self, now: Monotonic) {
        self.watch_keeper(now);
        for gpu in self.fleet.find_stuck(now) {
            self.rounds.give_up(&gpu);
            if let Phase::Draining { holders, .. } = &mut self.phase {
                holders.remove(&gpu);
            }
        }
        match &self.phase {
            Phase::Closed { retry } if now >= *retry && self.stopping.is_none() => {
                if self.send(Errand::Open, now) {
                    self.phase = Phase::Opening;
                } else {
                    self.phase = Phase::Closed { retry: now + self.settings.reopen.1 };
                }
            }
            Phase::Open { session, inspect } => {
                let session = Arc::clone(session);
                if now >= *inspect && self.send(Errand::Inspect(Arc::clone(&session)), now) {
                    let inspect = now + self.settings.medium_interval;
                    self.phase = Phase::Open { session: Arc::clone(&session), inspect };
                }
                self.advance_rounds(&session, now);
            }
            Phase::Draining { holders, until, .. }
                if (holders.is_empty() || now >= *until) && (self.keeper_busy.is_none() || self.keeper_stuck) =>
            {
                self.close(now);
            }
            // The driver does not close: it is left behind, and opened anew beside it.
            Phase::Closing { until } if now >= *until => self.phase = Phase::Closed { retry: now + self.reopen },
            _ => {}
        }
    }

    fn advance_rounds(&mut self, session: &Arc<dyn Session>, now: Monotonic) {
        if self.rounds.is_ready(now) {
            self.publish();
        }
        if now < self.next {
            return;
        }
        let asked = self.fleet.ask(session, now);
        self.rounds.begin(asked, now + self.settings.sample_interval / 2, FIRST_GRACE);
        self.next = (self.next + self.settings.sample_interval).max(now + self.settings.sample_interval / 2);
    }

    fn take(&mut self, event: Event) {
        let now = self.clock.now().monotonic;
        match event {
            Event::Passed(report) => self.take_pass(*report, now),
            Event::Released(gpu) => {
                if let Phase::Draining { holders, .. } = &mut self.phase {
                    holders.remove(&gpu);
                }
            }
            Event::Opened(opened, node_devices) => {
                self.keeper_is_back(now);
                self.node_devices = node_devices;
                match *opened {
                    Ok(opened) => self.adopt_session(opened, now),
                    Err(failure) => {
                        self.fail(&failure);
                        self.phase = Phase::Closed { retry: now + self.reopen };
                        self.reopen = (self.reopen * 2).min(self.settings.reopen.1);
                        self.publish();
                    }
                }
            }
            Event::Inspected(found, node_devices) => {
                self.keeper_is_back(now);
                self.node_devices = node_devices;
                match found.map(|found| *found) {
                    Some(Ok((inventory, problems))) if matches!(self.phase, Phase::Open { .. }) => {
                        info!(gpus = inventory.gpus.len(), "the layout of the GPUs has changed");
                        self.count(&problems);
                        self.fleet.adopt(inventory, false, now);
                        self.judge_inventory();
                    }
                    Some(Err(failure)) => {
                        self.fail(&failure);
                        self.drain(now);
                    }
                    _ => {}
                }
            }
            Event::Closed => {
                self.keeper_is_back(now);
                if matches!(self.phase, Phase::Closing { .. }) {
                    self.phase = Phase::Closed { retry: now + self.reopen };
                }
            }
            Event::Stop => {
                self.stopping.get_or_insert(now + STOP * 2);
                self.drain(now);
            }
        }
    }

    fn adopt_session(&mut self, opened: Opened, now: Monotonic) {
        let Opened { session, found: (inventory, problems) } = opened;
        info!(source = self.source, gpus = inventory.gpus.len(), "the driver is open");
        self.count(&problems);
        self.sessions += 1;
        self.fleet.adopt(inventory, true, now);
        self.judge_inventory();
        self.rounds.restart();
        self.next = now;
        self.phase = Phase::Open { session, inspect: now + self.settings.medium_interval };
        if self.stopping.is_some() {
            self.drain(now);
        }
    }

    /// A driver that lists nothing where the bus has GPUs is a fault, not an idle node.
    fn judge_inventory(&mut self) {
        let expected = self.node_devices.map_or(0, |devices| devices.expected);
        if expected > 0 && self.fleet.inventory().gpus.is_empty() {
            self.set_problem(format!(
                "the driver lists none of the {expected} GPUs on the PCI bus; see whether nvidia-smi works on the \
                 node, and look for Xid and NVRM lines in the kernel log"
            ));
        } else {
            self.problem = None;
        }
    }

    fn take_pass(&mut self, report: Report, now: Monotonic) {
        self.count(&report.pass.problems);
        let verdict = report.pass.verdict;
        let is_open = matches!(self.phase, Phase::Open { .. });
        // A call that comes back late speaks for handles of its own time, not for today's session.
        let is_current = is_open && self.fleet.is_current(&report);
        self.rounds.take(&report, is_current);
        self.fleet.take(report, is_open, now);
        if !is_current {
            return;
        }
        match verdict {
            Verdict::Answers => self.reopen = self.settings.reopen.0,
            Verdict::SessionOver => {
                self.set_problem(SESSION_OVER.to_owned());
                self.drain(now);
            }
            Verdict::Lost if self.fleet.all_lost() => {
                self.set_problem(ALL_LOST.to_owned());
                self.drain(now);
            }
            Verdict::Lost => {}
        }
    }

    /// Leaves the session: withdraws all readings and asks the workers to let go.
    fn drain(&mut self, now: Monotonic) {
        match std::mem::replace(&mut self.phase, Phase::Closed { retry: now + self.reopen }) {
            Phase::Open { session, .. } => {
                let holders = self.fleet.release();
                self.rounds.clear();
                self.phase = Phase::Draining { session, holders, until: now + RELEASE.min(self.settings.watchdog) };
                self.publish();
            }
            other => self.phase = other,
        }
    }

    fn close(&mut self, now: Monotonic) {
        let retry = now + self.reopen;
        self.reopen = (self.reopen * 2).min(self.settings.reopen.1);
        let Phase::Draining { session, .. } = std::mem::replace(&mut self.phase, Phase::Closed { retry }) else {
            return;
        };
        self.phase = Phase::Closing { until: now + self.settings.watchdog };
        if !self.send(Errand::Close(session), now) {
            self.phase = Phase::Closed { retry };
        }
    }

    /// False when the keeper is still on its last errand; a session it cannot take is leaked, never closed here.
    fn send(&mut self, errand: Errand, now: Monotonic) -> bool {
        let refused = if self.keeper_busy.is_some() { Some(errand) } else { self.keeper.give(errand).err() };
        match refused {
            None => {
                self.keeper_busy = Some(now);
                true
            }
            Some(Errand::Close(session)) => {
                std::mem::forget(session);
                false
            }
            Some(_) => false,
        }
    }

    fn watch_keeper(&mut self, now: Monotonic) {
        let overdue = self.keeper_busy.is_some_and(|since| now.since(since) >= self.settings.watchdog);
        if overdue && !self.keeper_stuck {
            self.keeper_stuck = true;
            warn!("a driver call that concerns the whole node has not come back");
            if !matches!(self.phase, Phase::Open { .. }) {
                let seconds = self.settings.watchdog.as_secs_f64();
                self.set_problem(format!(
                    "opening or closing the driver has not come back for {seconds} s; look for Xid or NVRM lines \
                     in the kernel log, the node may need a reboot"
                ));
                self.publish();
            }
        }
    }

    fn keeper_is_back(&mut self, now: Monotonic) {
        self.keeper_busy = None;
        if std::mem::take(&mut self.keeper_stuck) {
            info!("the overdue driver call has come back");
            if let Phase::Closed { retry } = &mut self.phase {
                *retry = (*retry).min(now + self.reopen);
            }
        }
    }

    fn fail(&mut self, failure: &Failure) {
        *self.errors.entry(failure.call).or_default().entry(failure.code).or_default() += 1;
        self.set_problem(failure.to_string());
    }

    fn set_problem(&mut self, text: String) {
        if self.problem.as_deref() != Some(text.as_str()) {
            warn!(problem = text, "no device readings");
            self.problem = Some(text.into());
        }
    }

    fn count(&mut self, problems: &[Problem]) {
        for problem in problems {
            *self.errors.entry(problem.call).or_default().entry(problem.code).or_default() += 1;
        }
    }

    fn publish(&mut self) {
        let now = self.clock.now().monotonic;
        let is_open = matches!(self.phase, Phase::Open { .. });
        let collectors = self.rounds.publish(is_open, self.fleet.stuck_tiers());
        self.publisher.send_replace(Arc::new(HardwareState {
            source: self.source,
            inventory: self.fleet.inventory(),
            sessions: self.sessions,
            readings: self.fleet.readings(now),
            node_devices: self.node_devices,
            problem: self.problem.clone(),
            collectors,
            errors: self.errors.clone(),
        }));
    }

    /// The next moment at which something is due.
    fn deadline(&self, now: Monotonic) -> Monotonic {
        let phase = match &self.phase {
            Phase::Closed { retry } => *retry,
            Phase::Opening => now + self.settings.watchdog,
            Phase::Open { inspect, .. } => {
                let inspect = if self.keeper_busy.is_some() { now + self.settings.watchdog } else { *inspect };
                self.next.min(inspect).min(self.rounds.deadline().unwrap_or(self.next))
            }
            // The keeper's return wakes this thread.
            Phase::Draining { .. } if self.keeper_busy.is_some() => now + self.settings.watchdog,
            Phase::Draining { until, holders, .. } => {
                if holders.is_empty() {
                    now
                } else {
                    *until
                }
            }
            Phase::Closing { until } => *until,
        };
        let watchdog = self.keeper_busy.filter(|_| !self.keeper_stuck).map(|since| since + self.settings.watchdog);
        [Some(phase), watchdog, self.fleet.deadline(), self.stopping]
            .into_iter()
            .flatten()
            .min()
            .expect("the phase has a deadline")
    }
}
