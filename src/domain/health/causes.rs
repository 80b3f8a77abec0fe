//! The causes of one device: a cause is current, or has ended and is held down.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::{HealthConfig, Recovery};
use super::signals::GpuSignals;
use super::{DriverStatus, EvaluationContext};
use crate::domain::model::{HealthCause, Monotonic, UnhealthyReason};

/// A reason, and the code of an XID, else 0.
pub type CauseKey = (UnhealthyReason, u32);

/// The causes of one device now, each with its detail and what clears it.
pub type CurrentCauses = BTreeMap<CauseKey, (Arc<str>, &'static str)>;

/// One cause of a device.
#[derive(Debug)]
pub struct CauseState {
    pub detail: Arc<str>,
    pub clears: &'static str,
    /// When it ended; it then stays for the hold-down. `None`: it is current, or restored and not evaluated yet.
    pub ended: Option<Monotonic>,
}

impl CauseState {
    pub fn cause(&self, (reason, _): CauseKey, config: &HealthConfig) -> HealthCause {
        let clears = if self.ended.is_some() { after_the_fault(config) } else { self.clears.into() };
        HealthCause { reason, detail: Arc::clone(&self.detail), clears }
    }
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
pub fn is_held_down(reason: UnhealthyReason) -> bool {
    !matches!(reason, UnhealthyReason::Admin | UnhealthyReason::Unknown)
}

/// Whether no hold-down ends for now.
pub fn holds_indefinitely(config: &HealthConfig, driver: &DriverStatus) -> bool {
    config.recovery == Recovery::Manual || driver.released_since.is_some()
}

/// Updates `causes` to `current`: a cause that is not current has ended, and is removed after the hold-down. One of an
/// earlier agent does not end before its value was read.
pub fn update_causes(
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
