//! The medium tier: memory, temperatures, clocks, throttling, engines, fans, GPM and processes.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{nvmlMarginTemperature_t, nvmlTemperature_t};

use super::calls::{Caller, call, reading, value, version};
use super::fields::{self, FieldRow};
use super::gpm::Gpm;
use super::inventory::Mig;
use super::library::DeviceHandle;
use super::memory;
use super::processes::ProcessLists;
use super::samples::Ring;
use super::vgpus::VgpuReader;
use crate::domain::model::{Clocks, InstanceReading, Medium, MemoryUse, Monotonic, Rates};
use crate::node::hardware::plausible;
use crate::node::hardware::source::Integrals;
use crate::node::hardware::{CLOCK_EVENTS, POLICIES, THROTTLE_REASONS};

const MEMORY_TEMPERATURE: FieldRow = FieldRow::new(82, &plausible::TEMPERATURE);
const SW_POWER_CAP: FieldRow = nanoseconds(74);
const SYNC_BOOST: FieldRow = nanoseconds(76);
/// In the order of `POLICIES`.
const POLICY_ROWS: [FieldRow; 4] = [nanoseconds(75), nanoseconds(77), nanoseconds(78), nanoseconds(79)];
/// Clock event bits that only some drivers have.
const RARE_CLOCK_EVENTS: [(u32, &str); 2] = [(9, "board_limit"), (10, "reliability")];
/// More fans than any board has.
const FAN_LIMIT: u32 = 16;

const fn nanoseconds(id: u32) -> FieldRow {
    FieldRow::rising_fast(id, &plausible::THROTTLED, 1e9)
}

/// What one call reads.
struct Fields {
    throttled_seconds: BTreeMap<&'static str, f64>,
    policy_violation_seconds: BTreeMap<&'static str, f64>,
    memory_temperature_celsius: Option<f64>,
}

