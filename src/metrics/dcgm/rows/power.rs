//! Power, heat, clocks, and what slows the clocks down.

use super::super::name::{Name, Shipped, Unit, renamed, same, scaled};
use super::exporter::CLOCK_EVENTS;
use crate::metrics::labels::medium;

const THERMAL: &str = "by cause: sw_thermal_slowdown, hw_thermal_slowdown";

pub static ROWS: &[Name] = &[
    renamed("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", Unit::Watts, "Power draw (W).")
        .native(same("podmeter_device_power_watts", &[]))
        .values(|page, series| page.gpus(series, |readings| readings.fast.as_ref()?.value.power_watts)),
    scaled(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
        Unit::Millijoules,
        ["Energy drawn since podmeter first read the GPU (mJ).", "Energy drawn since podmeter first read the GPU (J)."],
    )
    .counter()
    .native(same("podmeter_device_energy_joules_total", &[]).but("since podmeter first read the GPU").by_container(
        "podmeter_container_energy_joules_total",
        "on a shared GPU it is the container's share; it starts with the allocation",
    ))
    .values(|page, series| page.gpus(series, |readings| readings.totals.energy_joules)),
    renamed(
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS",
        Unit::Watts,
        "Power limit that was set (W).",
    )
    .shipped(Shipped::Commented)
    .no_native("the limit in force: podmeter_device_power_limit_watts")
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.power_limit_requested_watts)),
    renamed(
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS",
        Unit::Watts,
        "Power limit in force (W).",
    )
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_power_limit_watts", &[]))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.power_limit_watts)),
    renamed("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", Unit::Celsius, "GPU temperature (°C).")
        .native(same("podmeter_device_temperature_celsius", &[("sensor", "gpu")]))
        .values(|page, series| page.gpus(series, |readings| medium(readings)?.gpu_temperature_celsius)),
    renamed("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", Unit::Celsius, "Memory temperature (°C).")
        .native(same("podmeter_device_temperature_celsius", &[("sensor", "memory")]))
        .values(|page, series| page.gpus(series, |readings| medium(readings)?.memory_temperature_celsius)),
    renamed(
        "DCGM_FI_DEV_GPU_TEMP_LIMIT",
        "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS",
        Unit::Celsius,
        "Degrees below the limit at which the GPU slows down (°C).",
    )
    .shipped(Shipped::Custom)
    .native(same("podmeter_device_temperature_margin_celsius", &[]))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.temperature_margin_celsius)),
    scaled(
        "DCGM_FI_DEV_SM_CLOCK",
        "DCGM_FI_DEV_SM_CLOCK_HERTZ",
        Unit::Megahertz,
        ["SM clock (MHz).", "SM clock (Hz)."],
    )
    .native(same("podmeter_device_clock_hertz", &[("clock", "sm")]))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.clocks.sm_hertz)),
    scaled(
        "DCGM_FI_DEV_MEM_CLOCK",
        "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ",
        Unit::Megahertz,
        ["Memory clock (MHz).", "Memory clock (Hz)."],
    )
    .native(same("podmeter_device_clock_hertz", &[("clock", "memory")]))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.clocks.memory_hertz)),
    scaled(
        "DCGM_FI_DEV_VIDEO_CLOCK",
        "DCGM_FI_DEV_VIDEO_CLOCK_HERTZ",
        Unit::Megahertz,
        ["Video clock (MHz).", "Video clock (Hz)."],
    )
    .shipped(Shipped::Custom)
    .native(same("podmeter_device_clock_hertz", &[("clock", "video")]))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.clocks.video_hertz)),
    renamed("DCGM_FI_DEV_PSTATE", "DCGM_FI_DEV_GPU_PSTATE", Unit::Number, "Performance state, 0 (highest) to 15.")
        .shipped(Shipped::Custom)
        .native(same("podmeter_device_performance_state", &[]))
        .values(|page, series| page.gpus(series, |readings| Some(medium(readings)?.performance_state?.into()))),
    scaled(
        "DCGM_FI_DEV_FAN_SPEED",
        "DCGM_FI_DEV_FAN_SPEED_RATIO",
        Unit::Percent,
        ["Speed of the first fan (%).", "Speed of the first fan (0 to 1)."],
    )
    .shipped(Shipped::Custom)
    .native(same("podmeter_device_fan_speed_ratio", &[("fan", "0")]))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.fan_speed_ratios.first().copied())),
    scaled(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL",
        Unit::Nanoseconds,
        ["Time throttled for power (ns).", "Time throttled for power (s)."],
    )
    .counter()
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_throttled_seconds_total", &[("reason", "sw_power_cap")]))
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.throttled_seconds.get("sw_power_cap").copied());
    }),
    scaled(
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL",
        Unit::Nanoseconds,
        ["Time throttled for temperature (ns).", "Time throttled for temperature (s)."],
    )
    .counter()
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_throttled_seconds_total", &[("reason", "hw_thermal_slowdown")]).unproven(THERMAL))
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.policy_violation_seconds.get("thermal").copied());
    }),
    scaled(
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        "DCGM_FI_DEV_GPU_SYNC_BOOST_THROTTLE_SECONDS_TOTAL",
        Unit::Nanoseconds,
        ["Time throttled for sync boost (ns).", "Time throttled for sync boost (s)."],
    )
    .counter()
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_throttled_seconds_total", &[("reason", "sync_boost")]))
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.throttled_seconds.get("sync_boost").copied());
    }),
    scaled(
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        "DCGM_FI_DEV_GPU_LIMIT_THROTTLE_SECONDS_TOTAL",
        Unit::Nanoseconds,
        ["Time throttled for a limit of the board (ns).", "Time throttled for a limit of the board (s)."],
    )
    .counter()
    .shipped(Shipped::Commented)
    .no_native("none")
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.policy_violation_seconds.get("board_limit").copied());
    }),
    scaled(
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        "DCGM_FI_DEV_GPU_LOW_UTIL_THROTTLE_SECONDS_TOTAL",
        Unit::Nanoseconds,
        ["Time at lower clocks for low utilization (ns).", "Time at lower clocks for low utilization (s)."],
    )
    .counter()
    .shipped(Shipped::Commented)
    .no_native("none")
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.policy_violation_seconds.get("low_utilization").copied());
    }),
    scaled(
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        "DCGM_FI_DEV_GPU_RELIABILITY_THROTTLE_SECONDS_TOTAL",
        Unit::Nanoseconds,
        ["Time throttled for reliability (ns).", "Time throttled for reliability (s)."],
    )
    .counter()
    .shipped(Shipped::Commented)
    .no_native("none")
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.policy_violation_seconds.get("reliability").copied());
    }),
    renamed(
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        Unit::Number,
        "What limits the clocks now, as a bit mask.",
    )
    .shipped(Shipped::Custom)
    .native(
        same("podmeter_device_clock_event_active", &[("reason", "hw_slowdown")])
            .unproven("0 or 1 per reason, not a bit mask"),
    )
    .values(|page, series| {
        page.gpus(series, |readings| {
            let events = &medium(readings)?.clock_events;
            let bits = (0u32..).zip(CLOCK_EVENTS).filter(|(_, (reason, _))| events.get(reason) == Some(&true));
            (!events.is_empty()).then(|| bits.map(|(bit, _)| f64::from(1u32 << bit)).sum())
        });
    }),
];
