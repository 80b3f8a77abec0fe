//! One GPU and its MIG devices: why each is unhealthy, since when, and when that is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config::{HealthConfig, Recovery};
use super::faults::{DeviceFaults, GpuFaults, MarkFault, ReasonFault};
use super::marks::{Mark, restored_mark};
use super::signals::DeviceSignals;
use super::xids::{self, ActiveXid, Effect, GpuXids};
use super::{DriverStatus, EvaluationContext, UNKNOWN_LIMIT};
use crate::domain::model::{
    DeviceHealth, Gpu, GpuHealth, HealthCause, MigDevice, MigUuid, Moment, Monotonic, UnhealthyReason, UnixSeconds,
    XidClass,
};

/// A reason, and the code where it is an XID.
type CauseKey = (UnhealthyReason, u32);

/// With the detail, and what clears it.
type CurrentCauses = BTreeMap<CauseKey, (Arc<str>, &'static str)>;

/// What was restored, in words.
type RestoredFault = (Subject, String);

/// The whole of a GPU, or one of its MIG devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Whole,
    Mig(MigUuid),
}

impl Subject {
    pub fn mig(&self) -> Option<&MigUuid> {
        match self {
            Self::Whole => None,
            Self::Mig(mig) => Some(mig),
        }
    }
}

/// A change of a device's health.
pub struct Transition {
    pub subject: Subject,
    pub to_healthy: bool,
    pub reason: UnhealthyReason,
    pub detail: Arc<str>,
}

#[derive(Debug, Default)]
pub struct TrackedGpu {
    /// While it is present: the driver gives that of a GPU that is gone to another.
    pub index: Option<u32>,
    /// As the inventory has them now.
    layout: Vec<MigDevice>,
    pub migs: BTreeSet<MigUuid>,
    /// When the inventory first listed it.
    appeared: Option<Monotonic>,
    pub signals: DeviceSignals,
    pub xids: GpuXids,
    pub marks: BTreeMap<Subject, Mark>,
    causes: BTreeMap<Subject, BTreeMap<CauseKey, CauseState>>,
    health: BTreeMap<Subject, DeviceHealth>,
    /// Since when an earlier agent had them as unhealthy, until they are evaluated.
    earlier_since: BTreeMap<Subject, UnixSeconds>,
}

#[derive(Debug)]
struct CauseState {
    detail: Arc<str>,
    clears: &'static str,
    ended: Option<Monotonic>,
}

impl TrackedGpu {
    pub fn new(now: Moment) -> Self {
        Self { xids: GpuXids::new(now.unix), ..Self::default() }
    }

    /// Continues with the faults of an earlier agent. Returns what was restored, in words.
    pub fn restore(&mut self, faults: &GpuFaults, config: &HealthConfig, now: Moment) -> Vec<RestoredFault> {
        let mut restored = vec![];
        // It ends at the first evaluation that does not find it.
        let ongoing = |detail: &str| CauseState { detail: detail.into(), clears: RESET, ended: None };
        for (code, fault) in faults.xids.iter().filter(|(code, _)| config.effect(**code).makes_unhealthy()) {
            self.xids.restore(*code, config.effect(*code), fault);
            let mut subjects: Vec<_> = fault.mig_devices.iter().cloned().map(Subject::Mig).collect();
            if fault.whole {
                subjects = vec![Subject::Whole];
            }
            for subject in subjects {
                let name = xids::named(*code);
                let causes = self.causes.entry(subject.clone()).or_default();
                causes.insert((UnhealthyReason::Xid, *code), ongoing(&name));
                restored.push((subject, name));
            }
        }
        for device in &faults.devices {
            let subject = device.mig.clone().map_or(Subject::Whole, Subject::Mig);
            if let Some(mark) = device.mark.as_ref().and_then(|mark| restored_mark(mark, now)) {
                restored.push((subject.clone(), format!("the mark {:?}", mark.reason)));
                self.marks.insert(subject.clone(), mark);
            }
            let is_valid = |fault: &&ReasonFault| match fault.reason {
                UnhealthyReason::Xid => config.effect(fault.code).makes_unhealthy(),
                reason => is_held_down(reason),
            };
            for fault in device.reasons.iter().filter(is_valid) {
                let (detail, what) = match fault.reason {
                    UnhealthyReason::Xid => (xids::named(fault.code), xids::named(fault.code)),
                    reason => (EARLIER.to_owned(), format!("the reason {}", reason.as_str())),
                };
                let causes = self.causes.entry(subject.clone()).or_default();
                causes.insert((fault.reason, fault.code), ongoing(&detail));
                restored.push((subject.clone(), what));
            }
            self.earlier_since.extend(device.since.map(|since| (subject.clone(), since)));
        }
        self.signals.restore(faults);
        restored
    }

