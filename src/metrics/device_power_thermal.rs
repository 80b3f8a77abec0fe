//! Power, heat, clocks, and what slows the clocks down.

use super::device_use::divided;
use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, medium, named, per_device, per_device_and};

pub(super) static GROUP: Group = Group {
    section: "Device: power and heat",
    metrics: &[
        counter(
            "podmeter_device_energy_joules_total",
            DEVICE,
            "NVML GetTotalEnergyConsumption",
            "Energy drawn by the board.",
            |snapshot, family| divided(snapshot, family, |divided| divided.energy_joules),
        ),
        gauge(
            "podmeter_device_power_watts",
            DEVICE,
            "NVML GetPowerUsage, or fields 185 and 186 with GPU scope on a superchip",
            "Power drawn by the board, averaged by the driver.",
            |snapshot, family| per_device(snapshot, family, |readings| readings.fast.as_ref()?.value.power_watts),
        ),
        gauge(
            "podmeter_device_power_limit_watts",
            DEVICE,
            "NVML GetEnforcedPowerLimit",
            "Enforced power limit.",
            |snapshot, family| per_device(snapshot, family, |readings| medium(readings)?.power_limit_watts),
        ),
        gauge(
            "podmeter_device_temperature_celsius",
            &["gpu_uuid", "gpu", "sensor"],
            "NVML GetTemperature, field 82",
            "Temperature by sensor.",
            |snapshot, family| {
                per_device_and(snapshot, family, "sensor", |readings| {
                    let medium = medium(readings)?;
                    Some([("gpu", medium.gpu_temperature_celsius), ("memory", medium.memory_temperature_celsius)])
                });
            },
        ),
        gauge(
            "podmeter_device_temperature_margin_celsius",
            DEVICE,
            "NVML GetMarginTemperature",
            "Degrees below the limit at which the GPU slows down.",
            |snapshot, family| per_device(snapshot, family, |readings| medium(readings)?.temperature_margin_celsius),
        ),
        gauge(
            "podmeter_device_clock_hertz",
            &["gpu_uuid", "gpu", "clock"],
            "NVML GetClockInfo",
            "Clock frequency.",
            |snapshot, family| {
                per_device_and(snapshot, family, "clock", |readings| {
                    let clocks = &medium(readings)?.clocks;
                    Some([
                        ("sm", clocks.sm_hertz),
                        ("memory", clocks.memory_hertz),
                        ("graphics", clocks.graphics_hertz),
                        ("video", clocks.video_hertz),
                    ])
                });
            },
        ),
        counter(
            "podmeter_device_throttled_seconds_total",
            &["gpu_uuid", "gpu", "reason"],
            "NVML fields 74, 76, 251-253 or 269-271",
            "Seconds in which the clocks were throttled; reasons overlap, so do not sum over reason.",
            |snapshot, family| {
                per_device_and(snapshot, family, "reason", |readings| {
                    Some(named(&medium(readings)?.throttled_seconds))
                });
            },
        ),
        gauge(
            "podmeter_device_clock_event_active",
            &["gpu_uuid", "gpu", "reason"],
            "NVML GetCurrentClocksEventReasons",
            "Whether a reason limits the clocks now: one series per reason, 0 or 1.",
            |snapshot, family| {
                per_device_and(snapshot, family, "reason", |readings| Some(named(&medium(readings)?.clock_events)));
            },
        ),
        gauge(
            "podmeter_device_performance_state",
            DEVICE,
            "NVML GetPerformanceState",
            "Performance state, 0 (highest) to 15.",
            |snapshot, family| per_device(snapshot, family, |readings| medium(readings)?.performance_state),
        ),
        gauge(
            "podmeter_device_fan_speed_ratio",
            &["gpu_uuid", "gpu", "fan"],
            "NVML GetFanSpeed_v2",
            "Fan speed that the driver requests, as a fraction of the maximum.",
            |snapshot, family| {
                per_device_and(snapshot, family, "fan", |readings| {
                    Some((0u32..).zip(medium(readings)?.fan_speed_ratios.iter().copied().map(Some)))
                });
            },
        ),
    ],
};
