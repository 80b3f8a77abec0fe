//! The verdict on each GPU, in the one place that has it.

use std::collections::BTreeMap;

use crate::model::{DeviceReadings, Gpu, GpuUuid, HardwareState};

/// `Err` with the reason. A GPU is healthy while it is there and answers.
pub fn verdict(gpu: &Gpu, readings: Option<&DeviceReadings>) -> Result<(), String> {
    if !gpu.present {
        return Err("the driver no longer lists it".into());
    }
    match readings {
        Some(readings) if readings.lost => Err("the driver says that it is lost".into()),
        Some(readings) if readings.stuck => Err("a driver call on it does not come back".into()),
        // Having been listed with its identity, it has answered once.
        _ => Ok(()),
    }
}

pub fn verdicts(hardware: &HardwareState) -> BTreeMap<GpuUuid, Result<(), String>> {
    let of = |gpu: &Gpu| verdict(gpu, hardware.readings.get(&gpu.uuid).map(AsRef::as_ref));
    hardware.inventory.gpus.values().map(|gpu| (gpu.uuid.clone(), of(gpu))).collect()
}
