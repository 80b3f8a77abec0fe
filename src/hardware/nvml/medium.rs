//! The medium tier: memory, temperatures, clocks, throttling, engines, fans, GPM and processes.

use std::collections::BTreeMap;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper_sys::bindings::{nvmlMarginTemperature_t, nvmlTemperature_t};

use super::calls::{Caller, call, fetch, value, version};
use super::gpm::{self, Gpm};
use super::inventory::Mig;
use super::library::DeviceHandle;
use super::memory;
use super::rows::{self, ReadingRow, ReadingSource, row};
use super::samples::Ring;
use crate::domain::model::{GpmRatios, InstanceReading, Medium, MemoryUse, Monotonic};
use crate::hardware::CLOCK_EVENTS;
use crate::hardware::plausible;
use crate::hardware::source::Integrals;

const READINGS: &[ReadingRow<Medium>] = &[
    row!(memory_temperature_celsius = field 82: TEMPERATURE),
    row!(policy_violation_seconds["thermal"] = wide 75: THROTTLED / 1e9),
    row!(policy_violation_seconds["board_limit"] = wide 77: THROTTLED / 1e9),
    row!(policy_violation_seconds["low_utilization"] = wide 78: THROTTLED / 1e9),
    row!(policy_violation_seconds["reliability"] = wide 79: THROTTLED / 1e9),
    row!(throttled_seconds["sw_power_cap"] = wide 74: THROTTLED / 1e9),
    row!(throttled_seconds["sync_boost"] = wide 76: THROTTLED / 1e9),
    row!(power_limit_watts = nvmlDeviceGetEnforcedPowerLimit enforced_power_limit(): POWER_LIMIT / 1e3),
    row!(power_limit_requested_watts = nvmlDeviceGetPowerManagementLimit power_management_limit(): POWER_LIMIT / 1e3),
    row!(clocks.graphics_hertz = nvmlDeviceGetClockInfo[0] clock_info(Clock::Graphics): CLOCK * 1e6),
    row!(clocks.sm_hertz = nvmlDeviceGetClockInfo[1] clock_info(Clock::SM): CLOCK * 1e6),
    row!(clocks.memory_hertz = nvmlDeviceGetClockInfo[2] clock_info(Clock::Memory): CLOCK * 1e6),
    row!(clocks.video_hertz = nvmlDeviceGetClockInfo[3] clock_info(Clock::Video): CLOCK * 1e6),
];
/// The fields of three reasons came with driver 575, and changed at 580.82; a wrong id reads another quantity, such as
/// power smoothing before 575, without an error.
const SLOWDOWNS_BEFORE_580_82: &[ReadingRow<Medium>] = &[
    row!(throttled_seconds["sw_thermal_slowdown"] = wide 251: THROTTLED / 1e9),
    row!(throttled_seconds["hw_thermal_slowdown"] = wide 252: THROTTLED / 1e9),
    row!(throttled_seconds["hw_power_brake_slowdown"] = wide 253: THROTTLED / 1e9),
];
const SLOWDOWNS: &[ReadingRow<Medium>] = &[
    row!(throttled_seconds["sw_thermal_slowdown"] = wide 269: THROTTLED / 1e9),
    row!(throttled_seconds["hw_thermal_slowdown"] = wide 270: THROTTLED / 1e9),
    row!(throttled_seconds["hw_power_brake_slowdown"] = wide 271: THROTTLED / 1e9),
];
/// Clock event bits that only some drivers have.
const RARE_CLOCK_EVENTS: [(u32, &str); 2] = [(9, "board_limit"), (10, "reliability")];
/// The virtualization modes by the driver's number, with its names; the first is bare metal.
const VIRTUALIZATION_MODES: [Option<&str>; 5] =
    [None, Some("passthrough"), Some("vgpu"), Some("host_vgpu"), Some("host_vsga")];
/// More fans than any board has.
const FAN_LIMIT: u32 = 16;

/// The first two numbers of a driver version; `None` without a number.
pub(super) fn major_and_minor(driver_version: &str) -> Option<(u32, u32)> {
    let mut numbers = driver_version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

/// The rows of the slowdown reasons; none before 575, and for an unknown version.
fn slowdowns(driver_version: Option<&str>) -> &'static [ReadingRow<Medium>] {
    match driver_version.and_then(major_and_minor) {
        None | Some((..575, _)) => &[],
        Some(version) if version < (580, 82) => SLOWDOWNS_BEFORE_580_82,
        _ => SLOWDOWNS,
    }
}

