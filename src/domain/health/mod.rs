//! The health of each device, as a state machine.
//!
//! Inputs: hardware states, XIDs, an operator's marks, faults of an earlier agent, the time. Outputs: which device is
//! healthy, why not, since when and what clears it; each transition; counts of XIDs. Does not use: the driver, the
//! kubelet, clocks, logs, metrics.
//! Any one signal makes a device unhealthy; only signals make it healthy again, never time alone or missing data. A device
//! that was never checked is unknown for five seconds at most: that is no signal.

mod classes;
mod config;
mod device;
mod faults;
mod marks;
mod signals;
#[cfg(test)]
mod tests;
mod xids;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
pub use config::schema::DURATION;
pub use config::{EccPolicy, FabricPolicy, HealthConfig, Recovery, XidRule};
pub use faults::NodeFaults;
pub use marks::{MarkError, Order};

use crate::domain::model::{
    ContainerRef, GpuUuid, HardwareState, HealthState, HealthTransition, Moment, Monotonic, UnhealthyReason, XidEvent,
};
use device::{TrackedGpu, Transition};

/// How long a device may be unhealthy only because it has not been checked yet.
pub const UNKNOWN_LIMIT: Duration = Duration::from_secs(5);
/// Transitions that the state keeps.
pub const TRANSITIONS_KEPT: usize = 256;

/// What has happened since the last advance. The order within it does not matter.
#[derive(Clone, Copy, Debug)]
pub struct HealthInputs<'a> {
    pub hardware: &'a HardwareState,
    pub events: &'a [XidEvent],
}

/// The state machine.
#[derive(Debug, Default)]
pub struct Health {
    config: HealthConfig,
    devices: BTreeMap<GpuUuid, TrackedGpu>,
    /// Those that are passed through now: they keep their signals and have no health.
    passthrough: BTreeSet<GpuUuid>,
    driver: DriverStatus,
    /// The last that is known, of an earlier agent too.
    driver_version: Option<Arc<str>>,
    state: Arc<HealthState>,
    transition_count: u64,
    deadline: Option<Monotonic>,
    notes: Vec<String>,
    /// Unknown codes, and unknown recovery actions per GPU, that are already logged.
    logged: BTreeSet<(Option<GpuUuid>, u32)>,
}

/// What is common to all devices.
#[derive(Clone, Copy, Debug, Default)]
struct DriverStatus {
    loads: u64,
    /// When the driver was last reloaded, as far as is known.
    renewed: Option<Monotonic>,
    /// Since when the GPUs are released.
    released: Option<Monotonic>,
}

