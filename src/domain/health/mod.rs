//! The health of each device: it is unhealthy while it has a cause.
//!
//! Inputs: hardware states, XIDs, an operator's marks, faults of an earlier agent, the time. Outputs: which device is
//! healthy, why not, since when and what clears it; each transition; counts of XIDs. Does not use: the driver, the
//! kubelet, clocks, logs, metrics.
//!
//! ```text
//!  XID, reading, mark ──► current ── reset, reload, reading ──► ended ── hold-down, clear-faults ──► removed
//!                            │ ▲                                  │
//!                            │ └────────────── again ─────────────┘
//!                            ├── of an XID: clear-faults ───────────────────────────────────────► removed
//!                            └── of a mark: unmark, its end ────────────────────────────────────► removed
//! ```
//!
//! `admin`, `unknown` and an XID that the recovery action overrules end without a hold-down. `clear-faults` also removes a
//! cause that an earlier agent left and this one has not read. No hold-down ends while the GPUs are released, or with
//! `recovery: manual`. A reset is of one GPU, a reload of the driver and thereby of all; a reload, or a reset that the
//! energy counter shows, is a restart of the GPU.
//!
//! Time alone ends a hold-down, a mark that has an end, and one case of `unknown`: the table of `GpuSignals::unknown`.

mod config;
mod faults;
mod marks;
mod signals;
mod slow_signals;
#[cfg(test)]
mod tests;
mod tracked_gpu;
mod xids;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
pub use config::schema::DURATION;
pub use config::{EccPolicy, FabricPolicy, HealthConfig, Recovery, XidRule};
pub use faults::{GpuFaults, NodeFaults};
pub use marks::{DeviceCause, MarkError, OperatorOrder, OrderAction, OrderOutcome};
pub use xids::name as xid_name;

use crate::domain::model::{
    ContainerRef, GpuUuid, HardwareState, HealthCause, HealthState, HealthTransition, MigUuid, Moment, Monotonic,
    UnixSeconds, XidClass, XidEvent,
};
use marks::Mark;
use tracked_gpu::{CauseKey, Subject, SubjectTransition, TrackedGpu};

/// How long after it was listed a device is `unknown` of which no read was requested (`GpuSignals::unknown`).
const UNKNOWN_LIMIT: Duration = Duration::from_secs(5);
/// Older ones are dropped.
const MAX_TRANSITIONS: usize = 256;

/// The health of a node's devices.
#[derive(Debug, Default)]
pub struct Health {
    config: HealthConfig,
    gpus: BTreeMap<GpuUuid, TrackedGpu>,
    /// Those that the driver is not expected to serve now: they keep their signals and have no health.
    unexpected: BTreeSet<GpuUuid>,
    driver: DriverStatus,
    state: Arc<HealthState>,
    transition_count: u64,
    deadline: Option<Monotonic>,
    notes: Vec<String>,
    /// Codes of XIDs that are already in a note.
    noted_xids: BTreeSet<u32>,
    /// Unknown recovery actions that are already in a note.
    noted_actions: BTreeSet<(GpuUuid, u32)>,
}

/// What the causes are evaluated with, besides the signals of a GPU.
#[derive(Clone, Copy)]
struct EvaluationContext<'a> {
    config: &'a HealthConfig,
    driver: &'a DriverStatus,
    now: Moment,
}

impl EvaluationContext<'_> {
    /// The time against which limits of calls and reads are checked: none is made while the GPUs are released.
    fn now_or_release(&self) -> Monotonic {
        self.driver.released_since.unwrap_or(self.now.monotonic)
    }
}

/// What is common to all GPUs.
#[derive(Clone, Debug, Default)]
struct DriverStatus {
    loads: u64,
    /// When the driver was last reloaded, as far as is known.
    reloaded_at: Option<Monotonic>,
    /// The last that is known, of an earlier agent too.
    version: Option<Arc<str>>,
    released_since: Option<Monotonic>,
}

impl Health {
    pub fn new(config: HealthConfig) -> Self {
        Self { config, ..Self::default() }
    }

    pub fn state(&self) -> Arc<HealthState> {
        Arc::clone(&self.state)
    }

    /// When to advance even if nothing has happened until then.
    pub fn next_deadline(&self) -> Option<Monotonic> {
        self.deadline
    }

    /// Texts for the log, each once.
    pub fn drain_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Adds to each transition after number `after` who held the device.
    pub fn name_holders(&mut self, after: u64, holders: impl Fn(&HealthTransition) -> Vec<ContainerRef>) {
        if self.transition_count > after {
            let state = Arc::make_mut(&mut self.state);
            for transition in state.transitions.iter_mut().filter(|transition| transition.number > after) {
                transition.holders = holders(transition);
            }
        }
    }

