//! The hardware module over the fake driver library.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use podmeter::clock::Clock;
use podmeter::domain::model::{GpuUuid, HardwareState, Medium, Slow};
use podmeter::hardware::nvml::{LibrarySearch, NvmlDriver};
use podmeter::hardware::{
    Driver as _, DriverSession, Due, HardwareHandle, HardwareSettings, Tier, XidBatches, XidSender, start,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fake_nvml::FakeNvml;

/// Every tier.
pub static ALL: LazyLock<Due> = LazyLock::new(|| [Tier::Slow, Tier::Fast, Tier::Medium].into());

/// It counts its calls.
pub fn driver(fake: &FakeNvml) -> NvmlDriver {
    let search = LibrarySearch { library: Some(fake.library_path()), driver_roots: Vec::new() };
    NvmlDriver::new(search, Some(Clock::start()))
}

/// With its GPUs listed.
pub fn open(fake: &FakeNvml) -> Box<dyn DriverSession> {
    let session = driver(fake).open().unwrap();
    let _ = session.inventory();
    session
}

/// Many times faster than on a node. A busy machine is no hanging driver.
pub fn quick() -> HardwareSettings {
    HardwareSettings {
        // Three times as long the values last, also where a pass is late on a busy machine.
        sample_interval: Duration::from_millis(300),
        medium_interval: Duration::from_millis(300),
        slow_interval: Duration::from_millis(300),
        watchdog: Duration::from_secs(10),
        reopen: (Duration::from_millis(20), Duration::from_millis(100)),
        lost_retry: (Duration::from_millis(50), Duration::from_millis(100)),
        sys_root: "/nonexistent".into(),
        ..HardwareSettings::default()
    }
}

/// For tests of calls that hang.
pub fn impatient() -> HardwareSettings {
    HardwareSettings { watchdog: Duration::from_secs(1), ..quick() }
}

pub fn run(fake: &FakeNvml, settings: HardwareSettings) -> HardwareHandle {
    run_with_xids(fake, settings).0
}

pub fn run_with_xids(fake: &FakeNvml, settings: HardwareSettings) -> (HardwareHandle, XidBatches) {
    let (xids, [received]) = XidSender::new();
    (start(Box::new(driver(fake)), settings, xids, Clock::start()).unwrap(), received)
}

/// The UUID that the fake gives the GPU at this index.
pub fn gpu(index: usize) -> GpuUuid {
    GpuUuid::new(super::test_data::uuid(index))
}

pub fn machine(gpus: usize) -> Value {
    json!({"gpus": vec![json!({}); gpus]})
}

/// As the fake library gives it to the GPU at this index.
pub fn pci_bus_id(gpu: usize) -> String {
    format!("0000:{:02x}:00.0", 0x10 + gpu)
}

/// A device on the simulated PCI bus, bound to NVIDIA's driver, whose directory is returned. NVIDIA's GPUs have vendor 0x10de.
pub fn add_pci_device(sys: &Path, bus_id: &str, attributes: &[(&str, &str)]) -> PathBuf {
    let device = sys.join("bus/pci/devices").join(bus_id);
    std::fs::create_dir_all(&device).unwrap();
    for (name, text) in [("vendor", "0x10de"), ("class", "0x030200")].iter().chain(attributes) {
        std::fs::write(device.join(name), format!("{text}\n")).unwrap();
    }
    bind(&device, "nvidia");
    device
}

/// What sysfs shows of so many of the fake driver's GPUs, each with these attributes.
pub fn pci_bus(gpus: usize, attributes: &[(&str, &str)]) -> TempDir {
    let sys = tempfile::tempdir().unwrap();
    for gpu in 0..gpus {
        add_pci_device(sys.path(), &pci_bus_id(gpu), attributes);
    }
    sys
}

/// Binds a device on the PCI bus to a kernel driver.
pub fn bind(device: &Path, driver: &str) {
    let link = device.join("driver");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(format!("../../../../bus/pci/drivers/{driver}"), link).unwrap();
}

pub fn medium(state: &HardwareState, index: usize) -> Option<&Medium> {
    Some(&state.readings.get(&gpu(index))?.medium.as_ref()?.value)
}

pub fn slow(state: &HardwareState, index: usize) -> Option<&Slow> {
    Some(&state.readings.get(&gpu(index))?.slow.as_ref()?.value)
}

pub fn has_fast(state: &HardwareState, index: usize) -> bool {
    state.readings.get(&gpu(index)).is_some_and(|readings| readings.fast.is_some())
}

pub use super::test_data::at_second as at;
