//! PCIe, NVLink and the fabric.

use super::super::name::{Name, Shipped, Unit, renamed, same, scaled, unchanged};
use crate::metrics::labels::{medium, slow};

/// The kind of error that only one family of NVLinks counts.
const UP_TO_NVLINK_4: &str = "crc";
const NVLINK_5: &str = "recovery_failed";

/// The driver's own sum over the links.
macro_rules! error_sum {
    ($old:literal, $new:literal, $error:literal, $help:literal) => {
        renamed($old, $new, Unit::Number, $help)
            .counter()
            .shipped(Shipped::Commented)
            .native(same("podmeter_device_nvlink_errors_total", &[("error", $error)]).unproven(OTHER_COUNTERS))
            .values(|page, series| {
                page.gpus(series, |readings| Some(*slow(readings)?.nvlink.error_sums.get($error)? as f64));
            })
    };
}

/// podmeter's sum over the links.
macro_rules! link_error {
    ($old:literal, $new:literal, $error:literal, $family:ident, $help:literal) => {
        renamed($old, $new, Unit::Number, concat!("NVLink ", $help))
            .counter()
            .shipped(Shipped::Commented)
            .native(same("podmeter_device_nvlink_errors_total", &[("error", $error)]).but(FIRST_LINK))
            .values(|page, series| {
                page.gpus(series, |readings| {
                    let errors = &slow(readings)?.nvlink.errors;
                    errors.contains_key($family).then(|| errors.get($error)).flatten().map(|count| *count as f64)
                });
            })
    };
}

const OTHER_COUNTERS: &str = "other counters of the driver: those of each link";
const FIRST_LINK: &str = "over all links; DCGM's is that of link 0 before Blackwell";

