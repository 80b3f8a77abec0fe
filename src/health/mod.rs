//! The verdict on each device.
//!
//! In: what the hardware says, XIDs, an operator's marks, the time. Out: which device is healthy, why not, since when and
//! what would bring it back; each turn; counts of XIDs. Refuses to know: the driver, the kubelet, clocks, logs, metrics.
//! A device goes down by any evidence against it and comes up only by evidence for it, never because data is missing.

mod classes;
mod config;
mod device;
mod marks;
mod said;
#[cfg(test)]
mod tests;
mod xids;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use config::{Config, EccPolicy, Recovery, XidRule};
pub use marks::{MarkError, Order};

use crate::model::{
    ContainerRef, GpuUuid, HardwareState, HealthState, HealthTransition, Moment, Monotonic, UnhealthyReason, XidEvent,
};
use device::{Device, Turn};

/// How long a device may be unhealthy for no other reason than that nobody has asked it anything yet.
pub const UNKNOWN_LIMIT: Duration = Duration::from_secs(5);
/// Turns that the state keeps.
pub const TRANSITIONS_KEPT: usize = 256;
/// GPUs that XIDs may name before the driver does. A node has sixteen.
const STRANGERS: usize = 64;
/// Things that are remembered to have been said; what comes after them is not said.
const SAID: usize = 1024;
/// Sentences kept until somebody takes them.
const NOTES: usize = 64;

/// What has happened since the last advance. The order within it does not matter.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub hardware: &'a HardwareState,
    pub events: &'a [XidEvent],
}

/// The state machine. Knows every device ever seen; its memory is bounded by them.
#[derive(Debug)]
pub struct Health {
    config: Config,
    devices: BTreeMap<GpuUuid, Device>,
    session: Session,
    state: Arc<HealthState>,
    turns: u64,
    deadline: Option<Monotonic>,
    notes: Vec<String>,
    /// Codes, and recovery actions per GPU, of which it was said that they are not known.
    said: BTreeSet<(Option<GpuUuid>, u32)>,
}

/// What is common to all devices.
#[derive(Clone, Copy, Debug, Default)]
struct Session {
    loads: u64,
    /// When the driver was last known to have been loaded anew.
    renewed: Option<Monotonic>,
    /// Since when the GPUs are released.
    released: Option<Monotonic>,
}

impl Health {
    #[must_use]
    pub fn new(config: Config) -> Self {
        let counts = || UnhealthyReason::ALL.into_iter().map(|reason| (reason, 0)).collect();
        let state = HealthState {
            transition_counts: [("healthy", counts()), ("unhealthy", counts())].into(),
            ..HealthState::default()
        };
        Self {
            config,
            devices: BTreeMap::new(),
            session: Session::default(),
            state: Arc::new(state),
            turns: 0,
            deadline: None,
            notes: vec![],
            said: BTreeSet::new(),
        }
    }

    #[must_use]
    pub fn state(&self) -> Arc<HealthState> {
        Arc::clone(&self.state)
    }

