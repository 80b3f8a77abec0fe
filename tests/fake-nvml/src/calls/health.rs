//! Memory errors and their repair.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::nvmlRowRemapperHistogramValues_t;

use super::on_device;
use crate::codes::{Code, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::gate::Target;
use crate::out::{Many, Out};
use crate::state::{EccCounts, RemappedRows, RetiredPages};

on_device! {
    nvmlDeviceGetTotalEccErrors(kind: c_uint, counter: c_uint, count: Out<c_ulonglong>) |target| {
        let counts = ecc_counts(target, counter)?;
        count.put(match kind {
            0 => counts.corrected,
            1 => counts.uncorrected,
            _ => return Err(INVALID_ARGUMENT),
        })
    }
    nvmlDeviceGetMemoryErrorCounter(
        kind: c_uint, counter: c_uint, location: c_uint, count: Out<c_ulonglong>
    ) |target| {
        let counts = ecc_counts(target, counter)?;
        count.put(match (kind, location) {
            (0, 2) => counts.corrected.saturating_sub(counts.sram_corrected),
            (1, 2) => counts.uncorrected.saturating_sub(counts.sram_uncorrected),
            (0, 7) => counts.sram_corrected,
            (1, 7) => counts.sram_uncorrected,
            (0 | 1, 0..=8) => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_ARGUMENT),
        })
    }
    nvmlDeviceGetRetiredPages_v2(
        cause: c_uint, count: Out<c_uint>, addresses: Many<c_ulonglong>, times: Many<c_ulonglong>
    ) |target| {
        let pages = pages(target, cause)?;
        addresses.put_all(count, pages)?;
        times.put_all(count, &vec![0; pages.len()])
    }
    nvmlDeviceGetRetiredPagesPendingStatus(pending: Out<c_uint>) |target| {
        pending.put(retired(target)?.pending.into())
    }
    nvmlDeviceGetRemappedRows(
        correctable: Out<c_uint>, uncorrectable: Out<c_uint>, pending: Out<c_uint>, failure: Out<c_uint>
    ) |target| {
        let rows = remapped(target)?;
        correctable.put(rows.correctable)?;
        uncorrectable.put(rows.uncorrectable)?;
        pending.put(rows.pending.into())?;
        failure.put(rows.failure.into())
    }
    nvmlDeviceGetRowRemapperHistogram(histogram: Out<nvmlRowRemapperHistogramValues_t>) |target| {
        let rows = remapped(target)?;
        let RemappedRows { max, high, partial, low, none, .. } = *rows;
        histogram.put(nvmlRowRemapperHistogramValues_t { max, high, partial, low, none })
    }
}

fn ecc_counts(target: &Target, counter: c_uint) -> Result<&EccCounts, Code> {
    let ecc = &target.whole()?.ecc;
    if ecc.enabled != Some(true) {
        return Err(NOT_SUPPORTED);
    }
    match counter {
        0 => Ok(&ecc.volatile),
        1 => Ok(&ecc.aggregate),
        _ => Err(INVALID_ARGUMENT),
    }
}

fn retired(target: &Target) -> Result<&RetiredPages, Code> {
    target.whole()?.retired_pages.as_ref().ok_or(NOT_SUPPORTED)
}

fn pages(target: &Target, cause: c_uint) -> Result<&[u64], Code> {
    let retired = retired(target)?;
    match cause {
        0 => Ok(&retired.single_bit),
        1 => Ok(&retired.double_bit),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Not while MIG instances are active.
fn remapped(target: &Target) -> Result<&RemappedRows, Code> {
    let gpu = target.whole()?;
    if gpu.mig.active().next().is_some() {
        return Err(NOT_SUPPORTED);
    }
    gpu.remapped_rows.as_ref().ok_or(NOT_SUPPORTED)
}
