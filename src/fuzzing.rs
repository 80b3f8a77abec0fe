//! What the fuzzers run, so that a test can replay their corpora.

use crate::attribution::{DeviceForm, parse_claim_device, parse_device_id};

/// A device id, or a driver and a device with a line feed between them.
///
/// # Panics
///
/// When a parser breaks one of its promises; that is what a fuzzer looks for.
pub fn device_id(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let form = parse_device_id(&text);
    match &form {
        // What was cut out of the id is in the id.
        DeviceForm::Gpu { uuid } => assert_eq!(uuid.as_str(), text),
        DeviceForm::Mig { uuid } => assert_eq!(uuid.as_str(), text),
        DeviceForm::GpuReplica { uuid } | DeviceForm::GpuVirtual { uuid } => assert!(text.starts_with(uuid.as_str())),
        DeviceForm::MigReplica { uuid } => assert!(text.starts_with(uuid.as_str())),
        _ => {}
    }
    if form.is_replica() {
        assert!(form != DeviceForm::Other, "{text:?}");
    }
    let (driver, device) = text.split_once('\n').unwrap_or(("gpu.nvidia.com", &text));
    let claim = parse_claim_device(driver, device);
    assert!(claim.name().starts_with("dra_"), "{text:?} is {}", claim.name());
}
