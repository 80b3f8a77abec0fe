//! The fake driver library is what it says: loaded and asked through nvml-wrapper, as production asks the real one.

#[path = "support/fake_nvml.rs"]
mod fake_nvml;

use fake_nvml::FakeNvml;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde_json::{Value, json};

fn open(fake: &FakeNvml) -> Nvml {
    try_open(fake).expect("the fake driver opens")
}

fn try_open(fake: &FakeNvml) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(fake.library_path().as_os_str()).init()
}

fn machine(gpus: usize) -> Value {
    json!({"gpus": vec![json!({}); gpus]})
}

#[test]
fn eight_gpus_are_found_by_index_uuid_and_bus_id() {
    let fake = FakeNvml::start(machine(8));
    let nvml = open(&fake);
    assert_eq!(nvml.device_count().unwrap(), 8);
    for index in 0..8 {
        let device = nvml.device_by_index(index).unwrap();
        let uuid = device.uuid().unwrap();
        assert_eq!(uuid, format!("GPU-00000000-0000-0000-0000-00000000000{index}"));
        assert_eq!(device.minor_number().unwrap(), index);
        assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
        assert_eq!(device.memory_info().unwrap().total, 85_520_809_984);
        assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), index);
        let bus_id = device.pci_info().unwrap().bus_id;
        assert_eq!(bus_id, format!("00000000:{:02X}:00.0", 0x10 + index));
        assert_eq!(nvml.device_by_pci_bus_id(bus_id.strip_prefix("0000").unwrap()).unwrap().index().unwrap(), index);
    }
}
