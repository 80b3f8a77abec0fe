//! Device health that depends on the current readings only.

use std::sync::Arc;

use podmeter::domain::model::{Gpu, GpuHealth, HardwareState, HealthState, Moment, UnhealthyReason};
use tokio::sync::watch;

use super::test_data::{device_health, gpu_health};

/// Follows the hardware until its sender is dropped.
pub fn health_of(mut hardware: watch::Receiver<Arc<HardwareState>>) -> watch::Receiver<Arc<HealthState>> {
    let (publish, health) = watch::channel(Arc::new(health_from(&hardware.borrow_and_update())));
    tokio::spawn(async move {
        while hardware.changed().await.is_ok() {
            let state = health_from(&hardware.borrow_and_update());
            publish.send_replace(Arc::new(state));
        }
    });
    health
}

/// Of the readings alone.
pub fn health_from(hardware: &HardwareState) -> HealthState {
    let device = |gpu: &Gpu| {
        let cause = match hardware.readings.get(&gpu.uuid) {
            _ if !gpu.present => Some((UnhealthyReason::Lost, "it is lost")),
            Some(readings) if readings.lost => Some((UnhealthyReason::Lost, "it is lost")),
            Some(readings) if readings.stuck => Some((UnhealthyReason::Stuck, "the call does not come back")),
            _ => None,
        };
        device_health(Moment::default(), cause)
    };
    let of = |gpu: &Gpu| GpuHealth {
        mig_devices: gpu.mig_devices.iter().map(|mig| (mig.uuid.clone(), device(gpu))).collect(),
        ..gpu_health(device(gpu))
    };
    let gpus = hardware.inventory.gpus.values().map(|gpu| (gpu.uuid.clone(), of(gpu))).collect();
    HealthState { gpus, ..HealthState::default() }
}
