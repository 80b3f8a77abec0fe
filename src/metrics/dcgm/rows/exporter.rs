//! What dcgm-exporter computes itself.

use super::super::name::{Name, Shipped, Unit, same, unchanged};
use crate::metrics::labels::{Labels, medium, with_health, with_readings};
use crate::model::{RecentCount, UnhealthyReason};

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

pub static ROWS: &[Name] = &[
    unchanged(
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        Unit::Number,
        "Readings of the last five minutes, ten seconds apart, in which the reason limited the clocks.",
    )
    .shipped(Shipped::Commented)
    .native(
        same("podmeter_device_clock_event_active", &[]).unproven("0 or 1 per reason, with NVML's names, not a count"),
    )
    .values(|page, series| {
        for (gpu, readings) in with_readings(page.snapshot) {
            let samples = medium(readings).map(|medium| &medium.clock_event_samples);
            let Some(samples) = samples.filter(|samples| !samples.is_empty()) else { continue };
            let named = CLOCK_EVENTS.iter().filter_map(|(reason, event)| Some((*event, *samples.get(reason)?)));
            let active: Vec<_> = named.filter(|(_, count)| *count > 0).collect();
            if active.is_empty() {
                page.gpu_and(series, gpu, &window(), 0.0);
            }
            for (event, count) in active {
                page.gpu_and(series, gpu, &Labels::of("clock_event", event).and_all(&window()), count as f64);
            }
        }
    }),
    unchanged("DCGM_EXP_CLOCK_EVENTS_TOTAL", Unit::Number, "How often a reason began to limit the clocks.")
        .counter()
        .shipped(Shipped::Commented)
        .native(
            same("podmeter_device_clock_event_active", &[])
                .unproven("0 or 1 per reason, with NVML's names, not a count"),
        )
        .values(|page, series| {
            for (gpu, readings) in with_readings(page.snapshot) {
                let Some(starts) = medium(readings).map(|medium| &medium.clock_event_starts) else { continue };
                for (reason, event) in CLOCK_EVENTS {
                    if let Some(count) = starts.get(reason) {
                        page.gpu_and(series, gpu, &Labels::of("clock_event", event), *count as f64);
                    }
                }
            }
        }),
    unchanged("DCGM_EXP_XID_ERRORS_COUNT", Unit::Number, "XIDs of the last five minutes, by code.")
        .shipped(Shipped::Commented)
        .native(
            same("podmeter_xid_errors_total", &[])
                .unproven("a counter, by class: increase(…[5m]); podmeter_container_xid_errors_total has the code"),
        )
        .values(|page, series| {
            let now = page.snapshot.at.monotonic;
            for (gpu, health) in with_health(page.snapshot) {
                let counts = health.xids.by_code.iter().map(|(code, count)| (*code, count.recent.at(now)));
                let recent: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
                if recent.is_empty() {
                    page.gpu_and(series, gpu, &window(), 0.0);
                }
                for (code, count) in recent {
                    page.gpu_and(series, gpu, &window().and("xid", code), count as f64);
                }
            }
        }),
    unchanged("DCGM_EXP_XID_ERRORS_TOTAL", Unit::Number, "XIDs since podmeter started, by code.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_xid_errors_total", &[]).unproven("by class, not by code"))
        .values(|page, series| {
            for (gpu, health) in with_health(page.snapshot) {
                for (code, count) in &health.xids.by_code {
                    page.gpu_and(series, gpu, &Labels::of("xid", *code), count.total as f64);
                }
            }
        }),
    unchanged("DCGM_EXP_P2P_STATUS", Unit::Number, "NVLink status between two GPUs.")
        .shipped(Shipped::Commented)
        .not_served_because("the call opens both GPUs, and one that hangs would stop the readings of the others")
        .no_native("none"),
    unchanged(
        "DCGM_EXP_GPU_HEALTH_STATUS",
        Unit::Number,
        "Health by area, as podmeter reports it to the kubelet: 0 healthy, 20 unhealthy.",
    )
    .shipped(Shipped::Commented)
    .native(
        same("podmeter_device_healthy", &[])
            .unproven("1 is healthy; the areas are in podmeter_device_unhealthy_reason"),
    )
    .values(|page, series| {
        for (gpu, health) in with_health(page.snapshot) {
            let causes: Vec<_> =
                health.devices().flat_map(|device| &device.causes).map(|cause| area(cause.reason)).collect();
            for watch in WATCHES {
                let code = causes.iter().find(|(area, _)| *area == watch).map(|(_, code)| *code);
                let labels = Labels::of("health_watch", watch).and("health_error_code", code.unwrap_or("DCGM_FR_OK"));
                page.gpu_and(series, gpu, &labels, if code.is_some() { FAILED } else { 0.0 });
            }
        }
    }),
];

/// The window of a count.
fn window() -> Labels {
    Labels::of("window_size_in_ms", RecentCount::WINDOW.as_millis().to_string())
}

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
