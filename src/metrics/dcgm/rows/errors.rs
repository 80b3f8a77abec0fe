//! Errors of the GPU and its memory.

use super::super::name::{Name, Shipped, Unit, renamed, same, unchanged};
use crate::metrics::labels::{Labels, slow, with_health};
use crate::model::EccLocation;

pub static ROWS: &[Name] = &[
    renamed(
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_DEV_XID_ERROR",
        Unit::Number,
        "Code of the last XID since podmeter started; 0 if there was none.",
    )
    .native(
        same("podmeter_xid_errors_total", &[]).sum_over(&["class"]).unproven("a count, not the code of the last XID"),
    )
    .values(|page, series| {
        for (gpu, health) in with_health(page.snapshot) {
            let sources =
                health.xids.last.iter().flat_map(|(code, sources)| sources.values().map(move |xid| (xid, code)));
            let last = sources.max_by(|(one, _), (other, _)| one.at.monotonic.cmp(&other.at.monotonic));
            page.gpu_and(series, gpu, &Labels::default(), last.map_or(0, |(_, code)| *code).into());
        }
    }),
    renamed(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        Unit::Number,
        "Rows remapped for uncorrectable errors.",
    )
    .counter()
    .native(same("podmeter_device_row_remaps_total", &[("cause", "uncorrectable")]))
    .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.row_remap?.uncorrectable as f64))),
    renamed(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL",
        Unit::Number,
        "Rows remapped for correctable errors.",
    )
    .counter()
    .native(same("podmeter_device_row_remaps_total", &[("cause", "correctable")]))
    .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.row_remap?.correctable as f64))),
    renamed(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "DCGM_FI_DEV_ROW_REMAP_FAILED",
        Unit::Number,
        "Whether a row remap has failed, 0 or 1.",
    )
    .native(same("podmeter_device_row_remap_failed", &[]))
    .values(|page, series| page.gpus(series, |readings| Some(f64::from(u8::from(slow(readings)?.row_remap?.failed))))),
    unchanged("DCGM_FI_DEV_ROW_REMAP_PENDING", Unit::Number, "Whether a row remap is pending, 0 or 1.")
        .shipped(Shipped::Custom)
        .native(same("podmeter_device_row_remap_pending", &[]))
        .values(|page, series| {
            page.gpus(series, |readings| Some(f64::from(u8::from(slow(readings)?.row_remap?.pending))));
        }),
    unchanged("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Unit::Number, "Corrected ECC errors since the driver was loaded.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_ecc_errors_total", &[("error", "corrected")]).sum_over(&["location"]))
        .values(|page, series| page.gpus(series, |readings| ecc(&slow(readings)?.ecc, |place| place.corrected))),
    unchanged("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Unit::Number, "Uncorrected ECC errors since the driver was loaded.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_ecc_errors_total", &[("error", "uncorrected")]).sum_over(&["location"]))
        .values(|page, series| page.gpus(series, |readings| ecc(&slow(readings)?.ecc, |place| place.uncorrected))),
    unchanged("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", Unit::Number, "Corrected ECC errors over the board's lifetime.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_ecc_lifetime_errors_total", &[("error", "corrected")]))
        .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.ecc_lifetime_corrected? as f64))),
    unchanged("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", Unit::Number, "Uncorrected ECC errors over the board's lifetime.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_ecc_lifetime_errors_total", &[("error", "uncorrected")]))
        .values(|page, series| page.gpus(series, |readings| Some(slow(readings)?.ecc_lifetime_uncorrected? as f64))),
    renamed(
        "DCGM_FI_DEV_RETIRED_SBE",
        "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL",
        Unit::Number,
        "Pages retired for corrected errors.",
    )
    .counter()
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_retired_pages", &[("cause", "single_bit")]))
    .values(|page, series| {
        page.gpus(series, |readings| Some(*slow(readings)?.retired_pages.get("single_bit")? as f64));
    }),
    renamed(
        "DCGM_FI_DEV_RETIRED_DBE",
        "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL",
        Unit::Number,
        "Pages retired for uncorrected errors.",
    )
    .counter()
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_retired_pages", &[("cause", "double_bit")]))
    .values(|page, series| {
        page.gpus(series, |readings| Some(*slow(readings)?.retired_pages.get("double_bit")? as f64));
    }),
    renamed(
        "DCGM_FI_DEV_RETIRED_PENDING",
        "DCGM_FI_DEV_PAGE_RETIRED_PENDING",
        Unit::Number,
        "Whether pages are pending retirement, 0 or 1.",
    )
    .counter()
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_retired_pages_pending", &[]))
    .values(|page, series| {
        page.gpus(series, |readings| Some(f64::from(u8::from(slow(readings)?.retired_pages_pending?))));
    }),
    unchanged("DCGM_FI_DEV_VGPU_LICENSE_STATUS", Unit::Number, "Whether the GPU has a vGPU licence, 0 or 1.")
        .no_native("none")
        .values(|page, series| page.gpus(series, |readings| Some(f64::from(u8::from(slow(readings)?.vgpu_licensed?))))),
];

/// Over all places; absent where no place has the count.
fn ecc(places: &[EccLocation], count: fn(&EccLocation) -> Option<u64>) -> Option<f64> {
    places.iter().filter_map(count).reduce(|sum, count| sum + count).map(|sum| sum as f64)
}
