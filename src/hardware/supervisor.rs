//! One thread that never calls the driver: it gives orders, keeps deadlines, merges and publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use super::fleet::Fleet;
use super::kmsg::Kmsg;
use super::listener::{Listener, Notice};
use super::mailbox::Mailbox;
use super::release::{DriverLease, Releases};
use super::rounds::Rounds;
use super::settings::Settings;
use super::source::{Driver, Failure, Problem, Session, Verdict};
use super::worker::{Errand, Event, Opened, Report, Thread, spawn_keeper};
use crate::clock::Clock;
use crate::model::{Collector, GpuUuid, HardwareState, Monotonic, NodeDevices, XidEvent};

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
const RELEASED: &str = "the driver was let go of on request; POST /resume to the admin socket takes it up again";
/// Listeners whose wait never came back; with so many no further one is left to the driver.
const LEAKED_LISTENERS: usize = 4;
const STOP: Duration = Duration::from_secs(1);

/// The running room. Dropping it asks the threads to end and waits for nothing.
#[derive(Debug)]
pub struct Hardware {
    events: SyncSender<Event>,
    ended: Receiver<()>,
    states: watch::Receiver<Arc<HardwareState>>,
    xids: Option<mpsc::Receiver<Vec<XidEvent>>>,
}

impl Hardware {
    /// Every publication; the first value says that nothing is known yet.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<HardwareState>> {
        self.states.clone()
    }

    /// Every XID that a source told of, from the first one on, in batches by the time of hearing. Given out once. While
    /// nobody reads, equal ones are counted together.
    #[must_use]
    pub fn xids(&mut self) -> Option<mpsc::Receiver<Vec<XidEvent>>> {
        self.xids.take()
    }

    /// To have the driver closed and opened again.
    #[must_use]
    pub fn lease(&self) -> DriverLease {
        DriverLease::new(self.events.clone())
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
    let (mailbox, xids) = Mailbox::new();
    let sender = events.clone();
    let kmsg = settings.kmsg.clone().and_then(|path| {
        let kmsg = Kmsg::spawn(path, clock, states.clone(), mailbox.clone(), events.clone(), ends.clone());
        kmsg.inspect_err(|problem| error!(%problem, "no thread for the kernel's log: it is not read for XIDs")).ok()
    });
    let started = Builder::new().name("hardware".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        // Ends with this thread.
        let _kmsg = kmsg;
        match spawn_keeper(driver, settings.sys_root.clone(), sender.clone()) {
            Ok(keeper) => {
                Supervisor::new(source, settings, clock, keeper, sender, publisher, mailbox).run(&received, ends);
            }
            Err(problem) => error!(%problem, "no thread for the driver: there will be no device readings"),
        }
    });
    if let Err(problem) = started {
        error!(%problem, "no thread for the hardware: there will be no device readings");
    }
    Hardware { events, ended, states, xids: Some(xids) }
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
    /// Sessions that the keeper had no time to close. Never closed here: closing may block for ever.
    unclosed: Vec<Arc<dyn Session>>,
    publisher: watch::Sender<Arc<HardwareState>>,
    /// To the supervisor itself, for the threads that it starts.
    events: SyncSender<Event>,
    mailbox: Mailbox,
    /// Of the open session, or of the one being drained.
    listener: Option<Listener>,
    /// Listeners that did not let go in time.
    leaked: Vec<Listener>,
    listeners: u64,
    /// Of the events, as last known.
    hearing: Option<Collector>,
    releases: Releases,
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
        mailbox: Mailbox,
    ) -> Self {
        let reopen = settings.reopen.0;
        let fleet = Fleet::new(&settings, clock, events.clone());
        let phase = Phase::Closed { retry: Monotonic::default() };
        Self {
            source,
            settings,
            clock,
            keeper,
            keeper_busy: None,
            keeper_stuck: false,
            unclosed: Vec::new(),
            publisher,
            events,
            mailbox,
            listener: None,
            leaked: Vec::new(),
            listeners: 0,
            hearing: None,
            releases: Releases::default(),
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
        self.mailbox.send();
        self.leaked.retain(|listener| !listener.has_ended());
        if self.releases.until().is_some_and(|until| now >= until) {
            info!("the time of the release is over");
            self.resume(now);
        }
        let has_listener = self.listener.as_ref().is_some_and(|listener| !listener.has_ended());
        for gpu in self.fleet.find_stuck(now) {
            self.rounds.give_up(&gpu);
            if let Phase::Draining { holders, .. } = &mut self.phase {
                holders.remove(&gpu);
            }
        }
        match &self.phase {
            Phase::Closed { retry }
                if now >= *retry && self.stopping.is_none() && self.releases.released().is_none() =>
            {
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
                if (holders.is_empty() && !has_listener || now >= *until)
                    && (self.keeper_busy.is_none() || self.keeper_stuck) =>
            {
                self.close(now);
            }
            // The driver does not close: it is left behind, and opened anew beside it.
            Phase::Closing { until } if now >= *until => self.phase = Phase::Closed { retry: now + self.reopen },
            _ => {}
        }
        self.answer_releases(now);
    }

    fn answer_releases(&mut self, now: Monotonic) {
        let is_closed = matches!(self.phase, Phase::Closed { .. });
        let (fleet, leaked, keeper_busy) = (&self.fleet, &self.leaked, self.keeper_busy.is_some());
        self.releases.answer(is_closed, now, self.settings.release_limit, || {
            let mut holders: Vec<String> = fleet.stuck().map(|gpu| format!("a call on {gpu}")).collect();
            if !leaked.is_empty() {
                holders.push("the wait for events".to_owned());
            }
            if keeper_busy {
                holders.push("a call that opens, lists or closes the driver".to_owned());
            }
            if holders.is_empty() {
                holders.push("a call that has not come back".to_owned());
            }
            holders.join(", ")
        });
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
                        if let Some(listener) = &self.listener {
                            listener.look_again();
                        }
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
            Event::Noticed(notice) => self.heed(*notice, now),
            Event::Deaf(number) => {
                self.listener.take_if(|listener| listener.number == number);
            }
            Event::Release(duration, reply) => {
                info!(?duration, "the driver is let go of, as asked");
                self.releases.release(duration, reply, self.clock.now(), self.settings.release_limit);
                self.drain(now);
                self.publish();
            }
            Event::Resume(reply) => {
                self.resume(now);
                // Whoever asked may have gone.
                let _ = reply.send(());
            }
            Event::Stop => {
                self.stopping.get_or_insert(now + STOP * 2);
                self.drain(now);
            }
        }
    }

    /// What the driver or the kernel has told calls for a look.
    fn heed(&mut self, notice: Notice, now: Monotonic) {
        self.count(&notice.problems);
        let current = self.listener.as_ref().map(|listener| listener.number);
        let Phase::Open { session, inspect } = &mut self.phase else { return };
        if notice.listener.is_some() && notice.listener != current {
            return;
        }
        if notice.inspect {
            *inspect = now;
        }
        for gpu in notice.look {
            if self.fleet.hasten(session, &gpu, now) {
                self.rounds.add(gpu, now + self.settings.sample_interval / 2);
            }
        }
        if notice.session_over {
            self.set_problem(SESSION_OVER.to_owned());
            self.drain(now);
        }
    }

    fn resume(&mut self, now: Monotonic) {
        if !self.releases.resume() {
            return;
        }
        info!("the driver is taken up again");
        self.reopen = self.settings.reopen.0;
        if let Phase::Closed { retry } = &mut self.phase {
            *retry = now;
        }
        self.publish();
    }

    /// Waits for events, unless too many waits have never come back.
    fn listen(&mut self, session: &Arc<dyn Session>) {
        if self.leaked.len() >= LEAKED_LISTENERS {
            warn!("too many waits for events have not come back: there is none for this session");
            return;
        }
        self.listeners += 1;
        let (mailbox, events) = (self.mailbox.clone(), self.events.clone());
        let session = Arc::clone(session);
        self.listener = Listener::spawn(self.listeners, session, self.clock, mailbox, events, self.settings.watchdog)
            .inspect_err(|problem| warn!(%problem, "no thread for the driver's events"))
            .ok();
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
        self.releases.watch(&session);
        self.listen(&session);
        self.phase = Phase::Open { session, inspect: now + self.settings.medium_interval };
        if self.stopping.is_some() || self.releases.released().is_some() {
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
                if let Some(listener) = &mut self.listener {
                    listener.stop();
                }
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
        if let Some(listener) = self.listener.take_if(|listener| !listener.has_ended()) {
            warn!("the wait for events has not come back and is left behind");
            self.leaked.push(listener);
        }
        self.phase = Phase::Closing { until: now + self.settings.watchdog };
        if !self.send(Errand::Close(session), now) {
            self.phase = Phase::Closed { retry };
        }
    }

    /// False when the keeper is still on its last errand; a session it cannot take is closed when it is back.
    fn send(&mut self, errand: Errand, now: Monotonic) -> bool {
        let refused = if self.keeper_busy.is_some() { Some(errand) } else { self.keeper.give(errand).err() };
        match refused {
            None => {
                self.keeper_busy = Some(now);
                true
            }
            Some(Errand::Close(session)) => {
                self.unclosed.push(session);
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
        if let Some(session) = self.unclosed.pop() {
            self.send(Errand::Close(session), now);
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
        let mut collectors = self.rounds.publish(is_open, self.fleet.stuck_tiers());
        collectors.extend(self.hearing(is_open, now).map(|hearing| ("events", hearing)));
        let released = self.releases.released();
        self.publisher.send_replace(Arc::new(HardwareState {
            source: self.source,
            inventory: self.fleet.inventory(),
            sessions: self.sessions,
            readings: self.fleet.readings(now),
            node_devices: self.node_devices,
            problem: if released.is_some() { Some(RELEASED.into()) } else { self.problem.clone() },
            collectors,
            errors: self.errors.clone(),
            released,
        }));
    }

    /// How the waiting for events goes; `None` until a driver has told of any.
    fn hearing(&mut self, is_open: bool, now: Monotonic) -> Option<Collector> {
        let current = self.listener.as_ref().and_then(|listener| listener.collector(now));
        if current.is_some() {
            self.hearing = current;
        } else if let Some(hearing) = &mut self.hearing {
            hearing.success = false;
        }
        let hearing = self.hearing.as_mut()?;
        hearing.success &= is_open;
        hearing.stuck = self.listener.iter().chain(&self.leaked).any(|listener| listener.is_stuck(now));
        Some(hearing.clone())
    }

    /// The next moment at which something is due.
    fn deadline(&self, now: Monotonic) -> Monotonic {
        let phase = match &self.phase {
            Phase::Closed { .. } if self.releases.released().is_some() => now + self.settings.watchdog,
            Phase::Closed { retry } => *retry,
            Phase::Opening => now + self.settings.watchdog,
            Phase::Open { inspect, .. } => {
                let inspect = if self.keeper_busy.is_some() { now + self.settings.watchdog } else { *inspect };
                self.next.min(inspect).min(self.rounds.deadline().unwrap_or(self.next))
            }
            // The keeper's return wakes this thread.
            Phase::Draining { .. } if self.keeper_busy.is_some() => now + self.settings.watchdog,
            Phase::Draining { until, holders, .. } => {
                if holders.is_empty() && self.listener.is_none() {
                    now
                } else {
                    *until
                }
            }
            Phase::Closing { until } => *until,
        };
        let watchdog = self.keeper_busy.filter(|_| !self.keeper_stuck).map(|since| since + self.settings.watchdog);
        [Some(phase), watchdog, self.fleet.deadline(), self.stopping, self.releases.deadline(now)]
            .into_iter()
            .flatten()
            .min()
            .expect("the phase has a deadline")
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        for session in self.unclosed.drain(..) {
            std::mem::forget(session);
        }
    }
}
