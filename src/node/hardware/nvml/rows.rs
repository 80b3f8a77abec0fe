//! Readings as rows of a table: where a reading comes from, its unit and range, and its place among the readings.
//!
//! In: the table of a tier. Out: its readings; what the GPU does not have stays absent.

use super::calls::Caller;
use super::fields::{self, FieldRow};
use super::library::DeviceHandle;

/// One reading, with its place in `T`.
pub struct ReadingRow<T> {
    pub source: ReadingSource,
    pub set: fn(&mut T, f64),
}

pub enum ReadingSource {
    /// A call of its own, with unit and range.
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

/// Reads the fields of a table in one call, then makes the others' calls in their order.
pub fn read<'a, T: 'a>(
    caller: &mut Caller,
    handle: DeviceHandle,
    rows: impl Iterator<Item = &'a ReadingRow<T>> + Clone,
    target: &mut T,
) {
    let fields: Vec<FieldRow> = rows.clone().filter_map(ReadingRow::field).collect();
    let mut fields = fields::read(caller, handle, &fields).into_iter();
    let values = rows.clone().map(|row| match row.source {
        ReadingSource::Field(_) => fields.next().flatten(),
        ReadingSource::Call(call) => call(caller, handle),
    });
    set(rows, values, target);
}

/// Sets the values that were read. False where there is none.
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

/// One row: its place, and the field, GPM metric or call, with its range and the conversion from the driver's unit to ours.
///
/// - `row!(temperature = field 82: TEMPERATURE)`, or `field 213[scope]`, or `metric 1`;
/// - `row!(throttled_seconds["sync_boost"] = wide 76: THROTTLED / 1e9)`: a field that counts only with 64 bits;
/// - `row!(clocks.sm_hertz = nvmlDeviceGetClockInfo[1](1): CLOCK * 1e6)`: a call with its variant and arguments;
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
        ReadingRow { source: ReadingSource::Field(FieldRow::plain($id)), set: row!(@set $($target).+) }
    };
    ($($target:ident).+ $([$key:literal])? = $kind:ident $id:literal $([$scope:expr])?: $range:ident $($unit:tt)*) => {
        ReadingRow {
            source: ReadingSource::Field(
                FieldRow::$kind($id, &plausible::$range, |value| value $($unit)*) $(.with_scope($scope))?,
            ),
            set: row!(@set $($target).+ $([$key])?),
        }
    };
    ($($target:ident).+ = $symbol:ident $([$variant:expr])? ($($argument:expr),*): $range:ident $($unit:tt)*) => {
        ReadingRow {
            source: ReadingSource::Call(|caller, handle| {
                let value = value!(caller, $symbol $([$variant])? (handle.0 $(, $argument)*))?;
                caller.plausible(&plausible::$range, value as f64 $($unit)*)
            }),
            set: row!(@set $($target).+),
        }
    };
}

pub(super) use row;