    /// What an agent that starts later restores.
    pub fn faults(&self) -> Option<GpuFaults> {
        if self.xids.active.is_empty() && self.marks.is_empty() && self.causes.is_empty() {
            return None;
        }
        let unhealthy = self.health.iter().filter(|(_, health)| !health.healthy).map(|(subject, _)| subject);
        let evaluated = unhealthy.chain(self.marks.keys()).chain(self.causes.keys());
        let subjects: BTreeSet<_> = evaluated.chain(self.earlier_since.keys()).collect();
        let devices: Vec<DeviceFaults> = subjects.into_iter().map(|subject| self.device_faults(subject)).collect();
        let has_faults = devices.iter().any(|device| device.mark.is_some() || !device.reasons.is_empty());
        let (recovery_action, energy_counter) = self.signals.reset_evidence();
        (has_faults || !self.xids.active.is_empty()).then(|| GpuFaults {
            xids: self.xids.active.iter().map(|(code, xid)| (*code, xid.fault())).collect(),
            devices,
            recovery_action,
            lost: self.signals.lost,
            energy_counter,
        })
    }

    fn device_faults(&self, subject: &Subject) -> DeviceFaults {
        let since = self.health.get(subject).map(|health| health.since.unix);
        let fault = |mark: &Mark| MarkFault { reason: Arc::clone(&mark.reason), until: mark.until.map(|at| at.unix) };
        let is_kept = |(key, cause): &(&CauseKey, &CauseState)| {
            is_held_down(key.0) && (key.0 != UnhealthyReason::Xid || cause.ended.is_some())
        };
        let causes = self.causes.get(subject).into_iter().flatten();
        DeviceFaults {
            mig: subject.mig().cloned(),
            since: since.or_else(|| self.earlier_since.get(subject).copied()),
            mark: self.marks.get(subject).map(fault),
            reasons: causes.filter(is_kept).map(|(key, _)| ReasonFault { reason: key.0, code: key.1 }).collect(),
        }
    }

    /// Whether the inventory has listed it.
    pub fn is_known(&self) -> bool {
        self.appeared.is_some()
    }

    pub fn appear(&mut self, gpu: &Gpu, driver: &DriverStatus, now: Monotonic) {
        self.appeared.get_or_insert(now);
        self.index = gpu.index.filter(|_| gpu.present);
        if self.layout != gpu.mig_devices {
            self.layout.clone_from(&gpu.mig_devices);
            self.migs = gpu.mig_devices.iter().map(|mig| mig.uuid.clone()).collect();
        }
        self.signals.apply_reload(driver);
    }

    pub fn unmark(&mut self, unmarked: &Subject) {
        self.xids.clear(unmarked.mig());
        let concerned = |subject: &Subject| *unmarked == Subject::Whole || subject == unmarked;
        self.marks.retain(|subject, _| !concerned(subject));
        for (_, causes) in self.causes.iter_mut().filter(|(subject, _)| concerned(subject)) {
            let ends_with_unmark = |reason| matches!(reason, UnhealthyReason::Xid | UnhealthyReason::Admin);
            causes.retain(|(reason, _), cause| cause.ended.is_none() && !ends_with_unmark(*reason));
        }
    }