    /// Applies the hardware as it is now, and the XIDs since the last advance, in any order. Returns the same `Arc` where
    /// nothing has changed.
    pub fn advance(&mut self, now: Moment, hardware: &HardwareState, events: &[XidEvent]) -> Arc<HealthState> {
        self.driver.update(hardware, now.monotonic);
        self.remove_unlisted_addresses(hardware);
        let inventory = &hardware.inventory;
        self.unexpected = inventory.unserved.keys().cloned().collect();
        self.add_events(now, events);
        self.gpus.values_mut().for_each(|gpu| gpu.index = None);
        let with_health = inventory.gpus.iter().filter(|(uuid, _)| !self.unexpected.contains(*uuid));
        for (uuid, listed) in with_health {
            let gpu = self.gpus.entry(uuid.clone()).or_insert_with(|| TrackedGpu::new(now));
            gpu.apply_inventory(listed, now.monotonic);
            gpu.signals.apply_reload(&self.driver);
            // Missing readings of a released GPU are no signal.
            if self.driver.released_since.is_none()
                && let Some(unknown_action) = gpu.signals.apply_readings(listed, hardware, now.monotonic)
                && self.noted_actions.insert((uuid.clone(), unknown_action))
            {
                let text = format!("{uuid}: unknown recovery action {unknown_action}: it does not change the health");
                self.notes.push(text);
            }
        }
        self.evaluate(now)
    }

    /// Continues with the faults of an earlier agent, before the first advance.
    pub fn restore(&mut self, now: Moment, faults: &NodeFaults) {
        self.driver.version.clone_from(&faults.driver_version);
        for (uuid, of_gpu) in &faults.gpus {
            let gpu = self.gpus.entry(uuid.clone()).or_insert_with(|| TrackedGpu::new(now));
            for (subject, what) in gpu.restore(of_gpu, &self.config, now) {
                let device = subject.as_ref().map_or(uuid.as_str(), MigUuid::as_str);
                self.notes.push(format!("{device}: {what} is restored from before podmeter started"));
            }
        }
    }

    /// What the next agent restores. Its energy counters rise at most once a minute, so that it is seldom written.
    pub fn faults(&self) -> NodeFaults {
        // A GPU that is known by its PCI address has no UUID to restore: the next agent finds it by itself.
        let with_uuid = self.gpus.iter().filter(|(uuid, _)| !uuid.is_of_address());
        let gpus: BTreeMap<_, _> = with_uuid.filter_map(|(uuid, gpu)| Some((uuid.clone(), gpu.faults()?))).collect();
        let driver_version = self.driver.version.clone().filter(|_| !gpus.is_empty());
        NodeFaults { driver_version, gpus }
    }

    /// Executes an operator's order at once.
    pub fn execute(&mut self, now: Moment, order: &OperatorOrder) -> Result<OrderOutcome, MarkError> {
        order.action.check()?;
        let (uuid, subject) = self.find(&order.device)?;
        let gpu = self.gpus.get_mut(&uuid).expect("it was found");
        let before = gpu.causes_of(&subject, &self.config);
        match &order.action {
            OrderAction::Mark { reason, lasts } => {
                let until = lasts.map(|lasts| Moment {
                    monotonic: now.monotonic + lasts,
                    unix: UnixSeconds(now.unix.0 + lasts.as_secs_f64()),
                });
                gpu.marks.insert(subject.clone(), Mark { reason: reason.as_str().into(), until });
            }
            OrderAction::Unmark => gpu.unmark(&subject),
            OrderAction::ClearFaults => gpu.clear_faults(&subject),
        }
        self.evaluate(now);
        let after = self.gpus[&uuid].causes_of(&subject, &self.config);
        let device = |subject: &Subject| subject.as_ref().map_or_else(|| uuid.to_string(), MigUuid::to_string);
        let cause = |((subject, _), cause): (&(Subject, CauseKey), &HealthCause)| DeviceCause {
            device: device(subject),
            cause: cause.clone(),
        };
        Ok(OrderOutcome {
            device: device(&subject),
            marked: self.gpus[&uuid].marks.contains_key(&subject),
            removed: before.iter().filter(|(key, _)| !after.contains_key(key)).map(cause).collect(),
            remaining: after.iter().map(cause).collect(),
        })
    }

