//! The signals of a GPU that come with the slow tier of readings, and those of them that make it unhealthy.

use super::config::{EccPolicy, FabricPolicy, HealthConfig};
use super::signals::SignalCause;
use crate::domain::model::{FabricState, Gpu, Slow, UnhealthyReason, recovery_action};

/// The values of the slow tier. Each holds until another one is read, whether or not the GPU responds.
#[derive(Debug, Default)]
pub struct SlowSignals {
    recovery_action: Option<u32>,
    /// The last one of an earlier agent: it counts until this agent has read one.
    earlier_recovery_action: Option<u32>,
    row_remap_failed: Option<bool>,
    fabric_was_read: bool,
    missing_fabric: Option<&'static str>,
    /// Uncorrectable memory errors.
    uncorrected: Option<u64>,
    /// The memory errors at the last reset, probable or certain, or reload, 0 at the start: only later ones are a cause.
    uncorrected_at_reset: u64,
}

impl SlowSignals {
    /// Continues where an earlier agent ended.
    pub fn restore(&mut self, recovery_action: Option<u32>) {
        self.earlier_recovery_action = recovery_action;
    }

    /// Whether the driver stopped requesting recovery: the GPU was probably reset. The memory errors of a later reading
    /// are applied after it, by `apply_memory_errors`.
    pub fn apply(&mut self, listed: &Gpu, slow: &Slow) -> bool {
        if let Some(remap) = slow.row_remap {
            self.row_remap_failed = Some(remap.failed);
        }
        if let Some(fabric) = &slow.fabric {
            self.fabric_was_read = true;
            self.missing_fabric = missing_fabric(listed, fabric);
        }
        let Some(action) = slow.recovery_action.filter(|action| recovery_action(*action).is_some()) else {
            return false;
        };
        let before = self.last_recovery_action();
        self.recovery_action = Some(action);
        action == 0 && before.is_some_and(|before| before != 0)
    }

    pub fn apply_memory_errors(&mut self, slow: &Slow) {
        let uncorrected = slow.ecc.iter().filter_map(|location| location.uncorrected);
        self.uncorrected = uncorrected.reduce(u64::saturating_add).or(self.uncorrected);
    }

    /// A reset or reload sets the driver's counts to zero; those in the readings do not fall (`hardware`).
    pub fn exclude_past_memory_errors(&mut self) {
        self.uncorrected_at_reset = self.uncorrected.unwrap_or(0);
    }

    /// The last recovery action that is known, of an earlier agent too.
    pub fn last_recovery_action(&self) -> Option<u32> {
        self.recovery_action.or(self.earlier_recovery_action)
    }

    pub fn needs_recovery(&self) -> bool {
        self.recovery_action.is_some_and(|action| action != 0)
    }

    /// Whether the value that decides this reason, if there is one, was read since podmeter started.
    pub fn was_read(&self, reason: UnhealthyReason) -> bool {
        match reason {
            UnhealthyReason::RecoveryAction => self.recovery_action.is_some(),
            UnhealthyReason::RowRemapFailed => self.row_remap_failed.is_some(),
            UnhealthyReason::Fabric => self.fabric_was_read,
            UnhealthyReason::Ecc => self.uncorrected.is_some(),
            _ => true,
        }
    }

    pub fn causes(&self, config: &HealthConfig) -> Vec<SignalCause> {
        use UnhealthyReason as Reason;
        let mut causes: Vec<SignalCause> = vec![];
        if let Some(action) = self.recovery_action.filter(|action| *action != 0).and_then(recovery_action) {
            let detail = format!("the driver requests recovery: {}", action.replace('_', " "));
            causes.push((Reason::RecoveryAction, detail.into(), "recovers when the driver requests none"));
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
        causes
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
