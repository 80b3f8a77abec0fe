//! How busy, full, hot and hungry a GPU is.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::mem::size_of;

use nvml_wrapper_sys::bindings::{
    nvmlMarginTemperature_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlTemperature_t, nvmlUtilization_t,
};

use super::on_device;
use crate::clock;
use crate::codes::{Answer, Code, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::gate::Target;
use crate::library::library;
use crate::out::Out;
use crate::versions;

/// The engines' sampling period that the driver reports.
const PERIOD_MICROSECONDS: c_uint = 166_667;

on_device! {
    nvmlDeviceGetUtilizationRates(rates: Out<nvmlUtilization_t>) |target| {
        let busy = &target.undivided()?.utilization;
        rates.put(nvmlUtilization_t { gpu: percent(busy.gpu), memory: percent(busy.memory) })
    }
    nvmlDeviceGetEncoderUtilization(share: Out<c_uint>, period: Out<c_uint>) |target| {
        engine(share, period, target.undivided()?.utilization.encoder)
    }
    nvmlDeviceGetDecoderUtilization(share: Out<c_uint>, period: Out<c_uint>) |target| {
        engine(share, period, target.undivided()?.utilization.decoder)
    }
    nvmlDeviceGetJpgUtilization(share: Out<c_uint>, period: Out<c_uint>) |target| {
        engine(share, period, target.undivided()?.utilization.jpeg)
    }
    nvmlDeviceGetOfaUtilization(share: Out<c_uint>, period: Out<c_uint>) |target| {
        engine(share, period, target.undivided()?.utilization.ofa)
    }
    nvmlDeviceGetMemoryInfo(memory: Out<nvmlMemory_t>) |target| {
        let (total, reserved, used) = memory_of(target);
        let taken = used.saturating_add(reserved).min(total);
        memory.put(nvmlMemory_t { total, free: total - taken, used: taken })
    }
    nvmlDeviceGetMemoryInfo_v2(memory: Out<nvmlMemory_v2_t>) |target| {
        versions::check(memory.get()?.version, 2, size_of::<nvmlMemory_v2_t>())?;
        let (total, reserved, used) = memory_of(target);
        let free = total.saturating_sub(reserved).saturating_sub(used);
        memory.put(nvmlMemory_v2_t { version: memory.get()?.version, total, reserved, free, used })
    }
    nvmlDeviceGetTotalEnergyConsumption(energy: Out<c_ulonglong>) |target| {
        let uuid = &target.whole()?.uuid;
        let now = clock::now();
        let total = library().history(uuid, now).map(|history| history.energy_millijoules(now));
        energy.put(total.ok_or(NOT_FOUND)?)
    }
    nvmlDeviceGetPowerUsage(power: Out<c_uint>) |target| {
        power.put(target.whole()?.power_milliwatts)
    }
    nvmlDeviceGetEnforcedPowerLimit(limit: Out<c_uint>) |target| {
        limit.put(target.whole()?.power_limits.enforced)
    }
    nvmlDeviceGetPowerManagementLimit(limit: Out<c_uint>) |target| {
        limit.put(target.whole()?.power_limits.management)
    }
    nvmlDeviceGetTemperature(sensor: c_uint, temperature: Out<c_uint>) |target| {
        temperature.put(celsius(target, sensor)? as c_uint)
    }
    nvmlDeviceGetTemperatureV(temperature: Out<nvmlTemperature_t>) |target| {
        let asked = temperature.get()?;
        versions::check(asked.version, 1, size_of::<nvmlTemperature_t>())?;
        temperature.put(nvmlTemperature_t { temperature: celsius(target, asked.sensorType)?, ..asked })
    }
    nvmlDeviceGetMarginTemperature(margin: Out<nvmlMarginTemperature_t>) |target| {
        let asked = margin.get()?;
        versions::check(asked.version, 1, size_of::<nvmlMarginTemperature_t>())?;
        let own = target.whole()?.temperatures.margin.ok_or(NOT_SUPPORTED)?;
        margin.put(nvmlMarginTemperature_t { marginTemperature: own, ..asked })
    }
    nvmlDeviceGetClockInfo(kind: c_uint, clock: Out<c_uint>) |target| {
        let clocks = &target.gpu().clocks;
        let clocks = [clocks.graphics, clocks.sm, clocks.memory, clocks.video];
        clock.put(*clocks.get(kind as usize).ok_or(INVALID_ARGUMENT)?)
    }
    nvmlDeviceGetCurrentClocksEventReasons(reasons: Out<c_ulonglong>) |target| {
        reasons.put(target.whole()?.clock_event_reasons.mask)
    }
    nvmlDeviceGetCurrentClocksThrottleReasons(reasons: Out<c_ulonglong>) |target| {
        reasons.put(target.whole()?.clock_event_reasons.mask)
    }
    nvmlDeviceGetSupportedClocksEventReasons(reasons: Out<c_ulonglong>) |target| {
        target.whole()?;
        reasons.put(0x1FF)
    }
    nvmlDeviceGetPerformanceState(state: Out<c_uint>) |target| {
        state.put(target.whole()?.performance_state)
    }
    nvmlDeviceGetNumFans(fans: Out<c_uint>) |target| {
        fans.put(target.whole()?.fans.len() as c_uint)
    }
    nvmlDeviceGetFanSpeed(speed: Out<c_uint>) |target| {
        speed.put(*target.whole()?.fans.first().ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetFanSpeed_v2(fan: c_uint, speed: Out<c_uint>) |target| {
        let fans = &target.whole()?.fans;
        let refused = if fans.is_empty() { NOT_SUPPORTED } else { INVALID_ARGUMENT };
        speed.put(*fans.get(fan as usize).ok_or(refused)?)
    }
}

fn percent(share: f64) -> c_uint {
    share.round() as c_uint
}

fn engine(share: Out<c_uint>, period: Out<c_uint>, value: f64) -> Answer {
    share.put(percent(value))?;
    period.put(PERIOD_MICROSECONDS)
}

/// Total, reserved and used: of the GPU instance for a MIG device.
fn memory_of(target: &Target) -> (u64, u64, u64) {
    match target.instance() {
        Some(one) => (one.memory_total_bytes(), 0, one.memory_used_bytes),
        None => {
            let memory = &target.gpu().memory;
            (memory.total_bytes, memory.reserved_bytes, memory.used_bytes)
        }
    }
}

fn celsius(target: &Target, sensor: c_uint) -> Result<c_int, Code> {
    if sensor != 0 {
        return Err(INVALID_ARGUMENT);
    }
    target.gpu().temperatures.gpu.ok_or(NOT_SUPPORTED)
}
