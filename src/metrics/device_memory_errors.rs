//! Memory that fails: ECC, remapped rows, retired pages.

use super::device_identity::{DEVICE, named, of_device, per_device, per_device_and, with_readings};
use super::device_interconnect::slow;
use super::{Descriptor, Family, Group};
use crate::model::Snapshot;

static ECC_ERRORS: Descriptor = Descriptor::counter(
    "podmeter_device_ecc_errors_total",
    &["gpu_uuid", "gpu", "error", "location"],
    "",
    "NVML GetMemoryErrorCounter (volatile)",
    "ECC errors since the driver was loaded.",
);
static ECC_LIFETIME: Descriptor = Descriptor::counter(
    "podmeter_device_ecc_lifetime_errors_total",
    &["gpu_uuid", "gpu", "error"],
    "",
    "NVML GetTotalEccErrors (aggregate)",
    "ECC errors in the life of the board.",
);
static ROW_REMAPS: Descriptor = Descriptor::counter(
    "podmeter_device_row_remaps_total",
    &["gpu_uuid", "gpu", "cause"],
    "",
    "NVML fields 142 and 143",
    "Rows remapped, by the kind of error that caused it.",
);
static ROW_REMAP_PENDING: Descriptor = Descriptor::gauge(
    "podmeter_device_row_remap_pending",
    DEVICE,
    "",
    "NVML field 144",
    "Whether a remap waits for a reset of the GPU, 0 or 1.",
);
static ROW_REMAP_FAILED: Descriptor = Descriptor::gauge(
    "podmeter_device_row_remap_failed",
    DEVICE,
    "",
    "NVML field 145",
    "Whether a remap has failed, which is a reason to replace the board, 0 or 1.",
);
static ROW_REMAP_BANKS: Descriptor = Descriptor::gauge(
    "podmeter_device_row_remap_banks",
    &["gpu_uuid", "gpu", "availability"],
    "",
    "NVML GetRowRemapperHistogram",
    "Memory banks by how many spare rows they have left.",
);
static RETIRED_PAGES: Descriptor = Descriptor::gauge(
    "podmeter_device_retired_pages",
    &["gpu_uuid", "gpu", "cause"],
    "",
    "NVML GetRetiredPages",
    "Pages retired, on GPUs before Ampere.",
);
static RETIRED_PAGES_PENDING: Descriptor = Descriptor::gauge(
    "podmeter_device_retired_pages_pending",
    DEVICE,
    "",
    "NVML GetRetiredPagesPendingStatus",
    "Whether pages wait for a reboot to be retired, 0 or 1.",
);

pub(super) const GROUP: Group = Group {
    section: "Device: memory errors",
    descriptors: &[
        &ECC_ERRORS,
        &ECC_LIFETIME,
        &ROW_REMAPS,
        &ROW_REMAP_PENDING,
        &ROW_REMAP_FAILED,
        &ROW_REMAP_BANKS,
        &RETIRED_PAGES,
        &RETIRED_PAGES_PENDING,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    vec![
        ecc(snapshot),
        per_device_and(snapshot, &ECC_LIFETIME, "error", |readings| {
            let Some(slow) = slow(readings) else { return Vec::new() };
            vec![
                ("corrected".into(), slow.ecc_lifetime_corrected),
                ("uncorrected".into(), slow.ecc_lifetime_uncorrected),
            ]
        }),
        per_device_and(snapshot, &ROW_REMAPS, "cause", |readings| {
            let Some(remap) = slow(readings).and_then(|slow| slow.row_remap) else { return Vec::new() };
            vec![("correctable".into(), Some(remap.correctable)), ("uncorrectable".into(), Some(remap.uncorrectable))]
        }),
        per_device(snapshot, &ROW_REMAP_PENDING, |readings| Some(slow(readings)?.row_remap?.pending)),
        per_device(snapshot, &ROW_REMAP_FAILED, |readings| Some(slow(readings)?.row_remap?.failed)),
        per_device_and(snapshot, &ROW_REMAP_BANKS, "availability", |readings| {
            slow(readings).map_or_else(Vec::new, |slow| named(&slow.row_remap_banks))
        }),
        per_device_and(snapshot, &RETIRED_PAGES, "cause", |readings| {
            slow(readings).map_or_else(Vec::new, |slow| named(&slow.retired_pages))
        }),
        per_device(snapshot, &RETIRED_PAGES_PENDING, |readings| slow(readings)?.retired_pages_pending),
    ]
}

fn ecc(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&ECC_ERRORS);
    for (gpu, readings) in with_readings(snapshot) {
        for place in slow(readings).map_or(&[][..], |slow| &slow.ecc) {
            for (error, count) in [("corrected", place.corrected), ("uncorrected", place.uncorrected)] {
                let mut labels = of_device(gpu);
                labels.extend([("error", error.into()), ("location", place.location.into())]);
                family.push_known(labels, count);
            }
        }
    }
    family
}
