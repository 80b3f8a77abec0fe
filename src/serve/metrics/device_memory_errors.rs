//! Memory errors: ECC, remapped rows, retired pages.

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, named, slow};

pub(super) static GROUP: Group = Group {
    section: "Device: memory errors",
    labels: DEVICE,
    source: "NVML",
    metrics: &[
        counter("podmeter_device_ecc_errors_total", "ECC errors since the driver was loaded.", |snapshot, family| {
            for (labels, readings) in devices(snapshot) {
                for ecc in slow(readings).map_or(&[][..], |slow| &slow.ecc) {
                    for (error, count) in [("corrected", ecc.corrected), ("uncorrected", ecc.uncorrected)] {
                        family.push_known(labels.clone().and("error", error).and("location", ecc.location), count);
                    }
                }
            }
        })
        .labels("gpu_uuid gpu error location")
        .source("NVML GetMemoryErrorCounter (volatile)"),
        counter(
            "podmeter_device_ecc_lifetime_errors_total",
            "ECC errors over the lifetime of the board.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| {
                    let slow = slow(readings)?;
                    Some([("corrected", slow.ecc_lifetime_corrected), ("uncorrected", slow.ecc_lifetime_uncorrected)])
                });
            },
        )
        .labels("gpu_uuid gpu error")
        .source("NVML GetTotalEccErrors (aggregate)"),
        counter(
            "podmeter_device_row_remaps_total",
            "Rows remapped, by the kind of error that caused it.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| {
                    let remap = slow(readings)?.row_remap?;
                    Some([("correctable", Some(remap.correctable)), ("uncorrectable", Some(remap.uncorrectable))])
                });
            },
        )
        .labels("gpu_uuid gpu cause")
        .source("NVML fields 142 and 143"),
        gauge(
            "podmeter_device_row_remap_pending",
            "Whether a row remap is pending until a reset of the GPU.",
            |snapshot, family| family.each(devices(snapshot), |readings| Some(slow(readings)?.row_remap?.pending)),
        )
        .source("NVML field 144"),
        gauge(
            "podmeter_device_row_remap_failed",
            "Whether a row remap has failed, NVIDIA's criterion for replacing the board.",
            |snapshot, family| family.each(devices(snapshot), |readings| Some(slow(readings)?.row_remap?.failed)),
        )
        .source("NVML field 145"),
        gauge(
            "podmeter_device_row_remap_banks",
            "Memory banks by how many spare rows they have left.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some(named(&slow(readings)?.row_remap_banks)));
            },
        )
        .labels("gpu_uuid gpu availability")
        .source("NVML GetRowRemapperHistogram"),
        gauge(
            "podmeter_device_bank_remaps",
            "Memory banks remapped, by whether the remap is active, on Rubin and newer.",
            |snapshot, family| family.by_name(devices(snapshot), |readings| Some(named(&slow(readings)?.bank_remaps))),
        )
        .labels("gpu_uuid gpu state")
        .source("NVML fields 303 and 304"),
        gauge(
            "podmeter_device_bank_remap_pending",
            "Whether a bank remap is pending, on Rubin and newer.",
            |snapshot, family| family.each(devices(snapshot), |readings| slow(readings)?.bank_remap_pending),
        )
        .source("NVML field 307"),
        gauge(
            "podmeter_device_bank_remap_groups",
            "Groups of memory banks with all or no spare banks left, on Rubin and newer.",
            |snapshot, family| {
                family.by_name(devices(snapshot), |readings| Some(named(&slow(readings)?.bank_remap_groups)));
            },
        )
        .labels("gpu_uuid gpu availability")
        .source("NVML fields 305 and 306"),
        gauge("podmeter_device_retired_pages", "Pages retired, on GPUs before Ampere.", |snapshot, family| {
            family.by_name(devices(snapshot), |readings| Some(named(&slow(readings)?.retired_pages)));
        })
        .labels("gpu_uuid gpu cause")
        .source("NVML GetRetiredPages"),
        gauge(
            "podmeter_device_retired_pages_pending",
            "Whether pages are pending retirement until a reboot.",
            |snapshot, family| family.each(devices(snapshot), |readings| slow(readings)?.retired_pages_pending),
        )
        .source("NVML GetRetiredPagesPendingStatus"),
    ],
};
