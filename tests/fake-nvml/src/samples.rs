//! nvmlDeviceGetSamples: the ring buffer, computed from the history on request.
//!
//! Each sample is the average over the period before it. The rounding error of one sample is carried
//! into the next, so that a sum over samples equals the load.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlValue_t};

use crate::calls::on_device;
use crate::clock::{self, Micros};
use crate::codes::{INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::history::{History, QUANTITIES};
use crate::library::library;
use crate::out::{Many, Out};
use crate::state::Samples;

pub const RING_ENTRIES: u64 = 100;
const UNSIGNED_INT: c_uint = 1;
const MODULE_POWER: usize = 7;

on_device! {
    nvmlDeviceGetSamples(
        kind: c_uint, last_seen: c_ulonglong, value_type: Out<c_uint>, count: Out<c_uint>, samples: Many<nvmlSample_t>
    ) |target| {
        let kind = kind as usize;
        let gpu = match kind {
            1..=4 => target.undivided()?,
            0..QUANTITIES => target.whole()?,
            _ => return Err(INVALID_ARGUMENT),
        };
        if kind == MODULE_POWER && gpu.power_limits.module_milliwatts.is_none() {
            return Err(NOT_SUPPORTED);
        }
        value_type.put(UNSIGNED_INT)?;
        if gpu.samples.silent {
            return Err(NOT_FOUND);
        }
        let now = clock::now();
        let mut library = library();
        let history = library.history(&gpu.uuid, now).ok_or(NOT_FOUND)?;
        let ring = ring(history, kind, &gpu.samples, now, last_seen);
        drop(library);
        let values: Vec<_> = ring.into_iter().map(|(time, value)| nvmlSample_t {
            timeStamp: time,
            sampleValue: nvmlValue_t { uiVal: value },
        }).collect();
        samples.put_oldest(count, &values)
    }
}

/// The samples newer than the cursor, oldest first.
fn ring(history: &History, kind: usize, about: &Samples, now: Micros, last_seen: Micros) -> Vec<(Micros, u32)> {
    let period = about.period_microseconds.max(1);
    let begin = history.begin();
    let newest = now.saturating_sub(begin) / period;
    let oldest = newest.saturating_sub(RING_ENTRIES) + 1;
    let total = |tick: u64| (history.integral(kind, begin + tick * period) / period as f64).round();
    (oldest..=newest)
        .map(|tick| (begin + tick * period, tick))
        .filter(|(time, _)| *time > last_seen)
        .map(|(time, tick)| (time, (total(tick) - total(tick - 1)) as u32))
        .collect()
}
