//! nvmlDeviceGetFieldValues: one status for each value, scopes, and the numbering of the driver's version.

use std::ffi::c_int;
use std::mem::size_of;

use nvml_wrapper_sys::bindings::field_id::*;
use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};
use serde_json::Value;

use crate::calls::on_device;
use crate::clock;
use crate::codes::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS};
use crate::gate::Target;
use crate::out::Many;
use crate::state::NvLink;

const ALL_LINKS: u32 = u32::MAX;
const SCOPE_MODULE: u32 = 1;

on_device! {
    nvmlDeviceGetFieldValues(count: c_int, values: Many<nvmlFieldValue_t>) |target| {
        if values.is_null() || count < 1 {
            return Err(INVALID_ARGUMENT);
        }
        for index in 0..count as usize {
            let asked = values.get(index);
            let answer = canonical(target.machine.driver_number(), asked.fieldId)
                .and_then(|id| field(target, id, asked.scopeId));
            values.put(index, filled(asked, answer));
        }
        Ok(())
    }
}

/// A value with its type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Double(f64),
    Word(u32),
    Long(u64),
    Signed(i32),
}

fn filled(asked: nvmlFieldValue_t, answer: Result<Number, Code>) -> nvmlFieldValue_t {
    let code = answer.err().map_or(SUCCESS, |Code(code)| code);
    // Every byte of the union is set, whichever member is read.
    let mut value = nvmlValue_t { ullVal: 0 };
    let kind = match answer {
        Ok(Number::Double(number)) => {
            value.dVal = number;
            0
        }
        Ok(Number::Word(number)) => {
            value.ullVal = number.into();
            1
        }
        Ok(Number::Long(number)) => {
            value.ullVal = number;
            3
        }
        Ok(Number::Signed(number)) => {
            value.ullVal = u64::from(number.cast_unsigned());
            5
        }
        Err(_) => 1,
    };
    let timestamp = clock::now().cast_signed();
    nvmlFieldValue_t { timestamp, latencyUsec: 1, valueType: kind, nvmlReturn: code, value, ..asked }
}

/// The id of nvml-wrapper-sys 0.10, which has the numbering of driver 575, for the one requested from this driver.
/// Power smoothing is at 251 to 268 before 575 and since 580.82.
fn canonical(driver: (u32, u32), id: u32) -> Result<u32, Code> {
    let (is_of_575, first_unknown) = match driver {
        (..575, _) => (false, 269),
        driver if driver < (580, 82) => (true, 274),
        _ => (false, 308),
    };
    match id {
        0 => Err(INVALID_ARGUMENT),
        _ if id >= first_unknown => Err(INVALID_ARGUMENT),
        251..=268 if !is_of_575 => Ok(id + 5),
        269..=273 if !is_of_575 => Ok(id - 18),
        _ => Ok(id),
    }
}

