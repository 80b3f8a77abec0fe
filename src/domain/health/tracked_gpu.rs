//! One GPU and its MIG devices: why each is unhealthy, since when, and when that is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config::{HealthConfig, Recovery, XidRule};
use super::marks::Mark;
use super::signals::GpuSignals;
use super::xids::{self, GpuXids};
use super::{DriverStatus, EvaluationContext};
use crate::domain::model::{
    DeviceHealth, Gpu, GpuHealth, HealthCause, MigDevice, MigUuid, Moment, Monotonic, PciBusId, UnhealthyReason,
    UnixSeconds, XidClass,
};

const AFTER_RESET: &str = "recovers after a reset of the GPU, a reload of the driver, or podmeter clear-faults";
const AFTER_RESTART: &str = "recovers after a restart of the GPU (its energy counter falls), a reload of the driver, a reboot \
                             of the node, or podmeter clear-faults";
const AFTER_UNMARK: &str = "recovers after podmeter unmark";
const AFTER_MARK: &str = "recovers after podmeter unmark, or when the mark ends";

/// One of a GPU's MIG devices; `None`: the whole of the GPU.
pub type Subject = Option<MigUuid>;

/// Whether the second is the first, or a part of it.
fn includes(subject: &Subject, other: &Subject) -> bool {
    subject.is_none() || subject == other
}

/// A reason, and the code of an XID, else 0.
pub type CauseKey = (UnhealthyReason, u32);

