//! Starts the hardware threads, and the handle to watch, release and resume them.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;

use tokio::sync::watch;
use tracing::error;

use super::event_thread::XidSender;
use super::messages::SupervisorEvent;
use super::pci::Bus;
use super::release::DriverLease;
use super::settings::HardwareSettings;
use super::source::Driver;
use super::supervisor::Supervisor;
use super::worker::{Loading, spawn_driver_thread};
use crate::clock::Clock;
use crate::domain::model::HardwareState;

/// Events that wait while the supervisor is busy; a full queue blocks the workers instead of growing.
const EVENTS: usize = 128;
const STACK_BYTES: usize = 512 * 1024;

/// The running hardware threads. Dropping the handle closes the driver and ends them, without waiting; a thread inside
/// a driver call is abandoned.
#[derive(Debug)]
pub struct HardwareHandle {
    events: SyncSender<SupervisorEvent>,
    states: watch::Receiver<Arc<HardwareState>>,
    loading: Loading,
}

impl HardwareHandle {
    /// Every publication; the first value has no data yet.
    pub fn watch(&self) -> watch::Receiver<Arc<HardwareState>> {
        self.states.clone()
    }

    /// Since when the driver's library is being loaded.
    pub fn loading(&self) -> Loading {
        self.loading.clone()
    }

    /// What requests releases of the driver, and their end.
    #[must_use]
    pub fn lease(&self) -> DriverLease {
        DriverLease::new(self.events.clone())
    }
}

impl Drop for HardwareHandle {
    fn drop(&mut self) {
        // Fails only with a full queue, at the end of the process.
        let _ = self.events.try_send(SupervisorEvent::Stop);
    }
}

/// Starts the hardware threads. A driver that cannot be opened is retried until it can.
pub fn start(driver: Box<dyn Driver>, settings: HardwareSettings, xids: XidSender, clock: Clock) -> HardwareHandle {
    let source = driver.source();
    let (events, received) = sync_channel(EVENTS);
    let (publisher, states) = watch::channel(Arc::new(HardwareState { source, ..HardwareState::default() }));
    let (sender, loading) = (events.clone(), Loading::new(clock));
    let to_load = loading.clone();
    let started = Builder::new().name("hardware".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        let bus = Bus::new(settings.sys_root.clone(), settings.proc_root.clone());
        match spawn_driver_thread(driver, bus, to_load.clone(), sender.clone()) {
            Ok(driver_thread) => {
                let driver_thread = (driver_thread, to_load);
                Supervisor::new(source, settings, clock, driver_thread, sender, publisher, xids).run(&received);
            }
            Err(problem) => error!(%problem, "cannot start the driver thread: there will be no device readings"),
        }
    });
    if let Err(problem) = started {
        error!(%problem, "cannot start the hardware thread: there will be no device readings");
    }
    HardwareHandle { events, states, loading }
}
