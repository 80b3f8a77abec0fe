//! One GPU and its MIG devices: what speaks against each, since when, and when it no longer does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::classes::{self, Effect};
use super::config::{Config, Recovery};
use super::marks::Mark;
use super::said::Said;
use super::xids::{Latch, Xids};
use super::{Session, UNKNOWN_LIMIT};
use crate::model::{
    DeviceHealth, DeviceReadings, Gpu, GpuHealth, HealthCause, MigDevice, MigUuid, Moment, Monotonic, UnhealthyReason,
    XidClass, XidEvent,
};

/// A reason, and which XID where it is one.
type Key = (UnhealthyReason, u32);

/// A verdict that turned.
pub struct Turn {
    pub mig: Option<MigUuid>,
    pub to_healthy: bool,
    pub reason: UnhealthyReason,
    pub detail: Arc<str>,
}

#[derive(Debug)]
pub struct Device {
    index: Option<u32>,
    /// As the inventory has them now.
    layout: Vec<MigDevice>,
    migs: BTreeSet<MigUuid>,
    /// When the inventory first named it.
    appeared: Option<Monotonic>,
    said: Said,
    xids: Xids,
    /// On the whole GPU under `None`.
    marks: BTreeMap<Option<MigUuid>, Mark>,
    causes: BTreeMap<Option<MigUuid>, BTreeMap<Key, Standing>>,
    verdicts: BTreeMap<Option<MigUuid>, DeviceHealth>,
}

#[derive(Debug)]
struct Standing {
    detail: Arc<str>,
    clears: &'static str,
    ended: Option<Monotonic>,
}

impl Device {
    pub fn new(now: Moment) -> Self {
        Self {
            index: None,
            layout: vec![],
            migs: BTreeSet::new(),
            appeared: None,
            said: Said::default(),
            xids: Xids::new(now.unix),
            marks: BTreeMap::new(),
            causes: BTreeMap::new(),
            verdicts: BTreeMap::new(),
        }
    }

    /// Whether the driver has named it.
    pub fn is_known(&self) -> bool {
        self.appeared.is_some()
    }

    pub fn index(&self) -> Option<u32> {
        self.index
    }

    pub fn migs(&self) -> &BTreeSet<MigUuid> {
        &self.migs
    }

    pub fn appear(&mut self, gpu: &Gpu, session: Session, now: Monotonic) {
        self.appeared.get_or_insert(now);
        self.index = gpu.index;
        if self.layout != gpu.mig_devices {
            self.layout.clone_from(&gpu.mig_devices);
            self.migs = gpu.mig_devices.iter().map(|mig| mig.uuid.clone()).collect();
        }
        self.said.renew(session);
    }

    pub fn hear(&mut self, event: &XidEvent, effect: Effect, now: Monotonic) -> bool {
        self.xids.take(event, effect, now)
    }

    pub fn mark(&mut self, mig: Option<MigUuid>, mark: Mark) {
        self.marks.insert(mig, mark);
    }

    pub fn unmark(&mut self, mig: Option<&MigUuid>) {
        self.xids.forgive(mig);
        let concerned = |subject: &Option<MigUuid>| mig.is_none() || subject.as_ref() == mig;
        self.marks.retain(|subject, _| !concerned(subject));
        for (_, causes) in self.causes.iter_mut().filter(|(subject, _)| concerned(subject)) {
            let vouched = |reason| matches!(reason, UnhealthyReason::Xid | UnhealthyReason::Admin);
            causes.retain(|(reason, _), standing| standing.ended.is_none() && !vouched(*reason));
        }
    }

    /// Gives back a recovery action that is not known.
    pub fn look(
        &mut self,
        gpu: &Gpu,
        readings: Option<&DeviceReadings>,
        missing: Option<&Arc<str>>,
        problem: Option<&Arc<str>>,
        now: Monotonic,
    ) -> Option<u32> {
        self.said.look(gpu, readings, missing, problem, now)
    }