/// The causes of one device now, each with its detail and what clears it.
type CurrentCauses = BTreeMap<CauseKey, (Arc<str>, &'static str)>;

/// One cause of a device.
#[derive(Debug)]
pub struct CauseState {
    pub detail: Arc<str>,
    pub clears: &'static str,
    /// When it ended; it then stays for the hold-down. `None`: it is current, or restored and not evaluated yet.
    pub ended: Option<Monotonic>,
}

impl CauseState {
    fn cause(&self, (reason, _): CauseKey, config: &HealthConfig) -> HealthCause {
        let clears = if self.ended.is_some() { after_the_fault(config) } else { self.clears.into() };
        HealthCause { reason, detail: Arc::clone(&self.detail), clears }
    }
}

/// A `HealthTransition`, as far as the GPU determines it.
pub struct SubjectTransition {
    pub subject: Subject,
    pub to_healthy: bool,
    /// The first of the causes before the change to healthy, or after the one to unhealthy.
    pub cause: HealthCause,
}

#[derive(Debug, Default)]
pub struct TrackedGpu {
    /// The index that the inventory has, and whether the GPU is present: the driver gives the index of one that is gone to
    /// another.
    pub index: Option<(u32, bool)>,
    /// The MIG devices that the inventory last had.
    pub mig_devices: Vec<MigDevice>,
    first_listed: Option<Monotonic>,
    pub pci_bus_id: Option<PciBusId>,
    pub signals: GpuSignals,
    pub xids: GpuXids,
    pub marks: BTreeMap<Subject, Mark>,
    /// Those of the whole GPU make its MIG devices unhealthy too; a MIG device has its own besides.
    pub causes: BTreeMap<Subject, BTreeMap<CauseKey, CauseState>>,
    /// The health of the GPU and its present MIG devices, by the last evaluation.
    pub health: BTreeMap<Subject, DeviceHealth>,
    /// Since when an earlier agent had them as unhealthy, until they are evaluated.
    pub earlier_since: BTreeMap<Subject, UnixSeconds>,
}

impl TrackedGpu {
    pub fn new(now: Moment) -> Self {
        Self { xids: GpuXids::new(now.unix), ..Self::default() }
    }

    /// Whether the inventory has ever listed it.
    pub fn was_listed(&self) -> bool {
        self.first_listed.is_some()
    }

    pub fn apply_inventory(&mut self, listed: &Gpu, now: Monotonic) {
        self.first_listed.get_or_insert(now);
        if self.pci_bus_id != listed.pci_bus_id {
            self.pci_bus_id.clone_from(&listed.pci_bus_id);
        }
        self.index = listed.index.map(|index| (index, listed.present));
        if self.mig_devices != listed.mig_devices {
            self.mig_devices.clone_from(&listed.mig_devices);
        }
    }

    pub fn unmark(&mut self, unmarked: &Subject) {
        self.marks.retain(|subject, _| !includes(unmarked, subject));
        self.retain_causes(unmarked, |_, (reason, _), _| *reason != UnhealthyReason::Admin);
    }

    pub fn clear_faults(&mut self, cleared: &Subject) {
        self.xids.clear(cleared.as_ref());
        self.retain_causes(cleared, |signals, (reason, _), cause| match reason {
            UnhealthyReason::Admin => true,
            UnhealthyReason::Xid => false,
            // A current signal stays, if this agent has read it.
            reason => cause.ended.is_none() && signals.was_read(*reason),
        });
    }

    fn retain_causes(&mut self, of: &Subject, stays: impl Fn(&GpuSignals, &CauseKey, &CauseState) -> bool) {
        for (_, causes) in self.causes.iter_mut().filter(|(subject, _)| includes(of, subject)) {
            causes.retain(|key, cause| stays(&self.signals, key, cause));
        }
    }

    /// Why a MIG device is unhealthy, with the causes of its GPU, or a GPU, with those of its MIG devices.
    pub fn causes_of(&self, of: &Subject, config: &HealthConfig) -> BTreeMap<(Subject, CauseKey), HealthCause> {
        let is_concerned = |subject: &&Subject| includes(of, subject) || subject.is_none();
        let subjects = self.causes.keys().filter(is_concerned);
        let causes = |subject| self.causes[subject].iter().map(move |cause| (subject, cause));
        subjects
            .flat_map(causes)
            .map(|(subject, (key, state))| ((subject.clone(), *key), state.cause(*key, config)))
            .collect()
    }

    /// Updates the causes and the health of the GPU and its MIG devices. Returns the transitions.
    pub fn evaluate(&mut self, context: EvaluationContext<'_>) -> Vec<SubjectTransition> {
        self.xids.resolve(&self.mig_devices);
        self.marks.retain(|_, mark| mark.until.is_none_or(|until| context.now.monotonic < until.monotonic));
        self.signals.expire_release(context);
        if context.driver.released_since.is_none() {
            self.remove_overruled_xids(context.config);
            self.remove_cleared_xids(context.driver);
        }
        let migs = self.mig_devices.iter().map(|mig| Some(mig.uuid.clone()));
        let present: BTreeSet<Subject> = migs.chain([None]).collect();
        let mut subjects = present.clone();
        subjects.extend(self.causes.keys().chain(self.marks.keys()).cloned());
        for subject in subjects {
            let current = self.current_causes(&subject, context);
            update_causes(self.causes.entry(subject).or_default(), current, &self.signals, context);
        }
        self.causes.retain(|_, causes| !causes.is_empty());
        self.health.retain(|subject, _| present.contains(subject));
        present.into_iter().filter_map(|subject| self.update_health(subject, context)).collect()
    }

    /// Why the GPU as a whole, or one MIG device beyond that, is unhealthy now.
    fn current_causes(&self, subject: &Subject, context: EvaluationContext<'_>) -> CurrentCauses {
        let mut current = BTreeMap::new();
        for (code, xid) in &self.xids.active {
            let is_concerned = match subject {
                None => xid.concerns_whole_gpu,
                Some(mig) => !xid.concerns_whole_gpu && xid.mig_devices.contains(mig),
            };
            if is_concerned {
                let clears = if needs_restart(*code) { AFTER_RESTART } else { AFTER_RESET };
                current.insert((UnhealthyReason::Xid, *code), (xids::named(*code).into(), clears));
            }
        }
        if let Some(mark) = self.marks.get(subject) {
            let detail = format!("marked by an operator: {}", mark.reason).into();
            let clears = if mark.until.is_some() { AFTER_MARK } else { AFTER_UNMARK };
            current.insert((UnhealthyReason::Admin, 0), (detail, clears));
        }
        if subject.is_none() {
            let first_listed = self.first_listed.unwrap_or(context.now.monotonic);
            for (reason, detail, clears) in self.signals.causes(context, first_listed) {
                current.insert((reason, 0), (detail, clears));
            }
        }
        current
    }

    /// Makes the health of the GPU, or of one MIG device, follow its causes. The first known health is no transition, and
    /// neither is another cause of an unhealthy device.
    fn update_health(&mut self, subject: Subject, context: EvaluationContext<'_>) -> Option<SubjectTransition> {
        let EvaluationContext { config, now, .. } = context;
        let own = subject.as_ref().and_then(|_| self.causes.get(&subject));
        let both = self.causes.get(&None).into_iter().chain(own);
        let mut states: Vec<(&CauseKey, &CauseState)> = both.flatten().collect();
        states.sort_by_key(|(key, _)| **key);
        let causes: Vec<HealthCause> = states.into_iter().map(|(key, state)| state.cause(*key, config)).collect();
        let healthy = causes.is_empty();
        let known = healthy || causes.iter().any(|cause| cause.reason != UnhealthyReason::Unknown);
        let Some(health) = self.health.get_mut(&subject) else {
            let earlier = self.earlier_since.remove(&subject).filter(|since| !healthy && *since <= now.unix);
            let since = earlier.map_or(now, |unix| Moment { monotonic: Monotonic::default(), unix });
            self.health.insert(subject, DeviceHealth { healthy, known, since, causes });
            return None;
        };
        let before = std::mem::replace(&mut health.causes, causes);
        let was_known = health.known;
        health.known |= known;
        if health.healthy == healthy {
            return None;
        }
        (health.healthy, health.since) = (healthy, now);
        if !was_known {
            return None;
        }
        let named = if healthy { before.first() } else { health.causes.first() };
        let cause = named.expect("an unhealthy device has a cause").clone();
        Some(SubjectTransition { subject, to_healthy: healthy, cause })
    }

    /// The health to publish, after an evaluation.
    pub fn health(&self) -> GpuHealth {
        let migs = self.health.iter().filter_map(|(subject, health)| Some((subject.clone()?, health.clone())));
        GpuHealth {
            whole: self.health.get(&None).cloned().expect("an evaluation includes the whole GPU"),
            mig_devices: migs.collect(),
            xids: self.xids.counts.clone(),
        }
    }

    /// The recovery action of the driver, be it `none`, replaces some XIDs, whichever came first. They are not held down: they
    /// counted only while it was unknown.
    fn remove_overruled_xids(&mut self, config: &HealthConfig) {
        if !self.signals.was_read(UnhealthyReason::RecoveryAction) {
            return;
        }
        let is_overruled = |code: u32| config.xid_rule(code) == XidRule::UnhealthyUnlessRecoveryActionKnown;
        let overruled = self.xids.active.extract_if(.., |code, _| is_overruled(*code));
        let codes: Vec<u32> = overruled.map(|(code, _)| code).collect();
        for causes in self.causes.values_mut() {
            causes.retain(|(reason, code), _| *reason != UnhealthyReason::Xid || !codes.contains(code));
        }
    }

    /// A reset or restart after the XID clears it, once the GPU has responded since and does not need another.
    fn remove_cleared_xids(&mut self, driver: &DriverStatus) {
        let signals = &self.signals;
        if signals.awaits_recovery() {
            return;
        }
        let [reset_at, restarted_at] = [false, true].map(|restart_only| signals.recovered_at(restart_only, driver));
        self.xids.active.retain(|code, xid| {
            let cleared_at = if needs_restart(*code) { restarted_at } else { reset_at };
            cleared_at.is_none_or(|at| xid.at.monotonic >= at)
        });
    }

    /// When the next evaluation may differ from the last one without new inputs.
    pub fn deadline(&self, EvaluationContext { config, driver, now }: EvaluationContext<'_>) -> Option<Monotonic> {
        let released = driver.released_since.map(|since| since + config.released_limit);
        let marks = self.marks.values().filter_map(|mark| Some(mark.until?.monotonic));
        let ended = self.causes.values().flat_map(BTreeMap::values).filter_map(|cause| cause.ended);
        let hold_downs = ended.filter(|_| !holds_indefinitely(config, driver)).map(|ended| ended + config.hold_down);
        let limits = self.signals.deadlines(config, self.first_listed).chain(released);
        limits.chain(marks).chain(hold_downs).filter(|deadline| *deadline > now.monotonic).min()
    }
}

/// Whether only a restart of the GPU or its driver is known to clear the XID.
fn needs_restart(code: u32) -> bool {
    matches!(xids::class(code), XidClass::NodeReboot | XidClass::Hardware)
}

/// When a device recovers whose fault has ended.
fn after_the_fault(config: &HealthConfig) -> Arc<str> {
    match config.recovery {
        Recovery::Auto => {
            let seconds = config.hold_down.as_secs_f64();
            format!("recovers after {seconds} s without the fault, or podmeter clear-faults").into()
        }
        Recovery::Manual => "recovers after podmeter clear-faults".into(),
    }
}

/// Whether an ended cause of this reason is removed only after the hold-down.
pub(super) fn is_held_down(reason: UnhealthyReason) -> bool {
    !matches!(reason, UnhealthyReason::Admin | UnhealthyReason::Unknown)
}

/// Whether no hold-down ends for now.
fn holds_indefinitely(config: &HealthConfig, driver: &DriverStatus) -> bool {
    config.recovery == Recovery::Manual || driver.released_since.is_some()
}

/// Updates `causes` to `current`: a cause that is not current has ended, and is removed after the hold-down. One of an
/// earlier agent does not end before its value was read.
fn update_causes(
    causes: &mut BTreeMap<CauseKey, CauseState>,
    current: CurrentCauses,
    signals: &GpuSignals,
    EvaluationContext { config, driver, now }: EvaluationContext<'_>,
) {
    for (key, cause) in causes.iter_mut() {
        if !current.contains_key(key) && signals.was_read(key.0) {
            cause.ended.get_or_insert(now.monotonic);
        }
    }
    for (key, (detail, clears)) in current {
        causes.insert(key, CauseState { detail, clears, ended: None });
    }
    causes.retain(|(reason, _), cause| {
        let Some(ended) = cause.ended else { return true };
        let is_held = holds_indefinitely(config, driver) || now.monotonic < ended + config.hold_down;
        is_held && is_held_down(*reason)
    });
}
