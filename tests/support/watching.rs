//! Waits for publications of the hardware threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use podmeter::domain::model::{GpuUuid, HardwareState};
use podmeter::hardware::HardwareHandle;

use super::polling::PATIENCE;

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Waits for a publication with `condition`, and checks that no busy seconds fall meanwhile.
pub fn wait(hardware: &HardwareHandle, what: &str, condition: impl Fn(&HardwareState) -> bool) -> Arc<HardwareState> {
    let mut states = hardware.states.clone();
    let mut busy: BTreeMap<GpuUuid, f64> = BTreeMap::new();
    let found = block_on(async {
        let found = states.wait_for(|state| {
            for (gpu, readings) in &state.readings {
                let Some(now) = readings.totals.busy_seconds else { continue };
                let before = busy.insert(gpu.clone(), now).unwrap_or(0.0);
                assert!(now >= before, "busy seconds of {gpu} fell from {before} to {now}");
            }
            condition(state)
        });
        let found = tokio::time::timeout(PATIENCE, found).await.ok()?;
        Some(Arc::clone(&found.expect("the threads publish while they run")))
    });
    let Some(found) = found else { panic!("no such state in time: {what}; last: {:#?}", hardware.states.borrow()) };
    found
}

/// Ends the hardware threads and waits until they have closed the driver or abandoned it.
pub fn stop(hardware: HardwareHandle) {
    let mut states = hardware.states.clone();
    drop(hardware);
    let ended = async { while states.changed().await.is_ok() {} };
    block_on(async { tokio::time::timeout(PATIENCE, ended).await }).expect("the threads end");
}
