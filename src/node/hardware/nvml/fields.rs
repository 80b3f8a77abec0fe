//! Reads several NVML fields in one call.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t, nvmlValueType_t};

use super::calls::{CallRefusal, Caller, call};
use super::codes;
use super::library::DeviceHandle;
use crate::node::hardware::plausible::QuantityRange;

/// nvmlValueType_t: double, unsigned long, unsigned and signed long long; all have 64 bits on Linux.
const WIDE_TYPES: [nvmlValueType_t; 4] = [0, 2, 3, 4];

/// The fields of the software and hardware thermal slowdown and of the power brake, which changed at driver 580.82; a
/// wrong id reads another quantity without an error. `None` for an unknown version: then none of them is read.
pub fn slowdown_ids(driver_version: Option<&str>) -> Option<[u32; 3]> {
    let mut numbers = driver_version?.split('.').map(|number| number.parse::<u32>().ok());
    let (major, minor) = (numbers.next()??, numbers.next().flatten().unwrap_or(0));
    Some(if (major, minor) >= (580, 82) { [269, 270, 271] } else { [251, 252, 253] })
}

/// One reading of a GPU: a field, its range, and its unit.
#[derive(Clone, Copy, Debug)]
pub struct FieldRow {
    id: u32,
    /// A link, or what else the field has several of.
    scope: u32,
    quantity: Option<&'static QuantityRange>,
    /// The driver's units in one of ours.
    per: f64,
    /// A counter of bytes or nanoseconds: absent with 32 bits or fewer, as it may wrap many times between two readings.
    rises_fast: bool,
}

impl FieldRow {
    /// A flag, or a number in a code of its own.
    pub const fn plain(id: u32) -> Self {
        Self { id, scope: 0, quantity: None, per: 1.0, rises_fast: false }
    }

    pub const fn new(id: u32, quantity: &'static QuantityRange) -> Self {
        Self { quantity: Some(quantity), ..Self::plain(id) }
    }

    /// In thousandths of our unit.
    pub const fn milli(id: u32, quantity: &'static QuantityRange) -> Self {
        Self { per: 1e3, ..Self::new(id, quantity) }
    }

    pub const fn rising_fast(id: u32, quantity: &'static QuantityRange, per: f64) -> Self {
        Self { per, rises_fast: true, ..Self::new(id, quantity) }
    }

    pub const fn of(self, scope: u32) -> Self {
        Self { scope, ..self }
    }
}

/// Reads many fields in one call; each has its own result.
pub fn read(caller: &mut Caller, handle: DeviceHandle, rows: &[FieldRow]) -> Vec<Option<f64>> {
    results(caller, handle, rows).into_iter().map(Result::ok).collect()
}

/// The same, with the reason for each missing value.
pub fn results(caller: &mut Caller, handle: DeviceHandle, rows: &[FieldRow]) -> Vec<Result<f64, CallRefusal>> {
    let mut values: Vec<_> = rows.iter().map(|row| blank(row.id, row.scope)).collect();
    let count = i32::try_from(values.len()).expect("a table of fields");
    if count == 0 {
        return vec![];
    }
    if let Err(refusal) = call!(caller, nvmlDeviceGetFieldValues(handle.0, count, values.as_mut_ptr())) {
        return vec![Err(refusal); rows.len()];
    }
    let mut result = |(row, field): (&FieldRow, &nvmlFieldValue_t)| match field.nvmlReturn {
        codes::SUCCESS => {
            let value = decode(field.valueType, field.value)
                .filter(|_| !row.rises_fast || WIDE_TYPES.contains(&field.valueType));
            let value = value.ok_or(CallRefusal::Failed)? / row.per;
            row.quantity.map_or(Some(value), |quantity| caller.plausible(quantity, value)).ok_or(CallRefusal::Failed)
        }
        codes::NOT_SUPPORTED | codes::INVALID_ARGUMENT | codes::NO_PERMISSION => Err(CallRefusal::Unsupported),
        _ => Err(CallRefusal::Failed),
    };
    rows.iter().zip(&values).map(&mut result).collect()
}

/// The values that were read, by name.
pub fn named<'a>(
    names: impl IntoIterator<Item = &'a &'static str>,
    values: &[Option<f64>],
) -> BTreeMap<&'static str, f64> {
    names.into_iter().zip(values).filter_map(|(name, value)| Some((*name, (*value)?))).collect()
}

fn blank(field_id: u32, scope_id: u32) -> nvmlFieldValue_t {
    nvmlFieldValue_t {
        fieldId: field_id,
        scopeId: scope_id,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // For fields that the driver does not write.
        nvmlReturn: codes::NOT_SUPPORTED,
        value: nvmlValue_t { ullVal: 0 },
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_driver_version() {
        for (version, expected) in [
            (Some("570.124.06"), Some(251)),
            (Some("580.65.06"), Some(251)),
            (Some("580.82.07"), Some(269)),
            (Some("590.1"), Some(269)),
            (Some("575"), Some(251)),
            (Some("unknown"), None),
            (None, None),
        ] {
            assert_eq!(slowdown_ids(version).map(|ids| ids[0]), expected, "{version:?}");
        }
    }

    #[test]
    fn values_are_decoded_by_their_type() {
        assert_eq!(decode(0, nvmlValue_t { dVal: 1.5 }), Some(1.5));
        assert_eq!(decode(5, nvmlValue_t { siVal: -3 }), Some(-3.0));
        assert_eq!(decode(3, nvmlValue_t { ullVal: 1 << 40 }), Some((1_u64 << 40) as f64));
        assert_eq!(decode(99, nvmlValue_t { ullVal: 1 }), None);
    }
}
