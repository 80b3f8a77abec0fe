//! What the hardware last said of one GPU, and what of it speaks against the GPU.

use std::sync::Arc;

use super::config::{Config, EccPolicy};
use super::{Session, UNKNOWN_LIMIT};
use crate::model::{DeviceReadings, Gpu, Monotonic, Slow, UnhealthyReason, recovery_action};

/// What the hardware last said. A value that it no longer says stands until it says another.
#[derive(Debug, Default)]
pub struct Said {
    pub checked: bool,
    pub lost: bool,
    pub stuck: Option<Monotonic>,
    /// Since when there are no readings because the driver cannot be opened, and why.
    pub refused: Option<(Monotonic, Arc<str>)>,
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
    /// The renewal of the session that has been taken into account.
    renewed: Option<Monotonic>,
}

impl Said {
    /// Gives back a recovery action that is not known.
    pub fn look(
        &mut self,
        gpu: &Gpu,
        readings: Option<&DeviceReadings>,
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
        }
        // Listed again is not yet back: it has to answer.
        if lost || answered.is_some() {
            self.lost = lost;
        }
        self.answered = self.answered.max(answered);
        self.stuck = readings.is_some_and(|readings| readings.stuck).then(|| self.stuck.unwrap_or(now));
        self.refused = match (problem, answered) {
            (Some(problem), None) => {
                Some((self.refused.as_ref().map_or(now, |(since, _)| *since), Arc::clone(problem)))
            }
            _ => None,
        };
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
            self.fabric = matches!(fabric.state, "not_started" | "in_progress").then_some(fabric.state);
        }
        let uncorrected: Vec<u64> = slow.ecc.iter().filter_map(|place| place.uncorrected).collect();
        if !uncorrected.is_empty() {
            self.uncorrected = uncorrected.into_iter().fold(0, u64::saturating_add);
        }
        let action = slow.recovery_action?;
        if recovery_action(action).is_none() {
            return Some(action);
        }
        if action == 0 && self.recovery.is_some_and(|before| before != 0) {
            self.reset = self.reset.max(Some(at));
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
            let detail = "the driver says that it is lost, or no longer lists it";
            against.push((Reason::Lost, detail.into(), "that it is listed and answers"));
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
            against.push((Reason::Ecc, detail.into(), "a reload of the driver"));
        }
        if self.stuck.is_some_and(|since| passed(since, config.stuck_limit)) {
            against.push((Reason::Stuck, "a driver call on it does not come back".into(), "that the call comes back"));
        }
        let unknown = if session.released.is_some_and(|since| passed(since, config.released_limit)) {
            Some(("the GPUs have been released for too long".into(), "that they are taken up again"))
        } else if let Some((_, why)) = self.refused.as_ref().filter(|(since, _)| passed(*since, config.stuck_limit)) {
            Some((Arc::clone(why), "that the driver answers"))
        } else if !self.checked && !passed(appeared, UNKNOWN_LIMIT) {
            Some(("it has not been checked yet".into(), "a first check, which takes seconds"))
        } else {
            None
        };
        against.extend(unknown.map(|(detail, clears)| (Reason::Unknown, detail, clears)));
        against
    }
}