    /// Turns of the GPU and its MIG devices.
    pub fn judge(&mut self, config: &Config, session: Session, now: Moment) -> Vec<Turn> {
        let time = now.monotonic;
        self.xids.resolve(&self.layout);
        self.marks.retain(|_, mark| mark.until.is_none_or(|until| time < until));
        self.said.forget(config, session, time);
        self.clear_xids(session);
        let mut subjects: BTreeSet<Option<MigUuid>> = self.migs.iter().cloned().map(Some).collect();
        subjects.extend(self.causes.keys().cloned());
        subjects.extend(self.marks.keys().cloned());
        subjects.insert(None);
        for subject in &subjects {
            let current = self.current(subject.as_ref(), config, session, time);
            let causes = self.causes.entry(subject.clone()).or_default();
            settle(causes, current, config, session, time);
        }
        self.causes.retain(|_, causes| !causes.is_empty());
        self.verdicts.retain(|subject, _| subject.as_ref().is_none_or(|mig| self.migs.contains(mig)));
        let shown = subjects.into_iter().filter(|subject| subject.as_ref().is_none_or(|mig| self.migs.contains(mig)));
        shown.collect::<Vec<_>>().into_iter().filter_map(|subject| self.turn(subject, now)).collect()
    }

    /// Brings one verdict up to date.
    fn turn(&mut self, subject: Option<MigUuid>, now: Moment) -> Option<Turn> {
        let own = subject.as_ref().and_then(|_| self.causes.get(&subject));
        let both = self.causes.get(&None).into_iter().chain(own);
        let mut standing: Vec<(&Key, &Standing)> = both.flatten().collect();
        standing.sort_by_key(|(key, _)| **key);
        let cause = |(key, standing): (&Key, &Standing)| HealthCause {
            reason: key.0,
            detail: Arc::clone(&standing.detail),
            clears: if standing.ended.is_some() { HELD } else { standing.clears },
        };
        let causes: Vec<HealthCause> = standing.into_iter().map(cause).collect();
        let healthy = causes.is_empty();
        let Some(verdict) = self.verdicts.get_mut(&subject) else {
            self.verdicts.insert(subject, DeviceHealth { healthy, since: now, causes });
            return None;
        };
        let before = std::mem::replace(&mut verdict.causes, causes);
        if verdict.healthy == healthy {
            return None;
        }
        (verdict.healthy, verdict.since) = (healthy, now);
        let named = if healthy { before.first() } else { verdict.causes.first() };
        let named = named.expect("an unhealthy verdict has a cause");
        Some(Turn { mig: subject, to_healthy: healthy, reason: named.reason, detail: Arc::clone(&named.detail) })
    }

    pub fn published(&self) -> GpuHealth {
        let of = |subject: &Option<MigUuid>| self.verdicts.get(subject).cloned();
        GpuHealth {
            whole: of(&None).expect("the whole GPU is judged first"),
            instances: self
                .verdicts
                .iter()
                .filter_map(|(mig, verdict)| Some((mig.clone()?, verdict.clone())))
                .collect(),
            xids: self.xids.counts.clone(),
        }
    }

    /// What speaks against the whole GPU, or against one MIG device alone.
    fn current(
        &self,
        mig: Option<&MigUuid>,
        config: &Config,
        session: Session,
        now: Monotonic,
    ) -> BTreeMap<Key, (Arc<str>, &'static str)> {
        let mut current = BTreeMap::new();
        for (code, latch) in &self.xids.latches {
            let reaches = match mig {
                None => latch.reaches_whole(),
                Some(mig) => !latch.reaches_whole() && latch.members().any(|member| member == mig),
            };
            if reaches {
                let clears = if needs_restart(latch) { REINITIALISED } else { RESET };
                current.insert((UnhealthyReason::Xid, *code), (classes::named(*code).into(), clears));
            }
        }
        if let Some(mark) = self.marks.get(&mig.cloned()) {
            let detail = format!("marked by an operator: {}", mark.reason).into();
            current.insert((UnhealthyReason::Admin, 0), (detail, UNMARKED));
        }
        if mig.is_none() {
            let appeared = self.appeared.unwrap_or(now);
            for (reason, detail, clears) in self.said.against(config, session, appeared, now) {
                current.insert((reason, 0), (detail, clears));
            }
        }
        current
    }