impl Health {
    pub fn new(config: HealthConfig) -> Self {
        let counts = || UnhealthyReason::ALL.into_iter().map(|reason| (reason, 0)).collect();
        let state = HealthState {
            transition_counts: [("healthy", counts()), ("unhealthy", counts())].into(),
            ..HealthState::default()
        };
        Self { config, state: Arc::new(state), ..Self::default() }
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

    /// Applies the inputs. Returns the same `Arc` where nothing has changed.
    pub fn advance(&mut self, now: Moment, inputs: &HealthInputs<'_>) -> Arc<HealthState> {
        let hardware = inputs.hardware;
        let time = now.monotonic;
        self.driver.update(hardware, time);
        if let Some(driver) = &hardware.inventory.driver
            && self.driver_version.as_ref() != Some(&driver.driver_version)
            && self.driver_version.replace(Arc::clone(&driver.driver_version)).is_some()
        {
            self.driver.renewed = Some(time);
        }
        self.forget_addresses(hardware);
        if !self.passthrough.iter().eq(hardware.inventory.passthrough.keys()) {
            self.passthrough = hardware.inventory.passthrough.keys().cloned().collect();
        }
        self.devices.values_mut().for_each(|device| device.index = None);
        let with_health = hardware.inventory.gpus.iter().filter(|(uuid, _)| !self.passthrough.contains(*uuid));
        for (uuid, gpu) in with_health {
            let device = self.devices.entry(uuid.clone()).or_insert_with(|| TrackedGpu::new(now));
            device.appear(gpu, self.driver, time);
        }
        self.add_events(now, inputs.events);
        for (uuid, device) in &mut self.devices {
            let Some(gpu) = hardware.inventory.gpus.get(uuid) else { continue };
            if self.driver.released.is_none() && !self.passthrough.contains(uuid) {
                let readings = hardware.readings.get(uuid).map(AsRef::as_ref);
                let missing = hardware.inventory.missing.get(uuid).map(|missing| &missing.detail);
                let unknown = device.signals.read(gpu, readings, missing, hardware.problem.as_ref(), time);
                if let Some(action) = unknown
                    && self.logged.insert((Some(uuid.clone()), action))
                {
                    let text = format!("{uuid}: unknown recovery action {action}: it does not change the health");
                    self.notes.push(text);
                }
            }
        }
        self.evaluate(now)
    }

    /// Once its UUID is known, a GPU that was known by its PCI address is another device.
    fn forget_addresses(&mut self, hardware: &HardwareState) {
        let is_known = |uuid: &GpuUuid| hardware.inventory.gpus.contains_key(uuid);
        let is_over = |uuid: &GpuUuid| uuid.is_of_address() && !is_known(uuid);
        if self.devices.keys().any(is_over) {
            self.devices.retain(|uuid, _| !is_over(uuid));
            Arc::make_mut(&mut self.state).gpus.retain(|uuid, _| !is_over(uuid));
        }
    }

    /// Evaluates every device that the inventory has listed.
    fn evaluate(&mut self, now: Moment) -> Arc<HealthState> {
        let mut next = (*self.state).clone();
        let mut deadlines: Vec<Monotonic> = vec![];
        for (uuid, device) in &mut self.devices {
            if self.passthrough.contains(uuid) {
                next.gpus.remove(uuid);
                continue;
            }
            if !device.is_known() {
                continue;
            }
            let transitions = device.evaluate(&self.config, self.driver, now);
            deadlines.extend(device.deadline(&self.config, self.driver, now.monotonic));
            next.gpus.insert(uuid.clone(), device.published());
            for Transition { mig, to_healthy, reason, detail } in transitions {
                self.transition_count += 1;
                let to = if to_healthy { "healthy" } else { "unhealthy" };
                *next.transition_counts.entry(to).or_default().entry(reason).or_default() += 1;
                let number = self.transition_count;
                let gpu = uuid.clone();
                let transition =
                    HealthTransition { number, gpu, mig, to_healthy, reason, detail, at: now, holders: vec![] };
                next.transitions.push(transition);
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

    fn add_events(&mut self, now: Moment, events: &[XidEvent]) {
        let mut events: Vec<&XidEvent> = events.iter().collect();
        events.sort_by(|one, two| {
            let key = |event: &XidEvent| (event.at.monotonic, event.code, event.instance, event.count);
            key(one).cmp(&key(two)).then_with(|| one.gpu.cmp(&two.gpu))
        });
        for event in events {
            let effect = classes::effect(event.code, self.config.xids.get(&event.code).copied());
            if effect == classes::Effect::Ignore {
                continue;
            }
            let device = self.devices.entry(event.gpu.clone()).or_insert_with(|| TrackedGpu::new(now));
            let is_new = device.xids.add(event, effect, now.monotonic);
            let class = classes::class(event.code);
            let odd =
                matches!(class, crate::domain::model::XidClass::Unknown | crate::domain::model::XidClass::Software);
            if is_new && odd && self.logged.insert((None, event.code)) {
                let (name, class) = (classes::named(event.code), class.as_str());
                let text = format!("{}: {name}, class {class}: counted; it does not change the health", event.gpu);
                self.notes.push(text);
            }
        }
    }
}

impl DriverStatus {
    fn update(&mut self, hardware: &HardwareState, now: Monotonic) {
        if hardware.driver_loads > self.loads {
            // The first known load is no restart: the driver may have been loaded for months.
            if self.loads > 0 {
                self.renewed = Some(now);
            }
            self.loads = hardware.driver_loads;
        }
        // Released on request: missing readings are no signal.
        self.released = hardware.released.map(|_| self.released.unwrap_or(now));
    }
}
