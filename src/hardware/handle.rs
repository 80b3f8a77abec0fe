//! The room as others hold it: started, watched, ordered about, stopped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tracing::{error, warn};

use super::kmsg::Kmsg;
use super::mailbox::Mailbox;
use super::pci::Bus;
use super::release::DriverLease;
use super::settings::Settings;
use super::source::Driver;
use super::supervisor::Supervisor;
use super::worker::{Event, spawn_driver_thread};
use crate::clock::Clock;
use crate::model::{HardwareState, XidEvent};
use crate::threads;

/// Events wait here while the supervisor is busy; a full queue holds the workers back, not the memory.
const EVENTS: usize = 128;
const STACK_BYTES: usize = 512 * 1024;
/// How long the threads have to end.
const STOP: Duration = Duration::from_secs(3);

/// The running room. Dropping it asks the threads to end and waits for nothing.
#[derive(Debug)]
pub struct Hardware {
    events: SyncSender<Event>,
    ended: Receiver<()>,
    states: watch::Receiver<Arc<HardwareState>>,
    xids: Option<mpsc::Receiver<Vec<XidEvent>>>,
}

impl Hardware {
    /// Every publication; the first value says that nothing is known yet.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<HardwareState>> {
        self.states.clone()
    }

    /// Every XID that a source told of, from the first one on, in batches by the time of hearing. Given out once. While
    /// nobody reads, equal ones are counted together.
    #[must_use]
    pub fn xids(&mut self) -> Option<mpsc::Receiver<Vec<XidEvent>>> {
        self.xids.take()
    }

    /// To have the driver closed and opened again.
    #[must_use]
    pub fn lease(&self) -> DriverLease {
        DriverLease::new(self.events.clone())
    }

    /// Closes the driver and ends the threads; blocks for three seconds at most. A thread inside a call is left behind.
    pub fn stop(self) {
        if self.events.send(Event::Stop).is_ok() && self.ended.recv_timeout(STOP) == Err(RecvTimeoutError::Timeout) {
            warn!("the hardware threads did not end in time and are left behind");
        }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // Refused only after `stop`, or by a queue so full that the process is ending anyway.
        let _ = self.events.try_send(Event::Stop);
    }
}

/// Starts the room's threads. A driver that cannot be opened is tried again for ever.
#[must_use]
pub fn start(driver: Box<dyn Driver>, settings: Settings, clock: Clock) -> Hardware {
    let source = driver.name();
    let (events, received) = sync_channel(EVENTS);
    let (ends, ended) = channel();
    let (publisher, states) = watch::channel(Arc::new(HardwareState { source, ..HardwareState::default() }));
    let (mailbox, xids) = Mailbox::new();
    let sender = events.clone();
    let kmsg = settings.kmsg.clone().and_then(|path| {
        let kmsg = Kmsg::spawn(path, clock, states.clone(), mailbox.clone(), events.clone(), ends.clone());
        kmsg.inspect_err(|problem| error!(%problem, "no thread for the kernel's log: it is not read for XIDs")).ok()
    });
    let started = Builder::new().name("hardware".to_owned()).stack_size(STACK_BYTES).spawn(move || {
        // What it does while the driver library hangs needs nothing of the loader's.
        threads::prepare();
        // Ends with this thread.
        let _kmsg = kmsg;
        let bus = Bus::new(settings.sys_root.clone(), settings.proc_root.clone());
        match spawn_driver_thread(driver, bus, sender.clone()) {
            Ok(driver_thread) => {
                Supervisor::new(source, settings, clock, driver_thread, sender, publisher, mailbox)
                    .run(&received, ends);
            }
            Err(problem) => error!(%problem, "no thread for the driver: there will be no device readings"),
        }
    });
    if let Err(problem) = started {
        error!(%problem, "no thread for the hardware: there will be no device readings");
    }
    Hardware { events, ended, states, xids: Some(xids) }
}