fn field(target: &Target, id: u32, scope: u32) -> Result<Number, Code> {
    let gpu = target.whole()?;
    if let Some(given) = gpu.fields.get(&id) {
        return from_file(given, scope);
    }
    let (lasted, pcie) = (&gpu.clock_event_reasons, &gpu.pcie);
    let long = |number: u64| Ok(Number::Long(number));
    let word = |number: u32| Ok(Number::Word(number));
    match id {
        NVML_FI_DEV_PERF_POLICY_POWER => long(lasted.power_cap_nanoseconds),
        NVML_FI_DEV_PERF_POLICY_THERMAL => long(lasted.sw_thermal_nanoseconds + lasted.hw_thermal_nanoseconds),
        NVML_FI_DEV_PERF_POLICY_SYNC_BOOST => long(lasted.sync_boost_nanoseconds),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN => long(lasted.sw_thermal_nanoseconds),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN => long(lasted.hw_thermal_nanoseconds),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN => long(lasted.hw_power_brake_nanoseconds),
        NVML_FI_DEV_MEMORY_TEMP => gpu.temperatures.memory.map(Number::Signed).ok_or(NOT_SUPPORTED),
        NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT => match scope {
            0 => word(gpu.power_milliwatts),
            SCOPE_MODULE => gpu.power_limits.module_milliwatts.map(Number::Word).ok_or(NOT_SUPPORTED),
            _ => Err(NOT_SUPPORTED),
        },
        NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS => long(pcie.correctable_errors),
        NVML_FI_DEV_PCIE_COUNT_TX_BYTES => long(pcie.tx_bytes),
        NVML_FI_DEV_PCIE_COUNT_RX_BYTES => long(pcie.rx_bytes),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => gpu.recovery_action.map(Number::Word).ok_or(NOT_SUPPORTED),
        NVML_FI_DEV_C2C_LINK_COUNT | NVML_FI_DEV_C2C_LINK_GET_STATUS | NVML_FI_DEV_C2C_LINK_GET_MAX_BW => {
            let c2c = gpu.c2c.as_ref().ok_or(NOT_SUPPORTED)?;
            match id {
                NVML_FI_DEV_C2C_LINK_COUNT => word(c2c.links),
                _ if scope >= c2c.links => Err(INVALID_ARGUMENT),
                NVML_FI_DEV_C2C_LINK_GET_STATUS => word((!c2c.down.contains(&scope)).into()),
                _ if c2c.down.contains(&scope) => word(0),
                _ => word(c2c.megabytes_per_second),
            }
        }
        _ => nvlink(&gpu.nvlink, id, scope),
    }
}

/// The value of one link, or the sum where the driver has one.
fn nvlink(nvlink: &NvLink, id: u32, scope: u32) -> Result<Number, Code> {
    let (each, summable) = match id {
        NVML_FI_DEV_NVLINK_LINK_COUNT if nvlink.links > 0 => return Ok(Number::Word(nvlink.links)),
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => (nvlink.data_tx_kib, true),
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => (nvlink.data_rx_kib, true),
        NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY | NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY if nvlink.version < 5 => (0, false),
        NVML_FI_DEV_NVLINK_ERROR_DL_CRC if nvlink.version < 5 => (nvlink.crc_errors, false),
        NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES if nvlink.version >= 5 => (nvlink.tx_bytes, false),
        NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES if nvlink.version >= 5 => (nvlink.rx_bytes, false),
        _ => return Err(NOT_SUPPORTED),
    };
    let up = (0..nvlink.links).filter(|link| !nvlink.down.contains(link)).count() as u64;
    match scope {
        ALL_LINKS if summable && nvlink.links > 0 => Ok(Number::Long(each * up)),
        link if link >= nvlink.links => Err(if nvlink.links == 0 { NOT_SUPPORTED } else { INVALID_ARGUMENT }),
        link if nvlink.down.contains(&link) => Ok(Number::Long(0)),
        _ => Ok(Number::Long(each)),
    }
}

/// `fields` of the data file: a number, `{"word": n}` (one of 32 bits), `{"code": n}` or `{"by_scope": {"0": ...}}`.
fn from_file(given: &Value, scope: u32) -> Result<Number, Code> {
    if let Some(by_scope) = given.get("by_scope") {
        return by_scope.get(scope.to_string()).ok_or(NOT_SUPPORTED).and_then(|given| from_file(given, scope));
    }
    if let Some(code) = given.get("code").and_then(Value::as_u64) {
        return Err(Code(u32::try_from(code).unwrap_or(u32::MAX)));
    }
    if let Some(number) = given.get("word").and_then(Value::as_u64) {
        return Ok(Number::Word(number as u32));
    }
    let whole = given.as_u64().map(Number::Long);
    whole.or_else(|| given.as_f64().map(Number::Double)).ok_or(NOT_SUPPORTED)
}

const _: () = assert!(size_of::<nvmlFieldValue_t>() == 40, "the layout that the header has");