pub struct MediumReader {
    slowdowns: &'static [ReadingRow<Medium>],
    gpm: Gpm,
    engines: [(&'static str, Ring); 4],
    last: Option<Monotonic>,
    /// The bits that the driver supports; read until the driver returns them.
    clock_event_bits: Option<u64>,
    fans: Option<u32>,
    /// The virtualization mode, which changes with the driver alone; read until the driver returns it.
    virtualization_mode: Option<u32>,
}

impl MediumReader {
    pub fn new(driver_version: Option<&str>, gpm: Gpm) -> Self {
        let engines = [("encoder", 3), ("decoder", 4), ("jpeg", 8), ("ofa", 9)];
        let engines = engines.map(|(engine, kind)| (engine, Ring::utilization(kind)));
        Self {
            slowdowns: slowdowns(driver_version),
            gpm,
            engines,
            last: None,
            clock_event_bits: None,
            fans: None,
            virtualization_mode: None,
        }
    }

    /// Reads the tier. `works`: whether the GPU works by other readings than GPM.
    pub fn read(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        migs: &[Mig],
        now: Monotonic,
        works: bool,
        integrals: &mut Integrals,
    ) -> Medium {
        let elapsed = self.last.replace(now).map_or(0.0, |last| now.since(last).as_secs_f64());
        let mut medium = self.gpm.read(caller, handle, None, now);
        if works && gpm::is_zero(&medium.gpm) {
            caller.count_implausible(&plausible::GPM);
            medium = Medium::default();
        }
        for (engine, ring) in &mut self.engines {
            let step = ring.advance(caller, handle, elapsed, |caller| engine_rate(caller, handle, engine));
            if let Some(seconds) = step.integral {
                integrals.engine_busy_seconds.push((engine, seconds));
            }
            medium.rates.engine_utilization_ratios.extend(step.latest.map(|ratio| (*engine, ratio)));
        }
        rows::read(caller, handle, READINGS.iter().chain(self.slowdowns), &mut medium);
        // Boards without that sensor report 0.
        medium.memory_temperature_celsius.take_if(|celsius| *celsius <= 0.0);
        let memory = memory::read(caller, handle, None);
        // Read at once after the GPU's memory, of which it is a part.
        let mut instances = instances(caller, migs, memory);
        for instance in &mut instances {
            instance.gpm = self.gpm.read(caller, handle, Some(instance.gpu_instance), now).gpm;
        }
        // 32 means unknown.
        let performance_state: Option<u32> = value!(caller, nvmlDeviceGetPerformanceState(handle.0));
        let performance_state = performance_state.filter(|state| *state != 32);
        self.virtualization_mode =
            self.virtualization_mode.or_else(|| value!(caller, nvmlDeviceGetVirtualizationMode(handle.0)));
        let virtualization = self.virtualization_mode.and_then(|mode| VIRTUALIZATION_MODES.get(mode as usize).copied());
        // `NvmlReader` adds processes, memory utilization and the source of use by process; `GpuState` traffic from counters and the
        // counts of clock events.
        let mut medium = Medium {
            memory,
            gpu_temperature_celsius: temperature(caller, handle),
            temperature_margin_celsius: margin(caller, handle),
            clock_events: self.clock_events(caller, handle),
            performance_state: performance_state
                .and_then(|state| caller.plausible(&plausible::PERFORMANCE_STATE, state)),
            fan_speed_ratios: self.fans(caller, handle),
            instances,
            virtualization: virtualization.flatten(),
            ..medium
        };
        if works && medium.instances.iter().all(|instance| gpm::is_zero(&instance.gpm)) {
            medium.instances.iter_mut().for_each(|instance| instance.gpm = GpmRatios::default());
        }
        medium
    }

    fn clock_events(&mut self, caller: &mut Caller, handle: DeviceHandle) -> BTreeMap<&'static str, bool> {
        let current: Option<u64> = value!(caller, nvmlDeviceGetCurrentClocksEventReasons(handle.0));
        let current = current.or_else(|| value!(caller, nvmlDeviceGetCurrentClocksThrottleReasons(handle.0)));
        let Some(current) = current else { return BTreeMap::new() };
        self.clock_event_bits =
            self.clock_event_bits.or_else(|| value!(caller, nvmlDeviceGetSupportedClocksEventReasons(handle.0)));
        let supported = self.clock_event_bits;
        let is_active = |bit: u32| current & (1 << bit) != 0;
        let rare =
            RARE_CLOCK_EVENTS.into_iter().filter(|(bit, _)| supported.is_some_and(|bits| bits & (1 << bit) != 0));
        let common = (0..).zip(CLOCK_EVENTS);
        common.chain(rare).map(|(bit, reason)| (reason, is_active(bit))).collect()
    }

    fn fans(&mut self, caller: &mut Caller, handle: DeviceHandle) -> Vec<f64> {
        self.fans = self.fans.or_else(|| caller.device("nvmlDeviceGetNumFans", 0, handle, |gpu| gpu.num_fans()).ok());
        let speed = |fan| {
            let percent = caller.device("nvmlDeviceGetFanSpeed_v2", fan, handle, |gpu| gpu.fan_speed(fan)).ok()?;
            caller.plausible(&plausible::FAN_SPEED, f64::from(percent) / 100.0)
        };
        // Fans are numbered by their position: the list ends before one that is missing.
        (0..self.fans.unwrap_or(0).min(FAN_LIMIT)).map_while(speed).collect()
    }
}

/// The memory of each GPU instance, read once, however many compute instances share it.
fn instances(caller: &mut Caller, migs: &[Mig], gpu_memory: Option<MemoryUse>) -> Vec<InstanceReading> {
    let mut by_instance: BTreeMap<u32, Vec<&Mig>> = BTreeMap::new();
    for mig in migs {
        by_instance.entry(mig.gpu_instance).or_default().push(mig);
    }
    let reading = |(gpu_instance, members): (u32, Vec<&Mig>)| InstanceReading {
        gpu_instance,
        memory: members
            .first()
            .and_then(|mig| memory::read(caller, mig.handle, Some(gpu_instance)))
            .filter(|part| gpu_memory.is_none_or(|gpu| part.total <= gpu.total)),
        members: members.iter().map(|mig| mig.uuid.clone()).collect(),
        gpm: GpmRatios::default(),
    };
    by_instance.into_iter().map(reading).collect()
}

fn temperature(caller: &mut Caller, handle: DeviceHandle) -> Option<f64> {
    let read = caller.device("nvmlDeviceGetTemperature", 0, handle, |gpu| gpu.temperature(TemperatureSensor::Gpu));
    let celsius = read.map(f64::from).or_else(|_| {
        let wanted = nvmlTemperature_t { version: version::<nvmlTemperature_t>(1), sensorType: 0, temperature: 0 };
        fetch!(caller, wanted, nvmlDeviceGetTemperatureV(handle.0)).map(|reading| f64::from(reading.temperature))
    });
    caller.plausible(&plausible::TEMPERATURE, celsius.ok()?)
}

fn margin(caller: &mut Caller, handle: DeviceHandle) -> Option<f64> {
    let wanted = nvmlMarginTemperature_t { version: version::<nvmlMarginTemperature_t>(1), marginTemperature: 0 };
    let margin = fetch!(caller, wanted, nvmlDeviceGetMarginTemperature(handle.0)).ok()?;
    caller.plausible(&plausible::TEMPERATURE_MARGIN, f64::from(margin.marginTemperature))
}

/// The rate of one engine over its last sample period.
fn engine_rate(caller: &mut Caller, handle: DeviceHandle, engine: &str) -> Option<f64> {
    let (mut percent, mut period) = (0_u32, 0_u32);
    let outcome = match engine {
        "encoder" => call!(caller, nvmlDeviceGetEncoderUtilization(handle.0, &raw mut percent, &raw mut period)),
        "decoder" => call!(caller, nvmlDeviceGetDecoderUtilization(handle.0, &raw mut percent, &raw mut period)),
        "jpeg" => call!(caller, nvmlDeviceGetJpgUtilization(handle.0, &raw mut percent, &raw mut period)),
        _ => call!(caller, nvmlDeviceGetOfaUtilization(handle.0, &raw mut percent, &raw mut period)),
    };
    outcome.ok()?;
    caller.plausible(&plausible::UTILIZATION, f64::from(percent) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_slowdowns_follow_the_driver_version() {
        for (version, expected) in [
            (Some("535.183.01"), None),
            (Some("570.172.08"), None),
            (Some("575.51.02"), Some(251)),
            (Some("580.65.06"), Some(251)),
            (Some("580.82.07"), Some(269)),
            (Some("590.1"), Some(269)),
            (Some("575"), Some(251)),
            (Some("unknown"), None),
            (None, None),
        ] {
            let first = slowdowns(version).first().and_then(ReadingRow::field);
            assert_eq!(first.map(|field| field.id), expected, "{version:?}");
        }
    }
}
