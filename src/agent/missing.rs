//! The hardware as the rest of the agent gets it: with the GPUs that the driver does not list.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::devices::Inputs;
use crate::attribution::{MissingGpus, held_gpus};
use crate::clock::Clock;
use crate::model::{GpuUuid, HardwareState, KubeletState, ResourceName};
use crate::tasks::Tasks;

/// Publishes `hardware` with the GPUs that are missing, for as long as `hardware` is published. The resources that the
/// bundled plugin offers are in `inputs.reloadable`.
pub fn start(
    hardware: watch::Receiver<Arc<HardwareState>>,
    inputs: Inputs,
    clock: Clock,
    tasks: &mut Tasks,
) -> watch::Receiver<Arc<HardwareState>> {
    let (publish, states) = watch::channel(hardware.borrow().clone());
    tasks.spawn("hardware", complete(hardware, inputs, clock, publish));
    states
}

/// After the last state of `hardware` its readers see a closed channel; the task itself does not end.
async fn complete(
    mut hardware: watch::Receiver<Arc<HardwareState>>,
    Inputs { mut kubelet, reloadable }: Inputs,
    clock: Clock,
    publish: watch::Sender<Arc<HardwareState>>,
) {
    let mut missing = MissingGpus::default();
    let mut named = BTreeSet::new();
    let mut passed_through = BTreeSet::new();
    let mut kubelet_lives = true;
    loop {
        let completed = {
            let (state, kubelet) = (hardware.borrow_and_update().clone(), kubelet.borrow_and_update().clone());
            let plan = reloadable.borrow().device_plugin.clone().unwrap_or_default();
            let is_ours = |resource: &ResourceName| plan.all_entries().any(|entry| entry.may_offer(resource));
            let completed = missing.complete(&state, &kubelet, &is_ours, clock.now().monotonic);
            log(&completed, &kubelet, &mut named);
            log_passthrough(&completed, &mut passed_through);
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

/// One line for each GPU that is passed through, and one when it no longer is.
fn log_passthrough(state: &HardwareState, named: &mut BTreeSet<GpuUuid>) {
    let passthrough = &state.inventory.passthrough;
    named.retain(|gpu| {
        let is_passed_through = passthrough.contains_key(gpu);
        if !is_passed_through {
            tracing::info!(%gpu, "the GPU is no longer passed through to virtual machines");
        }
        is_passed_through
    });
    for (gpu, of_kernel) in passthrough {
        if named.insert(gpu.clone()) {
            let kernel_driver = &of_kernel.kernel_driver;
            tracing::info!(%gpu, %kernel_driver, "the GPU is passed through to virtual machines");
        }
    }
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