    /// Drops the XIDs that evidence speaks for.
    fn clear_xids(&mut self, session: Session) {
        let said = &self.said;
        if session.released.is_some() {
            return;
        }
        if said.recovery.is_some() {
            // The driver has the better verdict, whichever came first: no evidence is waited for.
            let overruled = |latch: &Latch| latch.effect == Effect::UnhealthyUnlessRecoveryActionKnown;
            let codes: Vec<u32> =
                self.xids.latches.extract_if(.., |_, latch| overruled(latch)).map(|(code, _)| code).collect();
            for causes in self.causes.values_mut() {
                causes.retain(|(reason, code), _| *reason != UnhealthyReason::Xid || !codes.contains(code));
            }
        }
        self.xids.latches.retain(|_, latch| {
            let restarted = session.renewed.max(said.restarted);
            let evidence = if needs_restart(latch) { restarted } else { restarted.max(said.reset) };
            let answers = !said.lost
                && said.stuck.is_none()
                && said.recovery.is_none_or(|action| action == 0)
                && evidence.is_some_and(|evidence| said.answered >= Some(evidence));
            !(answers && evidence > Some(latch.at))
        });
    }

    pub fn deadline(&self, config: &Config, session: Session, now: Monotonic) -> Option<Monotonic> {
        let unknown = self.appeared.filter(|_| !self.said.checked).map(|appeared| appeared + UNKNOWN_LIMIT);
        let stuck = self.said.stuck.map(|since| since + config.stuck_limit);
        let refused = self.said.refused.as_ref().map(|(since, _)| *since + config.stuck_limit);
        let released = session.released.map(|since| since + config.released_limit);
        let marks = self.marks.values().filter_map(|mark| mark.until);
        let held = self.causes.values().flat_map(BTreeMap::values).filter_map(|standing| standing.ended);
        let held = held.filter(|_| session.released.is_none() && config.recovery == Recovery::Auto);
        let once = [unknown, stuck, refused, released].into_iter().flatten();
        let all = once.chain(marks).chain(held.map(|ended| ended + config.hold_down));
        all.filter(|deadline| *deadline > now).min()
    }
}

const RESET: &str = "a reset of the GPU or a reload of the driver, and that it answers; or an unmark";
const REINITIALISED: &str =
    "that the driver or the GPU begins anew (as after a reboot), and that it answers; or an unmark";
const UNMARKED: &str = "an unmark, or the end of the mark";
const HELD: &str = "has ended: it must stay so for the time of health.holdDown, or be unmarked";

fn needs_restart(latch: &Latch) -> bool {
    matches!(latch.class, XidClass::NodeReboot | XidClass::Hardware)
}

/// Whether the end of such a cause has to last before it counts.
fn flaps(reason: UnhealthyReason) -> bool {
    !matches!(reason, UnhealthyReason::Admin | UnhealthyReason::Unknown)
}

/// Moves `causes` on to what is `current`: what no longer is has ended, and goes when it has stayed so.
fn settle(
    causes: &mut BTreeMap<Key, Standing>,
    current: BTreeMap<Key, (Arc<str>, &'static str)>,
    config: &Config,
    session: Session,
    now: Monotonic,
) {
    for (key, standing) in causes.iter_mut() {
        if !current.contains_key(key) {
            standing.ended.get_or_insert(now);
        }
    }
    for (key, (detail, clears)) in current {
        causes.insert(key, Standing { detail, clears, ended: None });
    }
    causes.retain(|(reason, _), standing| {
        let Some(ended) = standing.ended else { return true };
        if !flaps(*reason) {
            return false;
        }
        config.recovery == Recovery::Manual || session.released.is_some() || now < ended + config.hold_down
    });
}
