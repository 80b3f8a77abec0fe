//! Readings as rows of a table: where a reading comes from, its unit and range, and its place among the readings.
//!
//! In: the table of a tier. Out: its readings; what the GPU does not have stays absent.
//!
//! To add a value that `tests/data/metric_catalogue.tsv` lacks, such as `memory_temperature_celsius`, which becomes the metric `podmeter_device_temperature_celsius`:
//!
//! 1. A field of `Medium` in `domain/model/reading.rs`, or of `Slow` in `slow_reading.rs`, and its range in `hardware/plausible.rs`.
//! 2. A row (`row!`, below) in the table of `medium.rs`, `slow.rs`, `nvlink.rs` or `gpm.rs`, in base units: a ratio, no percent. Several
//!    numbers, or a versioned structure, need a function beside the table. A counter also in `hardware/monotone.rs`.
//! 3. Its value in `hardware/simulated/reader.rs`, for `demo`, if the simulated boards have it.
//! 4. In the fake driver the answer (`tests/fake-nvml/src/fields.rs`, or `calls`) and, for a test to set it, `state`; then an assertion
//!    in `tests/it/hardware_nvml.rs`.
//! 5. A metric in a group of `serve/metrics/device_*.rs`, its name, type and labels in `tests/data/metric_catalogue.tsv`, and a value
//!    in `serve/metrics/tests/fixture/hardware.rs`. Where dcgm-exporter has it: `serve/metrics/dcgm/names.json`, and
//!    `values.rs` where no metric of podmeter is that value.
//! 6. Its name in `serve/api/node.rs`, if the API shows it.
//! 7. `UPDATE_GOLDEN=1 cargo test --lib -- golden` writes the pages and tables of metrics. A line in CHANGELOG.md.

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t, nvmlValueType_t};

use super::calls::{Blank, CallRefusal, Caller, call};
use super::codes;
use super::library::DeviceHandle;
use crate::hardware::plausible::QuantityRange;

/// One reading, with its place in `T`.
pub struct ReadingRow<T> {
    pub source: ReadingSource,
    pub set: fn(&mut T, f64),
}

pub enum ReadingSource {
    /// A separate call, which applies unit and range.
    Call(fn(&mut Caller, DeviceHandle) -> Option<f64>),
    /// A field, read with the others of the table in one call, or a GPM metric.
    Field(FieldRow),
}

impl<T> ReadingRow<T> {
    pub fn field(&self) -> Option<FieldRow> {
        match self.source {
            ReadingSource::Field(field) => Some(field),
            ReadingSource::Call(_) => None,
        }
    }
}

/// Reads the fields of a table in one call, then the other rows in their order.
pub fn read<'a, T: 'a>(
    caller: &mut Caller,
    handle: DeviceHandle,
    rows: impl Iterator<Item = &'a ReadingRow<T>> + Clone,
    target: &mut T,
) {
    let fields: Vec<FieldRow> = rows.clone().filter_map(ReadingRow::field).collect();
    let mut fields = self::fields(caller, handle, &fields).into_iter();
    let values = rows.clone().map(|row| match row.source {
        ReadingSource::Field(_) => fields.next().flatten(),
        ReadingSource::Call(call) => call(caller, handle),
    });
    set(rows, values, target);
}

/// Sets the values that were read. Returns false where there is none.
pub fn set<'a, T: 'a>(
    rows: impl Iterator<Item = &'a ReadingRow<T>>,
    values: impl Iterator<Item = Option<f64>>,
    target: &mut T,
) -> bool {
    let mut any = false;
    for (row, value) in rows.zip(values) {
        if let Some(value) = value {
            (row.set)(target, value);
            any = true;
        }
    }
    any
}

/// The values of nvmlValueType_t with 64 bits on Linux: double, unsigned long, unsigned and signed long long.
const WIDE_TYPES: [nvmlValueType_t; 4] = [0, 2, 3, 4];

/// A field, the conversion to our unit and its range.
#[derive(Clone, Copy, Debug)]
pub struct FieldRow {
    pub id: u32,
    /// The number of the link, or of what else the field has several of.
    scope: u32,
    /// Converts the driver's unit to ours.
    to_our_unit: fn(f64) -> f64,
    /// The range of the value; `None`: a flag or an enum.
    range: Option<&'static QuantityRange>,
    is_wide: bool,
}

impl FieldRow {
    pub const fn plain(id: u32) -> Self {
        Self { id, scope: 0, to_our_unit: |value| value, range: None, is_wide: false }
    }

    pub const fn field(id: u32, range: &'static QuantityRange, to_our_unit: fn(f64) -> f64) -> Self {
        Self { to_our_unit, range: Some(range), ..Self::plain(id) }
    }

    /// A counter of bytes or nanoseconds: absent with 32 bits or fewer, as it may wrap many times between two readings.
    pub const fn wide(id: u32, range: &'static QuantityRange, to_our_unit: fn(f64) -> f64) -> Self {
        Self { is_wide: true, ..Self::field(id, range, to_our_unit) }
    }

    pub const fn with_scope(self, scope: u32) -> Self {
        Self { scope, ..self }
    }

