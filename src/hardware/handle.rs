//! Starts the hardware threads; their handle has their state and releases the driver.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use tokio::sync::watch;

use super::demand::DemandSender;
use super::event_thread::XidSender;
use super::messages::SupervisorMessage;
use super::pci::Bus;
use super::release::DriverLease;
use super::settings::HardwareSettings;
use super::source::Driver;
use super::supervisor::Supervisor;
use super::worker::{self, Loading, spawn_driver_thread};
use crate::clock::Clock;
use crate::domain::model::HardwareState;
use crate::tasks::NoThread;

/// The most messages that wait for the supervisor; a full queue blocks the threads that send them.
const QUEUED_MESSAGES: usize = 128;

/// The running hardware threads. Dropping the handle closes the driver and ends them, without waiting; a thread inside
/// a driver call is abandoned.
#[derive(Debug)]
pub struct HardwareHandle {
    /// The published state; the first value has no data yet.
    pub states: watch::Receiver<Arc<HardwareState>>,
    /// Since when the driver's library is being loaded.
    pub loading: Loading,
    /// Requests releases of the driver, and their end.
    pub lease: DriverLease,
    pub demand: DemandSender,
}

impl Drop for HardwareHandle {
    fn drop(&mut self) {
        // Fails only with a full queue, at the end of the process.
        let _ = self.lease.to_supervisor.try_send(SupervisorMessage::Stop);
    }
}

/// Starts the hardware threads. A driver that cannot be opened is retried until it can.
pub fn start(
    driver: Box<dyn Driver>,
    settings: HardwareSettings,
    xids: XidSender,
    clock: Clock,
) -> Result<HardwareHandle, NoThread> {
    let (to_supervisor, messages) = sync_channel(QUEUED_MESSAGES);
    let (publisher, states) =
        watch::channel(Arc::new(HardwareState { source: driver.source(), ..HardwareState::default() }));
    let (sender, loading) = (to_supervisor.clone(), Loading::new(clock));
    let to_load = loading.clone();
    let bus = Bus::new(settings.sys_root.clone(), settings.proc_root.clone(), settings.ignored_gpus.clone());
    let driver_thread = spawn_driver_thread(driver, bus, to_load.clone(), sender.clone())?;
    worker::spawn("hardware", move || {
        Supervisor::new(settings, clock, driver_thread, to_load, sender, publisher, xids).run(&messages);
    })?;
    let demand = DemandSender { to_supervisor: to_supervisor.clone() };
    Ok(HardwareHandle { states, loading, lease: DriverLease { to_supervisor }, demand })
}
