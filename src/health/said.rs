//! What the hardware last said of one GPU, and what of it speaks against the GPU.

use std::sync::Arc;

use super::config::{Config, EccPolicy};
use super::{Session, UNKNOWN_LIMIT};
use crate::model::{DeviceReadings, Gpu, Monotonic, Slow, UnhealthyReason, recovery_action};

const UNLISTED: &str = "the driver no longer lists it";
const LOST: &str = "the driver says that it is lost or needs a reset";
const SILENT: &str = "it has not answered since the driver was opened again";

/// What the hardware last said. A value that it no longer says stands until it says another.
#[derive(Debug, Default)]
pub struct Said {
    pub checked: bool,
    pub lost: bool,
    /// It is lost in that the driver does not list it: what is known of that.
    unlisted: Option<Arc<str>>,
    /// A pass over it has been ordered.
    asked: bool,
    pub stuck: Option<Monotonic>,
    /// Since when there are no readings because the driver cannot be opened, and why. Once it can, until it answers.
    pub refused: Option<(Monotonic, Arc<str>)>,
    /// When a release had lasted for too long; until it answers.
    unwatched: Option<Monotonic>,
    /// The latest readings are of this time.
    pub answered: Option<Monotonic>,
    pub recovery: Option<u32>,
    row_remap_failed: bool,
    fabric: Option<&'static str>,
    uncorrected: u64,
    /// As many were there when the driver was loaded.
    uncorrected_before: u64,
    /// The device was reset, as far as it shows: it was gone, or wanted something done, and no longer.
    pub reset: Option<Monotonic>,
    /// It is known to have begun anew, by a reset or with the driver.
    pub restarted: Option<Monotonic>,
    resets: u64,
    /// The renewal of the session that has been taken into account.
    renewed: Option<Monotonic>,
}

impl Said {
    /// Gives back a recovery action that is not known.
    pub fn look(
        &mut self,
        gpu: &Gpu,
        readings: Option<&DeviceReadings>,
        missing: Option<&Arc<str>>,
        problem: Option<&Arc<str>>,
        now: Monotonic,
    ) -> Option<u32> {
        let lost = !gpu.present || readings.is_some_and(|readings| readings.lost);
        let stamps = readings.map(|readings| {
            let fast = readings.fast.as_ref().map(|stamped| stamped.at);
            let medium = readings.medium.as_ref().map(|stamped| stamped.at);
            fast.max(medium).max(readings.slow.as_ref().map(|stamped| stamped.at))
        });
        let answered = stamps.flatten();
        if self.lost && !lost && answered.is_some() {
            self.reset = self.reset.max(answered);
            self.uncorrected_before = self.uncorrected;
        }
        // Listed again is not yet back: it has to answer.
        if lost || answered.is_some() {
            self.lost = lost;
            let unlisted = readings.is_some_and(|readings| readings.unlisted);
            self.unlisted = missing.cloned().or_else(|| unlisted.then(|| UNLISTED.into()));
        }
        if let Some(resets) = readings.map(|readings| readings.resets).filter(|resets| *resets > self.resets) {
            self.resets = resets;
            self.restarted = Some(answered.unwrap_or(now));
            self.uncorrected_before = self.uncorrected;
        }
        self.asked |= readings.is_some_and(|readings| readings.asked.is_some());
        self.answered = self.answered.max(answered);
        self.stuck = readings.is_some_and(|readings| readings.stuck).then(|| self.stuck.unwrap_or(now));
        self.refused = match (answered, problem, self.refused.take()) {
            (Some(_), ..) => None,
            (None, Some(problem), before) => Some((before.map_or(now, |(since, _)| since), Arc::clone(problem))),
            // It is open again: that is not yet an answer of this GPU.
            (None, None, before) => before.filter(|_| !lost).map(|(since, _)| (since, SILENT.into())),
        };
        if answered > self.unwatched {
            self.unwatched = None;
        }
        let slow = readings.and_then(|readings| readings.slow.as_ref())?;
        self.checked = true;
        self.learn(&slow.value, slow.at)
    }