    /// When to advance even if nothing has happened until then.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.deadline
    }

    /// What a person should read in the log, each said once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Writes down who held the devices that have turned since turn number `after`.
    pub fn name_holders(&mut self, after: u64, holders: impl Fn(&HealthTransition) -> Vec<ContainerRef>) {
        if self.turns > after {
            let state = Arc::make_mut(&mut self.state);
            for turn in state.transitions.iter_mut().filter(|turn| turn.number > after) {
                turn.holders = holders(turn);
            }
        }
    }

    /// Takes in the evidence. The same allocation comes back where nothing has changed.
    pub fn advance(&mut self, now: Moment, evidence: &Evidence<'_>) -> Arc<HealthState> {
        let hardware = evidence.hardware;
        let time = now.monotonic;
        self.session.update(hardware, time);
        self.forget_addresses(hardware);
        for (uuid, gpu) in &hardware.inventory.gpus {
            let device = self.devices.entry(uuid.clone()).or_insert_with(|| Device::new(now));
            device.appear(gpu, self.session, time);
        }
        self.hear(now, evidence.events);
        for (uuid, device) in &mut self.devices {
            let Some(gpu) = hardware.inventory.gpus.get(uuid) else { continue };
            if self.session.released.is_none() {
                let readings = hardware.readings.get(uuid).map(AsRef::as_ref);
                let missing = hardware.inventory.missing.get(uuid).map(|missing| &missing.detail);
                let unknown = device.look(gpu, readings, missing, hardware.problem.as_ref(), time);
                if let Some(action) = unknown.filter(|_| self.said.len() < SAID)
                    && self.said.insert((Some(uuid.clone()), action))
                {
                    note(
                        &mut self.notes,
                        format!("{uuid}: recovery action {action} is not known; no verdict is made of it"),
                    );
                }
            }
        }
        self.judge(now)
    }

    /// A GPU of which only the address was known is another device here once its UUID is known.
    fn forget_addresses(&mut self, hardware: &HardwareState) {
        let is_known = |uuid: &GpuUuid| hardware.inventory.gpus.contains_key(uuid);
        let is_over = |uuid: &GpuUuid| uuid.is_of_address() && !is_known(uuid);
        if self.devices.keys().any(is_over) {
            self.devices.retain(|uuid, _| !is_over(uuid));
            Arc::make_mut(&mut self.state).gpus.retain(|uuid, _| !is_over(uuid));
        }
    }

    /// Verdicts on everything that the inventory has named.
    fn judge(&mut self, now: Moment) -> Arc<HealthState> {
        let mut next = (*self.state).clone();
        let mut deadlines: Vec<Monotonic> = vec![];
        for (uuid, device) in &mut self.devices {
            if !device.is_known() {
                continue;
            }
            let turns = device.judge(&self.config, self.session, now);
            deadlines.extend(device.deadline(&self.config, self.session, now.monotonic));
            next.gpus.insert(uuid.clone(), device.published());
            for Turn { mig, to_healthy, reason, detail } in turns {
                self.turns += 1;
                let to = if to_healthy { "healthy" } else { "unhealthy" };
                *next.transition_counts.entry(to).or_default().entry(reason).or_default() += 1;
                let number = self.turns;
                let gpu = uuid.clone();
                let turn = HealthTransition { number, gpu, mig, to_healthy, reason, detail, at: now, holders: vec![] };
                next.transitions.push(turn);
            }
        }
        let surplus = next.transitions.len().saturating_sub(TRANSITIONS_KEPT);
        next.transitions.drain(..surplus);
        self.deadline = deadlines.into_iter().min();
        if *self.state != next {
            self.state = Arc::new(next);
        }
        self.state()
    }

    fn hear(&mut self, now: Moment, events: &[XidEvent]) {
        let mut events: Vec<&XidEvent> = events.iter().collect();
        // By time first: whoever delivers may have mixed them.
        events.sort_by(|one, two| {
            let key = |event: &XidEvent| (event.at.monotonic, event.code, event.source, event.instance, event.count);
            key(one).cmp(&key(two)).then_with(|| one.gpu.cmp(&two.gpu)).then_with(|| one.process.cmp(&two.process))
        });
        for event in events {
            let effect = classes::effect(event.code, self.config.xids.get(&event.code).copied());
            if effect == classes::Effect::Ignore {
                continue;
            }
            let strangers = self.devices.values().filter(|device| !device.is_known()).count();
            if !self.devices.contains_key(&event.gpu) && strangers >= STRANGERS {
                let text = "XIDs of more GPUs than any node has: those of further ones are not counted";
                if self.said.insert((None, 0)) {
                    note(&mut self.notes, text.to_owned());
                }
                continue;
            }
            let device = self.devices.entry(event.gpu.clone()).or_insert_with(|| Device::new(now));
            let is_new = device.hear(event, effect, now.monotonic);
            let class = classes::class(event.code);
            let odd = matches!(class, crate::model::XidClass::Unknown | crate::model::XidClass::Software);
            if is_new && odd && self.said.len() < SAID && self.said.insert((None, event.code)) {
                let (name, class) = (classes::named(event.code), class.as_str());
                note(
                    &mut self.notes,
                    format!("{}: {name}, class {class}: counted, no verdict is made of it", event.gpu),
                );
            }
        }
    }
}

impl Session {
    fn update(&mut self, hardware: &HardwareState, now: Monotonic) {
        if hardware.driver_loads > self.loads {
            // The first opening is no news of the driver's: it may have been loaded for months.
            if self.loads > 0 {
                self.renewed = Some(now);
            }
            self.loads = hardware.driver_loads;
        }
        // Let go on request: that they say nothing is no news.
        self.released = hardware.released.map(|_| self.released.unwrap_or(now));
    }
}

fn note(notes: &mut Vec<String>, text: String) {
    if notes.len() < NOTES {
        notes.push(text);
    }
}
