//! Device health that depends on the current readings only.

use std::sync::Arc;

use podmeter::domain::model::{
    DeviceHealth, Gpu, GpuHealth, HardwareState, HealthCause, HealthState, Moment, UnhealthyReason, XidCounts,
};
use tokio::sync::watch;

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
    let cause = |reason, detail: &str| vec![HealthCause { reason, detail: detail.into(), clears: "".into() }];
    let device = |gpu: &Gpu| {
        let causes = match hardware.readings.get(&gpu.uuid) {
            _ if !gpu.present => cause(UnhealthyReason::Lost, "it is lost"),
            Some(readings) if readings.lost => cause(UnhealthyReason::Lost, "it is lost"),
            Some(readings) if readings.stuck => cause(UnhealthyReason::Stuck, "the call does not come back"),
            _ => vec![],
        };
        DeviceHealth { healthy: causes.is_empty(), known: true, since: Moment::default(), causes }
    };
    let of = |gpu: &Gpu| GpuHealth {
        whole: device(gpu),
        mig_devices: gpu.mig_devices.iter().map(|mig| (mig.uuid.clone(), device(gpu))).collect(),
        xids: XidCounts::default(),
    };
    let gpus = hardware.inventory.gpus.values().map(|gpu| (gpu.uuid.clone(), of(gpu))).collect();
    HealthState { gpus, ..HealthState::default() }
}
