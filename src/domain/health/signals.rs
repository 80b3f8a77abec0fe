//! What the hardware last reported of one GPU, and which of it makes the GPU unhealthy.

use std::sync::Arc;
use std::time::Duration;

use super::config::HealthConfig;
use super::faults::GpuFaults;
use super::slow_signals::SlowSignals;
use super::{DriverStatus, EvaluationContext, UNKNOWN_LIMIT};
use crate::domain::model::{DeviceReadings, Gpu, HardwareState, Monotonic, UnhealthyReason, recovery_action};

const NOT_ENUMERATED: &str = "the driver no longer lists it";
const LOST: &str = "the driver reports that it is lost or needs a reset";
const UNRESPONSIVE: &str = "it has not responded since the driver was opened again";

/// How old the energy counter in the faults may be: the file of faults is written when they change.
const ENERGY_COUNTER_AGE: Duration = Duration::from_secs(60);

/// Reason, detail, and what clears it.
pub type SignalCause = (UnhealthyReason, Arc<str>, &'static str);

/// The last known signals, by how long they hold. The GPU responds when any tier of it is read.
#[derive(Debug, Default)]
pub struct GpuSignals {
    /// Since when a call on it has not returned, by the last readings.
    stuck_since: Option<Monotonic>,
    reads: Reads,
    outage: Outage,
    slow: SlowSignals,
    resets: ResetEvidence,
}

/// What was read since podmeter started. No value is taken back.
#[derive(Debug, Default)]
struct Reads {
    /// A pass over it was under way once.
    requested: bool,
    /// The slow tier, which has most signals, was read once.
    checked: bool,
    /// When it last responded.
    responded_at: Option<Monotonic>,
}

/// Why the GPU cannot be read. Each value holds until the GPU responds.
#[derive(Debug, Default)]
struct Outage {
    /// The driver does not list it or reports it as lost.
    lost: bool,
    /// Why it is lost, where that is because the driver does not list it.
    not_enumerated: Option<Arc<str>>,
    /// Since when there are no readings because the driver cannot be opened, or this process cannot read the GPU, and
    /// why. Also ends where the driver is open and reports that it is lost.
    refused: Option<(Monotonic, Arc<str>)>,
    /// When a release had lasted for too long.
    release_expired_at: Option<Monotonic>,
}

/// When the GPU was reset. A time holds until a later one is known.
#[derive(Debug, Default)]
struct ResetEvidence {
    energy_counter: Option<u64>,
    /// The energy counter in the faults, and when it was updated.
    saved_energy_counter: Option<(Monotonic, u64)>,
    /// When a fall of its energy counter was last confirmed, by a second reading that continues from it: it was certainly
    /// reset, or the driver reloaded, a pass or two before.
    counter_fell_at: Option<Monotonic>,
    /// When it last stopped being lost or needing a recovery action.
    probably_reset_at: Option<Monotonic>,
    /// The last reload of the driver after which past memory errors were excluded.
    applied_reload: Option<Monotonic>,
}

impl Outage {
    fn apply_problem(&mut self, responded: bool, problem: Option<&Arc<str>>, lost: bool, now: Monotonic) {
        self.refused = match (responded, problem, self.refused.take()) {
            (true, ..) => None,
            (false, Some(problem), before) => Some((before.map_or(now, |(since, _)| since), Arc::clone(problem))),
            // The driver is open again, but this GPU has not responded yet. One that is lost is not refused.
            (false, None, before) => before.filter(|_| !lost).map(|(since, _)| (since, UNRESPONSIVE.into())),
        };
    }
}

impl ResetEvidence {
    /// Whether the counter fell.
    fn apply_energy_counter(&mut self, counter: u64, read_at: Monotonic, now: Monotonic) -> bool {
        let fell = self.energy_counter.replace(counter).is_some_and(|before| counter < before);
        if fell {
            self.counter_fell_at = Some(read_at);
        }
        if fell || self.saved_energy_counter.is_none_or(|(at, _)| now.since(at) >= ENERGY_COUNTER_AGE) {
            self.saved_energy_counter = Some((now, counter));
        }
        fell
    }
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
            if self.outage.lost && !lost {
                self.apply_probable_reset(responded_at);
            }
            let missing = hardware.inventory.missing.get(&listed.uuid).map(|missing| Arc::clone(&missing.detail));
            self.outage.not_enumerated = missing.or_else(|| readings.not_enumerated.then(|| NOT_ENUMERATED.into()));
            self.outage.lost = lost;
        }
        if let Some(counter) = readings.energy_counter
            && self.resets.apply_energy_counter(counter, responded_at.unwrap_or(now), now)
        {
            self.slow.exclude_past_memory_errors();
        }
        self.reads.requested |= readings.pass_began.is_some();
        self.reads.responded_at = self.reads.responded_at.max(responded_at);
        self.stuck_since = readings.stuck.then(|| self.stuck_since.unwrap_or(now));
        let problem = readings.problem.as_ref().or(hardware.problem.as_ref());
        self.outage.apply_problem(responded_at.is_some(), problem, lost, now);
        if responded_at > self.outage.release_expired_at {
            self.outage.release_expired_at = None;
        }
        let slow = readings.slow.as_ref()?;
        self.reads.checked = true;
        if self.slow.apply(listed, &slow.value) {
            self.apply_probable_reset(Some(slow.at));
        }
        // After the reset: errors in the same reading may have come after it.
        self.slow.apply_memory_errors(&slow.value);
        slow.value.recovery_action.filter(|action| recovery_action(*action).is_none())
    }

    fn apply_probable_reset(&mut self, at: Option<Monotonic>) {
        self.resets.probably_reset_at = self.resets.probably_reset_at.max(at);
        self.slow.exclude_past_memory_errors();
    }

    pub fn apply_reload(&mut self, driver: &DriverStatus) {
        if driver.reloaded_at > self.resets.applied_reload {
            self.resets.applied_reload = driver.reloaded_at;
            self.slow.exclude_past_memory_errors();
        }
    }

    /// Continues where an earlier agent ended.
    pub fn restore(&mut self, faults: &GpuFaults) {
        self.outage.lost = faults.lost;
        self.slow.restore(faults.recovery_action);
        self.resets.energy_counter = faults.energy_counter;
        self.resets.saved_energy_counter = faults.energy_counter.map(|counter| (Monotonic::default(), counter));
    }

    /// What an agent that starts later continues with.
    pub fn faults(&self) -> GpuFaults {
        GpuFaults {
            lost: self.outage.lost,
            recovery_action: self.slow.last_recovery_action(),
            energy_counter: self.resets.saved_energy_counter.map(|(_, counter)| counter),
            ..GpuFaults::default()
        }
    }

    /// After a release that lasts too long, the last signals are no longer valid.
    pub fn expire_release(&mut self, EvaluationContext { config, driver, now }: EvaluationContext<'_>) {
        let now = now.monotonic;
        if driver.released_since.is_some_and(|since| now.since(since) >= config.released_limit) {
            self.outage.release_expired_at.get_or_insert(now);
        }
    }

    /// Whether it is not known to work since a reset: XIDs are not cleared then.
    pub fn awaits_recovery(&self) -> bool {
        self.slow.needs_recovery() || self.outage.lost || self.stuck_since.is_some()
    }

    /// The last restart, or with `restart_only` unset also the last reset, if it has responded since.
    pub fn recovered_at(&self, restart_only: bool, driver: &DriverStatus) -> Option<Monotonic> {
        let restarted_at = driver.reloaded_at.max(self.resets.counter_fell_at);
        let at = if restart_only { restarted_at } else { restarted_at.max(self.resets.probably_reset_at) };
        at.filter(|at| self.reads.responded_at >= Some(*at))
    }

    /// When a limit may end without new readings.
    pub fn deadlines(&self, config: &HealthConfig, first_listed: Option<Monotonic>) -> impl Iterator<Item = Monotonic> {
        let unknown = first_listed.filter(|_| !self.reads.checked).map(|listed| listed + UNKNOWN_LIMIT);
        let refused_since = self.outage.refused.as_ref().map(|(since, _)| *since);
        let calls = [self.stuck_since, refused_since].map(|since| Some(since? + config.stuck_limit));
        calls.into_iter().chain([unknown]).flatten()
    }

    /// Whether the value of the slow tier that decides this reason, if there is one, was read since podmeter started.
    pub fn was_read(&self, reason: UnhealthyReason) -> bool {
        self.slow.was_read(reason)
    }

    pub fn causes(&self, context: EvaluationContext<'_>, first_listed: Monotonic) -> Vec<SignalCause> {
        use UnhealthyReason as Reason;
        let (config, now) = (context.config, context.now_or_release());
        let mut causes = self.slow.causes(config);
        if self.outage.lost {
            let detail = self.outage.not_enumerated.clone().unwrap_or_else(|| LOST.into());
            causes.push((Reason::Lost, detail, "recovers when the driver lists it and it responds"));
        }
        // A device whose first check hangs has never been known healthy.
        if self.stuck_since.is_some_and(|since| !self.reads.checked || now.since(since) >= config.stuck_limit) {
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
        if self.outage.release_expired_at.is_some() {
            return Some(match driver.released_since {
                Some(_) => (
                    "the GPUs have been released for too long".into(),
                    "recovers when the driver is resumed and the GPU responds",
                ),
                None => ("it has not responded since the GPUs were released".into(), "recovers when the GPU responds"),
            });
        }
        if let Some((since, why)) = &self.outage.refused
            && now.since(*since) >= config.stuck_limit
        {
            return Some((Arc::clone(why), "recovers when the driver responds"));
        }
        if self.reads.checked || self.stuck_since.is_some() {
            return None;
        }
        let awaits_response = (self.reads.requested || self.outage.refused.is_some())
            && self.reads.responded_at.is_none()
            && !self.outage.lost;
        let is_unknown = awaits_response || now.since(first_listed) < UNKNOWN_LIMIT;
        is_unknown.then(|| ("it has not been checked yet".into(), "the first check takes seconds"))
    }
}