    /// The transitions of the GPU and its MIG devices.
    pub fn evaluate(&mut self, context: EvaluationContext<'_>, now: Moment) -> Vec<Transition> {
        self.xids.resolve(&self.layout);
        self.marks.retain(|_, mark| mark.until.is_none_or(|until| context.now < until.monotonic));
        self.signals.expire_release(context);
        self.clear_xids(context.driver);
        let mut subjects: BTreeSet<Subject> = self.migs.iter().cloned().map(Subject::Mig).collect();
        subjects.extend(self.causes.keys().cloned());
        subjects.extend(self.marks.keys().cloned());
        subjects.insert(Subject::Whole);
        for subject in &subjects {
            let current = self.current(subject, context);
            let causes = self.causes.entry(subject.clone()).or_default();
            update(causes, current, context);
        }
        self.causes.retain(|_, causes| !causes.is_empty());
        self.health.retain(|subject, _| subject.mig().is_none_or(|mig| self.migs.contains(mig)));
        let shown = subjects.into_iter().filter(|subject| subject.mig().is_none_or(|mig| self.migs.contains(mig)));
        shown
            .collect::<Vec<_>>()
            .into_iter()
            .filter_map(|subject| self.transition(subject, context.config, now))
            .collect()
    }

    /// Updates the health of the GPU or of one MIG device.
    fn transition(&mut self, subject: Subject, config: &HealthConfig, now: Moment) -> Option<Transition> {
        let own = subject.mig().and_then(|_| self.causes.get(&subject));
        let both = self.causes.get(&Subject::Whole).into_iter().chain(own);
        let mut states: Vec<(&CauseKey, &CauseState)> = both.flatten().collect();
        states.sort_by_key(|(key, _)| **key);
        let cause = |(key, state): (&CauseKey, &CauseState)| HealthCause {
            reason: key.0,
            detail: Arc::clone(&state.detail),
            clears: if state.ended.is_some() { after_the_fault(config) } else { state.clears.into() },
        };
        let causes: Vec<HealthCause> = states.into_iter().map(cause).collect();
        let healthy = causes.is_empty();
        let Some(health) = self.health.get_mut(&subject) else {
            let earlier = self.earlier_since.remove(&subject).filter(|since| !healthy && *since <= now.unix);
            let since = earlier.map_or(now, |unix| Moment { monotonic: Monotonic::default(), unix });
            self.health.insert(subject, DeviceHealth { healthy, since, causes });
            return None;
        };
        let before = std::mem::replace(&mut health.causes, causes);
        if health.healthy == healthy {
            return None;
        }
        (health.healthy, health.since) = (healthy, now);
        let named = if healthy { before.first() } else { health.causes.first() };
        let named = named.expect("an unhealthy device has a cause");
        Some(Transition { subject, to_healthy: healthy, reason: named.reason, detail: Arc::clone(&named.detail) })
    }

    pub fn published(&self) -> GpuHealth {
        GpuHealth {
            whole: self.health.get(&Subject::Whole).cloned().expect("the whole GPU is evaluated first"),
            mig_devices: self
                .health
                .iter()
                .filter_map(|(of, health)| Some((of.mig()?.clone(), health.clone())))
                .collect(),
            xids: self.xids.counts.clone(),
        }
    }

    /// Why the whole GPU, or one MIG device alone, is unhealthy now.
    fn current(&self, subject: &Subject, context: EvaluationContext<'_>) -> CurrentCauses {
        let mut current = BTreeMap::new();
        for (code, xid) in &self.xids.active {
            let is_concerned = match subject {
                Subject::Whole => xid.concerns_whole_gpu(),
                Subject::Mig(mig) => !xid.concerns_whole_gpu() && xid.members().any(|member| member == mig),
            };
            if is_concerned {
                let clears = if needs_reload(xid) { RELOAD } else { RESET };
                current.insert((UnhealthyReason::Xid, *code), (xids::named(*code).into(), clears));
            }
        }
        if let Some(mark) = self.marks.get(subject) {
            let detail = format!("marked by an operator: {}", mark.reason).into();
            current.insert((UnhealthyReason::Admin, 0), (detail, UNMARKED));
        }
        if *subject == Subject::Whole {
            let appeared = self.appeared.unwrap_or(context.now);
            for (reason, detail, clears) in self.signals.causes(context, appeared) {
                current.insert((reason, 0), (detail, clears));
            }
        }
        current
    }

