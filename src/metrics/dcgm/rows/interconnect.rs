//! PCIe, NVLink and the fabric.

use super::super::name::{Name, Shipped, Unit, renamed, same, scaled, unchanged};
use crate::metrics::labels::{medium, slow};

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
