//! Reads several NVML fields in one call.

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t, nvmlValueType_t};

use super::calls::{Caller, Refusal, call};
use super::codes;
use super::library::Handle;

pub const ALL_LINKS: u32 = u32::MAX;

/// nvmlValueType_t: double, unsigned long, unsigned and signed long long; all have 64 bits on Linux.
const WIDE_TYPES: [nvmlValueType_t; 4] = [0, 2, 3, 4];

/// Field ids that changed at driver 580.82; a wrong id reads another quantity without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldScheme {
    pub sw_thermal: u32,
    pub hw_thermal: u32,
    pub hw_power_brake: u32,
}

impl FieldScheme {
    const BEFORE: Self = Self { sw_thermal: 251, hw_thermal: 252, hw_power_brake: 253 };
    const SINCE_580_82: Self = Self { sw_thermal: 269, hw_thermal: 270, hw_power_brake: 271 };

    /// `None` for an unknown version: then none of these fields is read.
    pub fn of_driver(version: Option<&str>) -> Option<Self> {
        let mut numbers = version?.split('.').map(|number| number.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next().flatten().unwrap_or(0));
        Some(if (major, minor) >= (580, 82) { Self::SINCE_580_82 } else { Self::BEFORE })
    }
}

/// The value of a field, and its width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    pub value: f64,
    is_wide: bool,
}

impl Field {
    /// For counters that rise fast (bytes, nanoseconds): `None` with 32 bits or fewer, as they may wrap many times
    /// between two readings.
    pub fn wide(self) -> Option<f64> {
        self.is_wide.then_some(self.value)
    }
}

/// Reads many fields in one call; each (id, scope) has its own result.
pub fn read(caller: &mut Caller, handle: Handle, wanted: &[(u32, u32)]) -> Vec<Option<Field>> {
    results(caller, handle, wanted).into_iter().map(Result::ok).collect()
}

/// The same, with the reason for each missing value.
pub fn results(caller: &mut Caller, handle: Handle, wanted: &[(u32, u32)]) -> Vec<Result<Field, Refusal>> {
    let mut values: Vec<_> = wanted.iter().map(|(id, scope)| blank(*id, *scope)).collect();
    let Ok(count) = i32::try_from(values.len()) else { return vec![Err(Refusal::Failed); wanted.len()] };
    if count == 0 {
        return vec![];
    }
    if let Err(refusal) = call!(caller, nvmlDeviceGetFieldValues(handle.0, count, values.as_mut_ptr())) {
        return vec![Err(refusal); wanted.len()];
    }
    let result = |field: &nvmlFieldValue_t| match field.nvmlReturn {
        codes::SUCCESS => {
            let value = decode(field.valueType, field.value).ok_or(Refusal::Failed)?;
            Ok(Field { value, is_wide: WIDE_TYPES.contains(&field.valueType) })
        }
        codes::NOT_SUPPORTED | codes::INVALID_ARGUMENT | codes::NO_PERMISSION => Err(Refusal::Unsupported),
        _ => Err(Refusal::Failed),
    };
    values.iter().map(result).collect()
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
            (Some("570.124.06"), Some(FieldScheme::BEFORE)),
            (Some("580.65.06"), Some(FieldScheme::BEFORE)),
            (Some("580.82.07"), Some(FieldScheme::SINCE_580_82)),
            (Some("590.1"), Some(FieldScheme::SINCE_580_82)),
            (Some("575"), Some(FieldScheme::BEFORE)),
            (Some("unknown"), None),
            (None, None),
        ] {
            assert_eq!(FieldScheme::of_driver(version), expected, "{version:?}");
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
