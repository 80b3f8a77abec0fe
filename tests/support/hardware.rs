//! The hardware module over the fake driver library.

use std::time::Duration;

use podmeter::clock::Clock;
use podmeter::domain::model::{GpuUuid, HardwareState, Moment, Monotonic, UnixSeconds};
use podmeter::node::hardware::nvml::{LibrarySearch, NvmlDriver};
use podmeter::node::hardware::{Driver as _, DriverSession, Due, HardwareHandle, HardwareSettings, start};
use serde_json::{Value, json};

use super::fake_nvml::FakeNvml;

/// Every tier.
pub const ALL: Due = Due { medium: true, slow: true };

/// It counts its calls.
pub fn driver(fake: &FakeNvml) -> NvmlDriver {
    let search = LibrarySearch { library: Some(fake.library_path()), driver_roots: Vec::new() };
    NvmlDriver::new(search, Some(Clock::start()))
}

pub fn open(fake: &FakeNvml) -> Box<dyn DriverSession> {
    driver(fake).open().unwrap()
}

/// Many times faster than on a node.
pub fn quick() -> HardwareSettings {
    HardwareSettings {
        sample_interval: Duration::from_millis(100),
        medium_interval: Duration::from_millis(200),
        slow_interval: Duration::from_millis(200),
        watchdog: Duration::from_millis(700),
        reopen: (Duration::from_millis(20), Duration::from_millis(100)),
        lost_retry: (Duration::from_millis(50), Duration::from_millis(100)),
        sys_root: "/nonexistent".into(),
        ..HardwareSettings::default()
    }
}

pub fn run(fake: &FakeNvml, settings: HardwareSettings) -> HardwareHandle {
    start(Box::new(driver(fake)), settings, Clock::start())
}

/// The UUID that the fake gives the GPU at this index.
pub fn gpu(index: usize) -> GpuUuid {
    GpuUuid::new(super::test_data::uuid(index))
}

pub fn machine(gpus: usize) -> Value {
    json!({"gpus": vec![json!({}); gpus]})
}

pub fn has_fast(state: &HardwareState, index: usize) -> bool {
    state.readings.get(&gpu(index)).is_some_and(|readings| readings.fast.is_some())
}

pub fn at(seconds: u64) -> Moment {
    Moment { monotonic: Monotonic::from_secs(seconds), unix: UnixSeconds(0.0) }
}
