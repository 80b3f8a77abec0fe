//! Power, heat, clocks, and what slows the clocks down.

use super::device_use::divided;
use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, medium, named};

pub(super) static GROUP: Group = Group {
    section: "Device: power and heat",
    labels: DEVICE,
    source: "NVML",
    metrics: &[
        counter("podmeter_device_energy_joules_total", "Energy drawn by the board.", |snapshot, family| {
            divided(snapshot, family, |divided| divided.energy_joules);
        })
        .source("NVML GetTotalEnergyConsumption"),
        gauge(
            "podmeter_device_power_watts",
            "Power drawn by the board, averaged by the driver.",
            |snapshot, family| family.each(devices(snapshot), |readings| readings.fast.as_ref()?.value.power_watts),
        )
        .source("NVML GetPowerUsage, or fields 185 and 186 with GPU scope on a superchip"),
        gauge("podmeter_device_power_limit_watts", "Enforced power limit.", |snapshot, family| {
            family.each(devices(snapshot), |readings| medium(readings)?.power_limit_watts);
        })
        .source("NVML GetEnforcedPowerLimit"),
        gauge("podmeter_device_temperature_celsius", "Temperature by sensor.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| {
                let medium = medium(readings)?;
                Some([("gpu", medium.gpu_temperature_celsius), ("memory", medium.memory_temperature_celsius)])
            });
        })
        .labels("gpu_uuid gpu sensor")
        .source("NVML GetTemperature, field 82"),
        gauge(
            "podmeter_device_temperature_margin_celsius",
            "Degrees below the limit at which the GPU slows down.",
            |snapshot, family| family.each(devices(snapshot), |readings| medium(readings)?.temperature_margin_celsius),
        )
        .source("NVML GetMarginTemperature"),
        gauge("podmeter_device_clock_hertz", "Clock frequency.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| {
                let clocks = &medium(readings)?.clocks;
                Some([
                    ("sm", clocks.sm_hertz),
                    ("memory", clocks.memory_hertz),
                    ("graphics", clocks.graphics_hertz),
                    ("video", clocks.video_hertz),
                ])
            });
        })
        .labels("gpu_uuid gpu clock")
        .source("NVML GetClockInfo"),
        counter(
            "podmeter_device_throttled_seconds_total",
            "Seconds in which the clocks were throttled; reasons overlap.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some(named(&medium(readings)?.throttled_seconds)));
            },
        )
        .labels("gpu_uuid gpu reason")
        .source("NVML fields 74, 76, 251-253 (from driver 575 on) or 269-271 (580.82)"),
        gauge(
            "podmeter_device_clock_event_active",
            "Whether a reason limits the clocks now: one series per reason.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some(named(&medium(readings)?.clock_events)));
            },
        )
        .labels("gpu_uuid gpu reason")
        .source("NVML GetCurrentClocksEventReasons"),
        gauge("podmeter_device_performance_state", "Performance state, 0 (highest) to 15.", |snapshot, family| {
            family.each(devices(snapshot), |readings| medium(readings)?.performance_state);
        })
        .source("NVML GetPerformanceState"),
        gauge(
            "podmeter_device_fan_speed_ratio",
            "Fan speed that the driver requests, as a fraction of the maximum.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| {
                    Some((0u32..).zip(medium(readings)?.fan_speed_ratios.iter().copied().map(Some)))
                });
            },
        )
        .labels("gpu_uuid gpu fan")
        .source("NVML GetFanSpeed_v2"),
    ],
};
