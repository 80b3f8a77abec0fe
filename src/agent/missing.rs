//! The hardware as the rest of the agent gets it: with the GPUs that the driver does not list.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::Reloadable;
use crate::attribution::{MissingGpus, held_gpus};
use crate::clock::Clock;
use crate::model::{GpuUuid, HardwareState, KubeletState, ResourceName};

pub struct Watch {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// What the bundled plugin offers is in here.
    pub reloadable: watch::Receiver<Reloadable>,
    pub clock: Clock,
    pub publish: watch::Sender<Arc<HardwareState>>,
}

/// Publishes for as long as the hardware does, and then waits for ever: its readers see that nothing more comes.
pub async fn complete(watch: Watch) {
    let Watch { mut hardware, mut kubelet, reloadable, clock, publish } = watch;
    let mut missing = MissingGpus::default();
    let mut named = BTreeSet::new();
    let mut kubelet_lives = true;
    loop {
        let completed = {
            let (state, kubelet) = (hardware.borrow_and_update().clone(), kubelet.borrow_and_update().clone());
            let entries = reloadable.borrow().device_plugin.clone().unwrap_or_default();
            let is_ours = |resource: &ResourceName| entries.iter().any(|entry| entry.may_offer(resource));
            let completed = missing.complete(&state, &kubelet, &is_ours, clock.now().monotonic);
            log(&completed, &kubelet, &mut named);
            completed
        };
        publish.send_replace(completed);
        tokio::select! {
            changed = hardware.changed() => if changed.is_err() { break },
            changed = kubelet.changed(), if kubelet_lives => kubelet_lives = changed.is_ok(),
        }
    }
    drop(publish);
    std::future::pending::<()>().await;
}

/// One line for each GPU that is missing, and one when it is back.
fn log(state: &HardwareState, kubelet: &KubeletState, named: &mut BTreeSet<GpuUuid>) {
    let inventory = &state.inventory;
    named.retain(|gpu| {
        let is_missing = inventory.missing.contains_key(gpu);
        if !is_missing {
            tracing::info!(%gpu, "the GPU is no longer missing");
        }
        is_missing
    });
    for (gpu, missing) in &inventory.missing {
        if named.insert(gpu.clone()) {
            let allocations = kubelet.allocations.as_deref().cloned().unwrap_or_default();
            let held = held_gpus(&allocations, inventory).contains(gpu);
            tracing::warn!(%gpu, held, "a GPU is missing: {}; see nvidia-smi and the Xid lines of the kernel log", missing.detail);
        }
    }
}