    /// The value in our unit; `None` outside the range.
    pub fn convert(&self, caller: &mut Caller, value: f64) -> Option<f64> {
        let value = (self.to_our_unit)(value);
        self.range.map_or(Some(value), |range| caller.plausible(range, value))
    }
}

/// Reads many fields in one call; each has a separate result.
pub fn fields(caller: &mut Caller, handle: DeviceHandle, rows: &[FieldRow]) -> Vec<Option<f64>> {
    field_results(caller, handle, rows).into_iter().map(Result::ok).collect()
}

/// Reads many fields in one call, with the reason for each missing value.
pub fn field_results(caller: &mut Caller, handle: DeviceHandle, rows: &[FieldRow]) -> Vec<Result<f64, CallRefusal>> {
    // This return code stays in fields that the driver does not write.
    let to_read = |row: &FieldRow| nvmlFieldValue_t {
        fieldId: row.id,
        scopeId: row.scope,
        nvmlReturn: codes::NOT_SUPPORTED,
        ..nvmlFieldValue_t::blank()
    };
    let mut values: Vec<_> = rows.iter().map(to_read).collect();
    let count = i32::try_from(values.len()).expect("a table of fields");
    if count == 0 {
        return vec![];
    }
    if let Err(refusal) = call!(caller, nvmlDeviceGetFieldValues(handle.0, count, values.as_mut_ptr())) {
        return vec![Err(refusal); rows.len()];
    }
    let mut result = |(row, field): (&FieldRow, &nvmlFieldValue_t)| match field.nvmlReturn {
        codes::SUCCESS => {
            let value =
                decode(field.valueType, field.value).filter(|_| !row.is_wide || WIDE_TYPES.contains(&field.valueType));
            value.and_then(|value| row.convert(caller, value)).ok_or(CallRefusal::Failed)
        }
        codes::NOT_SUPPORTED | codes::INVALID_ARGUMENT | codes::NO_PERMISSION => Err(CallRefusal::Unsupported),
        _ => Err(CallRefusal::Failed),
    };
    rows.iter().zip(&values).map(&mut result).collect()
}

pub fn decode(kind: nvmlValueType_t, value: nvmlValue_t) -> Option<f64> {
    // SAFETY: every member of the union is plain bits, and the type names the one that the driver wrote.
    let number = unsafe {
        match kind {
            0 => value.dVal,
            1 => f64::from(value.uiVal),
            2 => value.ulVal as f64,
            3 => value.ullVal as f64,
            4 => value.sllVal as f64,
            5 => f64::from(value.siVal),
            6 => f64::from(value.usVal),
            _ => return None,
        }
    };
    number.is_finite().then_some(number)
}

/// Declares a row: its place, and the field, GPM metric or call, with its range and the conversion to our unit.
///
/// - `row!(temperature = field 82: TEMPERATURE)`, or `field 213[scope]`; in the tables of GPM a metric;
/// - `row!(throttled_seconds["sync_boost"] = wide 76: THROTTLED / 1e9)`: a field that counts only with 64 bits;
/// - `row!(clocks.sm_hertz = nvmlDeviceGetClockInfo[1] clock_info(Clock::SM): CLOCK * 1e6)`: a call with its variant, and
///   the method of `Device`;
/// - `row!(recovery_action = code 230)`: a field without a range.
macro_rules! row {
    (@set $($target:ident).+ [$key:literal]) => {
        |target, value| {
            target.$($target).+.insert($key, value as _);
        }
    };
    (@set $($target:ident).+) => {
        |target, value| target.$($target).+ = Some(value as _)
    };
    ($($target:ident).+ = code $id:literal) => {
        ReadingRow { source: ReadingSource::Field($crate::hardware::nvml::rows::FieldRow::plain($id)), set: row!(@set $($target).+) }
    };
    ($($target:ident).+ $([$key:literal])? = $kind:ident $id:literal $([$scope:expr])?: $range:ident $($unit:tt)*) => {
        ReadingRow {
            source: ReadingSource::Field(
                $crate::hardware::nvml::rows::FieldRow::$kind($id, &plausible::$range, |value| value $($unit)*) $(.with_scope($scope))?,
            ),
            set: row!(@set $($target).+ $([$key])?),
        }
    };
    ($($target:ident).+ = $symbol:ident $([$variant:expr])? $method:ident $arguments:tt: $range:ident $($unit:tt)*) => {
        ReadingRow {
            source: ReadingSource::Call(|caller, handle| {
                let read = caller.device(stringify!($symbol), 0 $(+ $variant)?, handle, |gpu| gpu.$method $arguments);
                let value = read.ok()?;
                caller.plausible(&plausible::$range, value as f64 $($unit)*)
            }),
            set: row!(@set $($target).+),
        }
    };
}

pub(super) use row;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_by_their_type() {
        assert_eq!(decode(0, nvmlValue_t { dVal: 1.5 }), Some(1.5));
        assert_eq!(decode(5, nvmlValue_t { siVal: -3 }), Some(-3.0));
        assert_eq!(decode(3, nvmlValue_t { ullVal: 1 << 40 }), Some((1_u64 << 40) as f64));
        assert_eq!(decode(99, nvmlValue_t { ullVal: 1 }), None);
    }
}
