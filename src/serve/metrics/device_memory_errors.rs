//! Memory errors: ECC, remapped rows, retired pages.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, slow};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Device: memory errors",
    labels: DEVICE,
    source: "NVML",
    metrics: vec![
        counter("podmeter_device_ecc_errors_total")
            .help("ECC errors since the driver was loaded.")
            .labels("gpu_uuid gpu error location")
            .source("NVML GetMemoryErrorCounter (volatile)")
            .samples(|snapshot, family| {
                for (labels, readings) in devices(snapshot) {
                    for ecc in slow(readings).map_or(&[][..], |slow| &slow.ecc) {
                        for (error, count) in [("corrected", ecc.corrected), ("uncorrected", ecc.uncorrected)] {
                            family.push_known(labels.clone().and("error", error).and("location", ecc.location), count);
                        }
                    }
                }
            }),
        counter("podmeter_device_ecc_lifetime_errors_total")
            .help("ECC errors over the lifetime of the board.")
            .source("NVML GetTotalEccErrors (aggregate)")
            .by("error", devices, |readings| {
                let slow = slow(readings)?;
                Some([("corrected", slow.ecc_lifetime_corrected), ("uncorrected", slow.ecc_lifetime_uncorrected)])
            }),
        counter("podmeter_device_row_remaps_total")
            .help("Rows remapped, by the kind of error that caused it.")
            .source("NVML fields 142 and 143")
            .by("cause", devices, |readings| {
                let remap = slow(readings)?.row_remap?;
                Some([("correctable", Some(remap.correctable)), ("uncorrectable", Some(remap.uncorrectable))])
            }),
        gauge("podmeter_device_row_remap_pending")
            .help("Whether a row remap is pending until a reset of the GPU.")
            .source("NVML field 144")
            .each(devices, |readings| Some(slow(readings)?.row_remap?.pending)),
        gauge("podmeter_device_row_remap_failed")
            .help("Whether a row remap has failed, NVIDIA's criterion for replacing the board.")
            .source("NVML field 145")
            .each(devices, |readings| Some(slow(readings)?.row_remap?.failed)),
        gauge("podmeter_device_row_remap_banks")
            .help("Memory banks by how many spare rows they have left.")
            .source("NVML GetRowRemapperHistogram")
            .by_key("availability", devices, |readings| Some(&slow(readings)?.row_remap_banks)),
        gauge("podmeter_device_bank_remaps")
            .help("Memory banks remapped, by whether the remap is active, on Rubin and newer.")
            .source("NVML fields 303 and 304")
            .by_key("state", devices, |readings| Some(&slow(readings)?.bank_remaps)),
        gauge("podmeter_device_bank_remap_pending")
            .help("Whether a bank remap is pending, on Rubin and newer.")
            .source("NVML field 307")
            .each(devices, |readings| slow(readings)?.bank_remap_pending),
        gauge("podmeter_device_bank_remap_groups")
            .help("Groups of memory banks with all or no spare banks left, on Rubin and newer.")
            .source("NVML fields 305 and 306")
            .by_key("availability", devices, |readings| Some(&slow(readings)?.bank_remap_groups)),
        gauge("podmeter_device_retired_pages")
            .help("Pages retired, on GPUs before Ampere.")
            .source("NVML GetRetiredPages")
            .by_key("cause", devices, |readings| Some(&slow(readings)?.retired_pages)),
        gauge("podmeter_device_retired_pages_pending")
            .help("Whether pages are pending retirement until a reboot.")
            .source("NVML GetRetiredPagesPendingStatus")
            .each(devices, |readings| slow(readings)?.retired_pages_pending),
    ],
});
