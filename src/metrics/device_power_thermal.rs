//! Power, heat, clocks, and what holds the clocks back.

use super::device_identity::{DEVICE, counted_since_start, divided, named, per_device, per_device_and};
use super::device_use::medium;
use super::{Descriptor, Family, Group};
use crate::model::Snapshot;

static ENERGY: Descriptor = Descriptor::counter(
    "podmeter_device_energy_joules_total",
    DEVICE,
    "joules",
    "NVML GetTotalEnergyConsumption",
    "Energy drawn by the board.",
);
static POWER: Descriptor = Descriptor::gauge(
    "podmeter_device_power_watts",
    DEVICE,
    "watts",
    "NVML GetPowerUsage",
    "Power drawn by the board, as the driver averages it.",
);
static POWER_LIMIT: Descriptor = Descriptor::gauge(
    "podmeter_device_power_limit_watts",
    DEVICE,
    "watts",
    "NVML GetEnforcedPowerLimit",
    "Power limit in force.",
);
static TEMPERATURE: Descriptor = Descriptor::gauge(
    "podmeter_device_temperature_celsius",
    &["gpu_uuid", "gpu", "sensor"],
    "celsius",
    "NVML GetTemperature, field 82",
    "Temperature by sensor.",
);
static TEMPERATURE_MARGIN: Descriptor = Descriptor::gauge(
    "podmeter_device_temperature_margin_celsius",
    DEVICE,
    "celsius",
    "NVML GetMarginTemperature",
    "Degrees below the limit at which the GPU slows down.",
);
static CLOCK: Descriptor = Descriptor::gauge(
    "podmeter_device_clock_hertz",
    &["gpu_uuid", "gpu", "clock"],
    "hertz",
    "NVML GetClockInfo",
    "Clock frequency.",
);
static THROTTLED: Descriptor = Descriptor::counter(
    "podmeter_device_throttled_seconds_total",
    &["gpu_uuid", "gpu", "reason"],
    "seconds",
    "NVML fields 74, 76, 251-253 or 269-271",
    "Seconds in which the clocks were held back; reasons overlap, so do not sum over reason.",
);
static CLOCK_EVENT: Descriptor = Descriptor::gauge(
    "podmeter_device_clock_event_active",
    &["gpu_uuid", "gpu", "reason"],
    "",
    "NVML GetCurrentClocksEventReasons",
    "Whether a reason holds the clocks back now: one series per reason, 0 or 1.",
);
static PERFORMANCE_STATE: Descriptor = Descriptor::gauge(
    "podmeter_device_performance_state",
    DEVICE,
    "",
    "NVML GetPerformanceState",
    "Performance state, 0 (highest) to 15.",
);
static FAN_SPEED: Descriptor = Descriptor::gauge(
    "podmeter_device_fan_speed_ratio",
    &["gpu_uuid", "gpu", "fan"],
    "ratio",
    "NVML GetFanSpeed_v2",
    "Fan speed that the driver asks for, as part of the maximum.",
);

pub(super) const GROUP: Group = Group {
    section: "Device: power and heat",
    descriptors: &[
        &ENERGY,
        &POWER,
        &POWER_LIMIT,
        &TEMPERATURE,
        &TEMPERATURE_MARGIN,
        &CLOCK,
        &THROTTLED,
        &CLOCK_EVENT,
        &PERFORMANCE_STATE,
        &FAN_SPEED,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let energy = divided(snapshot, &ENERGY, |divided| divided.energy_joules);
    vec![
        counted_since_start(energy, snapshot),
        per_device(snapshot, &POWER, |readings| readings.fast.as_ref()?.value.power_watts),
        per_device(snapshot, &POWER_LIMIT, |readings| medium(readings)?.power_limit_watts),
        per_device_and(snapshot, &TEMPERATURE, "sensor", |readings| {
            let Some(medium) = medium(readings) else { return Vec::new() };
            vec![("gpu".into(), medium.gpu_temperature_celsius), ("memory".into(), medium.memory_temperature_celsius)]
        }),
        per_device(snapshot, &TEMPERATURE_MARGIN, |readings| medium(readings)?.temperature_margin_celsius),
        per_device_and(snapshot, &CLOCK, "clock", |readings| {
            let Some(clocks) = medium(readings).map(|medium| &medium.clocks) else { return Vec::new() };
            vec![
                ("sm".into(), clocks.sm_hertz),
                ("memory".into(), clocks.memory_hertz),
                ("graphics".into(), clocks.graphics_hertz),
                ("video".into(), clocks.video_hertz),
            ]
        }),
        per_device_and(snapshot, &THROTTLED, "reason", |readings| {
            medium(readings).map_or_else(Vec::new, |medium| named(&medium.throttled_seconds))
        }),
        per_device_and(snapshot, &CLOCK_EVENT, "reason", |readings| {
            medium(readings).map_or_else(Vec::new, |medium| named(&medium.clock_events))
        }),
        per_device(snapshot, &PERFORMANCE_STATE, |readings| medium(readings)?.performance_state),
        per_device_and(snapshot, &FAN_SPEED, "fan", |readings| {
            let speeds = medium(readings).map_or(&[][..], |medium| &medium.fan_speed_ratios);
            speeds.iter().zip(0u32..).map(|(speed, fan)| (fan.into(), Some(*speed))).collect()
        }),
    ]
}
