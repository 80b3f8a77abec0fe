//! What the hardware last reported of one GPU, and which of it makes the GPU unhealthy.

use std::sync::Arc;
use std::time::Duration;

use super::config::{EccPolicy, FabricPolicy};
use super::faults::GpuFaults;
use super::{DriverStatus, EvaluationContext, UNKNOWN_LIMIT};
use crate::domain::model::{DeviceReadings, FabricState, Gpu, Monotonic, Slow, UnhealthyReason, recovery_action};

const UNLISTED: &str = "the driver no longer lists it";
const LOST: &str = "the driver reports that it is lost or needs a reset";
const UNRESPONSIVE: &str = "it has not responded since the driver was opened again";

/// Reason, detail, and what clears it.
type SignalCause = (UnhealthyReason, Arc<str>, &'static str);

/// How long a kept energy counter may be older than the last one.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// The last known signals. A value that is no longer reported stays until another one is reported.
#[derive(Debug, Default)]
pub struct DeviceSignals {
    /// The slow readings, which have the reasons, were read once.
    pub checked: bool,
    pub lost: bool,
    /// Why it is lost, where that is because the driver does not list it.
    unlisted: Option<Arc<str>>,
    read_requested: bool,
    /// Since when a call on it has not returned.
    pub stuck: Option<Monotonic>,
    /// Since when there are no readings because the driver cannot be opened, or this process cannot read the GPU, and
    /// why; until the GPU responds.
    pub refused: Option<(Monotonic, Arc<str>)>,
    /// When a release had lasted for too long; until the GPU responds.
    release_expired: Option<Monotonic>,
    /// The time of the latest readings.
    pub last_read: Option<Monotonic>,
    pub recovery: Option<u32>,
    row_remap_failed: bool,
    fabric: Option<&'static str>,
    uncorrected: u64,
    /// The count at the last known reset or reload, 0 at the start: only what is above it is a cause.
    uncorrected_before: u64,
    /// When the device was reset, as far as is known: it was lost, or needed a recovery action, and no longer does.
    pub reset: Option<Monotonic>,
    /// When its energy counter last fell: the GPU was certainly reset, or the driver reloaded.
    pub counter_fell: Option<Monotonic>,
    energy_counter: Option<u64>,
    /// As an agent that starts later gets it: it changes at most once a minute, unless the counter falls.
    kept_energy_counter: Option<(Monotonic, u64)>,
    /// The last recovery action of an earlier agent.
    earlier_recovery: Option<u32>,
    /// The last reload of the driver that `uncorrected_before` takes into account.
    applied_reload: Option<Monotonic>,
}

impl DeviceSignals {
    /// Returns the driver's recovery action if its number is unknown.
    pub fn apply_readings(
        &mut self,
        gpu: &Gpu,
        readings: Option<&DeviceReadings>,
        missing: Option<&Arc<str>>,
        problem: Option<&Arc<str>>,
        now: Monotonic,
    ) -> Option<u32> {
        let lost = !gpu.present || readings.is_some_and(|readings| readings.lost);
        let answered = readings.and_then(DeviceReadings::last_read);
        if self.lost && !lost && answered.is_some() {
            self.reset = self.reset.max(answered);
            self.uncorrected_before = self.uncorrected;
        }
        // Listed again is not enough: it must respond.
        if lost || answered.is_some() {
            self.lost = lost;
            let unlisted = readings.is_some_and(|readings| readings.unlisted);
            self.unlisted = missing.cloned().or_else(|| unlisted.then(|| UNLISTED.into()));
        }
        if let Some(counter) = readings.and_then(|readings| readings.energy_counter) {
            let fell = self.energy_counter.replace(counter).is_some_and(|before| counter < before);
            if fell {
                self.counter_fell = Some(answered.unwrap_or(now));
                self.uncorrected_before = self.uncorrected;
            }
            if fell || self.kept_energy_counter.is_none_or(|(at, _)| now.since(at) >= KEPT_FOR) {
                self.kept_energy_counter = Some((now, counter));
            }
        }
        self.read_requested |= readings.is_some_and(|readings| readings.asked.is_some());
        self.last_read = self.last_read.max(answered);
        self.stuck = readings.is_some_and(|readings| readings.stuck).then(|| self.stuck.unwrap_or(now));
        let problem = readings.and_then(|readings| readings.problem.as_ref()).or(problem);
        self.refused = match (answered, problem, self.refused.take()) {
            (Some(_), ..) => None,
            (None, Some(problem), before) => Some((before.map_or(now, |(since, _)| since), Arc::clone(problem))),
            // The driver is open again, but this GPU has not responded yet.
            (None, None, before) => before.filter(|_| !lost).map(|(since, _)| (since, UNRESPONSIVE.into())),
        };
        if answered > self.release_expired {
            self.release_expired = None;
        }
        let slow = readings.and_then(|readings| readings.slow.as_ref())?;
        self.checked = true;
        self.apply_slow(gpu, &slow.value, slow.at)
    }

    /// Returns the recovery action if its number is unknown.
    fn apply_slow(&mut self, gpu: &Gpu, slow: &Slow, at: Monotonic) -> Option<u32> {
        if let Some(remap) = slow.row_remap {
            self.row_remap_failed = remap.failed;
        }
        if let Some(fabric) = &slow.fabric {
            self.fabric = missing_fabric(gpu, fabric);
        }
        let uncorrected: Vec<u64> = slow.ecc.iter().filter_map(|location| location.uncorrected).collect();
        let previous = self.uncorrected;
        if !uncorrected.is_empty() {
            self.uncorrected = uncorrected.into_iter().fold(0, u64::saturating_add);
        }
        let action = slow.recovery_action?;
        if recovery_action(action).is_none() {
            return Some(action);
        }
        let before = self.recovery.or(self.earlier_recovery);
        if action == 0 && before.is_some_and(|before| before != 0) {
            self.reset = self.reset.max(Some(at));
            self.uncorrected_before = previous;
        }
        self.recovery = Some(action);
        None
    }

    /// Continues where an earlier agent ended.
    pub fn restore(&mut self, faults: &GpuFaults) {
        self.lost = faults.lost;
        self.earlier_recovery = faults.recovery_action;
        self.energy_counter = faults.energy_counter;
        self.kept_energy_counter = faults.energy_counter.map(|counter| (Monotonic::default(), counter));
    }

    /// What an agent that starts later needs to recognise a reset: the recovery action and the energy counter.
    pub fn reset_evidence(&self) -> (Option<u32>, Option<u64>) {
        (self.recovery.or(self.earlier_recovery), self.kept_energy_counter.map(|(_, counter)| counter))
    }

    /// A reload sets the driver's counts of memory errors to zero; those of `hardware` do not fall.
    pub fn apply_reload(&mut self, driver: &DriverStatus) {
        if driver.reloaded > self.applied_reload {
            self.applied_reload = driver.reloaded;
            self.uncorrected_before = self.uncorrected;
        }
    }

    /// After a release that lasts too long, the last signals are no longer valid.
    pub fn expire_release(&mut self, EvaluationContext { config, driver, now }: EvaluationContext<'_>) {
        if driver.released.is_some_and(|since| now.since(since) >= config.released_limit) {
            self.release_expired.get_or_insert(now);
        }
    }

    pub fn causes(&self, context: EvaluationContext<'_>, appeared: Monotonic) -> Vec<SignalCause> {
        use UnhealthyReason as Reason;
        let EvaluationContext { config, now, .. } = context;
        let mut causes: Vec<SignalCause> = vec![];
        if let Some(action) = self.recovery.filter(|action| *action != 0).and_then(recovery_action) {
            let detail = format!("the driver requests recovery: {}", action.replace('_', " "));
            causes.push((Reason::RecoveryAction, detail.into(), "recovers when the driver requests none"));
        }
        if self.lost {
            let detail = self.unlisted.clone().unwrap_or_else(|| LOST.into());
            causes.push((Reason::Lost, detail, "recovers when the driver lists it and it responds"));
        }
        if self.row_remap_failed {
            let detail = "a memory row could not be remapped to a spare one";
            causes.push((Reason::RowRemapFailed, detail.into(), "permanent: replace the board"));
        }
        if let Some(state) = self.fabric.filter(|_| config.fabric == FabricPolicy::Unhealthy) {
            let detail = format!("the NVLink fabric is not ready: {}", state.replace('_', " "));
            causes.push((Reason::Fabric, detail.into(), "recovers when the fabric manager has completed it"));
        }
        if config.uncorrectable_ecc == EccPolicy::Unhealthy && self.uncorrected > self.uncorrected_before {
            let detail = format!("{} uncorrectable memory errors", self.uncorrected - self.uncorrected_before);
            causes.push((Reason::Ecc, detail.into(), "recovers after a reset of the GPU or a reload of the driver"));
        }
        // A device whose first check hangs has never been known healthy.
        if self.stuck.is_some_and(|since| !self.checked || now.since(since) >= config.stuck_limit) {
            let detail = "a driver call on it does not return";
            causes.push((Reason::Stuck, detail.into(), "recovers when the call returns"));
        }
        let unknown = self.unknown(context, appeared);
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
    /// | never checked, a read was requested or the driver refused, none has succeeded, and it is not lost | until it responds |
    /// | never checked, otherwise | for `UNKNOWN_LIMIT` after it was listed |
    fn unknown(&self, context: EvaluationContext<'_>, appeared: Monotonic) -> Option<(Arc<str>, &'static str)> {
        let EvaluationContext { config, driver, now } = context;
        if self.release_expired.is_some() {
            return Some(match driver.released {
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
        if self.checked || self.stuck.is_some() {
            return None;
        }
        let is_awaited = (self.read_requested || self.refused.is_some()) && self.last_read.is_none() && !self.lost;
        let is_unknown = is_awaited || now.since(appeared) < UNKNOWN_LIMIT;
        is_unknown.then(|| ("it has not been checked yet".into(), "the first check takes seconds"))
    }
}

/// The state of a registration that a GPU needs and does not have.
///
/// The driver has a state other than `not_supported` only for a GPU on a board with NVLink switches. Until it is
/// `completed`, the driver refuses the GPU's memory manager, and CUDA fails with error 802; with an error status
/// (`failed`), CUDA starts and no other GPU can be reached. Neither needs a domain: an HGX board is registered without
/// one, and IMEX, which a rack runs for its jobs alone, is no part of the registration. So a GPU in no domain is
/// healthy, as is one without switches.
///
/// The driver does not ask for the fabric on a partitioned GPU, which has no NVLink. A GPU whose peers are `direct` has no
/// switches, whatever state is reported.
fn missing_fabric(gpu: &Gpu, fabric: &FabricState) -> Option<&'static str> {
    let peers = gpu.platform.as_ref().and_then(|platform| platform.peer_type);
    let needs_fabric = gpu.mig_enabled != Some(true) && peers != Some("direct");
    Some(fabric.state).filter(|state| needs_fabric && matches!(*state, "not_started" | "in_progress" | "failed"))
}
