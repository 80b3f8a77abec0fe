//! What dcgm-exporter computes itself.

use super::super::name::{Name, Shipped, Unit, same, unchanged};
use crate::metrics::labels::{Labels, with_health};
use crate::model::UnhealthyReason;

/// NVML's names, and those of dcgm-exporter, in the order of their bits.
pub(super) const CLOCK_EVENTS: [(&str, &str); 9] = [
    ("idle", "gpu_idle"),
    ("applications_clocks_setting", "clocks_setting"),
    ("sw_power_cap", "power_cap"),
    ("hw_slowdown", "hw_slowdown"),
    ("sync_boost", "sync_boost"),
    ("sw_thermal_slowdown", "sw_thermal"),
    ("hw_thermal_slowdown", "hw_thermal"),
    ("hw_power_brake_slowdown", "hw_power_brake"),
    ("display_clock_setting", "display_clocks"),
];

/// What podmeter's health state covers, by the name of DCGM's health watch.
const WATCHES: [&str; 4] = ["NVLINK", "MEM", "DRIVER", "ALL"];
const FAILED: f64 = 20.0;

pub static ROWS: &[Name] = &[unchanged(
    "DCGM_EXP_GPU_HEALTH_STATUS",
    Unit::Number,
    "Health by area, as podmeter reports it to the kubelet: 0 healthy, 20 unhealthy.",
)
.shipped(Shipped::Commented)
.native(
    same("podmeter_device_healthy", &[]).unproven("1 is healthy; the areas are in podmeter_device_unhealthy_reason"),
)
.values(|page, series| {
    for (gpu, health) in with_health(page.snapshot) {
        let causes: Vec<_> =
            health.devices().flat_map(|device| &device.causes).map(|cause| area(cause.reason)).collect();
        for watch in WATCHES {
            let code = causes.iter().find(|(area, _)| *area == watch).map(|(_, code)| *code);
            let labels = Labels::of("health_watch", watch).and("health_error_code", code.unwrap_or("DCGM_FR_OK"));
            page.gpu_and(series, gpu, labels, if code.is_some() { FAILED } else { 0.0 });
        }
    }
})];

/// DCGM's health watch, and its error code for it.
const fn area(reason: UnhealthyReason) -> (&'static str, &'static str) {
    match reason {
        UnhealthyReason::Xid => ("ALL", "DCGM_FR_XID_ERROR"),
        UnhealthyReason::Lost => ("ALL", "DCGM_FR_FALLEN_OFF_BUS"),
        UnhealthyReason::RowRemapFailed => ("MEM", "DCGM_FR_ROW_REMAP_FAILURE"),
        UnhealthyReason::Ecc => ("MEM", "DCGM_FR_VOLATILE_DBE_DETECTED"),
        UnhealthyReason::Fabric => ("NVLINK", "DCGM_FR_FABRIC_PROBE_STATE"),
        UnhealthyReason::Stuck => ("DRIVER", "DCGM_FR_NVML_API"),
        UnhealthyReason::RecoveryAction | UnhealthyReason::Admin | UnhealthyReason::Unknown => {
            ("ALL", "DCGM_FR_UNKNOWN")
        }
    }
}
