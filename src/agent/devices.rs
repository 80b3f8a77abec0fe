//! The wiring of the hardware threads.
//!
//! In: a driver. Out: the states that its threads publish, and the commands of the driver.

use std::sync::Arc;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::model::HardwareState;
use crate::hardware::{self, CallDurations, DemandSender, Driver, HardwareHandle, Loading, XidSender};
use crate::kubelet::holders::HeldDemand;
use crate::serve::web::DriverCommands;
use crate::tasks::{NoThread, Tasks};

/// The hardware threads, and what they publish.
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
    clock: Clock,
    tasks: &mut Tasks,
) -> Result<Devices, NoThread> {
    let call_durations = driver.as_ref().and_then(|driver| driver.call_durations());
    let hardware = driver.map(|driver| hardware::start(driver, settings, xids, clock)).transpose()?;
    if let Some(hardware) = &hardware {
        let mut states = hardware.states.clone();
        // The threads end this channel when they have panicked.
        tasks.spawn("hardware", async move { while states.changed().await.is_ok() {} });
    }
    // Without a driver a state that is constant, of a closed channel.
    let states = hardware.as_ref().map_or_else(|| watch::channel(Arc::default()).1, |hardware| hardware.states.clone());
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

    /// Where to send the GPUs that containers hold. `None` without a driver.
    pub fn held_demand(&self) -> Option<HeldDemand> {
        let demand = self.demand()?;
        Some(Box::new(move |held, changed| demand.held(held, changed)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::HardwareSource;
    use crate::hardware::{DriverSession, Failure, HardwareSettings};
    use crate::tasks::TaskError;

    struct FaultyDriver;

    impl Driver for FaultyDriver {
        fn source(&self) -> HardwareSource {
            HardwareSource::Simulated
        }

        fn open(&mut self) -> Result<Box<dyn DriverSession>, Failure> {
            panic!("a fault of this driver")
        }
    }

    #[tokio::test]
    async fn a_panic_of_the_driver_thread_ends_the_agent() {
        let mut tasks = Tasks::default();
        let settings = HardwareSettings { sys_root: "/nonexistent".into(), ..HardwareSettings::default() };
        let xids = XidSender::new::<0>().0;
        let devices = start(Some(Box::new(FaultyDriver)), settings, xids, Clock::start(), &mut tasks).unwrap();
        assert!(matches!(tasks.ended().await, TaskError::Ended("hardware")));
        drop(devices);
    }
}