pub struct MediumReader {
    slowdown_ids: Option<[u32; 3]>,
    gpm: Gpm,
    engines: [(&'static str, Ring); 4],
    last: Option<Monotonic>,
    /// The bits that the driver supports; read until the driver returns them.
    clock_event_bits: Option<u64>,
    fans: Option<u32>,
    processes: ProcessLists,
    vgpus: VgpuReader,
}

impl MediumReader {
    pub fn new(driver_version: Option<&str>, gpm: Gpm) -> Self {
        let engines = [("encoder", 3), ("decoder", 4), ("jpeg", 8), ("ofa", 9)];
        let engines = engines.map(|(engine, kind)| (engine, Ring::utilization(kind)));
        Self {
            slowdown_ids: fields::slowdown_ids(driver_version),
            gpm,
            engines,
            last: None,
            clock_event_bits: None,
            fans: None,
            processes: ProcessLists::new(driver_version),
            vgpus: VgpuReader::default(),
        }
    }

    pub fn read(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        migs: &[Mig],
        now: Monotonic,
        integrals: &mut Integrals,
    ) -> Medium {
        let elapsed = self.last.replace(now).map_or(0.0, |last| now.since(last).as_secs_f64());
        let mut rates = Rates::default();
        for (engine, ring) in &mut self.engines {
            let step = ring.advance(caller, handle, elapsed, |caller| engine_rate(caller, handle, engine));
            if let Some(seconds) = step.integral {
                integrals.engine_busy_seconds.push((engine, seconds));
            }
            rates.engine_utilization_ratios.extend(step.latest.map(|ratio| (*engine, ratio)));
        }
        let Fields { throttled_seconds, policy_violation_seconds, memory_temperature_celsius } =
            self.fields(caller, handle);
        let power_limit_watts = reading!(caller, POWER_LIMIT / 1e3, nvmlDeviceGetEnforcedPowerLimit(handle.0));
        let power_limit_requested_watts =
            reading!(caller, POWER_LIMIT / 1e3, nvmlDeviceGetPowerManagementLimit(handle.0));
        // 32 means unknown.
        let performance_state =
            value!(caller, nvmlDeviceGetPerformanceState(handle.0)).filter(|state: &u32| *state != 32);
        let memory = memory::read(caller, handle, None);
        let whole = self.gpm.read(caller, handle, None, now);
        rates.traffic = whole.traffic;
        Medium {
            memory,
            gpu_temperature_celsius: temperature(caller, handle),
            memory_temperature_celsius,
            temperature_margin_celsius: margin(caller, handle),
            power_limit_watts,
            power_limit_requested_watts,
            clocks: Clocks {
                graphics_hertz: reading!(caller, CLOCK * 1e6, nvmlDeviceGetClockInfo[0](handle.0, 0)),
                sm_hertz: reading!(caller, CLOCK * 1e6, nvmlDeviceGetClockInfo[1](handle.0, 1)),
                memory_hertz: reading!(caller, CLOCK * 1e6, nvmlDeviceGetClockInfo[2](handle.0, 2)),
                video_hertz: reading!(caller, CLOCK * 1e6, nvmlDeviceGetClockInfo[3](handle.0, 3)),
            },
            throttled_seconds,
            policy_violation_seconds,
            clock_events: self.clock_events(caller, handle),
            performance_state: performance_state
                .and_then(|state| caller.plausible(&plausible::PERFORMANCE_STATE, state)),
            fan_speed_ratios: self.fans(caller, handle),
            gpm: whole.ratios,
            rates,
            sm_cycles: whole.sm_cycles,
            sm_active_cycles: whole.sm_active_cycles,
            pipe_cycles: whole.pipe_cycles,
            instances: self.instances(caller, handle, migs, memory, now),
            processes: self.processes.read(caller, handle, migs, memory.map(|memory| memory.total)),
            virtualization: self.vgpus.virtualization(caller, handle),
            vgpus: self.vgpus.read(caller, handle),
            // The reader and `GpuState` add the rest.
            ..Medium::default()
        }
    }

    /// Throttle counters and the memory's temperature, in one call.
    fn fields(&self, caller: &mut Caller, handle: DeviceHandle) -> Fields {
        let mut rows = vec![MEMORY_TEMPERATURE];
        rows.extend(POLICY_ROWS);
        rows.extend([SW_POWER_CAP, SYNC_BOOST]);
        rows.extend(self.slowdown_ids.into_iter().flatten().map(nanoseconds));
        let values = fields::read(caller, handle, &rows);
        let (policies, throttled) = values[1..].split_at(POLICIES.len());
        Fields {
            throttled_seconds: fields::named(&THROTTLE_REASONS, throttled),
            policy_violation_seconds: fields::named(&POLICIES, policies),
            // Boards without that sensor report 0.
            memory_temperature_celsius: values[0].filter(|celsius| *celsius > 0.0),
        }
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
        let fans = match self.fans {
            Some(fans) => fans,
            None => {
                let Some(fans) = value!(caller, nvmlDeviceGetNumFans(handle.0)) else { return Vec::new() };
                *self.fans.insert(fans)
            }
        };
        let speed = |fan| reading!(caller, FAN_SPEED / 100.0, nvmlDeviceGetFanSpeed_v2[fan](handle.0, fan));
        // Fans are numbered by their position: the list ends before one that is missing.
        (0..fans.min(FAN_LIMIT)).map_while(speed).collect()
    }

    /// Each GPU instance once, however many compute instances share it.
    fn instances(
        &mut self,
        caller: &mut Caller,
        parent: DeviceHandle,
        migs: &[Mig],
        whole: Option<MemoryUse>,
        now: Monotonic,
    ) -> Vec<InstanceReading> {
        let mut by_instance: BTreeMap<u32, Vec<&Mig>> = BTreeMap::new();
        for mig in migs {
            by_instance.entry(mig.gpu_instance).or_default().push(mig);
        }
        let reading = |(gpu_instance, members): (u32, Vec<&Mig>)| InstanceReading {
            gpu_instance,
            memory: members
                .first()
                .and_then(|mig| memory::read(caller, mig.handle, Some(gpu_instance)))
                .filter(|part| whole.is_none_or(|whole| part.total <= whole.total)),
            members: members.iter().map(|mig| mig.uuid.clone()).collect(),
            gpm: self.gpm.read(caller, parent, Some(gpu_instance), now).ratios,
        };
        by_instance.into_iter().map(reading).collect()
    }
}

fn temperature(caller: &mut Caller, handle: DeviceHandle) -> Option<f64> {
    let celsius: Option<u32> = value!(caller, nvmlDeviceGetTemperature(handle.0, 0));
    let celsius = celsius.map(f64::from).or_else(|| {
        let mut reading = nvmlTemperature_t { version: version::<nvmlTemperature_t>(1), sensorType: 0, temperature: 0 };
        call!(caller, nvmlDeviceGetTemperatureV(handle.0, &raw mut reading)).ok()?;
        Some(f64::from(reading.temperature))
    });
    caller.plausible(&plausible::TEMPERATURE, celsius?)
}

fn margin(caller: &mut Caller, handle: DeviceHandle) -> Option<f64> {
    let version = version::<nvmlMarginTemperature_t>(1);
    let mut margin = nvmlMarginTemperature_t { version, marginTemperature: 0 };
    call!(caller, nvmlDeviceGetMarginTemperature(handle.0, &raw mut margin)).ok()?;
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