pub static ROWS: &[Name] = &[
    renamed(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "DCGM_FI_DEV_PCIE_REPLAY_TOTAL",
        Unit::Number,
        "PCIe packets retransmitted.",
    )
    .counter()
    .native(same("podmeter_device_pcie_replays_total", &[]))
    .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.pcie.replays? as f64))),
    unchanged("DCGM_FI_PROF_PCIE_TX_BYTES", Unit::BytesPerSecond, "Data sent over PCIe (bytes a second).")
        .native(same("podmeter_device_pcie_bytes_total", &[("direction", "transmit")]).counter_of_rate())
        .values(|page, series| page.gpus(series, |readings| medium(readings)?.rates.traffic.pcie_transmitted)),
    unchanged("DCGM_FI_PROF_PCIE_RX_BYTES", Unit::BytesPerSecond, "Data received over PCIe (bytes a second).")
        .native(same("podmeter_device_pcie_bytes_total", &[("direction", "receive")]).counter_of_rate())
        .values(|page, series| page.gpus(series, |readings| medium(readings)?.rates.traffic.pcie_received)),
    unchanged("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL", Unit::Bytes, "Bytes sent over PCIe.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_pcie_bytes_total", &[("direction", "transmit")]))
        .values(|page, series| page.gpus(series, |readings| slow(readings)?.pcie.transmitted_bytes)),
    unchanged("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL", Unit::Bytes, "Bytes received over PCIe.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_pcie_bytes_total", &[("direction", "receive")]))
        .values(|page, series| page.gpus(series, |readings| slow(readings)?.pcie.received_bytes)),
    unchanged("DCGM_FI_DEV_PCIE_LINK_GEN", Unit::Number, "PCIe generation in use.")
        .shipped(Shipped::Custom)
        .native(same("podmeter_device_pcie_link_generation", &[]))
        .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.pcie.link_generation?.into()))),
    unchanged("DCGM_FI_DEV_PCIE_LINK_WIDTH", Unit::Number, "PCIe lanes in use.")
        .shipped(Shipped::Custom)
        .native(same("podmeter_device_pcie_link_width_lanes", &[]))
        .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.pcie.link_width_lanes?.into()))),
    unchanged("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", Unit::Number, "Highest PCIe generation of GPU and slot.")
        .shipped(Shipped::Custom)
        .native(same("podmeter_device_pcie_link_generation_max", &[]))
        .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.pcie.link_generation_max?.into()))),
    unchanged("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", Unit::Number, "Most PCIe lanes of GPU and slot.")
        .shipped(Shipped::Custom)
        .native(same("podmeter_device_pcie_link_width_lanes_max", &[]))
        .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.pcie.link_width_lanes_max?.into()))),
    scaled(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
        Unit::ThousandKibibytesPerSecond,
        [
            "Data over all NVLinks, both ways (thousands of KiB a second).",
            "Data over all NVLinks, both ways (bytes a second).",
        ],
    )
    .native(same("podmeter_device_nvlink_bytes_total", &[]).sum_over(&["direction"]).counter_of_rate())
    .values(|page, series| {
        page.gpus(series, |readings| {
            let traffic = medium(readings)?.rates.traffic;
            Some(traffic.nvlink_transmitted? + traffic.nvlink_received?)
        });
    }),
    scaled(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_L0_BYTES_PER_SECOND",
        Unit::ThousandKibibytesPerSecond,
        [
            "Data over NVLink 0, both ways (thousands of KiB a second).",
            "Data over NVLink 0, both ways (bytes a second).",
        ],
    )
    .shipped(Shipped::Commented)
    .no_native("over all links: podmeter_device_nvlink_bytes_total")
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.rates.link0_bytes_per_second)),
    error_sum!(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL",
        "crc_flit",
        "NVLink flow control CRC errors."
    ),
    error_sum!(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL",
        "crc_data",
        "NVLink data CRC errors."
    ),
    error_sum!(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL",
        "replay",
        "NVLink replays."
    ),
    error_sum!(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL",
        "recovery",
        "NVLink recoveries."
    ),
    link_error!(
        "DCGM_FI_DEV_NVLINK_ERROR_DL_CRC",
        "DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL",
        "crc",
        UP_TO_NVLINK_4,
        "CRC errors."
    ),
    link_error!(
        "DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
        "DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL",
        "recovery",
        UP_TO_NVLINK_4,
        "recoveries."
    ),
    link_error!(
        "DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY",
        "DCGM_FI_DEV_NVLINK_REPLAY_TOTAL",
        "replay",
        UP_TO_NVLINK_4,
        "replays."
    ),
    link_error!(
        "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
        "DCGM_FI_DEV_NVLINK_RECOVERY_FAILED_TOTAL",
        "recovery_failed",
        NVLINK_5,
        "recoveries that failed."
    ),
    link_error!(
        "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        "DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL",
        "recovery",
        NVLINK_5,
        "recoveries."
    ),
    renamed(
        "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
        "DCGM_FI_DEV_NVLINK_RECOVERY_SUCCESSFUL_TOTAL",
        Unit::Number,
        "NVLink recoveries that succeeded.",
    )
    .counter()
    .shipped(Shipped::Commented)
    .no_native("none")
    .values(|page, series| {
        page.gpus(series, |readings| Some(*slow(readings)?.nvlink.error_sums.get("recovery_successful")? as f64));
    }),
    unchanged("DCGM_FI_DEV_FABRIC_HEALTH_MASK", Unit::Number, "Conditions of the NVLink fabric, as a bit mask.")
        .shipped(Shipped::Commented)
        .native(
            same("podmeter_device_fabric_condition", &[("condition", "degraded_bandwidth")])
                .unproven("0 or 1 per condition, not a bit mask"),
        )
        .values(|page, series| {
            page.gpus(series, |readings| Some(slow(readings)?.fabric.as_ref()?.health_mask?.into()));
        }),
    unchanged(
        "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY",
        Unit::Number,
        "Health of the NVLink fabric: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.",
    )
    .shipped(Shipped::Commented)
    .no_native("the conditions: podmeter_device_fabric_condition")
    .values(|page, series| {
        page.gpus(series, |readings| Some(slow(readings)?.fabric.as_ref()?.health_summary?.into()));
    }),
    unchanged("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", Unit::Number, "State of the registration with the NVLink fabric.")
        .shipped(Shipped::Custom)
        .native(
            same("podmeter_device_fabric_state", &[("state", "completed")])
                .unproven("0 or 1 per state, not its number"),
        )
        .values(|page, series| {
            page.gpus(series, |readings| {
                let state = slow(readings)?.fabric.as_ref()?.state;
                FABRIC_STATES.iter().position(|name| *name == state).map(|number| number as f64)
            });
        }),
];

/// By DCGM's numbers, which are those of NVML except for the last.
const FABRIC_STATES: [&str; 5] = ["not_supported", "not_started", "in_progress", "completed", "failed"];
