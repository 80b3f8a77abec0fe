//! Waits for publications of the hardware threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podmeter::domain::model::{GpuUuid, HardwareState};
use podmeter::node::hardware::HardwareHandle;

/// Waits for a publication with `condition`, and checks that no busy seconds fall meanwhile.
pub fn wait(hardware: &HardwareHandle, what: &str, condition: impl Fn(&HardwareState) -> bool) -> Arc<HardwareState> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut states = hardware.watch();
    let mut busy: BTreeMap<GpuUuid, f64> = BTreeMap::new();
    let found = runtime.block_on(async {
        let found = states.wait_for(|state| {
            for (gpu, readings) in &state.readings {
                let Some(now) = readings.totals.busy_seconds else { continue };
                let before = busy.insert(gpu.clone(), now).unwrap_or(0.0);
                assert!(now >= before, "busy seconds of {gpu} fell from {before} to {now}");
            }
            condition(state)
        });
        let found = tokio::time::timeout(Duration::from_secs(20), found).await.ok()?;
        Some(Arc::clone(&found.expect("the threads publish while they run")))
    });
    let Some(found) = found else { panic!("no such state in time: {what}; last: {:#?}", hardware.watch().borrow()) };
    found
}
