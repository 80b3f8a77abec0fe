//! Power, heat, clocks, and what slows the clocks down.

use std::sync::LazyLock;

use super::device_use::divided;
use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, medium};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Device: power and heat",
    labels: DEVICE,
    source: "NVML",
    metrics: vec![
        counter("podmeter_device_energy_joules_total")
            .help("Energy drawn by the board.")
            .source("NVML GetTotalEnergyConsumption")
            .each(divided, |divided| divided.energy_joules),
        gauge("podmeter_device_power_watts")
            .help("Power drawn by the board, averaged by the driver.")
            .source("NVML GetPowerUsage, or fields 185 and 186 with GPU scope on a superchip")
            .each(devices, |readings| readings.fast.as_ref()?.value.power_watts),
        gauge("podmeter_device_power_limit_watts")
            .help("Enforced power limit.")
            .source("NVML GetEnforcedPowerLimit")
            .each(devices, |readings| medium(readings)?.power_limit_watts),
        gauge("podmeter_device_temperature_celsius")
            .help("Temperature by sensor.")
            .source("NVML GetTemperature, field 82")
            .by("sensor", devices, |readings| {
                let medium = medium(readings)?;
                Some([("gpu", medium.gpu_temperature_celsius), ("memory", medium.memory_temperature_celsius)])
            }),
        gauge("podmeter_device_temperature_margin_celsius")
            .help("Degrees below the limit at which the GPU slows down.")
            .source("NVML GetMarginTemperature")
            .each(devices, |readings| medium(readings)?.temperature_margin_celsius),
        gauge("podmeter_device_clock_hertz").help("Clock frequency.").source("NVML GetClockInfo").by(
            "clock",
            devices,
            |readings| {
                let clocks = &medium(readings)?.clocks;
                Some([
                    ("sm", clocks.sm_hertz),
                    ("memory", clocks.memory_hertz),
                    ("graphics", clocks.graphics_hertz),
                    ("video", clocks.video_hertz),
                ])
            },
        ),
        counter("podmeter_device_throttled_seconds_total")
            .help("Seconds in which the clocks were throttled; reasons overlap.")
            .source("NVML fields 74, 76, 251-253 (from driver 575 on) or 269-271 (580.82)")
            .by_key("reason", devices, |readings| Some(&medium(readings)?.throttled_seconds)),
        gauge("podmeter_device_clock_event_active")
            .help("Whether a reason limits the clocks now: one series per reason.")
            .source("NVML GetCurrentClocksEventReasons")
            .by_key("reason", devices, |readings| Some(&medium(readings)?.clock_events)),
        gauge("podmeter_device_performance_state")
            .help("Performance state, 0 (highest) to 15.")
            .source("NVML GetPerformanceState")
            .each(devices, |readings| medium(readings)?.performance_state),
        gauge("podmeter_device_fan_speed_ratio")
            .help("Fan speed that the driver requests, as a fraction of the maximum.")
            .source("NVML GetFanSpeed_v2")
            .by("fan", devices, |readings| {
                Some((0u32..).zip(medium(readings)?.fan_speed_ratios.clone().into_iter().map(Some)))
            }),
    ],
});
