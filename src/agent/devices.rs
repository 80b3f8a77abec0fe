use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::missing;
use super::settings::Reloadable;
use crate::clock::Clock;
use crate::hardware::{self, CallDurations, Driver, Hardware, Loading};
use crate::model::{HardwareState, KubeletState, XidEvent};
use crate::tasks::Tasks;
use crate::web::DriverCommands;

pub type XidBatches = mpsc::Receiver<Vec<XidEvent>>;

/// What completes the driver's list of GPUs.
pub struct Inputs {
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    pub reloadable: watch::Receiver<Reloadable>,
}

/// The hardware threads, and the device states with the GPUs that the driver does not list.
pub struct Devices {
    hardware: Option<Hardware>,
    call_durations: Option<CallDurations>,
    states: watch::Receiver<Arc<HardwareState>>,
    /// Keeps the constant state of a node without a driver published.
    _no_driver: watch::Sender<Arc<HardwareState>>,
}

/// `driver` is `None` for an agent that reads no devices.
pub fn start(
    driver: Option<Box<dyn Driver>>,
    settings: hardware::Settings,
    inputs: Inputs,
    clock: Clock,
    tasks: &mut Tasks,
) -> Devices {
    let call_durations = driver.as_ref().and_then(|driver| driver.call_durations());
    let hardware = driver.map(|driver| hardware::start(driver, settings, clock));
    let no_driver = watch::Sender::new(Arc::<HardwareState>::default());
    let listed = hardware.as_ref().map_or_else(|| no_driver.subscribe(), Hardware::watch);
    let states = missing::start(listed, inputs, clock, tasks);
    Devices { hardware, call_durations, states, _no_driver: no_driver }
}

impl Devices {
    pub fn states(&self) -> watch::Receiver<Arc<HardwareState>> {
        self.states.clone()
    }

    pub fn call_durations(&self) -> Option<CallDurations> {
        self.call_durations.clone()
    }

    /// The XIDs. `None` without a driver, and at every call but the first.
    pub fn xids(&mut self) -> Option<XidBatches> {
        self.hardware.as_mut().and_then(Hardware::xids)
    }

    /// Since when the driver's library is being loaded. `None` without a driver.
    pub fn loading(&self) -> Option<Loading> {
        self.hardware.as_ref().map(Hardware::loading)
    }

    /// Releases and resumes the driver. `None` without a driver.
    pub fn orders(&self) -> Option<DriverCommands> {
        let lease = self.hardware.as_ref()?.lease();
        let (releases, resumes) = (lease.clone(), lease);
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

    /// Closes the driver and ends the threads, on a blocking thread.
    pub fn stop(self) -> Option<JoinHandle<()>> {
        self.hardware.map(|hardware| tokio::task::spawn_blocking(move || hardware.stop()))
    }
}
