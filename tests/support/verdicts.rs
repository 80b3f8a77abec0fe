//! A verdict without memory, for tests of what becomes of verdicts.

use std::sync::Arc;

use podmeter::model::{
    DeviceHealth, Gpu, GpuHealth, HardwareState, HealthCause, HealthState, Moment, UnhealthyReason, XidCounts,
};
use tokio::sync::watch;

/// Follows the hardware for as long as there is any.
pub fn verdicts(mut hardware: watch::Receiver<Arc<HardwareState>>) -> watch::Receiver<Arc<HealthState>> {
    let (health, verdicts) = watch::channel(Arc::new(judged(&hardware.borrow_and_update())));
    tokio::spawn(async move {
        while hardware.changed().await.is_ok() {
            let state = judged(&hardware.borrow_and_update());
            health.send_replace(Arc::new(state));
        }
    });
    verdicts
}

fn judged(hardware: &HardwareState) -> HealthState {
    let cause = |reason, detail: &str| vec![HealthCause { reason, detail: detail.into(), clears: "" }];
    let verdict = |gpu: &Gpu| {
        let causes = match hardware.readings.get(&gpu.uuid) {
            _ if !gpu.present => cause(UnhealthyReason::Lost, "it is lost"),
            Some(readings) if readings.lost => cause(UnhealthyReason::Lost, "it is lost"),
            Some(readings) if readings.stuck => cause(UnhealthyReason::Stuck, "the call does not come back"),
            _ => vec![],
        };
        DeviceHealth { healthy: causes.is_empty(), since: Moment::default(), causes }
    };
    let of = |gpu: &Gpu| GpuHealth {
        whole: verdict(gpu),
        instances: gpu.mig_devices.iter().map(|mig| (mig.uuid.clone(), verdict(gpu))).collect(),
        xids: XidCounts::default(),
    };
    let gpus = hardware.inventory.gpus.values().map(|gpu| (gpu.uuid.clone(), of(gpu))).collect();
    HealthState { gpus, ..HealthState::default() }
}