    /// Takes in a slow pass. Gives back a recovery action that is not known.
    fn learn(&mut self, slow: &Slow, at: Monotonic) -> Option<u32> {
        if let Some(remap) = slow.row_remap {
            self.row_remap_failed = remap.failed;
        }
        if let Some(fabric) = &slow.fabric {
            self.fabric = matches!(fabric.state, "not_started" | "in_progress" | "failed").then_some(fabric.state);
        }
        let uncorrected: Vec<u64> = slow.ecc.iter().filter_map(|place| place.uncorrected).collect();
        let uncorrected_before = self.uncorrected;
        if !uncorrected.is_empty() {
            self.uncorrected = uncorrected.into_iter().fold(0, u64::saturating_add);
        }
        let action = slow.recovery_action?;
        if recovery_action(action).is_none() {
            return Some(action);
        }
        if action == 0 && self.recovery.is_some_and(|before| before != 0) {
            self.reset = self.reset.max(Some(at));
            self.uncorrected_before = uncorrected_before;
        }
        self.recovery = Some(action);
        None
    }

    /// The driver's counts of memory errors begin anew with it; the hardware room's do not fall.
    pub fn renew(&mut self, session: Session) {
        if session.renewed > self.renewed {
            self.renewed = session.renewed;
            self.uncorrected_before = self.uncorrected;
        }
    }

    /// Nobody has watched it for too long: what was known of it is so no longer.
    pub fn forget(&mut self, config: &Config, session: Session, now: Monotonic) {
        if session.released.is_some_and(|since| now.since(since) >= config.released_limit) {
            self.unwatched.get_or_insert(now);
        }
    }

    pub fn against(
        &self,
        config: &Config,
        session: Session,
        appeared: Monotonic,
        now: Monotonic,
    ) -> Vec<(UnhealthyReason, Arc<str>, &'static str)> {
        use UnhealthyReason as Reason;
        let mut against: Vec<(Reason, Arc<str>, &'static str)> = vec![];
        let passed = |since: Monotonic, limit| now.since(since) >= limit;
        if let Some(action) = self.recovery.filter(|action| *action != 0).and_then(recovery_action) {
            let detail = format!("the driver asks for recovery: {}", action.replace('_', " "));
            against.push((Reason::RecoveryAction, detail.into(), "that the driver asks for nothing any more"));
        }
        if self.lost {
            let detail = self.unlisted.clone().unwrap_or_else(|| LOST.into());
            against.push((Reason::Lost, detail, "that it is listed and answers"));
        }
        if self.row_remap_failed {
            let detail = "a memory row could not be replaced by a spare one";
            against.push((Reason::RowRemapFailed, detail.into(), "another board: the failure stays with this one"));
        }
        if let Some(state) = self.fabric {
            let detail = format!("the NVLink fabric is not ready: {}", state.replace('_', " "));
            against.push((Reason::Fabric, detail.into(), "that the fabric is completed; see the fabric manager"));
        }
        if config.uncorrectable_ecc == EccPolicy::Unhealthy && self.uncorrected > self.uncorrected_before {
            let detail = format!("{} uncorrectable memory errors", self.uncorrected - self.uncorrected_before);
            against.push((Reason::Ecc, detail.into(), "a reset of the GPU or a reload of the driver"));
        }
        // Nobody has vouched for a device whose very first check hangs.
        if self.stuck.is_some_and(|since| !self.checked || passed(since, config.stuck_limit)) {
            against.push((Reason::Stuck, "a driver call on it does not come back".into(), "that the call comes back"));
        }
        let is_awaited = (self.asked || self.refused.is_some()) && self.answered.is_none() && !self.lost;
        let unknown = if self.unwatched.is_some() && session.released.is_some() {
            Some((
                "the GPUs have been released for too long".into(),
                "that they are taken up again, and that it answers",
            ))
        } else if self.unwatched.is_some() {
            Some(("it has not answered since the GPUs were released".into(), "that it answers"))
        } else if let Some((_, why)) = self.refused.as_ref().filter(|(since, _)| passed(*since, config.stuck_limit)) {
            Some((Arc::clone(why), "that the driver answers"))
        } else if !self.checked && self.stuck.is_none() && (is_awaited || !passed(appeared, UNKNOWN_LIMIT)) {
            Some(("it has not been checked yet".into(), "a first check, which takes seconds"))
        } else {
            None
        };
        against.extend(unknown.map(|(detail, clears)| (Reason::Unknown, detail, clears)));
        against
    }
}
