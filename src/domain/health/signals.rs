//! What the hardware last reported of one GPU, and which of it makes the GPU unhealthy.

use std::sync::Arc;
use std::time::Duration;

use super::config::{EccPolicy, FabricPolicy};
use super::faults::GpuFaults;
use super::{DriverStatus, EvaluationContext, UNKNOWN_LIMIT};
use crate::domain::model::{
    DeviceReadings, FabricState, Gpu, HardwareState, Monotonic, Slow, UnhealthyReason, recovery_action,
};

const UNLISTED: &str = "the driver no longer lists it";
const LOST: &str = "the driver reports that it is lost or needs a reset";
const UNRESPONSIVE: &str = "it has not responded since the driver was opened again";

/// How old the energy counter in the faults may be: the file of faults is written when they change.
const ENERGY_COUNTER_AGE: Duration = Duration::from_secs(60);

/// Reason, detail, and what clears it.
type SignalCause = (UnhealthyReason, Arc<str>, &'static str);

/// The last known signals. The GPU responds when any tier of it is read.
#[derive(Debug, Default)]
pub struct GpuSignals {
    // Of the last readings.
    /// Since when a call on it has not returned.
    pub stuck_since: Option<Monotonic>,

    // Since podmeter started.
    /// A pass over it was under way once.
    read_requested: bool,
    /// The slow tier, which has most signals, was read once.
    pub checked: bool,
    /// When it last responded.
    pub responded_at: Option<Monotonic>,

    // Until the GPU responds.
    /// The driver does not list it or reports it as lost.
    pub lost: bool,
    /// Why it is lost, where that is because the driver does not list it.
    unlisted: Option<Arc<str>>,
    /// Since when there are no readings because the driver cannot be opened, or this process cannot read the GPU, and
    /// why. Also ends where the driver is open and reports that it is lost.
    pub refused: Option<(Monotonic, Arc<str>)>,
    /// When a release had lasted for too long.
    release_expired_at: Option<Monotonic>,

    // Of the slow tier: until another value is read.
    pub recovery_action: Option<u32>,
    row_remap_failed: Option<bool>,
    fabric_was_read: bool,
    missing_fabric: Option<&'static str>,
    /// Uncorrectable memory errors.
    uncorrected: Option<u64>,

    // Evidence of resets.
    /// The last one of an earlier agent.
    earlier_recovery_action: Option<u32>,
    energy_counter: Option<u64>,
    /// The energy counter in the faults, and when it was updated.
    saved_energy_counter: Option<(Monotonic, u64)>,
    /// When a fall of its energy counter was last confirmed, by a second reading that continues from it: it was certainly
    /// reset, or the driver reloaded, a pass or two before.
    pub counter_fell_at: Option<Monotonic>,
    /// When it last stopped being lost or needing a recovery action.
    pub probably_reset_at: Option<Monotonic>,
    /// The memory errors at the last reset, probable or certain, or reload, 0 at the start: only later ones are a cause.
    uncorrected_at_reset: u64,
    /// The last reload of the driver that `uncorrected_at_reset` takes into account.
    applied_reload: Option<Monotonic>,
}

impl GpuSignals {
    /// Returns the driver's recovery action if its number is unknown.
    pub fn apply_readings(&mut self, listed: &Gpu, hardware: &HardwareState, now: Monotonic) -> Option<u32> {
        let absent = DeviceReadings::default();
        let readings = hardware.readings.get(&listed.uuid).map_or(&absent, |readings| &**readings);
        let responded_at = readings.last_read();
        let lost = !listed.present || readings.lost;
        // Listed again is not enough: it must respond.
        if lost || responded_at.is_some() {
            if self.lost && !lost {
                self.apply_probable_reset(responded_at);
            }
            let missing = hardware.inventory.missing.get(&listed.uuid).map(|missing| Arc::clone(&missing.detail));
            self.unlisted = missing.or_else(|| readings.unlisted.then(|| UNLISTED.into()));
            self.lost = lost;
        }
        if let Some(counter) = readings.energy_counter {
            self.apply_energy_counter(counter, responded_at.unwrap_or(now), now);
        }
        self.read_requested |= readings.asked.is_some();
        self.responded_at = self.responded_at.max(responded_at);
        self.stuck_since = readings.stuck.then(|| self.stuck_since.unwrap_or(now));
        let problem = readings.problem.as_ref().or(hardware.problem.as_ref());
        self.refused = match (responded_at, problem, self.refused.take()) {
            (Some(_), ..) => None,
            (None, Some(problem), before) => Some((before.map_or(now, |(since, _)| since), Arc::clone(problem))),
            // The driver is open again, but this GPU has not responded yet. One that is lost is not refused.
            (None, None, before) => before.filter(|_| !lost).map(|(since, _)| (since, UNRESPONSIVE.into())),
        };
        if responded_at > self.release_expired_at {
            self.release_expired_at = None;
        }
        let slow = readings.slow.as_ref()?;
        self.checked = true;
        self.apply_slow(listed, &slow.value, slow.at)
    }

    /// Returns the recovery action if its number is unknown.
    fn apply_slow(&mut self, listed: &Gpu, slow: &Slow, at: Monotonic) -> Option<u32> {
        if let Some(remap) = slow.row_remap {
            self.row_remap_failed = Some(remap.failed);
        }
        if let Some(fabric) = &slow.fabric {
            self.fabric_was_read = true;
            self.missing_fabric = missing_fabric(listed, fabric);
        }
        let unknown_action = slow.recovery_action.filter(|action| recovery_action(*action).is_none());
        if let Some(action) = slow.recovery_action.filter(|_| unknown_action.is_none()) {
            let before = self.recovery_action.or(self.earlier_recovery_action);
            if action == 0 && before.is_some_and(|before| before != 0) {
                self.apply_probable_reset(Some(at));
            }
            self.recovery_action = Some(action);
        }
        // After the recovery action: errors in the same reading may have come after the reset.
        let uncorrected = slow.ecc.iter().filter_map(|location| location.uncorrected);
        self.uncorrected = uncorrected.reduce(u64::saturating_add).or(self.uncorrected);
        unknown_action
    }

    fn apply_energy_counter(&mut self, counter: u64, read_at: Monotonic, now: Monotonic) {
        let fell = self.energy_counter.replace(counter).is_some_and(|before| counter < before);
        if fell {
            self.counter_fell_at = Some(read_at);
            self.exclude_past_memory_errors();
        }
        if fell || self.saved_energy_counter.is_none_or(|(at, _)| now.since(at) >= ENERGY_COUNTER_AGE) {
            self.saved_energy_counter = Some((now, counter));
        }
    }

    fn apply_probable_reset(&mut self, at: Option<Monotonic>) {
        self.probably_reset_at = self.probably_reset_at.max(at);
        self.exclude_past_memory_errors();
    }

    pub fn apply_reload(&mut self, driver: &DriverStatus) {
        if driver.reloaded_at > self.applied_reload {
            self.applied_reload = driver.reloaded_at;
            self.exclude_past_memory_errors();
        }
    }

    /// A reset or reload sets the driver's counts to zero; those in the readings do not fall (`hardware`).
    fn exclude_past_memory_errors(&mut self) {
        self.uncorrected_at_reset = self.uncorrected.unwrap_or(0);
    }

    /// Continues where an earlier agent ended.
    pub fn restore(&mut self, faults: &GpuFaults) {
        self.lost = faults.lost;
        self.earlier_recovery_action = faults.recovery_action;
        self.energy_counter = faults.energy_counter;
        self.saved_energy_counter = faults.energy_counter.map(|counter| (Monotonic::default(), counter));
    }

    /// What an agent that starts later needs to recognise a reset: the recovery action and the energy counter.
    pub fn reset_evidence(&self) -> (Option<u32>, Option<u64>) {
        let recovery_action = self.recovery_action.or(self.earlier_recovery_action);
        (recovery_action, self.saved_energy_counter.map(|(_, counter)| counter))
    }

    /// After a release that lasts too long, the last signals are no longer valid.
    pub fn expire_release(&mut self, EvaluationContext { config, driver, now }: EvaluationContext<'_>) {
        let now = now.monotonic;
        if driver.released_since.is_some_and(|since| now.since(since) >= config.released_limit) {
            self.release_expired_at.get_or_insert(now);
        }
    }

    /// Whether the value of the slow tier that decides this reason, if there is one, was read since podmeter started.
    pub fn was_read(&self, reason: UnhealthyReason) -> bool {
        match reason {
            UnhealthyReason::RecoveryAction => self.recovery_action.is_some(),
            UnhealthyReason::RowRemapFailed => self.row_remap_failed.is_some(),
            UnhealthyReason::Fabric => self.fabric_was_read,
            UnhealthyReason::Ecc => self.uncorrected.is_some(),
            _ => true,
        }
    }

    pub fn causes(&self, context: EvaluationContext<'_>, first_listed: Monotonic) -> Vec<SignalCause> {
        use UnhealthyReason as Reason;
        let (config, now) = (context.config, context.now_or_release());
        let mut causes: Vec<SignalCause> = vec![];
        if let Some(action) = self.recovery_action.filter(|action| *action != 0).and_then(recovery_action) {
            let detail = format!("the driver requests recovery: {}", action.replace('_', " "));
            causes.push((Reason::RecoveryAction, detail.into(), "recovers when the driver requests none"));
        }
        if self.lost {
            let detail = self.unlisted.clone().unwrap_or_else(|| LOST.into());
            causes.push((Reason::Lost, detail, "recovers when the driver lists it and it responds"));
        }
        if self.row_remap_failed == Some(true) {
            let detail = "a memory row could not be remapped to a spare one";
            causes.push((Reason::RowRemapFailed, detail.into(), "permanent: replace the board"));
        }
        if let Some(state) = self.missing_fabric.filter(|_| config.fabric == FabricPolicy::Unhealthy) {
            let detail = format!("the NVLink fabric is not ready: {}", state.replace('_', " "));
            causes.push((Reason::Fabric, detail.into(), "recovers when the fabric manager has completed it"));
        }
        let uncorrected = self.uncorrected.unwrap_or(0).saturating_sub(self.uncorrected_at_reset);
        if config.uncorrectable_ecc == EccPolicy::Unhealthy && uncorrected > 0 {
            let detail = format!("{uncorrected} uncorrectable memory errors");
            causes.push((Reason::Ecc, detail.into(), "recovers after a reset of the GPU or a reload of the driver"));
        }
        // A device whose first check hangs has never been known healthy.
        if self.stuck_since.is_some_and(|since| !self.checked || now.since(since) >= config.stuck_limit) {
            let detail = "a driver call on it does not return";
            causes.push((Reason::Stuck, detail.into(), "recovers when the call returns"));
        }
        let unknown = self.unknown(context, first_listed);
        causes.extend(unknown.map(|(detail, clears)| (Reason::Unknown, detail, clears)));
        causes
    }

    /// Why the health is unknown, with what clears it. The first that applies:
    ///
    /// | case | `unknown` |
    /// |---|---|
    /// | released for longer than `released_limit` | until it responds |
    /// | the driver, or this process' access, is refused for `stuck_limit` | until it responds |
    /// | never checked, and a call on it does not return | no: it is `stuck` |
    /// | never checked nor lost, a read was requested or the driver refused, and it has not responded | until it responds |
    /// | never checked, otherwise | for `UNKNOWN_LIMIT` after it was listed |
    fn unknown(&self, context: EvaluationContext<'_>, first_listed: Monotonic) -> Option<(Arc<str>, &'static str)> {
        let EvaluationContext { config, driver, .. } = context;
        let now = context.now_or_release();
        if self.release_expired_at.is_some() {
            return Some(match driver.released_since {
                Some(_) => (
                    "the GPUs have been released for too long".into(),
                    "recovers when the driver is resumed and the GPU responds",
                ),
                None => ("it has not responded since the GPUs were released".into(), "recovers when the GPU responds"),
            });
        }
        if let Some((since, why)) = &self.refused
            && now.since(*since) >= config.stuck_limit
        {
            return Some((Arc::clone(why), "recovers when the driver responds"));
        }
        if self.checked || self.stuck_since.is_some() {
            return None;
        }
        let awaits_response =
            (self.read_requested || self.refused.is_some()) && self.responded_at.is_none() && !self.lost;
        let is_unknown = awaits_response || now.since(first_listed) < UNKNOWN_LIMIT;
        is_unknown.then(|| ("it has not been checked yet".into(), "the first check takes seconds"))
    }
}

/// The state of the registration with the NVLink fabric, of a GPU that needs it and does not have it.
///
/// Until it is `completed`, the driver refuses the GPU's memory manager, and CUDA fails with error 802; after an error
/// (`failed`), CUDA starts and reaches no other GPU. A GPU can be registered without a domain: an HGX board has none, and
/// IMEX, which a rack runs for its jobs alone, is no part of it. A partitioned GPU has no NVLink, and one whose peers are
/// `direct` no switches: they need no registration, whatever the state.
fn missing_fabric(listed: &Gpu, fabric: &FabricState) -> Option<&'static str> {
    let peers = listed.platform.as_ref().and_then(|platform| platform.peer_type);
    let needs_fabric = listed.mig_enabled != Some(true) && peers != Some("direct");
    Some(fabric.state).filter(|state| needs_fabric && matches!(*state, "not_started" | "in_progress" | "failed"))
}
