//! The wiring of the hardware threads.
//!
//! In: a driver, the kubelet's state. Out: device states with the GPUs that the driver does not list, and the commands
//! of the driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

use super::settings::Reloadable;
use crate::clock::Clock;
use crate::domain::holders::{HeldHardware, UnlistedGpus};
use crate::domain::model::{GpuUuid, HardwareState, KubeletState, PciBusId, ResourceName};
use crate::hardware::{self, CallDurations, DemandSender, Driver, HardwareHandle, Loading, XidSender};
use crate::serve::web::DriverCommands;
use crate::tasks::{self, NoThread, Tasks};

/// What completes the driver's list of GPUs.
pub struct DeviceInputs {
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// With the resources that the bundled plugin offers.
    pub reloadable: watch::Receiver<Reloadable>,
    /// Where an earlier agent had GPUs that the driver served.
    pub served: BTreeSet<PciBusId>,
}

/// The hardware threads, and the device states with the GPUs that the driver does not list.
pub struct Devices {
    hardware: Option<HardwareHandle>,
    pub call_durations: Option<CallDurations>,
    pub states: watch::Receiver<Arc<HardwareState>>,
}

/// `driver` is `None` for an agent that reads no devices.
pub fn start(
    driver: Option<Box<dyn Driver>>,
    settings: hardware::HardwareSettings,
    xids: XidSender,
    inputs: DeviceInputs,
    clock: Clock,
    tasks: &mut Tasks,
) -> Result<Devices, NoThread> {
    let call_durations = driver.as_ref().and_then(|driver| driver.call_durations());
    let hardware = driver.map(|driver| hardware::start(driver, settings, xids, clock)).transpose()?;
    // Without a driver a state that is constant, of a closed channel.
    let listed = hardware.as_ref().map_or_else(|| watch::channel(Arc::default()).1, |hardware| hardware.states.clone());
    let (publish, states) = watch::channel(listed.borrow().clone());
    tasks.spawn("devices", complete(listed, inputs, clock, publish));
    Ok(Devices { hardware, call_durations, states })
}

impl Devices {
    /// Since when the driver's library is being loaded. `None` without a driver.
    pub fn loading(&self) -> Option<Loading> {
        self.hardware.as_ref().map(|hardware| hardware.loading.clone())
    }

    /// Where to send what the GPUs are read for. `None` without a driver.
    pub fn demand(&self) -> Option<DemandSender> {
        Some(self.hardware.as_ref()?.demand.clone())
    }

    /// Releases and resumes the driver. `None` without a driver.
    pub fn driver_commands(&self) -> Option<DriverCommands> {
        let lease = &self.hardware.as_ref()?.lease;
        let (releases, resumes) = (lease.clone(), lease.clone());
        Some(DriverCommands {
            release: Arc::new(move |duration| {
                let lease = releases.clone();
                Box::pin(async move { lease.release(duration).await.map_err(|problem| problem.to_string()) })
            }),
            resume: Arc::new(move |()| {
                let lease = resumes.clone();
                Box::pin(async move { lease.resume().await.map_err(|problem| problem.to_string()) })
            }),
        })
    }
}

/// Publishes `hardware` with the GPUs that are missing. The end of the hardware threads is logged here, as the agent
/// continues without them; with another task the agent ends.
async fn complete(
    mut hardware: watch::Receiver<Arc<HardwareState>>,
    DeviceInputs { mut kubelet, reloadable, served }: DeviceInputs,
    clock: Clock,
    publish: watch::Sender<Arc<HardwareState>>,
) {
    let mut unlisted = UnlistedGpus::new(served);
    let mut logged = LoggedGpus::default();
    let mut hardware_runs = hardware.has_changed().is_ok();
    loop {
        let completed = {
            let (state, kubelet) = (hardware.borrow_and_update().clone(), kubelet.borrow_and_update().clone());
            let plan = reloadable.borrow().device_plugin.clone().unwrap_or_default();
            let is_ours = |resource: &ResourceName| plan.all_entries().any(|entry| entry.may_offer_gpus_as(resource));
            let completed = unlisted.add_to(&state, &kubelet, &is_ours, clock.now().monotonic);
            log(&completed, &kubelet, &mut logged);
            completed
        };
        publish.send_replace(completed);
        tokio::select! {
            changed = hardware.changed(), if hardware_runs => if changed.is_err() {
                tracing::error!("the hardware threads have ended; the device readings are no longer updated");
                hardware_runs = false;
            },
            () = tasks::changed(&mut kubelet) => {}
        }
    }
}

#[derive(Default)]
struct LoggedGpus {
    missing: BTreeSet<GpuUuid>,
    unserved: BTreeSet<GpuUuid>,
}

fn log(state: &HardwareState, kubelet: &KubeletState, logged: &mut LoggedGpus) {
    let inventory = &state.inventory;
    log_changes(&inventory.missing, &mut logged.missing, "the GPU is no longer missing", |gpu, missing| {
        let held = HeldHardware::new(kubelet.holding_containers(), inventory).contains(gpu);
        tracing::warn!(%gpu, held, "a GPU is missing: {}; see nvidia-smi and the Xid lines of the kernel log", missing.detail);
    });
    let ended = "the GPU was removed, or the NVIDIA driver is now expected to serve it";
    log_changes(&inventory.unserved, &mut logged.unserved, ended, |gpu, of_kernel| {
        let address = inventory.gpus.get(gpu).and_then(|gpu| gpu.pci_bus_id.as_ref()).map_or("", PciBusId::as_str);
        tracing::warn!(
            %gpu,
            "the NVIDIA driver does not serve this GPU ({of_kernel}), so it is not offered and has no health; to use it, \
             install a driver that supports it or bind it to nvidia; to hide it, set ignoreGpus: [\"{address}\"]"
        );
    });
}

/// One line for each GPU that is listed, and one when it no longer is.
fn log_changes<T>(
    listed: &BTreeMap<GpuUuid, T>,
    logged: &mut BTreeSet<GpuUuid>,
    ended: &str,
    began: impl Fn(&GpuUuid, &T),
) {
    for gpu in logged.iter().filter(|gpu| !listed.contains_key(gpu)) {
        tracing::info!(%gpu, "{ended}");
    }
    for (gpu, found) in listed.iter().filter(|(gpu, _)| !logged.contains(gpu)) {
        began(gpu, found);
    }
    *logged = listed.keys().cloned().collect();
}