    /// The device of this UUID or index: its GPU, and which part of it. An index names a GPU that is not present where no
    /// present one has it.
    fn find(&self, name: &str) -> Result<(GpuUuid, Subject), MarkError> {
        // One without a UUID loses its state when the UUID is read.
        let listed = self.gpus.iter().filter(|(uuid, gpu)| gpu.was_listed() && !uuid.is_of_address());
        let index = name.parse().ok();
        let has_index = |gpu: &TrackedGpu, present| index.is_some_and(|index| gpu.index == Some((index, present)));
        let of_present = self.gpus.values().any(|gpu| has_index(gpu, true));
        let named = listed.filter_map(|(uuid, gpu)| {
            if uuid.as_str() == name || has_index(gpu, of_present) {
                return Some((uuid.clone(), None));
            }
            let mig = gpu.mig_devices.iter().find(|mig| mig.uuid.as_str() == name)?;
            Some((uuid.clone(), Some(mig.uuid.clone())))
        });
        let mut found: Vec<_> = named.collect();
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            (None, _) => Err(MarkError::UnknownDevice(name.to_owned())),
            (Some(_), false) => Err(MarkError::Ambiguous(name.to_owned())),
        }
    }

    /// A GPU that was listed by its PCI address, and no longer is, has a UUID now, or is no longer found on the bus.
    fn remove_unlisted_addresses(&mut self, hardware: &HardwareState) {
        let is_gone = |uuid: &GpuUuid| uuid.is_of_address() && !hardware.inventory.gpus.contains_key(uuid);
        if self.gpus.keys().any(is_gone) {
            self.gpus.retain(|uuid, _| !is_gone(uuid));
            Arc::make_mut(&mut self.state).gpus.retain(|uuid, _| !is_gone(uuid));
        }
    }

    /// Evaluates every GPU that was listed and that the driver is expected to serve.
    fn evaluate(&mut self, now: Moment) -> Arc<HealthState> {
        let mut next = (*self.state).clone();
        let mut deadlines: Vec<Monotonic> = vec![];
        let context = EvaluationContext { config: &self.config, driver: &self.driver, now };
        for (uuid, gpu) in &mut self.gpus {
            if self.unexpected.contains(uuid) {
                next.gpus.remove(uuid);
                continue;
            }
            if !gpu.was_listed() {
                continue;
            }
            let transitions = gpu.evaluate(context);
            deadlines.extend(gpu.deadline(context));
            next.gpus.insert(uuid.clone(), gpu.health());
            for SubjectTransition { subject, to_healthy, cause: HealthCause { reason, detail, .. } } in transitions {
                self.transition_count += 1;
                let number = self.transition_count;
                let (gpu, mig) = (uuid.clone(), subject);
                let transition =
                    HealthTransition { number, gpu, mig, to_healthy, reason, detail, at: now, holders: vec![] };
                next.transitions.push(transition);
            }
        }
        let surplus = next.transitions.len().saturating_sub(MAX_TRANSITIONS);
        next.transitions.drain(..surplus);
        self.deadline = deadlines.into_iter().min();
        if *self.state != next {
            self.state = Arc::new(next);
        }
        self.state()
    }

    fn add_events(&mut self, now: Moment, events: &[XidEvent]) {
        let mut events: Vec<&XidEvent> = events.iter().collect();
        events.sort_by_cached_key(|event| {
            (event.at.monotonic, event.code, event.instance, event.count, event.gpu.clone())
        });
        for event in events {
            let rule = self.config.xid_rule(event.code);
            if rule == XidRule::Ignore {
                continue;
            }
            let gpu = self.gpus.entry(event.gpu.clone()).or_insert_with(|| TrackedGpu::new(now));
            gpu.xids.add(event, rule);
            let class = xids::class(event.code);
            let is_noted = !rule.makes_unhealthy() && matches!(class, XidClass::Unknown | XidClass::Software);
            if is_noted && self.noted_xids.len() < xids::MAX_CODES && self.noted_xids.insert(event.code) {
                let (name, class) = (xids::named(event.code), class.into_str());
                let text = format!("{}: {name}, class {class}: counted; it does not change the health", event.gpu);
                self.notes.push(text);
            }
        }
    }
}

impl DriverStatus {
    fn update(&mut self, hardware: &HardwareState, now: Monotonic) {
        if hardware.driver_loads > self.loads {
            // The first known load is no reload: the driver may have been loaded for months.
            if self.loads > 0 {
                self.reloaded_at = Some(now);
            }
            self.loads = hardware.driver_loads;
        }
        if let Some(driver) = &hardware.inventory.driver
            && self.version.as_ref() != Some(&driver.driver_version)
            && self.version.replace(Arc::clone(&driver.driver_version)).is_some()
        {
            self.reloaded_at = Some(now);
        }
        self.released_since = hardware.released.map(|_| self.released_since.unwrap_or(now));
    }
}