    /// Drops the XIDs that a reset or a reload has cleared, and those that a known recovery action overrules.
    fn clear_xids(&mut self, driver: &DriverStatus) {
        let signals = &self.signals;
        if driver.released.is_some() {
            return;
        }
        if signals.recovery.is_some() {
            // The driver's recovery action replaces these XIDs, whichever came first: no reset is waited for.
            let overruled = |xid: &ActiveXid| xid.effect == Effect::UnhealthyUnlessRecoveryActionKnown;
            let codes: Vec<u32> =
                self.xids.active.extract_if(.., |_, xid| overruled(xid)).map(|(code, _)| code).collect();
            for causes in self.causes.values_mut() {
                causes.retain(|(reason, code), _| *reason != UnhealthyReason::Xid || !codes.contains(code));
            }
        }
        self.xids.active.retain(|_, xid| {
            let reloaded = driver.reloaded.max(signals.counter_fell);
            let cleared = if needs_reload(xid) { reloaded } else { reloaded.max(signals.reset) };
            let answers = !signals.lost
                && signals.stuck.is_none()
                && signals.recovery.is_none_or(|action| action == 0)
                && cleared.is_some_and(|cleared| signals.last_read >= Some(cleared));
            !(answers && cleared > Some(xid.at.monotonic))
        });
    }

    pub fn deadline(&self, EvaluationContext { config, driver, now }: EvaluationContext<'_>) -> Option<Monotonic> {
        let unknown = self.appeared.filter(|_| !self.signals.checked).map(|appeared| appeared + UNKNOWN_LIMIT);
        let stuck = self.signals.stuck.map(|since| since + config.stuck_limit);
        let refused = self.signals.refused.as_ref().map(|(since, _)| *since + config.stuck_limit);
        let released = driver.released.map(|since| since + config.released_limit);
        let marks = self.marks.values().filter_map(|mark| Some(mark.until?.monotonic));
        let held = self.causes.values().flat_map(BTreeMap::values).filter_map(|cause| cause.ended);
        let held = held.filter(|_| driver.released.is_none() && config.recovery == Recovery::Auto);
        let once = [unknown, stuck, refused, released].into_iter().flatten();
        let all = once.chain(marks).chain(held.map(|ended| ended + config.hold_down));
        all.filter(|deadline| *deadline > now).min()
    }
}

const RESET: &str = "recovers after a reset of the GPU, a reload of the driver, or an unmark";
const RELOAD: &str = "recovers after a reload of the driver, a reboot of the node, or an unmark";
const EARLIER: &str = "found before podmeter started";
const UNMARKED: &str = "recovers after an unmark, or when the mark ends";

/// When a device recovers whose fault has ended.
fn after_the_fault(config: &HealthConfig) -> Arc<str> {
    match config.recovery {
        Recovery::Auto => {
            format!("recovers after {} s without the fault, or an unmark", config.hold_down.as_secs_f64()).into()
        }
        Recovery::Manual => "recovers after an unmark".into(),
    }
}

fn needs_reload(xid: &ActiveXid) -> bool {
    matches!(xid.class, XidClass::NodeReboot | XidClass::Hardware)
}

/// Whether an ended cause of this reason is removed only after the hold-down.
fn is_held_down(reason: UnhealthyReason) -> bool {
    !matches!(reason, UnhealthyReason::Admin | UnhealthyReason::Unknown)
}

/// Updates `causes` to `current`: a cause that is not current has ended, and is removed after the hold-down.
fn update(
    causes: &mut BTreeMap<CauseKey, CauseState>,
    current: CurrentCauses,
    EvaluationContext { config, driver, now }: EvaluationContext<'_>,
) {
    for (key, cause) in causes.iter_mut() {
        if !current.contains_key(key) {
            cause.ended.get_or_insert(now);
        }
    }
    for (key, (detail, clears)) in current {
        causes.insert(key, CauseState { detail, clears, ended: None });
    }
    causes.retain(|(reason, _), cause| {
        let Some(ended) = cause.ended else { return true };
        let holds = config.recovery == Recovery::Manual || driver.released.is_some() || now < ended + config.hold_down;
        holds && is_held_down(*reason)
    });
}
